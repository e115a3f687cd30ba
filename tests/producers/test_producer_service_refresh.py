"""What a producer does until the policy that is to act is there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock_producers.envs import Seeds
from penstock_producers.making import make_described, make_env
from penstock_schemas import policies
from penstock_schemas.chunks import Exploration
from penstock_schemas.messages import Kind
from penstock_schemas.policies import PolicyRecord
from tests.producers.producing import STREAM, Producer, settings_of
from tests.producers.publishing import messages, wait_until
from tests.producers.weights import GatedStore, gated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["gated"]
ENVS = 4
FRAGMENT = 20
SMALL = ("--num-envs", str(ENVS), "--fragment-steps", str(FRAGMENT))
# A fragment that nothing but a policy ends.
ENDLESS = ("--num-envs", str(ENVS), "--fragment-steps", "1000000", "--fragment-seconds", "1000")


class Pod:
    """A producer, and versions of its policy."""

    def __init__(self, *flags: str, store: GatedStore | None = None, of: Producer | None = None) -> None:
        self.producer = Producer(settings_of("CartPole-v1", *flags), weights=store)
        if of is not None:
            self.producer.log = of.log
        self.store = store
        env = make_env(self.producer.settings, Seeds(0, "pod-0"), time.monotonic)
        policy: Any = make_described(self.producer.settings, env, np.random.default_rng())[1]
        env.close()
        self.weights = {name: value.numpy().copy() for name, value in policy.module.state_dict().items()}

    def version(self, number: int, **settings: float) -> PolicyRecord:
        return PolicyRecord(number, self.weights, settings)

    def publish(self, number: int, **settings: float) -> None:
        self.producer.publish(self.version(number, **settings))

    def publish_by_store(self, number: int, monkeypatch: pytest.MonkeyPatch, data: bytes | None = None) -> None:
        assert self.store is not None
        self.store.put(self.version(number), data)
        with monkeypatch.context() as patched:
            patched.setattr(policies, "MAX_INLINE_BYTES", 0)
            self.publish(number)

    def await_acting(self, number: int) -> None:
        wait_until(lambda: self.value("policy_version") == number)

    def await_waiting(self, told: str) -> None:
        """Wait until it says why it waits, and it stands still."""
        wait_until(lambda: told in self.producer.health.failing().get("policy", ""))

    def await_seconds(self, reason: str) -> None:
        before = self.value("policy_wait_seconds_total", reason=reason)
        wait_until(lambda: self.value("policy_wait_seconds_total", reason=reason) > before)

    def value(self, name: str, **labels: str) -> float:
        return self.producer.value(name, **labels)

    def explores(self) -> set[str]:
        family = "penstock_producer_exploration"
        modes = [mode.name.lower() for mode in Exploration]
        return {mode for mode in modes if self.producer.registry.get_sample_value(family, {family: mode})}

    def chunks(self) -> set[tuple[int, int]]:
        """Version and exploration of all that it has published."""
        found: set[tuple[int, int]] = set()
        for message in messages(self.producer.log, f"rollouts.{STREAM}"):
            if message.batch is not None and message.batch.num_rows:
                columns = [message.batch.column(name).to_pylist() for name in ("policy_version", "exploration")]
                found |= set(zip(*columns, strict=True))
        return found


class Pods:
    """Starts pods, and stops them all."""

    def __init__(self) -> None:
        self._started: list[Pod] = []

    def start(self, *flags: str, store: GatedStore | None = None, of: Pod | None = None) -> Pod:
        pod = self.make(*flags, store=store, of=of)
        pod.producer.thread.start()
        return pod

    def make(self, *flags: str, store: GatedStore | None = None, of: Pod | None = None) -> Pod:
        """Make a pod that does not run yet, but has its topic."""
        pod = Pod(*flags, store=store, of=None if of is None else of.producer)
        self._started.append(pod)
        pod.producer.log.create(pod.producer.settings.policies_topic, compacted=True)
        return pod

    def stop(self) -> None:
        for pod in self._started:
            if pod.store is not None:
                pod.store.gate.set()
            pod.producer.finish()
            assert pod.producer.error is None


@pytest.fixture
def pods() -> Iterator[Pods]:
    pods = Pods()
    yield pods
    pods.stop()


def test_before_the_first_version_the_policy_acts_as_it_came(pods: Pods) -> None:
    pod = pods.start(*SMALL)
    pod.producer.await_steps(100)
    assert pod.explores() == {"on"}
    assert pod.value("policy_lag_versions") == 0
    pods.stop()
    assert pod.chunks() == {(0, Exploration.ON)}


def test_actions_are_random_until_the_first_version_and_chunks_say_so(pods: Pods) -> None:
    pod = pods.start(*SMALL, "--first-policy", "random")
    pod.producer.await_steps(100)
    assert pod.explores() == {"random"}
    pod.publish(3)
    pod.await_acting(3)
    assert pod.explores() == {"on"}
    pod.producer.await_steps(100)
    pods.stop()
    assert pod.chunks() == {(0, Exploration.RANDOM), (3, Exploration.ON)}


def test_it_waits_for_the_first_version_where_that_is_set_and_says_so(pods: Pods) -> None:
    pod = pods.start(*SMALL, "--first-policy", "wait")
    pod.await_waiting("waits for the first policy version; publish one")
    pod.await_seconds("first_policy")
    assert pod.value("fragments_total") == 0
    pod.publish(2)
    pod.producer.await_steps(100)
    assert pod.producer.health.failing() == {}
    assert pod.value("policy_wait_seconds_total", reason="policy_lag") == 0
    pods.stop()
    assert pod.chunks() == {(2, Exploration.ON)}


def test_a_stop_ends_the_wait_for_a_first_version(pods: Pods) -> None:
    pod = pods.start(*SMALL, "--first-policy", "wait")
    pod.await_waiting("waits for the first policy version")
    pods.stop()
    kinds = [message.kind for message in messages(pod.producer.log, f"rollouts.{STREAM}")]
    assert kinds == [Kind.BEGIN, Kind.END]


def test_a_pod_that_waits_is_alive(pods: Pods) -> None:
    pod = pods.start(*SMALL, "--first-policy", "wait")
    pod.await_waiting("waits for the first policy version")
    beaten = pod.producer.health._last_beat
    wait_until(lambda: pod.producer.health._last_beat > beaten)


def test_a_store_that_hangs_never_holds_the_envs_up(
    pods: Pods, gated: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated.gate.clear()
    pod = pods.start(*SMALL, store=gated)
    pod.publish(1)
    pod.await_acting(1)
    pod.publish_by_store(3, monkeypatch)
    wait_until(lambda: bool(gated.asked))
    pod.producer.await_steps(1000)
    assert pod.value("policy_version") == 1
    assert pod.value("policy_lag_versions") == 2
    assert pod.producer.health.failing() == {}
    gated.gate.set()
    pod.await_acting(3)
    assert pod.value("policy_lag_versions") == 0


def test_a_fragment_closes_early_for_a_version_too_far_ahead(pods: Pods) -> None:
    pod = pods.start(*ENDLESS, "--max-policy-lag", "1")
    for number in (2, 4):
        pod.publish(number)
        pod.await_acting(number)
    assert pod.value("fragments_total") <= 2
    pod.publish(5)
    wait_until(lambda: pod.value("policy_lag_versions") == 1)
    assert pod.value("policy_version") == 4


@pytest.mark.parametrize("outcome", ["fetched", "refused"])
def test_a_pod_too_far_behind_waits_for_the_newer_version_until_it_is_there_or_refused(
    pods: Pods, gated: GatedStore, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    gated.gate.clear()
    pod = pods.start(*ENDLESS, "--max-policy-lag", "0", store=gated)
    pod.publish(1)
    pod.await_acting(1)
    pod.publish_by_store(2, monkeypatch, None if outcome == "fetched" else b"garbage")
    pod.await_waiting("version 1 acted, more than 0 behind: waits for version 2")
    before = [pod.value(name) for name in ("fragments_total", "steps_total")]
    pod.await_seconds("policy_lag")
    pod.await_seconds("policy_lag")
    assert [pod.value(name) for name in ("fragments_total", "steps_total")] == before
    assert pod.value("policy_lag_versions") == 1
    gated.gate.set()
    wait_until(lambda: not pod.producer.health.failing())
    assert pod.value("policy_version") == (2 if outcome == "fetched" else 1)
    assert pod.value("policy_lag_versions") == 0
    assert pod.value("policies_rejected_total", reason="unreadable") == (outcome == "refused")
    pod.publish(3)
    pod.await_acting(3)


def test_a_version_with_which_the_network_fails_is_refused_and_nothing_waits_for_it(pods: Pods) -> None:
    pod = pods.start(*SMALL, "--policy", "tests.producers.policy_zoo:bounded", "--max-policy-lag", "0")

    def publish(number: int, bias: float) -> None:
        pod.weights = {"bias": np.full(2, bias, np.float32)}
        pod.publish(number)

    publish(1, 1.0)
    pod.await_acting(1)
    publish(2, 101.0)
    wait_until(lambda: pod.value("policies_rejected_total", reason="load") == 1)
    publish(3, -101.0)
    wait_until(lambda: pod.value("policies_rejected_total", reason="not_finite") == 1)
    pod.producer.await_steps(100)
    assert pod.value("policy_version") == 1
    assert pod.value("policy_lag_versions") == 0
    assert pod.producer.health.failing() == {}
    publish(3, 2.0)
    pod.await_acting(3)


@pytest.mark.parametrize("first", ["act", "wait"])
@pytest.mark.parametrize("bias", [101.0, -101.0])
def test_a_pod_that_starts_while_the_newest_version_does_not_load_acts_with_the_one_before(
    pods: Pods, first: str, bias: float
) -> None:
    pod = pods.make(*SMALL, "--policy", "tests.producers.policy_zoo:bounded", "--first-policy", first)
    for number, of in ((5, 1.0), (6, bias)):
        pod.weights = {"bias": np.full(2, of, np.float32)}
        pod.publish(number)
    pod.producer.thread.start()
    pod.producer.await_steps(100)
    pods.stop()
    assert pod.chunks() == {(5, Exploration.ON)}
    assert pod.value("policy_lag_versions") == 0


def test_a_pod_too_far_behind_goes_on_where_that_is_set_in_whole_fragments(
    pods: Pods, gated: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated.gate.clear()
    # Not by time, which may be up on a machine that has much else to do.
    full = (*SMALL, "--fragment-seconds", "1000")
    pod = pods.start(*full, "--max-policy-lag", "0", "--on-policy-lag", "continue", store=gated)
    pod.publish(1)
    pod.await_acting(1)
    pod.publish_by_store(2, monkeypatch)
    wait_until(lambda: bool(gated.asked))
    pod.producer.await_steps(100)
    before = [pod.value(name) for name in ("steps_total", "fragments_total")]
    pod.producer.await_steps(1000)
    assert pod.producer.health.failing() == {}
    gated.gate.set()
    pod.await_acting(2)
    pods.stop()
    steps, fragments = (pod.value(n) - was for n, was in zip(("steps_total", "fragments_total"), before, strict=True))
    # All but the one that a version ended, one more where that came to hand just as the next began, and the last.
    assert steps > ENVS * FRAGMENT * (fragments - 3)
    assert pod.value("policy_wait_seconds_total", reason="policy_lag") == 0


def test_where_it_goes_on_a_fragment_closes_early_once_the_version_is_at_hand(
    pods: Pods, gated: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated.gate.clear()
    pod = pods.start(*ENDLESS, "--max-policy-lag", "0", "--on-policy-lag", "continue", store=gated)
    pod.publish_by_store(2, monkeypatch)
    wait_until(lambda: bool(gated.asked))
    assert pod.value("fragments_total") == 0
    gated.gate.set()
    pod.await_acting(2)
    assert pod.value("fragments_total") <= 1


def test_a_pod_that_restarts_explores_at_once_as_its_version_says(pods: Pods) -> None:
    first = pods.start(*SMALL, "--policy", "q-network", "--behaviour", '{"epsilon": 1.0}')
    first.publish(1, epsilon=0.02)
    first.await_acting(1)
    first.producer.finish()
    second = pods.start(*SMALL, "--policy", "q-network", "--behaviour", '{"epsilon": 1.0}', of=first)
    second.producer.await_steps(100)
    second.producer.finish()
    told = messages(second.producer.log, f"rollouts.{STREAM}")
    starts = [place for place, message in enumerate(told) if message.kind is Kind.BEGIN]
    batches = [message.batch for message in told[starts[1] :] if message.batch is not None]
    chances = np.array([0.01, 0.99])
    for batch in batches:
        assert set(batch.column("policy_version").to_pylist()) <= {1}
        assert set(batch.column("exploration").to_pylist()) <= {Exploration.EPSILON}
        chance = np.exp(batch.column("log_prob").flatten().to_numpy())
        assert np.all(np.isclose(chance[:, None], chances).any(axis=1))
    assert sum(batch.num_rows for batch in batches)
