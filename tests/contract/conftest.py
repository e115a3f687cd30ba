from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import MemberToRemove
from kafka.errors import UnknownTopicOrPartitionError
from kafka.protocol.producer import ProduceRequest
from kafka.record import MemoryRecordsBuilder

from penstock_schemas.log.kafka import KafkaLog
from penstock_schemas.log.memory import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock_schemas.log import GroupReader, Log, RecordHeaders
    from penstock_schemas.log.memory_group import MemoryGroupReader


@dataclass(frozen=True)
class Subject:
    """A log under test, and what its interface leaves to the cluster's operator."""

    log: Log
    delete: Callable[[str], None]
    trim: Callable[[str, int], None]
    group_offsets: Callable[[str, str], dict[int, int]]
    evict: Callable[[str, GroupReader], None]
    append_foreign: Callable[[str, bytes, RecordHeaders], None]

    def topic(self, partitions: int = 1) -> str:
        name = f"contract-{uuid.uuid4().hex[:12]}"
        self.log.create(name, partitions=partitions)
        return name


def _memory() -> Subject:
    log = MemoryLog()

    def append_foreign(topic: str, key: bytes, headers: RecordHeaders) -> None:
        log.append(topic, 0, key, None, headers)

    return Subject(
        log,
        log.delete,
        lambda topic, offset: log.trim(topic, 0, offset),
        log.reported,
        lambda _, member: log.evict(cast("MemoryGroupReader", member)),
        append_foreign,
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

        def append_foreign(topic: str, key: bytes, headers: RecordHeaders) -> None:
            # Past kafka-python's producer, which refuses null headers.
            batch = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
            batch.append(None, key, None, list(headers))
            batch.close()
            data = ProduceRequest.TopicProduceData
            partition = data.PartitionProduceData(index=0, records=batch.buffer())
            request = ProduceRequest(
                transactional_id=None,
                acks=-1,
                timeout_ms=10_000,
                topic_data=[data(name=topic, partition_data=[partition])],
                max_version=9,  # later ones name topics by id
            )
            leader = admin.describe_topics([topic])[0]["partitions"][0]["leader_id"]
            response = admin._manager.run(send, request, leader)
            assert response.responses[0].partition_responses[0].error_code == 0, response

        async def send(request: ProduceRequest, node: int) -> Any:
            return await admin._manager.send(request, node_id=node)

        yield Subject(log, delete, trim, group_offsets, evict, append_foreign)


@pytest.fixture(params=["memory", "kafka"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "memory":
        yield _memory()
        return
    with _kafka(request.getfixturevalue("kafka_bootstrap")) as subject:
        yield subject
