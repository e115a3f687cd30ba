from __future__ import annotations

import pytest

from penstock_consumers.replay import Replay
from penstock_consumers.store.bucket import create_once, open_bucket
from penstock_consumers.verify import verify
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import StoreError
from penstock_schemas.log.memory import MemoryLog
from tests.consumers.messages import TOPIC, Row, ScriptedProducer, open_partition, take_all

pytestmark = pytest.mark.chaos


def test_wrong_credentials_are_named(versity_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_bucket(versity_url).put("a", b"x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    bucket = open_bucket(versity_url)
    tries = (
        (lambda: bucket.put("a", b"x"), "write 'a'", "SignatureDoesNotMatch"),
        (lambda: create_once(bucket, "a", b"x"), "write 'a'", "SignatureDoesNotMatch"),
        (lambda: bucket.read("a"), "read 'a'", "SignatureDoesNotMatch"),
        (lambda: list(bucket.list("a/")), "list 'a/'", "SignatureDoesNotMatch"),
        (lambda: bucket.modified("a"), "read 'a'", "403"),
    )
    for act, named, told in tries:
        with pytest.raises(StoreError, match=rf"^store '{versity_url}': cannot {named}: .*{told}"):
            act()


def test_a_whole_store(versity_url: str) -> None:
    log = MemoryLog()
    log.create(TOPIC)
    producer = ScriptedProducer(log)
    producer.begin()
    for episode in range(12):
        ended = Row(0, episode, 0, 0, 3, Ends.TERMINATED)
        producer.send(
            ended, Row(1, episode, 0, 0, 2) if episode % 2 == 0 else Row(1, episode - 1, 1, 2, 2, Ends.TRUNCATED)
        )
        partition = open_partition(log, open_bucket(versity_url))
        take_all(partition, log)
        assert partition.commit() is not None
    report = verify(open_bucket(versity_url), log)
    assert report.ok, report
    assert Replay.open(versity_url).episodes_stored == 18
