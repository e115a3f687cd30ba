"""What a producer is set to do beside its policy reaches the stream: connectors, states, callbacks."""

from __future__ import annotations

import json

import pytest

from penstock_schemas.errors import EnvError
from penstock_schemas.messages import Kind
from tests.producers.producing import STREAM, running
from tests.producers.publishing import SECONDS, messages, store, wait_until

TOPIC = f"rollouts.{STREAM}"
SMALL = ("--num-envs", "4", "--fragment-steps", "50")
HERE = "tests.producers.measuring"


def callbacks(name: str, **arguments: float) -> tuple[str, str]:
    return ("--callbacks", json.dumps([{"name": f"{HERE}:{name}", "arguments": arguments}]))


def test_what_callbacks_measure_is_stored_and_shown() -> None:
    with running("CartPole-v1", *SMALL, *callbacks("Halving", scale=3.0)) as producer:
        wait_until(lambda: producer.value("episode_metric_episodes_total", metric="half") >= 20)
    assert producer.error is None
    stored = store(producer.log, STREAM)
    assert stored.report.ok, stored.report.findings
    whole = [episode for episode in stored.episodes if not episode["abort_reason"]]
    expected = [1.5 * episode["length"] if episode["length"] % 2 == 0 else None for episode in whole]
    assert [episode["metric.half"] for episode in whole] == expected
    numbers = [number for number in expected if number is not None]
    assert producer.value("episode_metric_episodes_total", metric="half") == len(numbers)
    assert producer.value("episode_metric_positive_total", metric="half") == pytest.approx(sum(numbers))


def test_a_callback_that_raises_ends_the_incarnation_with_all_that_was_recorded() -> None:
    with running("CartPole-v1", *SMALL, *callbacks("Refusing")) as producer:
        producer.thread.join(SECONDS)
    assert isinstance(producer.error, EnvError)
    assert "callback Refusing: on_fragment_end() raised ValueError: one is enough" in str(producer.error)
    told = messages(producer.log, TOPIC)
    assert (told[-1].kind, told[-1].reason) == (Kind.END, f"env_error: {producer.error}")
    stored = store(producer.log, STREAM)
    assert stored.report.ok, stored.report.findings
    assert stored.report.steps_stored == producer.value("steps_total") > 50 * 4


def test_connectors_and_recurrent_states_are_the_streams() -> None:
    connectors = [{"name": "normalize", "arguments": {}}, {"name": "stack", "arguments": {"frames": 2}}]
    flags = ("--policy", "recurrent", "--connectors", json.dumps(connectors))
    with running("CartPole-v1", *SMALL, *flags) as producer:
        producer.await_steps(500)
    assert producer.error is None
    (spec,) = {
        message.spec.canonical: message.spec for message in messages(producer.log, TOPIC) if message.spec
    }.values()
    assert spec.policy["connectors"] == connectors
    assert spec.states
    stored = store(producer.log, STREAM)
    assert stored.report.ok, stored.report.findings
    for episode in stored.episodes:
        # The observation is the env's own, not what the connectors make of it.
        assert len(episode["observation"][0]) == 4
        for state in spec.states:
            assert len(episode[state.name]) == len(episode["policy_version"])
