"""Between kafka-python's rebalances and a `GroupListener`: what moves is told, in order, and what was lost too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.base import MemberState
from kafka.future import Future as KafkaFuture

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from penstock_schemas.log.base import GroupListener, Record
    from penstock_schemas.log.kafka_network import NetworkClient


class ListenerBridge(AsyncConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is untyped
    """Calls a `GroupListener` for kafka-python, beside its network loop, and keeps what it raises for `poll`."""

    def __init__(self, topic: str, listener: GroupListener) -> None:
        self.held: set[int] = set()
        self._topic = topic
        self._listener = listener
        self._consumer: Any = None
        self._network: NetworkClient | None = None
        self._thrown_out = False
        self._failure: Exception | None = None
        self._thread = ThreadPoolExecutor(1, "penstock-group-listener")

    def connect(self, consumer: Any, network: NetworkClient) -> None:
        """Say whose listener this is."""
        self._consumer = consumer
        self._network = network

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Have the listener take partitions on."""
        await self._beside(self._assign, assigned)

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Have the listener give partitions up."""
        await self._beside(self._lose if self._thrown_out else self._revoke, revoked)

    async def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """Have the listener forget partitions."""
        await self._beside(self._lose, lost)

    def claims(self) -> list[TopicPartition]:
        """Return what this member may keep in the generation that it is about to join.

        kafka-python claims what it was last assigned. Where it is thrown out amid a join it goes on with that, telling
        nobody: what may be another's by now would be claimed, and read on without its newest commit.
        """
        if self._consumer.group_metadata().generation_id < 0:
            self._thrown_out = self._thrown_out or bool(self.held)
            return []
        return [TopicPartition(self._topic, partition) for partition in sorted(self.held)]

    def settle(self, records: Sequence[Record]) -> Sequence[Record]:
        """Tell the listener of a membership that was lost amid a join; leave out what was read from before it."""
        if not self._thrown_out:
            return records
        if self.held:
            self._guarded(self._lose, sorted(self.held))
        if self._consumer.group_metadata().state is MemberState.STABLE:
            self._thrown_out = False
            self._guarded(self._assign, sorted(kept.partition for kept in self._consumer.assignment()))
        return []

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Raise what the listener has raised, before and after."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        finally:
            if self._failure is not None:
                raise self._failure

    @contextmanager
    def last_failure(self) -> Iterator[None]:
        """Raise what the listener raises from here on, and call it no more."""
        self._failure = None
        try:
            with self.failures():
                yield
        finally:
            self._thread.shutdown()

    def _assign(self, partitions: list[int]) -> None:
        # Each is sought to before kafka-python asks for a position, so the group's own offsets are never used.
        for partition, offset in self._listener.assigned(partitions).items():
            self._consumer.seek(TopicPartition(self._topic, partition), offset)
        self.held.update(partitions)

    def _revoke(self, partitions: list[int]) -> None:
        self._let_go(partitions, self._listener.revoked)

    def _lose(self, partitions: list[int]) -> None:
        self._let_go(partitions, self._listener.lost)

    def _let_go(self, partitions: list[int], tell: Callable[[Sequence[int]], None]) -> None:
        held = sorted(self.held.intersection(partitions))
        self.held.difference_update(held)
        if held:
            tell(held)

    def _guarded(self, call: Callable[[list[int]], None], partitions: list[int]) -> None:
        try:
            if partitions:
                call(partitions)
        except Exception as error:  # noqa: BLE001 - the listener's, and poll's to raise
            self._failure = error

    async def _beside(self, call: Callable[[list[int]], None], partitions: Collection[TopicPartition]) -> None:
        done = KafkaFuture()
        numbers = sorted(partition.partition for partition in partitions)

        def run() -> None:
            self._guarded(call, numbers)
            done.success(None)
            if self._network is not None:
                self._network.wakeup()

        self._thread.submit(run)
        await done


class HeldAssignor(CooperativeStickyAssignor):  # type: ignore[misc]  # the same
    """The group's way to share partitions: evenly, and moving as few as can be.

    A partition that is to move is first given up by who holds it, and given to its next owner in a second round.
    """

    def __init__(self, bridge: ListenerBridge) -> None:
        super().__init__()
        self._bridge = bridge

    def metadata(self, topics: Collection[str]) -> Any:
        """Tell the group what the listener holds, and not what kafka-python was last assigned."""
        self.member_assignment = self._bridge.claims()
        return super().metadata(topics)
