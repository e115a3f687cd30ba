"""What a learner publishes is kept, then announced; versions only grow, whoever crashes, and one learner publishes."""

from __future__ import annotations

import json
import re
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from penstock_consumers import policies
from penstock_consumers.policies import PolicyPublisher
from penstock_consumers.store import layout
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.errors import LogUnavailableError, PolicyError, StoreMismatchError, StoreUnavailableError
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.policies import FOLDER, MAX_INLINE_BYTES, decode_announcement
from tests.consumers.messages import WrappedBucket
from tests.consumers.stores import Writer, stream
from tests.schemas.announced import policy_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.log import Appended, Record

TOPIC = "policies.test"


class Crashed(BaseException):
    """The learner's process is gone."""


class Crashing:
    """A bucket, and a log, in whose n-th change a learner dies: before it is made, or after."""

    def __init__(self, bucket: Bucket, log: MemoryLog, *, at: int, made: bool) -> None:
        self._inner: Any = bucket
        self.log: Any = log
        self._left, self._made = at, made

    def change(self, call: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left == 0 and not self._made:
            raise Crashed
        answer = call()
        if self._left == 0:
            raise Crashed
        return answer

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._inner, name)
        return inner if name not in {"create", "put"} else lambda *of: self.change(lambda: inner(*of))

    def appender(self) -> Any:
        inner, outer = self.log.appender(), self

        class Appender:
            def append(self, *of: Any, **record: Any) -> Any:
                return outer.change(lambda: inner.append(*of, **record))

            def close(self) -> None:
                inner.close()

        return Appender()


@pytest.fixture
def bucket() -> Bucket:
    return open_bucket("memory://")


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


def publisher(log: Any, bucket: Any) -> PolicyPublisher:
    return PolicyPublisher("test", store=bucket, log=log)


def weights(value: float) -> dict[str, np.ndarray[Any, Any]]:
    return {"w": np.full((2, 3), value, np.float32)}


def announced(log: MemoryLog) -> list[Record]:
    reader = log.reader()
    reader.seek(TOPIC, 0, reader.bounds(TOPIC, 0)[0])
    return list(reader.poll(0.0))


def versions(log: MemoryLog) -> list[int]:
    return [decode_announcement(record).version for record in announced(log)]


def test_a_version_is_claimed_stored_and_announced(log: MemoryLog, bucket: Bucket) -> None:
    record = publisher(log, bucket).publish(weights(0.5), epsilon=0.1)
    assert record.version == 1
    assert bucket.read(layout.POLICIES + record.object_name).to_pybytes() == record.to_safetensors()
    assert layout.policy_version(layout.POLICIES + record.object_name) == 1
    claim = json.loads(bucket.read("policies/000000000001.json").to_pybytes())
    assert (claim["version"], claim["digest"]) == (1, record.digest.hex())
    read = policy_in(announced(log)[-1])
    assert (read.version, read.settings, read.digest) == (1, {"epsilon": 0.1}, record.digest)


def test_a_version_larger_than_a_message_is_stored_and_announced_by_name(log: MemoryLog, bucket: Bucket) -> None:
    record = publisher(log, bucket).publish({"w": np.zeros(MAX_INLINE_BYTES, np.uint8)}, temperature=0.5, noise=1)
    told = decode_announcement(announced(log)[-1])
    assert (told.version, told.settings, told.inline) == (1, {"temperature": 0.5, "noise": 1.0}, None)
    stored = bucket.read(layout.POLICIES + told.object_name).to_pybytes()
    assert told.policy(stored).digest == record.digest


def test_a_module_is_published_by_its_state_as_it_is_then(log: MemoryLog, bucket: Bucket) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    record = publisher(log, bucket).publish(module)
    with torch.no_grad():
        module[0].weight += 1.0
    for read in (record, policy_in(announced(log)[-1])):
        assert read.weights.keys() == state.keys() == module.state_dict().keys()
        for name, value in state.items():
            assert_array_equal(read.weights[name], value, strict=True)


