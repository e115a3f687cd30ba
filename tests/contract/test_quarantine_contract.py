"""What a foreign producer may write goes into quarantine as it was, over every log."""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from penstock_consumers.dead_letters import DeadLetters
from penstock_consumers.partition import Partition, record_digest
from penstock_consumers.quarantine import reading
from penstock_consumers.quarantine.retry import Source, retry
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Limits
from penstock_consumers.store.replay_store import ReplayStore
from penstock_consumers.store_cli import run
from penstock_consumers.verify import verify
from penstock_schemas.chunks import Ends
from penstock_schemas.log.kafka import KafkaLog
from penstock_schemas.messages import Encoded, encode_begin, encode_chunks, encode_tick
from tests.consumers.messages import Row, rows_to_batch, stored_episodes, stream

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Subject

    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.log import Log, Record

SECONDS = 60.0


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


def produce(log: Log, topic: str, name: str) -> list[Encoded]:
    """A begin record, a message, a large one, a small one; two episodes end in the large one."""
    spec, producer = stream(name), "producer-0"
    sent: list[Encoded] = []
    with closing(log.appender()) as appender:

        def append(encoded: Encoded) -> int:
            sent.append(encoded)
            future = appender.append(topic, 0, key=producer.encode(), value=encoded.value, headers=encoded.headers)
            return future.result(SECONDS).offset

        incarnation = append(encode_begin(spec, producer, "a-start"))
        for sequence, rows in enumerate(
            (
                [Row(0, 0, 0, 0, 2, Ends.TERMINATED)],
                [Row(0, 1, 0, 0, 90, Ends.TERMINATED), Row(1, 0, 0, 0, 9, Ends.TRUNCATED)],
                [Row(0, 2, 0, 0, 3, Ends.TERMINATED)],
            )
        ):
            batch = rows_to_batch(producer, incarnation, rows, spec)
            append(encode_chunks(spec, batch, producer=producer, incarnation=incarnation, sequence=sequence))
    return sent


def consume(log: Log, bucket: Bucket, topic: str, dead: str, name: str, most: int = 1 << 20) -> Partition:
    """Judge and commit what the log holds."""
    info = log.describe(topic)
    with closing(log.appender()) as appender:
        letters = DeadLetters(appender, dead, info.topic_id)
        partition = Partition(ReplayStore(bucket, name, info), 0, letters, Limits(max_message_bytes=most))
        for record in reading.records(log, topic, 0, partition.high_water):
            partition.take(record)
        partition.commit()
    return partition


def lengths(bucket: Bucket) -> list[tuple[str, int]]:
    return [(one["producer"], one["length"]) for one in stored_episodes(bucket)]


def test_a_quarantined_message_is_judged_again_once(subject: Subject) -> None:
    log, topic, dead, bucket = subject.log, subject.topic(), subject.topic(), open_bucket("memory://")
    name = uuid.uuid4().hex
    sent = produce(log, topic, name)
    consume(log, bucket, topic, dead, name, most=5_500)
    assert lengths(bucket) == [("producer-0", 2), ("producer-0", 3)]
    found = reading.read(log, dead, log.describe(topic).topic_id)
    (letter,) = found.letters.values()
    assert (letter.reason, letter.headers) == ("oversized", sent[2].headers)
    with closing(reading.Payloads(log, dead)) as payloads:
        assert payloads.of(letter) == sent[2].value
    source = Source(log, topic, dead, bucket, stream(name))
    for expected in (4, None, None):
        assert [outcome.offset for outcome in retry(source, [letter], {letter.place})] == [expected]
    consume(log, bucket, topic, dead, name)
    assert [outcome.refused for outcome in retry(source, [letter], {letter.place})] == [
        "its rows are in the store already"
    ]
    assert lengths(bucket) == [("producer-0", 2), ("producer-0", 3), ("producer-0~0", 90), ("producer-0~0", 9)]
    assert verify(bucket, log, topic).ok


def test_what_the_log_refuses_for_its_size_is_set_aside_by_its_digest(subject: Subject) -> None:
    """Behind its reason a record of the largest size is larger than the log takes."""
    log, topic, dead, bucket = subject.log, subject.topic(), subject.topic(), open_bucket("memory://")
    with closing(log.appender()) as appender:
        value = b"x" * ((1 << 20) - 100)
        appender.append(topic, 0, key=b"k", value=value, headers=(("penstock", b"1"),)).result(SECONDS)
    consume(log, bucket, topic, dead, "test")
    (letter,) = reading.read(log, dead, log.describe(topic).topic_id).letters.values()
    assert letter.sha256 is not None
    assert (letter.headers, letter.bytes) == ((("penstock", b"1"),), len(value) + len("kpenstock1"))


@pytest.fixture
def stream_name() -> str:
    return f"stream-{uuid.uuid4().hex[:12]}"


