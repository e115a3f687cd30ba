"""Appending to Kafka."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from penstock_schemas.errors import FatalError, LogUnavailableError, PenstockError, TopicError
from penstock_schemas.log.appending import check_given
from penstock_schemas.log.base import Appended

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_schemas.log.base import Headers
    from penstock_schemas.log.kafka_client import Connection

# What the producer's own report of a timeout, which says more than the appender's, may come late.
_GRACE_SECONDS = 0.5

_BEHIND = "a record before it was not acknowledged in time"


@dataclass(frozen=True, slots=True)
class _Pending:
    """A record that was handed to `producer` and is neither acknowledged nor given up."""

    future: Future[Appended]
    producer: Any
    where: str
    size: int
    deadline: float


class KafkaAppender:
    """Appends with acknowledgement of all replicas, idempotently, each partition's records in order.

    `append` waits while more than `max_buffered_bytes` are unacknowledged, at most the connection's timeout.

    A record that times out takes its producer with it, and all that waits behind it there: later records must
    not overtake it, and kafka-python 3.0's idempotent producer may hang for good once a batch that it had sent
    has timed out. The next append starts with a new producer.
    """

    def __init__(
        self,
        connection: Connection,
        count_partitions: Callable[[str], int],
        *,
        delivery_timeout: float,
        max_message_bytes: int,
        max_buffered_bytes: int,
    ) -> None:
        self._connection = connection
        self._count_partitions = count_partitions
        self._delivery_timeout = delivery_timeout
        self._max_message_bytes = max_message_bytes
        self._max_buffered_bytes = max_buffered_bytes
        self._partitions: dict[str, int] = {}
        self._opening = threading.Lock()
        self._changed = threading.Condition()  # guards what follows
        self._numbers = itertools.count()
        self._pending: dict[int, _Pending] = {}  # the oldest first
        self._buffered_bytes = 0
        self._closed = False
        self._producer: Any = self._open()
        threading.Thread(target=self._watch, name="penstock-appender-deadlines", daemon=True).start()

    def append(
        self,
        topic: str,
        partition: int,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers = (),
    ) -> Future[Appended]:
        """Hand over a record; raises `ValueError` where no log takes it, all else is the future's."""
        where = f"{topic}-{partition}"
        check_given(where, key, value, headers)
        future: Future[Appended] = Future()
        try:
            producer = self._current_producer(where)
            self._check(topic, partition)
            number = self._reserve(future, producer, where, len(key or b"") + len(value or b""))
        except PenstockError as error:
            future.set_exception(error)
            return future
        try:
            sent = producer.send(topic, value=value, key=key, headers=list(headers), partition=partition)
        except KafkaError as error:
            self._fail(number, error)
        else:
            sent.add_callback(lambda metadata: self._succeed(number, metadata))
            sent.add_errback(lambda error: self._fail(number, error))
        return future

    def close(self, timeout: float = 10.0) -> None:
        """Wait up to `timeout` seconds for what is under way, then fail the rest."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._pending, timeout)
            producer, rest = self._producer, bool(self._pending)
            self._changed.notify_all()
        if producer is None:
            return
        if rest:
            self._retire(producer, "the appender was closed")
        else:
            producer.close(timeout)

    def _open(self) -> Any:
        delivery_timeout_ms = int(self._delivery_timeout * 1000)
        producer, _ = self._connection.open(
            KafkaProducer,
            acks="all",
            enable_idempotence=True,
            # Records that wait for their partition's turn travel together; none waits for others to come.
            batch_size=self._max_message_bytes // 2,
            linger_ms=0,
            max_request_size=self._max_message_bytes,
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=min(30_000, delivery_timeout_ms),
            max_block_ms=int(self._connection.timeout * 1000),
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )
        return producer

    def _current_producer(self, where: str) -> Any:
        with self._opening:
            self._refuse_if_closed(where)
            if self._producer is None:
                # Topics may have been recreated in what made the last producer fail.
                self._partitions.clear()
                opened = self._open()
                with self._changed:
                    self._producer = opened
                    late = self._closed
                if late:
                    # `close` does not wait for a connection, so it has not seen this one.
                    self._retire(opened, "the appender was closed")
                    self._refuse_if_closed(where)
            return self._producer

    def _refuse_if_closed(self, where: str) -> None:
        if self._closed:
            raise FatalError(f"cannot append to {where}: the appender is closed")

    def _check(self, topic: str, partition: int) -> None:
        """Tell a missing topic from an absent broker, which to the producer look alike."""
        if partition >= self._partitions.get(topic, 0):
            self._partitions[topic] = self._count_partitions(topic)
        if not 0 <= partition < self._partitions[topic]:
            raise TopicError(f"topic {topic!r} has no partition {partition}: it has {self._partitions[topic]}")

    def _reserve(self, future: Future[Appended], producer: Any, where: str, size: int) -> int:
        """Wait for room in the buffer, and take it."""

        def fits() -> bool:
            return not self._pending or self._buffered_bytes + size <= self._max_buffered_bytes

        with self._changed:
            in_time = self._changed.wait_for(lambda: self._closed or fits(), self._connection.timeout)
            # Again: it may have been closed since, and who keeps the deadlines has ended with it.
            self._refuse_if_closed(where)
            if not in_time:
                raise LogUnavailableError(
                    f"cannot append to {where}: Kafka at {self._connection.bootstrap_servers} has left "
                    f"{self._buffered_bytes} bytes unacknowledged for {self._connection.timeout} s: try again"
                )
            if self._producer is not producer:
                raise LogUnavailableError(f"cannot append to {where}: {_BEHIND}; try again")
            number = next(self._numbers)
            deadline = time.monotonic() + self._delivery_timeout + _GRACE_SECONDS
            self._pending[number] = _Pending(future, producer, where, size, deadline)
            self._buffered_bytes += size
            self._changed.notify_all()
            return number

    def _settle(self, number: int) -> _Pending | None:
        """Return a record that now gets its outcome; None where it has one already."""
        with self._changed:
            settled = self._pending.pop(number, None)
            if settled is not None:
                self._buffered_bytes -= settled.size
                self._changed.notify_all()
            return settled

    def _succeed(self, number: int, metadata: Any) -> None:
        if (settled := self._settle(number)) is not None:
            settled.future.set_result(Appended(metadata.partition, metadata.offset, metadata.timestamp))

    def _fail(self, number: int, error: Exception) -> None:
        if (settled := self._settle(number)) is not None:
            meant = self._connection.error(error, f"append to {settled.where}")
            if isinstance(meant, LogUnavailableError):
                self._retire(settled.producer, _BEHIND)
            settled.future.set_exception(meant)

    def _retire(self, producer: Any, why: str) -> None:
        """Let go of a producer and fail all that it has not delivered; some may be in the log all the same."""
        with self._changed:
            if self._producer is producer:
                self._producer = None
            numbers = [number for number, pending in self._pending.items() if pending.producer is producer]
            given_up = [settled for number in numbers if (settled := self._settle(number)) is not None]
        # Not here: this may be the producer's own thread.
        threading.Thread(target=_close_by_force, args=[producer], daemon=True).start()
        for settled in given_up:
            settled.future.set_exception(
                LogUnavailableError(
                    f"cannot append to {settled.where}: {why}; is Kafka up at "
                    f"{self._connection.bootstrap_servers}? Try again"
                )
            )

    def _watch(self) -> None:
        """Keep the deadline where the producer does not: without a producer id it lets records wait."""
        while True:
            with self._changed:
                if self._closed and not self._pending:
                    return
                overdue = next(iter(self._pending.values()), None)
                left = None if overdue is None else overdue.deadline - time.monotonic()
                if overdue is None or (left is not None and left > 0):
                    self._changed.wait(left)
                    continue
            self._retire(overdue.producer, f"it was not acknowledged within {self._delivery_timeout} s")


def _close_by_force(producer: Any) -> None:
    """Close a producer without waiting for what it has; its own `close` would, and then not close at all."""
    producer._sender.force_close()  # noqa: SLF001  (kafka-python has no public way)
    producer._sender.join()  # noqa: SLF001  (the same)
    producer.close(0)