@pytest.mark.parametrize("dtype", [">f4", ">i8", ">u2", "<f8", "?"])
def test_weights_of_any_byte_order_travel(log: MemoryLog, bucket: Bucket, dtype: str) -> None:
    given = np.array([[0, 1], [1, 1]], dtype)
    record = publisher(log, bucket).publish({"w": given})
    read = policy_in(announced(log)[-1])
    assert read.digest == record.digest
    assert_array_equal(read.weights["w"], given)


def test_statistics_travel_among_the_weights(log: MemoryLog, bucket: Bucket) -> None:
    statistics = {"connectors.0.mean": np.ones(4), "connectors.0.variance": np.full(4, 2.0)}
    publisher(log, bucket).publish(weights(1.0), connectors=statistics)
    read = policy_in(announced(log)[-1]).weights
    assert read.keys() == {"w", *statistics}
    assert_array_equal(read["connectors.0.variance"], statistics["connectors.0.variance"], strict=True)


@pytest.mark.parametrize(
    ("policy", "named", "expected"),
    [
        ({"a": np.ones(3), "b": np.array([[1, 2], [3, np.nan]])}, {}, r"weight 'b': nan at \(1, 1\) is not finite"),
        ({"log_std": np.float32("inf")}, {}, r"weight 'log_std': inf at \(\) is not finite"),
        (
            {"w": torch.ones(2, dtype=torch.bfloat16)},
            {},
            r"weight 'w': .*BFloat16: .* of a dtype that",
        ),
        ({"w": torch.ones(2, device="meta")}, {}, r"weight 'w': .* no data!: give an array"),
        ({"w": [[1.0], [2.0, 3.0]]}, {}, r"weight 'w': .* inhomogeneous shape .*: give an array"),
        ({"__metadata__": np.ones(1)}, {}, "weight '__metadata__': safetensors holds none of that name: rename it"),
        ({"w\ud800": np.ones(1)}, {}, r"weight 'w\\ud800': safetensors holds none of that name"),
        ({"w": np.array(["text"])}, {}, r"weight 'w': its dtype is <U4: give floats"),
        (3, {}, r"a int to publish: give a torch module, or its weights by name"),
        ({}, {}, "no weights to publish"),
        (torch.nn.ReLU(), {"connectors": {}}, "no weights to publish"),
        ({0: np.ones(1)}, {}, "weight 0: its name is no text"),
        ({"w": np.ones(1)}, {"connectors": {0: np.ones(1)}}, "weight 0: its name is no text"),
        (
            {"w": np.ones(1)},
            {"connectors": object()},
            r"connectors=<object.*: give arrays by name, as the `weights` of",
        ),
        ({"w": np.ones(1)}, {"connectors": []}, r"connectors=\[\]: give arrays by name, as the `weights` of"),
        ({"w": np.ones(1)}, {"epsilon": 1.5}, r"epsilon=1\.5: use a number from 0 to 1"),
        ({"w": np.ones(1)}, {"epsilon": "0.1"}, "epsilon='0.1': use a number from 0 to 1"),
        ({"w": np.ones(1)}, {"epsilon": True}, "epsilon=True: use a number from 0 to 1"),
        ({"w": np.ones(1)}, {"temperature": 0.0}, r"temperature=0\.0: use a number from 1e-30"),
        ({"w": np.ones(1)}, {"noise": float("nan")}, r"noise=nan: use a number from 0 to"),
        (
            {"w": np.ones(1)},
            {"connectors": {"mean": np.ones(1)}},
            r"connectors\['mean'\]: its name is to be connectors",
        ),
        (
            {"connectors.0.mean": np.ones(1)},
            {"connectors": {"connectors.0.mean": np.ones(1)}},
            r"connectors\['connectors\.0\.mean'\]: .* not that of a weight",
        ),
        (
            {"w": np.ones(1)},
            {"connectors": {"connectors.0.mean": np.array([np.inf])}},
            r"'connectors\.0\.mean': inf at",
        ),
    ],
)
def test_what_no_producer_would_load_is_refused_by_name_and_spends_no_version(
    log: MemoryLog, bucket: Bucket, policy: Any, named: dict[str, Any], expected: str
) -> None:
    ours = publisher(log, bucket)
    with pytest.raises(PolicyError, match=expected):
        ours.publish(policy, **named)
    assert (ours.newest, versions(log), list(bucket.list(layout.POLICIES))) == (0, [], [])
    assert ours.publish(weights(1.0)).version == 1


