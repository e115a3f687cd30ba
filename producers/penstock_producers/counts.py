"""Counters in a file: a producer that restarts goes on counting."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from penstock_producers.state import Component, load_state, save_state
from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_LOG = logging.getLogger(__name__)
_COUNTERS = "counters"
_EVERY_SECONDS = 30.0


class Counts(Protocol):
    """Counters that may be kept."""

    def counts(self) -> list[Any]:
        """What they show, as JSON; called from another thread."""
        ...

    def resume(self, counts: list[Any]) -> None:
        """Go on from what `counts` answered; raises `TypeError` or `ValueError` where it did not answer that."""
        ...


@contextmanager
def kept(path: Path | None, owner: Mapping[str, str], counts: Counts) -> Iterator[None]:
    """Go on from the counts in a file, and keep them there: now and then, from a thread of its own, and at the end.

    Without a path nothing is kept. `owner` says whose counts they are. Raises `SettingsError` for a file that does not
    read, or that is another's; a file that is not there is that of a first start. One that cannot be written is told
    of, and costs nothing but the counts.
    """
    if path is None:
        yield
        return
    _resume(path, owner, counts)
    stop = threading.Event()
    thread = threading.Thread(target=_keep, args=(path, owner, counts, stop), name="counts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _resume(path: Path, owner: Mapping[str, str], counts: Counts) -> None:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        raise SettingsError(f"--state {path}: it cannot be looked at: {error}; name another") from error
    held = load_state(path, [_COUNTERS])[_COUNTERS].values
    if held.get("owner") != owner:
        raise SettingsError(f"--state {path}: it holds the counts of {held.get('owner')}, not of {owner}; name another")
    try:
        counts.resume(held["counts"])
    except (KeyError, TypeError, ValueError) as error:
        raise SettingsError(f"--state {path}: no counts are in it: {error!r}; name another, or remove it") from error


def _keep(path: Path, owner: Mapping[str, str], counts: Counts, stop: threading.Event) -> None:
    told, stopped = "", False
    while not stopped:
        stopped = stop.wait(_EVERY_SECONDS)
        try:
            save_state(path, {_COUNTERS: Component({"owner": owner, "counts": counts.counts()})})
        except OSError as error:
            if str(error) != told:
                told = str(error)
                _LOG.warning("the counts are not kept: %s; check that --state can be written", error)
        else:
            told = ""
