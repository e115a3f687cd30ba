"""How far a long read has come: counted by whoever reads, shown as a bar on a terminal."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Item = TypeVar("Item")

# A read that is over sooner shows nothing.
DELAY_SECONDS = 1.0


class Progress:
    """Counts what there is to read and what of it is done; shows nothing.

    Attributes:
        total: how much there is, as far as it is known by now.
        done: how much of it is read.
    """

    def __init__(self) -> None:
        self.total = 0
        self.done = 0

    def expect(self, count: int) -> None:
        """Count more in that there is to read."""
        self.total += count

    def advance(self, count: int) -> None:
        """Count what is read."""
        self.done += count


class _Bar(Progress):
    """Shows what it counts."""

    def __init__(self, shown: Any) -> None:
        super().__init__()
        self._shown = shown

    def expect(self, count: int) -> None:
        super().expect(count)
        self._shown.total = self.total

    def advance(self, count: int) -> None:
        super().advance(count)
        self._shown.update(count)


@contextmanager
def bar(
    what: str, unit: str = "steps", *, shown: bool | None = None, delay_seconds: float = DELAY_SECONDS
) -> Iterator[Progress]:
    """Show a bar on stderr while something is read, and remove it at the end.

    Args:
        what: stands in front of the bar.
        unit: of what is counted.
        shown: whether to; where it is None, only on a terminal.
        delay_seconds: how long the read must have taken before anything is seen of it.
    """
    if not (sys.stderr.isatty() if shown is None else shown):
        yield Progress()
        return
    # Loaded by whoever sees it: it takes longer than to read a small store.
    from tqdm.auto import tqdm  # noqa: PLC0415

    with tqdm(total=0, desc=what, unit=f" {unit}", unit_scale=True, leave=False, delay=delay_seconds) as drawn:
        yield _Bar(drawn)


def watched(
    items: Iterable[Item], count: Callable[[Item], int], total: int, what: str, *, shown: bool | None = True
) -> Iterator[Item]:
    """Give items, each counted once the next one is asked for; `shown` as in `bar`."""
    with bar(what, shown=shown) as progress:
        progress.expect(total)
        for item in items:
            yield item
            progress.advance(count(item))