def test_the_commands_list_show_and_retry(
    kafka_bootstrap: str, stream_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, bucket = f"rollouts.{stream_name}", open_bucket(tmp_path)
    dead = f"{topic}.dead-letter"

    def answered(*words: str, status: int = 0) -> Any:
        capsys.readouterr()
        given = [words[0], words[1], str(tmp_path), *words[2:], "--bootstrap-servers", kafka_bootstrap]
        assert run([*given, "--json"]) == status
        return json.loads(capsys.readouterr().out)

    with KafkaLog(kafka_bootstrap, client_id="contract") as log:
        log.create(topic)
        log.create(dead)
        produce(log, topic, stream_name)
        with closing(log.appender()) as appender:
            appender.append(topic, 0, key=b"k", value=b"garbage", headers=()).result(SECONDS)
        consume(log, bucket, topic, dead, stream_name, most=5_500)
        listed = answered("quarantine", "ls")
        assert listed["messages"] == 2
        by_reason = {row["reason"]: row for row in listed["reasons"]}
        assert [one["place"] for one in by_reason["oversized"]["examples"]] == ["0:2"]
        assert by_reason["oversized"]["examples"][0]["producer"] == "producer-0"
        assert by_reason["headers"]["bytes"] == len(b"garbage")
        assert [row["reason"] for row in answered("quarantine", "ls", "--reason", "headers")["reasons"]] == ["headers"]
        shown = answered("quarantine", "show", "0:2")
        assert shown["now"] == "a valid chunks message of 2 rows with 99 steps, of env/episode 0/1, 1/0"
        assert ["producer", "producer-0"] in shown["headers"]
        assert answered("quarantine", "show", "0:4")["payload"] == "7 bytes, beginning with b'garbage'"
        assert answered("quarantine", "retry", "0:2", "--dry-run") == [
            {"place": "0:2", "offset": None, "refused": None}
        ]
        assert [row["offset"] for row in answered("quarantine", "retry", "--all", status=2)] == [None, 5]
        consume(log, bucket, topic, dead, stream_name)
    assert lengths(bucket)[2:] == [("producer-0~0", 90), ("producer-0~0", 9)]
    assert run(["quarantine", "show", str(tmp_path), "0:77", "--bootstrap-servers", kafka_bootstrap]) == 1
    assert "not in quarantine: 0:77" in capsys.readouterr().err


def test_what_became_of_messages_before_the_log_takes_no_more_is_told(
    kafka_bootstrap: str, stream_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"rollouts.{stream_name}"
    with KafkaLog(kafka_bootstrap, client_id="contract") as log:
        log.create(topic)
        log.create(f"{topic}.dead-letter")
        produce(log, topic, stream_name)
        with closing(log.appender()) as appender:
            appender.append(topic, 0, key=b"k", value=b"garbage", headers=()).result(SECONDS)
        consume(log, open_bucket(tmp_path), topic, f"{topic}.dead-letter", stream_name, most=5_500)
    with KafkaAdminClient(bootstrap_servers=kafka_bootstrap) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "100"})])
    assert run(["quarantine", "retry", str(tmp_path), "--all", "--bootstrap-servers", kafka_bootstrap]) == 1
    out, err = capsys.readouterr()
    left, counted = out.splitlines()
    assert left.startswith("0:4: left: ")
    assert counted == "0 will be judged again, 1 left where they are"
    assert err.startswith(f"error: cannot append to {topic}-0: ")


def test_the_commands_as_text(
    kafka_bootstrap: str, stream_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, bucket = f"rollouts.{stream_name}", open_bucket(tmp_path)
    dead = f"{topic}.dead-letter"

    def told(*words: str, status: int = 0) -> list[str]:
        capsys.readouterr()
        assert run([*words[:2], str(tmp_path), *words[2:], "--bootstrap-servers", kafka_bootstrap]) == status
        return capsys.readouterr().out.splitlines()

    with KafkaLog(kafka_bootstrap, client_id="contract") as log:
        log.create(topic)
        log.create(dead)
        # Nothing was stored yet that would say which stream it is.
        assert run(["quarantine", "ls", str(tmp_path), "--bootstrap-servers", kafka_bootstrap]) == 1
        assert "name its stream with --stream" in capsys.readouterr().err
        assert told("quarantine", "ls", "--stream", stream_name) == ["nothing is in quarantine"]
        produce(log, topic, stream_name)
        consume(log, bucket, topic, dead, stream_name, most=5_500)
    lines = told("quarantine", "ls")
    assert [line.split() for line in lines[:2]] == [["reason", "messages", "bytes"], ["oversized", "1", ANY]]
    assert lines[3] == "oversized, 1 of 1:"
    assert lines[4].split()[:1] == ["0:2"]
    assert "headers" in told("quarantine", "show", "0:2")
    assert told("quarantine", "retry", "--reason", "oversized") == [
        "0:2: appended again, at offset 4",
        "1 will be judged again, 0 left where they are",
    ]
    assert told("quarantine", "retry", "--all", status=2)[0].startswith("0:2: left: a copy of it waits")
