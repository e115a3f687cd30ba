"""What a foreign producer may write goes into quarantine as it was, over every log."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock_consumers.dead_letters import DeadLetters
from penstock_consumers.partition import Partition, record_digest
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits
from penstock_consumers.store.replay_store import ReplayStore
from penstock_schemas.messages import encode_tick

if TYPE_CHECKING:
    from conftest import Subject

    from penstock_schemas.log import Log, Record

SECONDS = 20.0


def read_one(log: Log, topic: str, offset: int) -> Record:
    with closing(log.reader()) as reader:
        reader.seek(topic, 0, offset)
        (record,) = reader.poll(SECONDS, 1)
        return record


def test_a_null_header_is_quarantined_and_the_flow_goes_on(subject: Subject) -> None:
    log, topic, dead = subject.log, subject.topic(), subject.topic()
    info = log.describe(topic)
    headers = (*encode_tick().headers, ("null", None), ("empty", b""))
    with closing(log.appender()) as appender:
        subject.append_foreign(topic, b"foreign", headers)
        appender.append(topic, 0, key=b"tick", headers=encode_tick().headers).result(SECONDS)
        dead_letters = DeadLetters(appender, dead, info.topic_id)
        partition = Partition(ReplayStore(open_bucket("memory://"), "test", info), 0, dead_letters, Limits())
        for offset in range(2):
            partition.take(read_one(log, topic, offset))
        partition.commit()
    assert (partition.high_water, partition.counters["messages_quarantined"]) == (2, 1)
    letter = read_one(log, dead, 0)
    assert letter.headers[:2] == (
        ("penstock.reason", b"headers"),
        ("penstock.detail", b"headers: header 'null' is null"),
    )
    told = (("null", b""), ("empty", b""), ("penstock.null", b"null"))
    assert letter.headers[3:] == (*encode_tick().headers, *told)


def test_a_digest_tells_a_null_header_from_an_empty_one(subject: Subject) -> None:
    topic = subject.topic()
    subject.append_foreign(topic, b"key", (("name", None),))
    record = read_one(subject.log, topic, 0)
    assert record_digest(record) == record_digest(replace(record, offset=9))
    assert record_digest(record) != record_digest(replace(record, headers=(("name", b""),)))
