"""The folder of a run: one run at a time, and nothing of an earlier one."""

from __future__ import annotations

import fcntl
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MARKER = ".penstock-run"


@contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """Clear away what an earlier run left in a folder, and keep other runs out of it until this one has ended.

    Raises `SettingsError` where another run is in it, or where it holds something that is no run's.
    """
    marker = folder / _MARKER
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        raise SettingsError(f"--folder {folder}: it holds something that no run has left: name another")
    folder.mkdir(parents=True, exist_ok=True)
    with marker.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SettingsError(
                f"--folder {folder}: another run is in it: wait for its end, or name another"
            ) from error
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry != marker:
                entry.unlink()
        try:
            yield
        finally:
            shutil.rmtree(folder / "kafka", ignore_errors=True)
