"""Reading what a consumer group of Kafka assigns, of which only what moves is ever given up."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.coordinator.base import MemberState
from kafka.errors import (
    FencedInstanceIdError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    RequestTimedOutError,
)
from kafka.future import Future as KafkaFuture
from kafka.structs import OffsetAndMetadata

from penstock_schemas.errors import FatalError
from penstock_schemas.log.kafka_listener import HeldAssignor, ListenerBridge
from penstock_schemas.log.kafka_readers import Consumer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock_schemas.log.base import GroupListener, Record
    from penstock_schemas.log.kafka_client import Connection

_log = logging.getLogger(__name__)

# How long a member may take between two polls before the group goes on without it.
_MAX_POLL_INTERVAL_MS = 60_000
# How long to wait for the group's good-bye: amid a join the broker keeps it back until that ends.
_LEAVE_MS = 2_000
# How long to wait for a join that has ended already.
_JOIN_MS = 1_000
# Nobody answered: what the broker would have said is not known.
_AWAY = (KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError, RequestTimedOutError)
# How long to leave a broker alone that could not be reached.
_AWAY_SECONDS = 0.1
# Members learn by their heartbeats that partitions are to move: seldom ones would add to each move.
_MAX_HEARTBEAT_MS = 1_000


class KafkaGroupReader(Consumer):
    """A member of a consumer group; joins with its first poll.

    Its listener is called in a thread of its own while `poll`, `attend` or `close` waits for it, so that the member's
    heartbeats go on however long it takes. Once the listener has raised, every poll raises that error again:
    close the member and join anew.
    """

    def __init__(
        self,
        connection: Connection,
        count_partitions: Callable[[str], int],
        topic: str,
        group: str,
        listener: GroupListener,
        *,
        session_timeout: float,
        instance: str | None,
    ) -> None:
        session_timeout_ms = int(session_timeout * 1000)
        self._topic = topic
        self._group = group
        self._instance = instance
        self._comes_back = instance is not None
        self._is_fenced = False
        self._bridge = ListenerBridge(topic, listener)
        super().__init__(
            connection,
            count_partitions,
            group_id=group,
            group_instance_id=instance,
            partition_assignment_strategy=[HeldAssignor(self._bridge)],
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=min(session_timeout_ms // 3, _MAX_HEARTBEAT_MS),
            max_poll_interval_ms=_MAX_POLL_INTERVAL_MS,
        )
        self._coordinator = self._consumer._coordinator  # noqa: SLF001  (what needs it says why)
        self._coordinator.poll = partial(_attended, self._coordinator.poll)
        self._bridge.connect(self._consumer, self._network)
        self._consumer.subscribe([topic], listener=self._bridge)
        try:
            self._learn_partitions()
        except BaseException:
            # The consumer's threads and connections would outlive it.
            self._consumer.close(autocommit=False, timeout_ms=0)
            raise

    def poll(self, timeout: float, max_records: int = 500) -> Sequence[Record]:
        """Take part in the group, and wait up to `timeout` seconds for records of what this member holds."""
        with self._bridge.failures():
            return self._bridge.settle(self.poll_records(timeout, max_records))

    def attend(self) -> None:
        """Take part in the group without reading; see `GroupReader.attend`."""
        with self._bridge.failures(), self._connection.errors("take part in the group"):
            self._raise_fenced()
            try:
                self._finish_join()
                self._coordinator.poll(timeout_ms=0)
            except FencedInstanceIdError as error:
                raise self._fenced() from error
            self._bridge.settle([])
            self._share_anew()

    def seek(self, partition: int, offset: int) -> None:
        """Read a partition that this member holds from `offset` on."""
        if partition not in self._bridge.held:
            raise ValueError(
                f"partition {partition} of {self._topic!r} is not this member's: it holds {sorted(self._bridge.held)}"
            )
        self._consumer.seek(TopicPartition(self._topic, partition), offset)

    def bounds(self, partition: int) -> tuple[int, int]:
        """Return a partition's first offset and the offset that its next record will get."""
        return self.partition_bounds(self._topic, partition)

    def end(self, partition: int) -> int | None:
        """Return the offset that the next record will get, as the last fetch told; None before the first."""
        if partition not in self._bridge.held:
            return None
        end: int | None = self._consumer.highwater(TopicPartition(self._topic, partition))
        return end

    def report(self, offsets: Mapping[int, int]) -> None:
        """Write next offsets to the group; errors are logged."""
        committed = {
            TopicPartition(self._topic, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in offsets.items()
        }
        try:
            self._consumer.commit_async(committed, callback=self._reported)
        except KafkaError as error:
            self._reported(committed, error)

    def close(self) -> None:
        """Revoke what this member holds, and leave the group unless it is an instance, which comes back."""
        with self._bridge.last_failure():
            self._consumer.close(autocommit=False, timeout_ms=_LEAVE_MS)

    def polled(self, timeout_ms: int, max_records: int) -> Mapping[TopicPartition, Sequence[Any]]:
        """Poll, and go on reading while the group settles who gets what: kafka-python's own poll does not."""
        self._raise_fenced()
        try:
            self._finish_join()
            joining = self._reads_while_joining
            polled = super().polled(0 if joining else timeout_ms, max_records)
        except FencedInstanceIdError as error:
            raise self._fenced() from error
        self._share_anew()
        if polled or not self._reads_while_joining:
            return polled
        wait_ms = timeout_ms if joining else 0
        fetched, idle = self._consumer._fetcher.fetch_records(max_records, timeout_ms=wait_ms)  # noqa: SLF001  (no public way)
        if idle:
            time.sleep(wait_ms / 1000)
        found: Mapping[TopicPartition, Sequence[Any]] = fetched
        return found

    @property
    def _reads_while_joining(self) -> bool:
        return bool(self._bridge.held) and self._consumer.group_metadata().state is MemberState.REBALANCING

    def _share_anew(self) -> None:
        """Have the group shared out once more after an instance has come back.

        The broker gives it what its name had, and tells nobody. What its predecessor had given up, and died before the
        round in which others are given it, would be nobody's until the group changes for another reason.
        """
        if self._comes_back and self._consumer.group_metadata().state is MemberState.STABLE:
            self._comes_back = False
            self._coordinator.request_rejoin()

    def _learn_partitions(self) -> None:
        """Wait for the topic's description: a member that leads the group without it would give nobody anything."""
        net, timeout_ms = self._coordinator._net, int(self._connection.timeout * 1000)  # noqa: SLF001  (the same)
        described = self._consumer._cluster.request_update()  # noqa: SLF001  (the public way may wait for ever)
        with self._connection.errors(f"describe topic {self._topic!r}"):
            net.run(self._coordinator._manager.wait_for, described, timeout_ms)  # noqa: SLF001  (the same)

    def _finish_join(self) -> None:
        """Go on from a join that has ended since the last poll.

        kafka-python 3.0 forgets a join that ends while nobody polls, and joins anew, and the whole group with it:
        members with work to do between their polls would go on like that for long.
        """
        ended = self._coordinator._join_task  # noqa: SLF001  (nothing public tells)
        if ended is not None and ended.is_done:
            self._coordinator._net.run(self._join_again_with, ended)  # noqa: SLF001  (the same)

    async def _join_again_with(self, ended: Any) -> None:
        """In the network's thread: have kafka-python wait for a join that ends once it does, as `ended` has."""
        outcome = KafkaFuture()
        self._coordinator._join_task = outcome  # noqa: SLF001  (the same)

        def end() -> None:
            if ended.succeeded():
                outcome.success(ended.value)
            else:
                outcome.failure(ended.exception)

        self._coordinator._net.call_later(0, end)  # noqa: SLF001  (the same)
        await self._coordinator.join_group_async(timeout_ms=_JOIN_MS)

    def _raise_fenced(self) -> None:
        """Raise where another member has come under this one's name, upon which kafka-python only falls silent."""
        if self._is_fenced:
            raise self._fenced()
        if self._instance is None or self._consumer.group_metadata().state is not MemberState.STABLE:
            return
        if not self._coordinator._heartbeat_enabled:  # noqa: SLF001  (nothing public tells)
            raise self._fenced()

    def _fenced(self) -> FatalError:
        self._is_fenced = True
        return FatalError(
            f"group {self._group!r} of topic {self._topic!r}: another member has joined as instance "
            f"{self._instance!r}, so this one is out: give each member a name of its own"
        )

    def _reported(self, _: object, result: object) -> None:
        if isinstance(result, Exception):
            _log.warning("the offsets reported to group %s of %s were lost: %r", self._group, self._topic, result)


def _attended(poll: Callable[..., bool], timeout_ms: float) -> bool:
    """Poll kafka-python's coordinator; false where it was not reached, upon which nothing is read.

    Mostly it waits for a broker that is away; but where connecting is refused twice within one poll, it raises that.
    """
    try:
        return poll(timeout_ms=timeout_ms)
    except _AWAY as error:
        _log.info("the group's broker is away: %r", error)
        time.sleep(min(timeout_ms / 1000, _AWAY_SECONDS))
        return False
