"""Publishing: messages of one incarnation, in order, each sent again until the log has it.

Messages leave one at a time, the next once the one before is acknowledged. A message whose acknowledgement was lost
is sent again under its old sequence number, and whoever reads the log drops the second copy. So an outage of any
length loses nothing and doubles nothing, and the incarnation goes on after it. One message is up to a megabyte: a
round trip each is no limit to an env loop.
"""

from __future__ import annotations

import logging
import threading
import uuid
import zlib
from collections import deque
from concurrent.futures import wait
from dataclasses import dataclass
from re import search
from typing import TYPE_CHECKING, Protocol, Self

from penstock_schemas.errors import EnvError, LogUnavailableError, PolicyError, TooLargeError
from penstock_schemas.messages import HEADER_BYTES, Encoded, encode_begin, encode_chunks, encode_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    import pyarrow as pa

    from penstock_schemas.log import Appended, Log
    from penstock_schemas.stream import StreamSpec

_LOG = logging.getLogger(__name__)
_RETRY_SECONDS = 0.5
# How long a message may be on its way before the log is told to be waited for; electing a leader takes less, mostly.
_SLOW_SECONDS = 5.0
_CLOSE_SECONDS = 1.0
# Arrow pads every buffer of a message to 8 bytes and names it in the message's metadata.
_BUFFER_BYTES = 64
_BUFFERS_PER_COLUMN = 4


class PublishObserver(Protocol):
    """Is told how publishing goes; called from the publisher's thread."""

    def published(self, encoded: Encoded, seconds: float) -> None:
        """The log has acknowledged a message, `seconds` after it was first sent."""
        ...

    def waiting(self, reason: str | None) -> None:
        """The log does not take messages, and why; None once it does again."""
        ...

    def in_flight(self, size: int) -> None:
        """Bytes that wait for an acknowledgement."""
        ...


@dataclass(frozen=True, slots=True)
class PublishLimits:
    """How large a message may be, and how many bytes may wait for the log before the env loop waits too."""

    max_message_bytes: int = 1 << 20
    max_in_flight_bytes: int = 16 << 20


def partition_for(producer: str, partitions: int) -> int:
    """Choose a producer's partition: its ordinal modulo their number where its name ends in one, else a hash."""
    ordinal = search(r"-(\d+)$", producer)
    return (int(ordinal[1]) if ordinal else zlib.crc32(producer.encode())) % partitions


def end_reason(error: BaseException) -> str:
    """Say with which reason an incarnation ends that an error ends."""
    match error:
        case EnvError():
            return f"env_error: {error}"
        case PolicyError():
            return f"policy_error: {error}"
        case _:
            return f"error: {error!r}"


def message_room(spec: StreamSpec, max_message_bytes: int) -> int:
    """How many bytes of chunk rows fit into a message beside all its overhead."""
    schema = len(encode_begin(spec, "", "").value or b"")
    return max_message_bytes - HEADER_BYTES - schema - _BUFFER_BYTES * _BUFFERS_PER_COLUMN * len(spec.schema)


