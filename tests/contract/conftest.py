from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import MemberToRemove
from kafka.errors import UnknownTopicOrPartitionError

from penstock_schemas.log.kafka import KafkaLog
from penstock_schemas.log.memory import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock_schemas.log import GroupReader, Log
    from penstock_schemas.log.memory_group import MemoryGroupReader


@dataclass(frozen=True)
class Subject:
    """A log under test, and what its interface leaves to the cluster's operator."""

    log: Log
    delete: Callable[[str], None]
    trim: Callable[[str, int], None]
    group_offsets: Callable[[str, str], dict[int, int]]
    evict: Callable[[str, GroupReader], None]

    def topic(self, partitions: int = 1) -> str:
        name = f"contract-{uuid.uuid4().hex[:12]}"
        self.log.create(name, partitions=partitions)
        return name


def _memory() -> Subject:
    log = MemoryLog()
    return Subject(
        log,
        log.delete,
        lambda topic, offset: log.trim(topic, 0, offset),
        log.reported,
        lambda _, member: log.evict(cast("MemoryGroupReader", member)),
    )


@contextmanager
def _kafka(bootstrap_servers: str) -> Iterator[Subject]:
    with (
        KafkaLog(bootstrap_servers, client_id="contract", session_timeout=6.0) as log,
        KafkaAdminClient(bootstrap_servers=bootstrap_servers) as admin,
    ):

        def delete(topic: str) -> None:
            admin.delete_topics([topic])
            while admin.describe_topics([topic])[0]["error_code"] != UnknownTopicOrPartitionError.errno:
                pass

        def trim(topic: str, offset: int) -> None:
            admin.delete_records({TopicPartition(topic, 0): offset})

        def group_offsets(topic: str, group: str) -> dict[int, int]:
            found = admin.list_group_offsets({group: None})[group]
            return {where.partition: at.offset for where, at in found.items() if where.topic == topic}

        def evict(group: str, _: GroupReader) -> None:
            (member,) = admin.describe_groups([group])[group]["members"]
            admin.remove_group_members(group, [MemberToRemove(member_id=member["member_id"])])

        yield Subject(log, delete, trim, group_offsets, evict)


@pytest.fixture(params=["memory", "kafka"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "memory":
        yield _memory()
        return
    with _kafka(request.getfixturevalue("kafka_bootstrap")) as subject:
        yield subject
