"""Consumer groups of the log in memory."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from penstock_schemas.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock_schemas.log.base import GroupListener, Record
    from penstock_schemas.log.memory import MemoryLog


@dataclass(slots=True)
class Group:
    """Who is in a group, who holds what, and who shall; guarded by the log's condition.

    A partition is in `owners` from before its owner is told `assigned` until after it was told `revoked`, so
    it is never held twice.
    """

    members: list[MemoryGroupReader] = field(default_factory=list)
    owners: dict[int, MemoryGroupReader] = field(default_factory=dict)
    reported: dict[int, int] = field(default_factory=dict)
    _meant_for: dict[int, MemoryGroupReader] = field(default_factory=dict)

    def join(self, member: MemoryGroupReader) -> None:
        """Add a member, in the place of the one before it of its instance's name."""
        before = next((m for m in self.members if m.instance == member.instance and m.instance is not None), None)
        if before is None:
            self.members.append(member)
            self._meant_for.clear()
            return
        before.fenced = True
        self.members[self.members.index(before)] = member
        self._meant_for = {p: member if m is before else m for p, m in self._meant_for.items()}
        self._free(before)

    def leave(self, member: MemoryGroupReader) -> None:
        """Take a member out, and what it holds from it."""
        if member in self.members:
            self.members.remove(member)
            self._meant_for.clear()
        self._free(member)

    def share(self, member: MemoryGroupReader, partitions: int) -> list[int]:
        """Return the partitions that are meant for `member`."""
        if len(self._meant_for) != partitions:
            self._meant_for = self._shares(partitions)
        return [partition for partition, meant in self._meant_for.items() if meant is member]

    def _shares(self, partitions: int) -> dict[int, MemoryGroupReader]:
        """Share partitions as evenly as can be, and as many as can be with whom they are."""
        owned = {id(member): [p for p in range(partitions) if self.owners.get(p) is member] for member in self.members}
        each, extra = divmod(partitions, len(self.members))
        shares: dict[int, MemoryGroupReader] = {}
        room: list[MemoryGroupReader] = []
        for index, member in enumerate(sorted(self.members, key=lambda member: -len(owned[id(member)]))):
            quota = each + (index < extra)
            kept = owned[id(member)][:quota]
            shares.update(dict.fromkeys(kept, member))
            room += [member] * (quota - len(kept))
        free = [partition for partition in range(partitions) if partition not in shares]
        return shares | dict(zip(free, room, strict=True))

    def _free(self, member: MemoryGroupReader) -> None:
        for partition in [p for p, owner in self.owners.items() if owner is member]:
            del self.owners[partition]


class _Move(Enum):
    LOSE = auto()
    REVOKE = auto()
    ASSIGN = auto()


class MemoryGroupReader:
    """A member of a consumer group; joins with its first poll, and again with the first after an eviction.

    Once closed, an instance stays in the group until the next of its name takes its place, or it is evicted.

    Its listener is called in the polling thread. Once the listener has raised, every poll raises that error
    again: close the member and join anew.
    """

    def __init__(
        self, log: MemoryLog, topic: str, group: Group, listener: GroupListener, instance: str | None = None
    ) -> None:
        self.instance = instance
        self.fenced = False
        self._log = log
        self._topic = topic
        self._group = group
        self._listener = listener
        self._positions: dict[tuple[str, int], int] = {}
        self._failure: Exception | None = None

    def poll(self, timeout: float, max_records: int = 500) -> Sequence[Record]:
        """Settle the group's changes, then wait up to `timeout` seconds for records of what this member holds."""
        deadline = time.monotonic() + timeout
        with self._log.changed:
            while True:
                self._settle()
                if records := self._log.take(self._positions, max_records):
                    return records
                left = deadline - time.monotonic()
                if left <= 0:
                    return records
                self._log.changed.wait(left)

    def attend(self) -> None:
        """Settle the group's changes without reading."""
        with self._log.changed:
            self._settle()

    def seek(self, partition: int, offset: int) -> None:
        """Read a partition that this member holds from `offset` on."""
        if (self._topic, partition) not in self._positions:
            raise ValueError(f"partition {partition} of {self._topic!r} is not this member's: it holds {self._held()}")
        self._positions[self._topic, partition] = offset

    def bounds(self, partition: int) -> tuple[int, int]:
        """Return a partition's first offset and the offset that its next record will get."""
        return self._log.bounds(self._topic, partition)

    def end(self, partition: int) -> int | None:
        """Return the offset that the next record will get, exactly; None for what this member does not hold."""
        if (self._topic, partition) not in self._positions:
            return None
        return self._log.end(self._topic, partition)

    def report(self, offsets: Mapping[int, int]) -> None:
        """Write next offsets to the group; dropped while the log is away or this member is no member."""
        with self._log.changed:
            if not self._log.outage and self in self._group.members:
                self._group.reported.update(offsets)

    def close(self) -> None:
        """Revoke what this member holds (or tell it what it had lost already), and leave the group.

        An instance stays in it, and keeps its partitions from others.
        """
        held = self._held()
        try:
            if held and self in self._group.members:
                self._listener.revoked(held)
            elif held:
                self._listener.lost(held)
        finally:
            self._positions.clear()
            if self.instance is None:
                self.leave()

    def leave(self) -> None:
        """Leave the group without a word to the listener."""
        with self._log.changed:
            self._group.leave(self)
            self._log.changed.notify_all()

    def _settle(self) -> None:
        if self._failure is not None:
            raise self._failure
        while (move := self._next_move()) is not None:
            self._make(*move)

    def _held(self) -> list[int]:
        return sorted(partition for _, partition in self._positions)

    def _next_move(self) -> tuple[_Move, list[int]] | None:
        """Return the one listener call that is due now; holds what it will assign."""
        group, held = self._group, self._held()
        if self._log.outage:
            return None
        if self.fenced:
            raise FatalError(
                f"topic {self._topic!r}: another member has joined as instance {self.instance!r}, so this one is out: "
                "give each member a name of its own"
            )
        if self not in group.members:
            if held:
                return _Move.LOSE, held
            group.join(self)
            self._log.changed.notify_all()
        share = group.share(self, self._log.describe(self._topic).partitions)
        if surplus := [partition for partition in held if partition not in share]:
            return _Move.REVOKE, surplus
        if free := [partition for partition in share if partition not in group.owners]:
            group.owners.update(dict.fromkeys(free, self))
            return _Move.ASSIGN, free
        return None

    def _make(self, move: _Move, partitions: list[int]) -> None:
        """Call the listener without the log's lock: it may read, append, and take its time."""
        self._log.changed.release()
        try:
            match move:
                case _Move.LOSE:
                    self._listener.lost(partitions)
                case _Move.REVOKE:
                    self._listener.revoked(partitions)
                case _Move.ASSIGN:
                    offsets = self._listener.assigned(partitions)
                    self._positions |= {(self._topic, p): offsets[p] for p in partitions}
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._log.changed.acquire()
            if move is not _Move.ASSIGN:
                for partition in partitions:
                    del self._positions[self._topic, partition]
                    if self._group.owners.get(partition) is self:
                        del self._group.owners[partition]
                self._log.changed.notify_all()
