"""Publishing to a real Kafka that dies for longer than its client's delivery timeout."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING

import numpy as np
import pytest

from deploy.local.kafka import LocalKafka
from penstock_producers.publisher import PublishLimits
from penstock_schemas.chunks import list_values
from penstock_schemas.log.kafka import KafkaLog
from penstock_schemas.messages import Kind
from penstock_schemas.policies import KEY, MAX_INLINE_BYTES, PolicyRecord, encode_policy
from tests.producers.publishing import (
    SECONDS,
    SPEC,
    TOPIC,
    Observer,
    Source,
    messages,
    publisher,
    records,
    wait_until,
)
from tests.schemas.announced import policy_in

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.whole

DELIVERY_TIMEOUT = 3.0


def test_a_producer_of_small_messages_makes_a_topic_that_the_largest_policy_fits_into(kafka_bootstrap: str) -> None:
    topic = f"policies.{uuid.uuid4().hex}"
    with KafkaLog(kafka_bootstrap, max_message_bytes=16_384) as producer:
        producer.create(topic, compacted=True)
    overhead = len(PolicyRecord(1, {"w": np.zeros(0, np.uint8)}).to_safetensors()) + 100
    value, headers = encode_policy(PolicyRecord(1, {"w": np.zeros(MAX_INLINE_BYTES - overhead, np.uint8)}))
    assert len(value) > MAX_INLINE_BYTES - 200
    with KafkaLog(kafka_bootstrap) as learner:
        appender = learner.appender()
        assert appender.append(topic, 0, key=KEY, value=value, headers=headers).result(SECONDS).offset == 0
        appender.close()
        (record,) = records(learner, topic)
    assert policy_in(record).version == 1


@pytest.fixture
def broker() -> Iterator[LocalKafka]:
    with LocalKafka() as broker:
        yield broker


def test_an_outage_longer_than_the_delivery_timeout_loses_and_doubles_nothing(broker: LocalKafka) -> None:
    source, observer, stop = Source(), Observer(), threading.Event()
    limits = PublishLimits(max_in_flight_bytes=100_000)
    incarnation, published = -1, 0

    def run() -> None:
        nonlocal incarnation, published
        with publisher(log, observer, limits=limits) as publishing:
            incarnation = publishing.incarnation
            while not stop.is_set():
                publishing.publish(source.batches())
                published += 1
            publishing.end("shutdown")
            publishing.flush()

    with KafkaLog(broker.bootstrap_servers, timeout=2.0, delivery_timeout=DELIVERY_TIMEOUT) as log:
        log.create(TOPIC)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        wait_until(lambda: len(observer.messages) >= 20)
        killed = time.monotonic()
        broker.kill()
        wait_until(lambda: bool(observer.reasons) and time.monotonic() > killed + DELIVERY_TIMEOUT)
        assert broker.bootstrap_servers in str(observer.reasons[0])
        at_the_outage = published
        assert max(observer.sizes) <= limits.max_in_flight_bytes
        broker.start()
        wait_until(lambda: published >= at_the_outage + 20)
        stop.set()
        thread.join(SECONDS)
        assert not thread.is_alive()
        assert observer.reasons[-1] is None
        found = messages(log)

    assert {message.incarnation for message in found} == {incarnation}
    kept = {message.sequence: message for message in found if message.kind is Kind.CHUNKS}
    assert list(kept) == list(range(published))
    assert (found[0].kind, found[-1].kind, found[-1].sequence) == (Kind.BEGIN, Kind.END, published)
    batches = [message.batch for message in kept.values() if message.batch is not None]
    rewards = np.concatenate([list_values(batch.column("reward"), SPEC.columns[2]) for batch in batches])
    assert np.array_equal(np.sort(rewards), np.arange(source.steps))
