"""What a producer tells of itself, once it has run."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from penstock_producers.envs import Seeds
from penstock_producers.envs.lanes import Lanes
from penstock_producers.fragment import ClosedFragment
from penstock_producers.making import make_described, make_env
from penstock_producers.metrics import ProducerMetrics
from penstock_producers.policy import TorchPolicy
from penstock_schemas.messages import Kind
from penstock_schemas.policies import PolicyRecord
from penstock_schemas.service import Health
from tests.producers.lanes_driving import QUICK, Driver
from tests.producers.lanes_zoo import Course
from tests.producers.producing import STREAM, running
from tests.producers.publishing import messages, records, store, wait_until

if TYPE_CHECKING:
    from tests.producers.producing import Producer

NAMES = {
    "penstock_build_info": "gauge",
    "penstock_producer_steps": "counter",
    "penstock_producer_episodes": "counter",
    "penstock_producer_fragments": "counter",
    "penstock_producer_messages": "counter",
    "penstock_producer_published_bytes": "counter",
    "penstock_producer_message_bytes": "histogram",
    "penstock_producer_publish_latency_seconds": "histogram",
    "penstock_producer_in_flight_bytes": "gauge",
    "penstock_producer_log_unavailable": "gauge",
    "penstock_producer_policy_version": "gauge",
    "penstock_producer_policy_loaded_timestamp_seconds": "gauge",
    "penstock_producer_policy_lag_versions": "gauge",
    "penstock_producer_policy_wait_seconds": "counter",
    "penstock_producer_exploration": "stateset",
    "penstock_producer_policies_rejected": "counter",
    "penstock_producer_aborted_episodes": "counter",
    "penstock_producer_env_faults": "counter",
    "penstock_producer_infos_left_out": "counter",
    "penstock_producer_starts": "counter",
    "penstock_producer_incarnation": "gauge",
    "penstock_producer_episode_return_mean": "gauge",
    "penstock_producer_episode_return_positive": "counter",
    "penstock_producer_episode_return_negative": "counter",
    "penstock_producer_episode_length_steps": "summary",
    "penstock_producer_episode_metric_mean": "gauge",
    "penstock_producer_episode_metric_positive": "counter",
    "penstock_producer_episode_metric_negative": "counter",
    "penstock_producer_episode_metric_episodes": "counter",
}


@pytest.fixture(scope="module")
def producer() -> Producer:
    """One that has run with two policy versions, and has stopped."""
    with running("CartPole-v1", "--num-envs", "4", "--fragment-steps", "40") as producer:
        env = make_env(producer.settings, Seeds(0, "pod-0"), time.monotonic)
        policy = make_described(producer.settings, env, np.random.default_rng())[1]
        assert isinstance(policy, TorchPolicy)
        module = policy.module
        env.close()
        producer.await_steps(500)
        weights = {name: value.numpy() for name, value in module.state_dict().items()}
        producer.publish(PolicyRecord(3, weights))
        wait_until(lambda: producer.value("policy_version") == 3)
        producer.await_steps(500)
        producer.publish(PolicyRecord(4, {}))
        wait_until(lambda: producer.value("policies_rejected_total", reason="names") == 1)
    assert producer.error is None
    return producer


def test_every_metric_has_its_name_and_type(producer: Producer) -> None:
    families = {family.name: family.type for family in producer.registry.collect()}
    # The client names an info and a counter without their endings.
    families["penstock_build_info"] = "gauge"
    assert families.pop("penstock_build", "info") == "info"
    assert families == NAMES
    text = generate_latest(producer.registry).decode()
    assert 'penstock_build_info{component="producer"' in text
    assert "# HELP penstock_producer_steps_total Environment steps recorded." in text


def test_steps_and_episodes_are_those_of_the_log(producer: Producer) -> None:
    stored = store(producer.log, STREAM)
    whole = [episode for episode in stored.episodes if not episode["abort_reason"]]
    assert producer.value("steps_total") == stored.report.steps_stored >= 1000
    assert producer.value("episodes_total") == len(whole) > 0
    chunks = [message for message in messages(producer.log, f"rollouts.{STREAM}") if message.kind is Kind.CHUNKS]
    assert producer.value("fragments_total") == len(chunks)


def test_returns_and_lengths_are_kept_by_the_version_that_ended_the_episode(producer: Producer) -> None:
    whole = [episode for episode in store(producer.log, STREAM).episodes if not episode["abort_reason"]]
    assert {episode["policy_version"][-1] for episode in whole} == {0, 3}
    for version in (0, 3):
        ended = [episode for episode in whole if episode["policy_version"][-1] == version]
        returns, lengths = (sum(episode[column] for episode in ended) for column in ("return", "length"))
        expected = {
            "episode_return_mean": returns / len(ended),
            "episode_return_positive_total": returns,
            "episode_return_negative_total": 0,
            "episode_length_steps_count": len(ended),
            "episode_length_steps_sum": lengths,
        }
        told = {name: producer.value(name, policy_version=str(version)) for name in expected}
        assert told == pytest.approx(expected)


def test_messages_and_bytes_are_those_of_the_log(producer: Producer) -> None:
    told = [message for message in messages(producer.log, f"rollouts.{STREAM}") if message.kind is not Kind.BEGIN]
    published = records(producer.log, f"rollouts.{STREAM}")[1:]
    assert producer.value("messages_total") == len(told)
    size = sum(record.size - len(record.key or b"") for record in published)
    assert producer.value("published_bytes_total") == size
    assert producer.value("message_bytes_sum") == size
    assert producer.value("message_bytes_count") == len(told)
    assert producer.value("publish_latency_seconds_count") == len(told)
    assert 0 < producer.value("publish_latency_seconds_sum") < 20
    assert producer.value("in_flight_bytes") == 0
    assert producer.value("log_unavailable") == 0


def test_the_policy_that_acts_is_told(producer: Producer) -> None:
    assert producer.value("policy_version") == 3
    assert time.time() - 600 < producer.value("policy_loaded_timestamp_seconds") <= time.time()
    assert producer.value("policies_rejected_total", reason="names") == 1
    assert producer.value("incarnation") == 0
    assert producer.value("starts_total") == 1
    assert producer.value("policy_lag_versions") == 0
    text = generate_latest(producer.registry).decode()
    assert [line for line in text.splitlines() if line.startswith("penstock_producer_exploration{")] == [
        f'penstock_producer_exploration{{penstock_producer_exploration="{name}"}} {float(name == "on")}'
        for name in ("off", "on", "random", "epsilon")
    ]


def test_what_is_measured_may_be_negative_and_what_is_not_finite_is_left_out() -> None:
    registry = CollectorRegistry()
    health = Health("log", "env", "policy", clock=time.monotonic, beat_limit=1.0)
    metrics = ProducerMetrics(registry, health)
    for numbers in ([-3.0, np.inf], [1.0, -np.inf, np.nan], [np.inf]):
        metrics.measured({"drift": np.array(numbers)})
    metrics.measured({"endless": np.array([np.inf])})
    scraped = text_string_to_metric_families(openmetrics.generate_latest(registry).decode())
    prefix = "penstock_producer_episode_metric_"
    told = {
        (sample.labels["metric"], sample.name.removeprefix(prefix)): sample.value
        for family in scraped
        for sample in family.samples
        if sample.name.startswith(prefix)
    }
    assert told == {
        ("drift", "mean"): -1.0,
        ("drift", "positive_total"): 1.0,
        ("drift", "negative_total"): 3.0,
        ("drift", "episodes_total"): 2.0,
        ("endless", "positive_total"): 0.0,
        ("endless", "negative_total"): 0.0,
        ("endless", "episodes_total"): 0.0,
    }


def test_readiness_tells_the_newest_fault_of_several() -> None:
    health = Health("log", "env", "policy", clock=time.monotonic, beat_limit=1.0)
    metrics = ProducerMetrics(CollectorRegistry(), health)
    nothing = ClosedFragment((), 0, np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64), ())
    envs = [Course(0), Course(1)]
    with closing(Lanes.existing(envs, seeds=Seeds(7, "pod-0"), containment=QUICK)) as lanes:
        driver = Driver(lanes, 2)
        for bad in (0, 1, 0):
            envs[bad].wrong, envs[bad].one_in = "exit", 1
            driver.step()
            metrics.acted(nothing, lanes)
            told = f"no env gave a step, and env {bad}: env_raised: step() raised SystemExit: 3"
            assert health.failing()["env"] == told
            envs[bad].wrong = ""
            driver.step()  # it is reset
    metrics.acted(replace(nothing, steps=1), lanes)
    assert "env" not in health.failing()
