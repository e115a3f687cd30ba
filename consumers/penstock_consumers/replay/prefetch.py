"""Batches drawn ahead by a thread, while the learner learns from those before."""

from __future__ import annotations

import weakref
from collections import deque
from threading import Condition, Thread, current_thread
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

T = TypeVar("T")

# Whoever drops a `Prefetch`, or exits, waits so long for the batch that is being drawn.
_PATIENCE_SECONDS = 5.0


class Prefetch(Generic[T]):
    """Draws from `batches` in a thread of its own, so that a batch is there when it is asked for.

    What drawing raises is raised by `next`, in its turn. The thread ends with the batches, with `close()`, at the end
    of a `with`, or when this is dropped; what was drawn ahead is dropped then. While it lives, nobody else may draw
    from the same iterator. Batches come as they would without it, but for what is told of them late: `refresh()` and
    new priorities reach the batches behind the `depth` that are ready.

    Args:
        batches: any view, a `DataLoader`, or another iterable; what `iter` raises of it is raised here.
        depth: how many batches are ready at most; one more is being drawn.

    Raises:
        SettingsError: `depth` is less than 1.
    """

    def __init__(self, batches: Iterable[T], depth: int = 2) -> None:
        if depth < 1:
            raise SettingsError(f"depth {depth}: at least one batch is drawn ahead")
        self._ready: _Ready[T] = _Ready(depth)
        # The thread knows what is ready, and not this: else this would live for as long as the thread.
        self._thread = Thread(target=_draw, args=(iter(batches), self._ready), name="penstock-prefetch", daemon=True)
        self._dropped = weakref.finalize(self, _end, self._ready, self._thread)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return self._ready.get()

    def close(self) -> None:
        """End the thread: when this returns, it has drawn its last batch."""
        self._ready.stop()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Ready(Generic[T]):
    """What was drawn and not yet taken, between two threads."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._batches: deque[T] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._changed = Condition()

    def put(self, batch: T) -> bool:
        """Wait for room, then lay a batch behind the others; tell whether more are wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._batches) < self._depth)
            if not self._ended:
                self._batches.append(batch)
                self._changed.notify_all()
            return not self._ended

    def end(self, error: BaseException | None = None) -> None:
        """Say that no more come, and why; what was said first holds."""
        with self._changed:
            if not self._ended:
                self._error = error
                self._ended = True
                self._changed.notify_all()

    def stop(self) -> None:
        """Drop what is ready, and want no more."""
        with self._changed:
            self._batches.clear()
            self.end()

    def get(self) -> T:
        """Wait for a batch; raises what ended them, `StopIteration` where nothing did."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._batches)
            if self._batches:
                batch = self._batches.popleft()
                self._changed.notify_all()
                return batch
            raise self._error or StopIteration


def _draw(batches: Iterator[T], ready: _Ready[T]) -> None:
    error = None
    try:
        for batch in batches:
            if not ready.put(batch):
                return
    except BaseException as raised:  # noqa: BLE001  (whatever it is, it is raised where the next batch is asked for)
        error = raised
    ready.end(error)


def _end(ready: _Ready[T], thread: Thread) -> None:
    ready.stop()
    # The garbage of any thread may be collected in any other.
    if thread is not current_thread():
        thread.join(_PATIENCE_SECONDS)