def test_publishers_one_after_another_go_on_counting(log: MemoryLog, bucket: Bucket) -> None:
    first = publisher(log, bucket)
    assert [first.publish(weights(at)).version for at in (1, 2)] == [1, 2]
    second = publisher(log, bucket)
    assert second.newest == 2
    assert second.publish(weights(4)).version == second.newest == 3
    assert versions(log) == [1, 2, 3]


def test_of_two_learners_the_second_to_claim_a_version_is_told_who_the_other_is(log: MemoryLog, bucket: Bucket) -> None:
    first, second = publisher(log, bucket), publisher(log, bucket)
    first.publish(weights(1))
    theirs = json.loads(bucket.read("policies/000000000001.json").to_pybytes())["writer"]
    expected = rf"stream 'test': policy version 1 is claimed by {re.escape(theirs)}, .*: another learner publishes to"
    # The second one is never the publisher by trying again, nor by equal weights.
    for _ in range(2):
        with pytest.raises(PolicyError, match=expected):
            second.publish(weights(1))
    first.publish(weights(2))
    assert versions(log) == [1, 2]
    # Whoever is started anew goes on behind what is claimed, and the one before it is told.
    third = publisher(log, bucket)
    assert third.publish(weights(3)).version == 3
    with pytest.raises(PolicyError, match="policy version 3 is claimed by"):
        first.publish(weights(4))
    assert versions(log) == [1, 2, 3]


def test_a_learner_that_was_overtaken_while_it_stood_still_announces_nothing(log: MemoryLog, bucket: Bucket) -> None:
    class Slow(Crashing):
        """Another learner starts and publishes while our weights are on their way into the store."""

        def change(self, call: Callable[[], Any]) -> Any:
            answer = call()
            self._left -= 1
            if self._left == 0:
                assert publisher(log, bucket).publish(weights(2)).version == 2
            return answer

    with pytest.raises(PolicyError, match="policy version 2 is claimed by"):
        publisher(log, Slow(bucket, log, at=2, made=True)).publish(weights(1))
    assert versions(log) == [2]


def test_a_learner_that_was_overtaken_while_it_announced_puts_the_newer_version_back(
    log: MemoryLog, bucket: Bucket
) -> None:
    class Slow(Crashing):
        """Others start and publish while our announcement is on its way, and while we make up for it."""

        def change(self, call: Callable[[], Any]) -> Any:
            self._left -= 1
            if self._left in {0, -1}:
                publisher(log, bucket).publish(weights(2 - self._left))
            return call()

    slow = Slow(bucket, log, at=3, made=True)
    ours = publisher(log, slow)
    ours._appender = slow.appender()
    with pytest.raises(PolicyError, match="policy version 2 is claimed by"):
        ours.publish(weights(1))
    assert versions(log) == [2, 1, 3, 2, 3]
    newest = policy_in(announced(log)[-1])
    assert_array_equal(newest.weights["w"], weights(3)["w"], strict=True)