class Publisher:
    """One incarnation of a producer, from its begin record to its end record.

    Used as a context. Entering appends the begin record, whose offset is the incarnation; leaving gives up what has
    not been flushed, and does not wait for a log that hangs. A thread of its own sends, so that the env loop steps on
    meanwhile. While the loop must wait for the log, at the begin too, `while_waiting` is called twice a second; it may
    raise to give up.
    `encoding` names an Arrow codec ("zstd") to compress each message with.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        spec: StreamSpec,
        producer: str,
        *,
        limits: PublishLimits,
        encoding: str | None = None,
        observer: PublishObserver,
        while_waiting: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._log = log
        self._topic = topic
        self._spec = spec
        self._producer = producer
        self._limits = limits
        self._encoding = encoding
        self._observer = observer
        self._while_waiting = while_waiting
        self._clock = clock
        self._partition = partition_for(producer, log.describe(topic).partitions)
        self._appender = log.appender()
        self._queue: deque[Encoded] = deque()
        self._queued_bytes = 0
        self._sequence = 0
        self._changed = threading.Condition()
        self._closing = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self.incarnation = -1

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            with self._changed:
                self._wait(lambda: self.incarnation >= 0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        # Before the thread, which may wait for an acknowledgement for as long as the log's delivery timeout.
        self._appender.close(_CLOSE_SECONDS)
        # It may be amid an append, which may take longer than a stop is given; nothing is taken from it any more.
        self._thread.join(_CLOSE_SECONDS)

    def publish(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Send chunk rows, a message a batch; waits while too many bytes are in flight.

        Raises the error with which the log has refused a message for good.
        """
        for batch in batches:
            self._enqueue(self._encode(batch))

    def _encode(self, batch: pa.RecordBatch) -> Encoded:
        encoded = encode_chunks(
            self._spec,
            batch,
            producer=self._producer,
            incarnation=self.incarnation,
            sequence=self._sequence,
            encoding=self._encoding,
        )
        size = encoded.size + len(self._producer.encode())
        if size > self._limits.max_message_bytes:
            raise TooLargeError(
                f"a message of {batch.num_rows} chunks takes {size} bytes, at most "
                f"{self._limits.max_message_bytes} may be sent: raise --max-message-bytes"
            )
        return encoded

    def end(self, reason: str) -> None:
        """Send the end record: the open episodes end here, aborted with `reason`."""
        self._enqueue(
            encode_end(producer=self._producer, incarnation=self.incarnation, sequence=self._sequence, reason=reason)
        )

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        with self._changed:
            self._wait(lambda: not self._queue)

    def _enqueue(self, encoded: Encoded) -> None:
        with self._changed:
            self._wait(lambda: self._has_room(encoded.size))
            self._sequence += 1
            self._queue.append(encoded)
            self._queued_bytes += encoded.size
            self._observer.in_flight(self._queued_bytes)
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return not self._queue or self._queued_bytes + size <= self._limits.max_in_flight_bytes

    def _wait(self, until: Callable[[], bool]) -> None:
        while not self._changed.wait_for(lambda: until() or bool(self._failure), _RETRY_SECONDS):
            self._while_waiting()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._begin()
            self._send_all()
        except LogUnavailableError:
            return
        except Exception as error:  # noqa: BLE001  (whatever it is, the env loop raises it)
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _begin(self) -> None:
        incarnation = self._deliver(encode_begin(self._spec, self._producer, uuid.uuid4().hex)).offset
        with self._changed:
            self.incarnation = incarnation
            self._changed.notify_all()

    def _send_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue) or self._closing)
                if self._closing:
                    return
                encoded = self._queue[0]
            sent = self._clock()
            self._deliver(encoded)
            with self._changed:
                self._queue.popleft()
                self._queued_bytes -= encoded.size
                self._observer.in_flight(self._queued_bytes)
                self._changed.notify_all()
            self._observer.published(encoded, self._clock() - sent)

    def _deliver(self, encoded: Encoded) -> Appended:
        """Append until acknowledged; raises `LogUnavailableError` once this is closed."""
        waited = False
        while True:
            try:
                future = self._append(encoded)
                if not (waited or wait([future], _SLOW_SECONDS).done):
                    self._tell_waiting(f"no acknowledgement for {_SLOW_SECONDS:g} s")
                    waited = True
                appended = future.result()
            except LogUnavailableError as error:
                # Whoever left is not to be told any more.
                self._raise_closed()
                self._tell_waiting(str(error))
                waited = True
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, _RETRY_SECONDS)
                self._raise_closed()
                continue
            if waited:
                _LOG.info("the log takes messages again")
                self._observer.waiting(None)
            return appended

    def _tell_waiting(self, reason: str) -> None:
        _LOG.warning("the log does not take messages: %s", reason)
        self._observer.waiting(reason)

    def _raise_closed(self) -> None:
        if self._closing:
            raise LogUnavailableError("the publisher was closed before the log took everything")

    def _append(self, encoded: Encoded) -> Future[Appended]:
        return self._appender.append(
            self._topic,
            self._partition,
            key=self._producer.encode(),
            value=encoded.value,
            headers=encoded.headers,
        )
