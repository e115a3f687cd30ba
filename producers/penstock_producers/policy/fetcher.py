"""Fetching weights from the store, in a thread of its own: neither the env loop nor the news wait for it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol, Self

from penstock_schemas.errors import PolicyRejectedError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_producers.policy.candidates import Candidates
    from penstock_schemas.policies import Announcement

_LOG = logging.getLogger(__name__)
_AGAIN_SECONDS = 1.0
_LEAVE_SECONDS = 1.0


class Weights(Protocol):
    """Where weights are that no message holds."""

    def read(self, object_name: str) -> bytes:
        """Read an object; raises `StoreError` to be asked again, `PolicyRejectedError` not to be."""
        ...


class Fetcher:
    """Fetches the newest version expected, again and again while the store does not answer.

    Used as a context. One that was overtaken is no longer fetched; where one is refused, the newest before it is
    fetched. Leaving does not wait for a store that hangs.

    Args:
        weights: the store.
        candidates: which versions are expected.
        fetched: is given what was announced and what was read, in the fetcher's thread.
        refused: is told why a version cannot be fetched, in the fetcher's thread.
    """

    def __init__(
        self,
        weights: Weights,
        candidates: Candidates,
        *,
        fetched: Callable[[Announcement, bytes], None],
        refused: Callable[[Announcement, PolicyRejectedError], None],
    ) -> None:
        self._weights = weights
        self._candidates = candidates
        self._fetched = fetched
        self._refused = refused
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="policy-fetcher", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._candidates.changed:
            self._stopped = True
            self._candidates.changed.notify_all()
        self._thread.join(_LEAVE_SECONDS)

    def _run(self) -> None:
        told = ""
        while (announced := self._next()) is not None:
            try:
                data = self._weights.read(announced.object_name)
            except PolicyRejectedError as rejected:
                if self._wanted(announced):
                    self._refused(announced, rejected)
            except Exception as error:  # noqa: BLE001 - a thread that ended would end all news of policies, unheard
                if str(error) != told:
                    told = str(error)
                    unforeseen = not isinstance(error, StoreError)
                    _LOG.warning(
                        "policy version %d not fetched, trying again: %s", announced.version, error, exc_info=unforeseen
                    )
                self._rest(announced)
            else:
                told = ""
                if self._wanted(announced):
                    self._fetched(announced, data)

    def _next(self) -> Announcement | None:
        """Wait for a version to fetch; None once there is to be no more."""
        candidates = self._candidates
        with candidates.changed:
            candidates.changed.wait_for(lambda: self._stopped or candidates.elsewhere() is not None)
            return None if self._stopped else candidates.elsewhere()

    def _rest(self, announced: Announcement) -> None:
        """Wait a while, unless another version is to be fetched meanwhile."""
        candidates = self._candidates
        with candidates.changed:
            candidates.changed.wait_for(
                lambda: self._stopped or candidates.elsewhere() is not announced, _AGAIN_SECONDS
            )

    def _wanted(self, announced: Announcement) -> bool:
        return not self._stopped and self._candidates.expected(announced)