def test_a_learner_that_gave_up_an_announcement_puts_the_newer_version_back_when_it_is_told(
    log: MemoryLog, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[dict[str, Any]] = []

    class Late:
        def append(self, topic: str, partition: int, **record: Any) -> Future[Appended]:
            late.append(record)
            return Future()

    ours = publisher(log, bucket)
    appender, ours._appender = ours._appender, Late()
    monkeypatch.setattr(policies, "_TIMEOUT_SECONDS", 0.01)
    with pytest.raises(LogUnavailableError, match="not acknowledged"):
        ours.publish(weights(1))
    monkeypatch.undo()
    ours._appender = appender
    publisher(log, bucket).publish(weights(2))
    appender.append(TOPIC, 0, **late[0]).result()
    with pytest.raises(PolicyError, match="policy version 2 is claimed by"):
        ours.publish(weights(3))
    assert versions(log) == [2, 1, 2]


def test_threads_share_a_publisher(log: MemoryLog, bucket: Bucket) -> None:
    ours = publisher(log, bucket)
    with ThreadPoolExecutor(8) as pool:
        spent = [record.version for record in pool.map(ours.publish, map(weights, range(40)))]
    assert sorted(spent) == versions(log) == list(range(1, 41))


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_learner_that_dies_anywhere_in_publish_leaves_nothing_wrong(
    log: MemoryLog, bucket: Bucket, at: int, made: bool
) -> None:
    publisher(log, bucket).publish(weights(1))
    dying = Crashing(bucket, log, at=at, made=made)
    log_of_dying: Any = log
    ours = PolicyPublisher("test", store=dying, log=log_of_dying)  # type: ignore[arg-type]  # it stands for a bucket
    ours._appender = dying.appender()
    with pytest.raises(Crashed):
        ours.publish(weights(2))
    spent = 1 if (at, made) == (1, False) else 2
    before = versions(log)
    assert before == ([1, 2] if (at, made) == (3, True) else [1])
    later = publisher(log, bucket)
    assert later.newest == spent
    assert later.publish(weights(3)).version == spent + 1
    assert versions(log) == [*before, spent + 1]
    # Whatever was announced is in the store as it was announced, whether or not it travelled inline.
    for record in announced(log):
        told = decode_announcement(record)
        assert told.policy(bucket.read(layout.POLICIES + told.object_name).to_pybytes()).version == told.version


def test_a_claim_whose_answer_was_lost_is_our_own(log: MemoryLog, bucket: Bucket) -> None:
    class Lost(Crashing):
        """A store that makes a change, and is not heard to."""

        def change(self, call: Callable[[], Any]) -> Any:
            answer = call()
            self._left -= 1
            if self._left == 0:
                raise StoreUnavailableError("store: it did not answer")
            return answer

    ours = publisher(log, Lost(bucket, log, at=1, made=True))
    with pytest.raises(StoreUnavailableError):
        ours.publish(weights(1))
    assert ours.publish(weights(2)).version == 2
    assert versions(log) == [2]


def test_a_store_that_was_begun_anew_goes_on_behind_what_its_topic_announced(log: MemoryLog, bucket: Bucket) -> None:
    for at in range(3):
        publisher(log, bucket).publish(weights(at))
    # One that was announced late says nothing of those before it.
    (late, *_) = announced(log)
    log.appender().append(TOPIC, 0, key=late.key, value=late.value, headers=late.headers).result(1.0)
    anew = publisher(log, open_bucket("memory://"))
    assert anew.newest == 3
    assert anew.publish(weights(9)).version == 4


def test_a_record_that_does_not_read_is_no_version(log: MemoryLog, bucket: Bucket) -> None:
    log.create(TOPIC, compacted=True)
    log.appender().append(TOPIC, 0, key=b"policy", value=b"no policy").result(1.0)
    assert publisher(log, bucket).publish(weights(1)).version == 1


def test_claims_that_a_listing_does_not_name_yet_count(log: MemoryLog, bucket: Bucket) -> None:
    class Lagging(Crashing):
        def list(self, prefix: str) -> list[str]:
            return []

    ours = publisher(log, bucket)
    for at in range(3):
        ours.publish(weights(at))
    later = publisher(MemoryLog(), Lagging(bucket, log, at=0, made=True))
    assert later.newest == 3


def test_a_learner_goes_on_from_the_newest_version_that_is_kept(log: MemoryLog, bucket: Bucket) -> None:
    ours = publisher(log, bucket)
    assert ours.last() is None
    for at in range(1, 12):
        ours.publish(weights(at))
    # Claimed and not kept, by a learner that died.
    bucket.put(layout.policy_claim(12), b"{}")
    last = publisher(log, bucket).last()
    assert last is not None
    assert last.version == 11
    assert_array_equal(last.weights["w"], weights(11)["w"], strict=True)


@pytest.mark.parametrize("listed", [0, 2, 4, 7])
def test_a_version_that_a_listing_does_not_name_yet_is_gone_on_from(
    log: MemoryLog, bucket: Bucket, listed: int
) -> None:
    class Lagging(WrappedBucket):
        def list(self, prefix: str) -> list[str]:
            return [name for name in super().list(prefix) if (layout.policy_version(name) or 0) <= listed]

    ours = publisher(log, bucket)
    for at in range(1, 5):
        ours.publish(weights(at))
    # Claimed and not kept, by learners that died.
    for version, claim in ((5, b'{"digest": "%s"}' % (b"0" * 64)), (6, b"half"), (7, b"[]"), (8, b'{"digest": "/"}')):
        bucket.put(layout.policy_claim(version), claim)
    last = policies.newest_kept(Lagging(bucket))
    assert last is not None
    assert last.version == 4


def test_a_store_keeps_policies_where_its_producers_look_for_them() -> None:
    assert layout.POLICIES == FOLDER


def test_what_is_no_policy_does_not_count(log: MemoryLog, bucket: Bucket) -> None:
    name = publisher(log, bucket).publish(weights(1)).object_name
    later = name.replace("000000000001", "000000000009")
    strays = (f"{later}.bak", "000000000009-best.safetensors", "best.json", f"kept/{later}", "9.json", ".DS_Store")
    for stray in strays:
        bucket.put(layout.POLICIES + stray, b"stray")
    assert publisher(log, bucket).newest == 1


def test_the_store_of_another_stream_is_refused(log: MemoryLog, tmp_path: Path) -> None:
    Writer(open_bucket(tmp_path), stream("walkers"))
    with pytest.raises(StoreMismatchError, match=r"holds the stream 'walkers', not 'test': choose its own"):
        PolicyPublisher("test", store=tmp_path, log=log)
    with PolicyPublisher("walkers", store=str(tmp_path), log=log) as ours:
        assert ours.publish(weights(1)).version == 1


def test_a_version_that_the_log_did_not_take_is_not_used_again(log: MemoryLog, bucket: Bucket) -> None:
    ours = publisher(log, bucket)
    log.outage = True
    with pytest.raises(LogUnavailableError):
        ours.publish(weights(1))
    log.outage = False
    assert ours.publish(weights(2)).version == 2
    assert publisher(log, bucket).newest == 2


def test_a_log_that_does_not_acknowledge_is_named(
    log: MemoryLog, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        def append(self, topic: str, partition: int, **record: Any) -> Future[Appended]:
            return Future()

        def close(self, timeout: float = 10.0) -> None: ...

    monkeypatch.setattr(policies, "_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(log, "appender", Silent)
    expected = rf"topic '{TOPIC}': policy version 1 was not acknowledged within 0\.01 s: check the log"
    with pytest.raises(LogUnavailableError, match=expected):
        publisher(log, bucket).publish(weights(1))


def test_a_log_that_was_given_is_left_open(log: MemoryLog, bucket: Bucket) -> None:
    publisher(log, bucket).close()
    assert publisher(log, bucket).publish(weights(1)).version == 1
