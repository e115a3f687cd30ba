"""Watching the policies topic beside the loop, so that a look for newer weights never blocks it."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Self

from penstock_producers.policy.candidates import Candidates
from penstock_producers.policy.fetcher import Fetcher
from penstock_schemas.errors import PenstockError, PolicyRejectedError, TopicError
from penstock_schemas.policies import decode_announcement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock_producers.policy.fetcher import Weights
    from penstock_schemas.log import Log, Reader, Record
    from penstock_schemas.policies import Announcement, PolicyRecord

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
# How often a log that gives nothing is asked whether it is there: Kafka's polls do not tell.
_ASK_SECONDS = 5.0
_LEAVE_SECONDS = 1.0


class PolicyWatcher:
    """Keeps the newest version of a stream's policy that can act at hand; never goes back to an older one.

    Used as a context: entering reads what the topic holds, then threads of its own follow it, and fetch what no message
    holds. Entering raises what the log raises; the threads outlive whatever goes wrong, since the last good policy acts
    on meanwhile. Leaving does not wait for a log that hangs.

    Args:
        log: where the topic is.
        topic: the stream's policies.
        check: raises `PolicyRejectedError` for a version that cannot act; what it refuses displaces nothing.
        rejected: told of every version that was refused, from the thread that read it or was to load it: once each
            time that it is read. Where the log no longer holds the place that was read up to, all that it holds is
            read again.
        weights: where weights are that are larger than a message; without it such a version is refused.
        waiting: told why there are no news, from the thread that follows the topic, and None once there are again.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        *,
        check: Callable[[PolicyRecord], None],
        rejected: Callable[[PolicyRejectedError], None],
        weights: Weights | None = None,
        waiting: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._log = log
        self._topic = topic
        self._check = check
        self._rejected = rejected
        self._waiting = waiting
        self._stop = threading.Event()
        self._candidates = Candidates()
        self._fetcher: Fetcher | None = None
        if weights is not None:
            self._fetcher = Fetcher(weights, self._candidates, fetched=self._judge, refused=self._refuse)
        self._opened = ExitStack()

    @property
    def announced(self) -> int:
        """The newest version announced and not refused, whether or not its weights are at hand; 0 before any."""
        return self._candidates.announced

    @property
    def at_hand(self) -> bool:
        """Whether there is a version for `load`; never waits."""
        return self._candidates.at_hand

    def load(self, load: Callable[[PolicyRecord], None]) -> bool:
        """Load the newest version at hand, one newer than any before; whether there was one. Never waits for any.

        What `load` refuses by a `PolicyRejectedError` counts as announced no longer, and the one before it is loaded.
        """
        while (newest := self._candidates.newest()) is not None:
            try:
                load(newest)
            except PolicyRejectedError as rejected:
                # In this order: whoever finds that it is no longer waited for finds that it was refused.
                self._rejected(rejected)
                self._candidates.withdraw(newest)
            else:
                self._candidates.loaded(newest)
                return True
        return False

    def wait(self, seconds: float) -> None:
        """Wait until a version came to hand or was refused since the last time, at most so many seconds."""
        self._candidates.wait(seconds)

    def __enter__(self) -> Self:
        reader = self._log.reader()
        try:
            self._read_all(reader)
            if self._fetcher is not None:
                self._opened.enter_context(self._fetcher)
            follower = threading.Thread(target=self._follow, args=(reader,), name="policy-watcher", daemon=True)
            follower.start()
        except BaseException:
            self._opened.close()
            reader.close()
            raise
        self._opened.callback(follower.join, _LEAVE_SECONDS)
        self._opened.callback(self._stop.set)
        return self

    def __exit__(self, *exc: object) -> None:
        self._opened.close()

    def _read_all(self, reader: Reader) -> None:
        start, end = reader.bounds(self._topic, 0)
        reader.seek(self._topic, 0, start)
        while start < end:
            records = reader.poll(_POLL_SECONDS)
            self._consider(records)
            start = records[-1].offset + 1 if records else reader.bounds(self._topic, 0)[0]

    def _follow(self, reader: Reader) -> None:
        # The reader is this thread's to close: who leaves may not wait until it is not amid a poll.
        with closing(reader):
            told, outside, ask_at = "", False, 0.0
            while not self._stop.is_set():
                try:
                    if outside:
                        # Recreated, or cut by its retention: what it holds now is all that there is to know.
                        reader.seek(self._topic, 0, reader.bounds(self._topic, 0)[0])
                        outside = False
                    records = reader.poll(_POLL_SECONDS)
                    if not records and time.monotonic() >= ask_at:
                        reader.bounds(self._topic, 0)
                        ask_at = time.monotonic() + _ASK_SECONDS
                    if not self._stop.is_set():
                        self._consider(records)
                except Exception as error:  # noqa: BLE001 - a thread that ended would end all news of policies, unheard
                    # After the stop the log may be closed, and news are not missed.
                    if self._stop.is_set():
                        break
                    outside = outside or isinstance(error, TopicError)
                    ask_at = 0.0
                    self._waiting(str(error))
                    if str(error) != told:
                        told = str(error)
                        unforeseen = not isinstance(error, PenstockError)
                        _LOG.warning("no news of policies, trying again: %s", error, exc_info=unforeseen)
                    self._stop.wait(_POLL_SECONDS)
                else:
                    if told:
                        self._waiting(None)
                    told = ""

    def _consider(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                announced = decode_announcement(record)
            except PolicyRejectedError as rejected:
                self._rejected(rejected)
                continue
            except Exception as error:  # noqa: BLE001 - as above: one record is not to end the news
                self._rejected(_unforeseen(f"the policy record at offset {record.offset} of {self._topic}", error))
                continue
            if not self._candidates.expect(announced):
                continue
            if announced.inline is not None:
                self._judge(announced, announced.inline)
            elif self._fetcher is None:
                detail = f"policy version {announced.version}: its weights lie in the stream's store: give --store"
                self._refuse(announced, PolicyRejectedError("no_store", detail))

    def _judge(self, announced: Announcement, data: bytes) -> None:
        """Put a version at hand, or refuse it."""
        try:
            found = announced.policy(data)
            self._check(found)
        except PolicyRejectedError as rejected:
            self._refuse(announced, rejected)
        except Exception as error:  # noqa: BLE001 - as above: one version is not to end the news
            self._refuse(announced, _unforeseen(f"policy version {announced.version}", error))
        else:
            self._candidates.offer(announced, found)

    def _refuse(self, announced: Announcement, rejected: PolicyRejectedError) -> None:
        # In this order: whoever waits for the version and goes on finds that it was refused.
        self._rejected(rejected)
        self._candidates.refuse(announced)


def _unforeseen(what: str, error: Exception) -> PolicyRejectedError:
    _LOG.error("%s", what, exc_info=error)
    return PolicyRejectedError("error", f"{what}: {error!r}")
