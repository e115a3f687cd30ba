from __future__ import annotations

import json
from dataclasses import replace

import pytest

from penstock_consumers.store import layout, manifest
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.manifest import Manifest
from penstock_consumers.store.replay_store import ReplayStore
from penstock_schemas.errors import CorruptStoreError, RejectedError, StoreFormatError, StoreMismatchError
from penstock_schemas.log import TopicInfo
from tests.consumers.messages import SPEC, STREAM, TOPIC, WrappedBucket, stream

OURS = Manifest(SPEC, "topic-id", "cluster-id")
INFO = TopicInfo(TOPIC, "topic-id", "cluster-id", 1, log_append_time=True)


def test_what_was_established_is_loaded() -> None:
    bucket = open_bucket("memory://")
    assert manifest.load(bucket) is None
    assert manifest.establish(bucket, OURS) == OURS
    assert manifest.load(bucket) == OURS


def test_it_is_plain_json() -> None:
    read = json.loads(OURS.to_json())
    assert (read["format"], read["topic_id"], read["cluster_id"]) == (3, "topic-id", "cluster-id")
    assert read["fingerprint"] == SPEC.fingerprint.hex()
    assert read["spec"] == SPEC.to_json()


def test_the_first_stays() -> None:
    bucket = open_bucket("memory://")
    manifest.establish(bucket, OURS)
    later = replace(OURS, spec=replace(SPEC, env={"id": "Other-v0"}))
    assert manifest.establish(bucket, later) == OURS
    assert manifest.load(bucket) == OURS


def test_a_store_of_another_stream_is_refused() -> None:
    bucket = open_bucket("memory://")
    manifest.establish(bucket, replace(OURS, spec=stream("theirs")))
    refused = r"store memory://: holds the stream 'theirs', not 'test': choose another store"
    with pytest.raises(StoreMismatchError, match=refused):
        manifest.establish(bucket, OURS)
    with pytest.raises(StoreMismatchError, match=refused):
        ReplayStore(bucket, STREAM, INFO)


@pytest.mark.parametrize(
    ("what", "now"),
    [("topic", replace(INFO, topic_id="new")), ("cluster", replace(INFO, cluster_id="new"))],
    ids=["topic", "cluster"],
)
def test_a_store_of_a_topic_that_was_recreated_is_refused(what: str, now: TopicInfo) -> None:
    bucket = open_bucket("memory://")
    manifest.establish(bucket, OURS)
    told = rf"was read from the {what} with id {what}-id, that name's id is new now: the {what} was recreated"
    with pytest.raises(StoreMismatchError, match=told):
        ReplayStore(bucket, STREAM, now)


def test_a_store_of_another_format_version_is_refused() -> None:
    bucket = open_bucket("memory://")
    bucket.put(layout.MANIFEST, json.dumps({"format": 4, "of": "the future"}).encode())
    with pytest.raises(StoreFormatError, match=r"store memory://: format version 4, this Penstock reads 3: use the"):
        ReplayStore(bucket, STREAM, INFO)


def test_a_manifest_that_was_altered_is_refused() -> None:
    bucket = open_bucket("memory://")
    ReplayStore(bucket, STREAM, INFO).adopt(SPEC)
    data = bucket.read(layout.MANIFEST).to_pybytes()
    bucket.put(layout.MANIFEST, data.replace(b"Test-v0", b"Test-v1"))
    with pytest.raises(CorruptStoreError, match=r"the fingerprint in its store.json is not that of its spec: restore"):
        manifest.load(bucket)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"7",
        b"[]",
        b"{}",
        b'{"format":3}',
        b'{"format":3,"spec":{"stream":"a"},"topic_id":""}',
        b"[" * 100_000,
    ],
    ids=lambda data: data[:40].decode(),
)
def test_a_manifest_that_does_not_read_is_refused(data: bytes) -> None:
    bucket = open_bucket("memory://")
    bucket.put(layout.MANIFEST, data)
    with pytest.raises(CorruptStoreError, match=r"store memory://: its store\.json does not read"):
        manifest.load(bucket)


def test_a_manifest_whose_answer_was_lost() -> None:
    class LostAnswer(WrappedBucket):
        def create(self, name: str, data: bytes) -> bool:
            self.inner.create(name, data)
            return False

    bucket = open_bucket("memory://")
    assert manifest.establish(LostAnswer(bucket), OURS) == OURS
    assert manifest.load(bucket) == OURS


def test_a_store_takes_the_first_description_and_no_other() -> None:
    bucket = open_bucket("memory://")
    store, beside = ReplayStore(bucket, STREAM, INFO), ReplayStore(bucket, STREAM, INFO)
    assert store.spec is None
    with pytest.raises(RejectedError, match=r"schema: a message of the stream 'theirs' in the topic of 'test'"):
        store.adopt(stream("theirs"))
    assert (store.spec, manifest.load(bucket)) == (None, None)
    assert store.adopt(SPEC) == SPEC
    other = replace(SPEC, env={"id": "Other-v0"})
    with pytest.raises(RejectedError, match=r"fingerprint: another producer's description of the stream came first"):
        beside.adopt(other)
    assert beside.spec == SPEC
