"""Notes outside Kafka and outside the store: files of lines that outlive a SIGKILL of whoever writes them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Notes:
    """Appends lines to a file, each by one write: what was noted is with the kernel, whatever happens to the process.

    Several processes may append to one file.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, *words: object) -> None:
        """Append a line of words without spaces in them."""
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def read_notes(path: Path) -> list[list[str]]:
    """The words of each line; none where nothing was noted."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
