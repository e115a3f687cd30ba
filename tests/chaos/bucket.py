"""A bucket in which things go wrong as a control file says."""

from __future__ import annotations

import itertools
import random
import resource
import threading
import time
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from penstock_consumers.store import commits, layout
from penstock_schemas.errors import FencedError, StoreError, StoreUnavailableError
from tests.chaos.notes import Notes
from tests.consumers.messages import WrappedBucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock_consumers.store.bucket import Bucket

_SLOW_SECONDS = (0.2, 1.5)
_FULL_AT_BYTES = 512
# The limit on files is the whole process's: of two threads that set it, the last would put back the other's for good.
_LIMITING = threading.Lock()


class Trouble(StrEnum):
    """What is wrong with a bucket."""

    FULL = "disk-full"
    """Writes end in the middle."""
    GONE = "store-gone"
    SLOW = "store-slow"
    COMMIT_FAILS = "commit-fails"
    """Every other commit fails, and is not made."""
    COMMIT_UNANSWERED = "commit-unanswered"
    """Every other commit is made, and its answer is lost."""
    COMMIT_ECHOED = "commit-echoed"
    """Every other commit is made, and reported as another's: what a client that retries by itself sees."""
    COMMIT_RACED = "commit-raced"
    """Every other commit's number is taken by another's just before."""


class TroubledBucket(WrappedBucket):
    """A bucket before which a control file stands; each trouble that comes of it is noted beside the file."""

    def __init__(self, inner: Bucket, control: Path) -> None:
        super().__init__(inner)
        self._control = control
        self._notes = Notes(injected(control))
        self._every_other = itertools.cycle((True, False))
        self._rng = random.Random(str(control))  # noqa: S311 - not for secrets

    def operate(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        """Do an operation, or let it go wrong."""
        match self._trouble():
            case Trouble.GONE as trouble:
                self._notes.note(trouble)
                raise StoreUnavailableError(f"store {self.url}: cannot be reached: {trouble}")
            case Trouble.SLOW as trouble:
                self._notes.note(trouble)
                time.sleep(self._rng.uniform(*_SLOW_SECONDS))
            case Trouble.FULL as trouble if operation in {self.inner.create, self.inner.put}:
                self._notes.note(trouble)
                return self._on_a_full_disk(operation, *arguments)
            case _:
                pass
        return operation(*arguments)

    def create(self, name: str, data: bytes) -> bool:
        """Create an object; where it is a commit, that may go wrong in more ways."""
        trouble, place = self._trouble(), layout.commit_named(name)
        if place is None or trouble is None or not trouble.startswith("commit-") or not next(self._every_other):
            return super().create(name, data)
        self._notes.note(trouble)
        if trouble is Trouble.COMMIT_FAILS:
            raise StoreUnavailableError(f"store {self.url}: cannot write {name}: {trouble}")
        if trouble is Trouble.COMMIT_RACED:
            self._take(*place)
        created = super().create(name, data)
        if trouble is Trouble.COMMIT_UNANSWERED:
            raise StoreUnavailableError(f"store {self.url}: no answer for {name}: {trouble}")
        return created and trouble is not Trouble.COMMIT_ECHOED

    def _on_a_full_disk(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with _limited_files():
                return operation(*arguments)
        except StoreError as error:
            # What was written until here is what a full disk leaves; only the number of the error is another.
            raise StoreUnavailableError(f"{error} ({Trouble.FULL})") from error

    def _take(self, partition: int, number: int) -> None:
        """Make the commit of this number as a tool would that has nothing to change."""
        newest = commits.newest(self.inner, partition)
        if newest is not None and newest.number + 1 == number:
            with suppress(FencedError):
                commits.rewrite(self.inner, newest, commits.live_at(self.inner, newest))

    def _trouble(self) -> Trouble | None:
        with suppress(FileNotFoundError):
            if said := self._control.read_text():
                return Trouble(said)
        return None


def make_trouble(control: Path, trouble: Trouble | None) -> None:
    """Say what is wrong from now on; None for nothing."""
    new = control.with_name(f"{control.name}.new")
    new.write_text(trouble or "")
    new.rename(control)


def injected(control: Path) -> Path:
    """The file in which each trouble that came of a control file is noted."""
    return control.with_name(f"{control.name}.injected")


@contextmanager
def _limited_files() -> Iterator[None]:
    """Let files grow to a few bytes only: writes behind that fail, as on a full disk, without being root."""
    with _LIMITING:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL_AT_BYTES, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
