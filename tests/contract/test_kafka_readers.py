"""What only readers of a real Kafka meet: batches that do not parse, and round trips that cost."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import UnknownTopicOrPartitionError

from penstock_schemas.errors import TopicError
from penstock_schemas.log.kafka import KafkaLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_schemas.log import Reader

SECONDS = 60.0


class NotUtf8(str):
    """A header's name as another client may write it."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return b"\xff\xfe"


@pytest.fixture
def log(kafka_bootstrap: str) -> Iterator[KafkaLog]:
    with KafkaLog(kafka_bootstrap, timeout=2.0) as log:
        yield log


@pytest.fixture
def topic(log: KafkaLog, request: pytest.FixtureRequest) -> str:
    return log.create(f"readers-{request.node.name.partition('[')[0]}-{id(request)}", partitions=2).name


def poll_error(reader: Reader) -> str:
    """What a poll raises; in a thread, since one that hangs is what may go wrong."""
    errors: list[str] = []

    def poll() -> None:
        try:
            reader.poll(1.0)
        except TopicError as error:
            errors.append(str(error))

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), "the poll does not return"
    assert errors, "the poll raised nothing"
    return errors[0]


def test_a_header_name_that_is_no_utf8_is_an_error_that_says_where(
    kafka_bootstrap: str, log: KafkaLog, topic: str
) -> None:
    with KafkaProducer(bootstrap_servers=kafka_bootstrap) as producer:
        for name in ("fine", NotUtf8("broken")):
            producer.send(topic, value=b"v", headers=[(name, b"")], partition=1).get(SECONDS)
        producer.send(topic, value=b"next", partition=1).get(SECONDS)
    with closing(log.reader()) as reader:
        reader.seek(topic, 1, 0)
        assert [record.offset for record in reader.poll(SECONDS)] == [0]
        for _ in range(2):
            told = poll_error(reader)
            assert f"offset 1 of {topic}-1" in told
            assert r"b'\xff\xfe'" in told
        reader.seek(topic, 1, 2)
        assert [record.value for record in reader.poll(SECONDS)] == [b"next"]


def test_a_codec_that_is_not_installed_is_an_error_that_says_where(
    kafka_bootstrap: str, log: KafkaLog, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KafkaProducer(bootstrap_servers=kafka_bootstrap, compression_type="gzip") as producer:
        producer.send(topic, value=bytes(1000), partition=0).get(SECONDS)
    monkeypatch.setattr("kafka.codec.has_gzip", lambda: False)
    with closing(log.reader()) as reader:
        reader.seek(topic, 0, 0)
        for _ in range(2):
            told = poll_error(reader)
            assert f"offset 0 of {topic}-0" in told
            assert "gzip" in told


def test_the_bounds_of_what_is_read_describe_nothing(
    log: KafkaLog, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for name in ("describe_topics", "describe_configs", "describe_cluster"):
        ask = getattr(KafkaAdminClient, name)

        def spy(self: Any, *args: Any, _name: str = name, _ask: Any = ask, **settings: Any) -> Any:
            asked.append(_name)
            return _ask(self, *args, **settings)

        monkeypatch.setattr(KafkaAdminClient, name, spy)
    with closing(log.reader()) as reader:
        assert reader.bounds(topic, 0) == (0, 0)
        assert asked == ["describe_topics"]
        reader.seek(topic, 0, 0)
        asked.clear()
        assert reader.bounds(topic, 0) == (0, 0)
        assert asked == []


def test_the_bounds_of_what_was_deleted_while_it_was_read_name_the_topic(
    kafka_bootstrap: str, log: KafkaLog, topic: str
) -> None:
    with closing(log.reader()) as reader, KafkaAdminClient(bootstrap_servers=kafka_bootstrap) as admin:
        reader.seek(topic, 0, 0)
        assert reader.bounds(topic, 0) == (0, 0)
        admin.delete_topics([topic])
        # The broker answers for the topic until it has let go of it.
        while admin.describe_topics([topic])[0]["error_code"] != UnknownTopicOrPartitionError.errno:
            pass
        with pytest.raises(TopicError, match=topic):
            reader.bounds(topic, 0)
