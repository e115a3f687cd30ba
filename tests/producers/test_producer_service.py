"""A producer's whole life, over the log in memory; and its entry point, as a process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from penstock_consumers.replay import Replay
from penstock_producers.envs import EnvSource, Seeds
from penstock_producers.envs.retrace import retrace
from penstock_producers.making import make_described, make_env
from penstock_producers.policy import TorchPolicy, make_policy
from penstock_producers.service import serve
from penstock_producers.settings import ProducerSettings
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import EnvError, LogUnavailableError, PolicyError, SettingsError, SpaceError
from penstock_schemas.messages import Kind, Message
from penstock_schemas.policies import PolicyRecord
from penstock_schemas.service import load
from penstock_schemas.spaces import flatten
from tests.producers.envs_that_end import (
    ALWAYS_ENDS,
    NEVER_MADE,
    NEVER_RESET,
    SEQUENCE_OBSERVATION,
    TELLS_ITS_END,
    TEXT_ACTION,
    AlwaysEnds,
)
from tests.producers.producing import STREAM, Producer, running, settings_of
from tests.producers.publishing import SECONDS, messages, store, wait_until

ZOO = "tests.producers.env_zoo"
TOPIC = f"rollouts.{STREAM}"
REQUIRED = ("--stream", "s", "--env", "CartPole-v1")


def found(producer: Producer) -> list[Message]:
    return messages(producer.log, TOPIC)


def initial_policy(producer: Producer) -> TorchPolicy:
    env = make_env(producer.settings, Seeds(0, "pod-0"), time.monotonic)
    try:
        policy = make_described(producer.settings, env, np.random.default_rng())[1]
        assert isinstance(policy, TorchPolicy)
        return policy
    finally:
        env.close()


def biased(policy: TorchPolicy, version: int) -> PolicyRecord:
    """A version that always goes right, and takes its number for every observation's value."""
    weights = {name: value.numpy().copy() for name, value in policy.module.state_dict().items()}
    weights["head.weight"][:] = 0
    weights["head.bias"][:] = [-100, 100, version]
    return PolicyRecord(version, weights)


def test_what_is_produced_until_a_stop_is_stored_exactly() -> None:
    with running("CartPole-v1", "--num-envs", "8", "--fragment-steps", "50") as producer:
        producer.await_steps(2000)
        producer.finish()
    assert producer.error is None
    told = found(producer)
    assert [message.kind for message in told] == [Kind.BEGIN, *([Kind.CHUNKS] * (len(told) - 2)), Kind.END]
    assert told[-1].reason == "shutdown"
    assert [message.sequence for message in told[1:]] == list(range(len(told) - 1))
    stored = store(producer.log, STREAM)
    assert stored.report.ok, stored.report.findings
    steps = int(producer.value("steps_total"))
    assert (stored.report.steps_stored, stored.report.steps_missing) == (steps, 0)
    aborted = [episode for episode in stored.episodes if episode["abort_reason"]]
    assert {episode["abort_reason"] for episode in aborted} == {"shutdown"}
    assert len(aborted) <= 8
    assert len(stored.episodes) - len(aborted) == producer.value("episodes_total")
    for episode in stored.episodes:
        assert episode["return"] == episode["length"]
        assert len(episode["observation"]) == episode["length"] + 1


def test_compressed_messages_are_smaller_and_store_the_same() -> None:
    sizes = []
    for compression in ("none", "zstd"):
        flags = ("--num-envs", "4", "--fragment-steps", "100", "--compression", compression)
        with running("CartPole-v1", *flags) as producer:
            producer.await_steps(2000)
        assert producer.error is None
        stored = store(producer.log, STREAM)
        assert stored.report.ok, stored.report.findings
        assert stored.report.steps_stored == producer.value("steps_total")
        sizes.append(producer.value("published_bytes_total") / producer.value("steps_total"))
    assert sizes[1] < 0.8 * sizes[0]


def test_in_lanes_a_broken_env_is_counted_and_what_is_stored_is_whole() -> None:
    """Each env breaks at the fourth step of every life; infos of a kind that cannot be stored are left out."""
    flags = ("--num-envs", "3", "--fragment-steps", "4", "--max-rebuilds", "100000")
    with running(
        f"{ZOO}:InformingEnv", *flags, "--rebuild-backoff-seconds", "1e-9", "--infos", "mask", "--cut-steps", "2"
    ) as producer:
        wait_until(lambda: producer.value("aborted_episodes_total", kind="env_raised") >= 12)
    assert producer.error is None
    assert producer.value("infos_left_out_total", key="mask") > 0
    stored = store(producer.log, STREAM)
    assert stored.report.ok, stored.report.findings
    assert stored.report.steps_stored == producer.value("steps_total")
    ends = {episode["ends"] for episode in stored.episodes}
    assert ends == {Ends.CUT, Ends.ABORTED}
    assert all(episode["length"] <= 2 for episode in stored.episodes)


def test_nested_experience_out_of_lockstep_is_what_each_episode_gives_again() -> None:
    flags = ("--num-envs", "4", "--workers", "2", "--policy", "random", "--no-check-bounds", "--fragment-steps", "20")
    infos = ("--infos", "mask", "--infos", "word", "--infos", "late")
    with running("tests.producers.nested_zoo:NestedEnv", *flags, *infos) as producer:
        producer.await_steps(500)
    assert producer.error is None
    stored = store(producer.log, STREAM)
    assert stored.report.ok, stored.report.findings
    replay, source = Replay.open(stored.bucket), EnvSource("tests.producers.nested_zoo:NestedEnv")
    whole = [episode for episode in replay.episodes() if episode.ends is not Ends.ABORTED]
    assert len(whole) > 100
    for episode in whole:
        divergence = retrace(
            source.single(episode.env),
            seed=episode.seed,
            options=None,
            observation=flatten(replay.spec.observation, episode.observation),
            action=flatten(replay.spec.action, episode.action),
            reward=episode.reward,
            observation_space=replay.spec.observation,
            action_space=replay.spec.action,
        )
        assert divergence is None, str(divergence)
        assert episode.infos["mask"].tolist() == [[step, 0] for step in range(episode.length + 1)]
        assert episode.infos["word"].tolist() == ["e0"] * (episode.length + 1)
        assert episode.infos["late"].tolist() == [None] * episode.length + [episode.length]


def await_version(producer: Producer, version: int) -> None:
    wait_until(lambda: producer.value("policy_version") == version)


def test_newer_policies_act_from_a_fragment_on_each_under_its_digest() -> None:
    with running("CartPole-v1", "--num-envs", "4", "--fragment-steps", "20") as producer:
        policy = initial_policy(producer)
        producer.await_steps(100)
        records = [biased(policy, version) for version in (1, 2, 5)]
        for record in records:
            producer.publish(record)
            await_version(producer, record.version)
            producer.await_steps(100)
        producer.publish(records[0])
        producer.publish(PolicyRecord(9, {"head.bias": np.zeros(3, np.float32)}))
        wait_until(lambda: producer.value("policies_rejected_total", reason="names") == 1)
        producer.await_steps(100)
    assert producer.error is None
    assert producer.value("policy_version") == 5
    digests = {0: policy.digest, **{record.version: record.digest for record in records}}
    stored = store(producer.log, STREAM)
    assert stored.report.ok, stored.report.findings
    seen: set[int] = set()
    for episode in stored.episodes:
        versions = episode["policy_version"]
        assert versions == sorted(versions)
        assert episode["policy_digest"] == [digests[version] for version in versions]
        ends = [*episode["chunk_first_step"][1:], episode["length"]]
        for version, start, stop in zip(versions, episode["chunk_first_step"], ends, strict=True):
            seen.add(version)
            if version:
                assert set(episode["action"][start:stop]) == {1}
                assert set(episode["value"][start:stop]) == {version}
    assert seen == set(digests)
    for message in found(producer):
        if message.batch is not None and message.batch.num_rows:
            assert len(set(message.batch.column("policy_version").to_pylist())) == 1


def test_boxes_are_drawn_recorded_and_sent_clipped() -> None:
    flags = ("--num-envs", "3", "--vectorization", "sync", "--fragment-steps", "150")
    with running("Pendulum-v1", *flags) as producer:
        policy = initial_policy(producer)
        producer.await_steps(3 * 450)
    assert producer.error is None
    stored = store(producer.log, STREAM)
    assert stored.report.ok, stored.report.findings
    whole = [episode for episode in stored.episodes if not episode["abort_reason"]]
    assert len(whole) >= 6
    assert {(episode["length"], episode["ends"]) for episode in whole} == {(200, 2)}
    assert {episode["seed"] is not None for episode in stored.episodes if episode["episode"] == 0} == {True}
    for episode in stored.episodes:
        action, sent = (np.array(episode[name], np.float32) for name in ("action", "action_sent"))
        assert np.array_equal(sent, np.clip(action, -2.0, 2.0))
        observation = np.array(episode["observation"], np.float32)
        with torch.no_grad():
            parameters, value = policy.module(torch.from_numpy(observation[:-1]))
        mean, log_std = parameters[:, :1], parameters[:, 1:]
        log_prob = torch.distributions.Normal(mean, log_std.exp()).log_prob(torch.from_numpy(action)).sum(1)  # type: ignore[no-untyped-call]  # torch's
        np.testing.assert_allclose(episode["log_prob"], log_prob, atol=1e-4)
        np.testing.assert_allclose(episode["value"], value, atol=1e-4)
    assert any(abs(action[0]) > 2 for episode in stored.episodes for action in episode["action"])


@pytest.mark.parametrize(
    ("env", "raised"), [("FailingEnv", "ValueError: the pole is missing"), ("LeavingEnv", "SystemExit: 0")]
)
def test_an_env_that_raises_ends_the_incarnation_with_what_came_before(env: str, raised: str) -> None:
    with running(f"{ZOO}:{env}", "--num-envs", "2", "--vectorization", "sync") as producer:
        producer.thread.join(SECONDS)
    assert isinstance(producer.error, EnvError)
    told = found(producer)
    assert [message.kind for message in told] == [Kind.BEGIN, Kind.CHUNKS, Kind.END]
    reason = f"env_error: {producer.error}"
    assert f"step() raised {raised}" in reason
    stored = store(producer.log, STREAM)
    assert stored.report.ok, stored.report.findings
    assert [(episode["length"], episode["abort_reason"]) for episode in stored.episodes] == [(2, reason[:249])] * 2
    assert producer.value("steps_total") == 4


def test_a_policy_that_can_choose_nothing_ends_the_incarnation_with_what_came_before() -> None:
    flags = ("--num-envs", "2", "--infos", "allowed", "--behaviour", '{"mask": "allowed"}')
    with running(f"{ZOO}:StuckEnv", *flags) as producer:
        producer.thread.join(SECONDS)
    assert isinstance(producer.error, PolicyError)
    told = found(producer)
    assert [message.kind for message in told] == [Kind.BEGIN, Kind.CHUNKS, Kind.END]
    assert told[-1].reason == f"policy_error: {producer.error}"[:249]
    stored = store(producer.log, STREAM)
    assert stored.report.ok, stored.report.findings
    assert [(episode["length"], episode["abort_reason"]) for episode in stored.episodes] == [(3, told[-1].reason)] * 2
    assert producer.value("steps_total") == 6


def test_an_env_that_raises_with_nothing_at_hand_ends_the_incarnation() -> None:
    flags = ("--num-envs", "1", "--vectorization", "sync", "--fragment-steps", "1")
    with running(ALWAYS_ENDS, *flags) as producer:
        producer.thread.join(SECONDS)
    assert isinstance(producer.error, EnvError)
    told = found(producer)
    assert [message.kind for message in told] == [Kind.BEGIN, Kind.CHUNKS, Kind.CHUNKS, Kind.END]
    assert "no more resets" in told[-1].reason
    stored = store(producer.log, STREAM)
    assert stored.report.ok
    assert [(episode["length"], episode["ends"]) for episode in stored.episodes] == [(1, 1)] * 2


def test_an_env_that_no_longer_resets_is_counted_and_makes_the_producer_unready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = ("--env-arguments", '{"resets": 1000000000}', "--num-envs", "1", "--fragment-seconds", "0.01")
    with running(
        ALWAYS_ENDS, *flags, "--rebuild-backoff-seconds", "1e-3", "--max-rebuilds", "100000", "--no-check-bounds"
    ) as producer:
        producer.await_steps(10)
        assert producer.health.failing() == {}

        def gone(*args: object, **given: object) -> Any:
            raise RuntimeError("the simulator is away")

        monkeypatch.setattr(AlwaysEnds, "reset", gone)
        wait_until(lambda: bool(producer.health.failing()))
        told = "no env gave a step, and env 0: env_raised: reset() raised RuntimeError: the simulator is away"
        assert producer.health.failing() == {"env": told}
        assert producer.value("env_faults_total", kind="env_raised") > 0
        assert producer.value("aborted_episodes_total", kind="env_raised") == 0
        monkeypatch.undo()
        wait_until(lambda: not producer.health.failing())
    assert producer.error is None


def test_an_outage_holds_the_envs_up_and_says_why() -> None:
    flags = ("--num-envs", "4", "--fragment-steps", "20", "--max-in-flight-bytes", "1")
    with running("CartPole-v1", *flags) as producer:
        producer.await_steps(100)
        assert producer.health.failing() == {}
        producer.log.outage = True
        wait_until(lambda: "outage" in producer.health.failing().get("log", ""))
        assert producer.value("log_unavailable") == 1
        producer.log.outage = False
        producer.await_steps(100)
        wait_until(lambda: not producer.health.failing())
        assert producer.value("log_unavailable") == 0
    assert producer.error is None
    stored = store(producer.log, STREAM)
    assert stored.report.ok, stored.report.findings
    assert stored.report.steps_stored == producer.value("steps_total")
    assert len({message.incarnation for message in found(producer)}) == 1


def test_a_stop_during_an_outage_waits_no_longer_than_the_grace() -> None:
    flags = ("--num-envs", "4", "--fragment-steps", "20", "--grace-seconds", "0.1")
    with running("CartPole-v1", *flags) as producer:
        producer.await_steps(100)
        producer.log.outage = True
        wait_until(lambda: "log" in producer.health.failing())
        producer.stop.set()
        producer.thread.join(SECONDS)
        assert not producer.thread.is_alive()
    assert isinstance(producer.error, LogUnavailableError)
    assert "did not take all within 0.1 s after the stop" in str(producer.error)


def test_a_start_during_an_outage_waits_and_says_why() -> None:
    producer = Producer(settings_of("CartPole-v1", "--num-envs", "2", "--fragment-steps", "20"))
    producer.log.outage = True
    producer.thread.start()
    try:
        wait_until(lambda: "outage" in producer.health.failing().get("log", ""))
        assert producer.value("log_unavailable") == 1
        producer.log.outage = False
        producer.await_steps(100)
        assert producer.health.failing() == {}
        assert producer.value("log_unavailable") == 0
    finally:
        producer.finish()
    assert producer.error is None
    assert [message.kind for message in found(producer)].count(Kind.BEGIN) == 1
    assert store(producer.log, STREAM).report.ok


def test_a_stop_before_the_log_has_ever_answered_is_a_clean_one(caplog: pytest.LogCaptureFixture) -> None:
    producer = Producer(settings_of("CartPole-v1", "--num-envs", "2"))
    producer.log.outage = True
    producer.thread.start()
    wait_until(lambda: "log" in producer.health.failing() and bool(caplog.records))
    producer.finish()
    assert producer.error is None
    assert "waiting for the log: the log in memory 'memory' has an outage: try again" in caplog.messages


def test_the_policy_that_a_producer_comes_with_is_loaded_from_its_start() -> None:
    before = time.time()
    with running("CartPole-v1", "--num-envs", "2") as producer:
        producer.await_steps(10)
        assert before <= producer.value("policy_loaded_timestamp_seconds") <= time.time()
        assert producer.value("policy_version") == 0


def test_a_bad_version_that_lies_over_a_good_one_at_a_start_leaves_the_good_one() -> None:
    producer = Producer(settings_of("CartPole-v1", "--num-envs", "2"))
    good = biased(initial_policy(producer), 1)
    producer.log.create(producer.settings.policies_topic, compacted=True)
    producer.publish(good)
    producer.publish(PolicyRecord(2, {"w": np.zeros(3, np.float32)}))
    producer.thread.start()
    try:
        await_version(producer, 1)
        producer.publish(replace(good, version=2))
        await_version(producer, 2)
    finally:
        producer.finish()
    assert producer.error is None
    assert producer.value("policies_rejected_total", reason="names") == 1


def test_a_restart_is_a_later_incarnation_with_the_same_stream() -> None:
    with running("CartPole-v1", "--num-envs", "2", "--fragment-steps", "20") as first:
        first.await_steps(100)
    with running("CartPole-v1", "--num-envs", "2", "--fragment-steps", "20") as second:
        pass
    assert found(first)[0].spec == found(second)[0].spec
    with pytest.raises(SettingsError, match="--autoreset Later: there are NextStep, SameStep, Disabled"):
        serve(settings_of("CartPole-v1", "--autoreset", "Later"), threading.Event())


def test_the_stream_names_how_to_make_env_and_policy_again() -> None:
    connectors = [{"name": "normalize", "arguments": {}}]
    flags = ("--behaviour", '{"temperature": 2.0}', "--connectors", json.dumps(connectors))
    settings = settings_of("CartPole-v1", "--env-arguments", '{"sutton_barto_reward": true}', *flags)
    env = make_env(settings, Seeds(0, "pod-0"), time.monotonic)
    spec, policy = make_described(settings, env, np.random.default_rng(0))
    assert spec.stream == STREAM
    assert spec.env == {"id": "CartPole-v1", "arguments": {"sutton_barto_reward": True}, "wrappers": []}
    assert spec.policy == {
        "name": "actor-critic",
        "arguments": {},
        "behaviour": {"temperature": 2.0},
        "connectors": connectors,
        "mapping": policy.mapping,
    }
    assert (spec.extras, spec.states, spec.metrics) == (policy.extras, policy.states, ())
    described = {name: value for name, value in spec.policy.items() if name != "mapping"}
    again = make_policy(described.pop("name"), spec.observation, spec.action, **described, rng=np.random.default_rng(1))
    assert again.digest == policy.digest
    assert again.pipeline.weights


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--stream", "s"), "--env is required: give the flag, PENSTOCK_ENV, or env in the file"),
        (("--env", "CartPole-v1"), "--stream is required"),
        ((*REQUIRED, "--num-envs", "0"), "--num-envs '0'"),
        ((*REQUIRED, "--num-envs", "many"), "--num-envs 'many'"),
        ((*REQUIRED, "--vectorization", "threads"), "--vectorization 'threads'"),
        ((*REQUIRED, "--producer-id", "a/b"), "--producer-id 'a/b'"),
        ((*REQUIRED, "--partitions", "0"), "--partitions '0'"),
        ((*REQUIRED, "--fragment-steps", "0"), "--fragment-steps '0'"),
        ((*REQUIRED, "--fragment-seconds", "0"), "--fragment-seconds '0'"),
        ((*REQUIRED, "--max-message-bytes", "1000"), "--max-message-bytes '1000'"),
        ((*REQUIRED, "--max-in-flight-bytes", "0"), "--max-in-flight-bytes '0'"),
        ((*REQUIRED, "--delivery-timeout-seconds", "-1"), "--delivery-timeout-seconds '-1'"),
        ((*REQUIRED, "--grace-seconds", "0"), "--grace-seconds '0'"),
        ((*REQUIRED, "--seed", "-1"), "--seed '-1'"),
        ((*REQUIRED, "--env-arguments", "[1]"), "--env-arguments"),
        ((*REQUIRED, "--wrappers", "{"), "--wrappers"),
        ((*REQUIRED, "--workers", "-1"), "--workers '-1'"),
        ((*REQUIRED, "--cut-steps", "0"), "--cut-steps '0'"),
        ((*REQUIRED, "--compression", "lz4"), "--compression 'lz4'"),
        ((*REQUIRED, "--step-timeout-seconds", "0"), "--step-timeout-seconds '0'"),
        ((*REQUIRED, "--max-rebuilds", "-1"), "--max-rebuilds '-1'"),
        ((*REQUIRED, "--rebuild-backoff-seconds", "0"), "--rebuild-backoff-seconds '0'"),
        ((*REQUIRED, "--liveness-seconds", "0"), "--liveness-seconds '0'"),
        ((*REQUIRED, "--policy-arguments", "{"), "--policy-arguments"),
        ((*REQUIRED, "--behaviour", "[1]"), "--behaviour"),
        ((*REQUIRED, "--delivery-timeout-seconds", "inf"), "--delivery-timeout-seconds"),
        ((*REQUIRED, "--connectors", "{"), "--connectors"),
        ((*REQUIRED, "--callbacks", "{"), "--callbacks"),
        ((*REQUIRED, "--first-policy", "sleep"), "--first-policy 'sleep'"),
        ((*REQUIRED, "--policy", "random", "--first-policy", "wait"), "--policy random has no versions"),
        ((*REQUIRED, "--max-policy-lag", "-1"), "--max-policy-lag '-1'"),
        ((*REQUIRED, "--on-policy-lag", "stop"), "--on-policy-lag 'stop'"),
        ((*REQUIRED, "--max-policy-bytes", "0"), "--max-policy-bytes '0'"),
        ((*REQUIRED, "--nope", "1"), "unknown: --nope"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_flag(
    flags: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_ENV", raising=False)
    monkeypatch.delenv("PENSTOCK_STREAM", raising=False)
    with pytest.raises(SettingsError, match=re.escape(told)):
        load(ProducerSettings, flags)


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock_producers", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - ours


def test_help_and_a_word_that_is_none_name_the_commands() -> None:
    ended = run("--help")
    assert ended.returncode == 0
    assert "other commands: check --help, evaluate --help." in ended.stdout
    ended = run("chek", "--env", "CartPole-v1")
    told = "error: unknown command 'chek': check or evaluate, and a producer needs none\n"
    assert (ended.returncode, ended.stderr) == (2, told)


def test_help_names_every_setting() -> None:
    told = run("--help")
    assert (told.returncode, told.stderr) == (0, "")
    for name in ProducerSettings.model_fields:
        assert f"--{name.replace('_', '-')}" in told.stdout


@pytest.mark.parametrize(
    ("env", "error", "told"),
    [
        (("Nope-v0",), EnvError, "environment 'Nope-v0': gymnasium has no such id: Environment `Nope` doesn't exist."),
        (
            (f"{ZOO}:moded", "--env-arguments", '{"mode": "absent"}'),
            EnvError,
            "metadata['autoreset_mode'] must be a gymnasium.vector.AutoresetMode, but is none: ",
        ),
        ((SEQUENCE_OBSERVATION,), SpaceError, "observation space"),
        ((TEXT_ACTION,), PolicyError, "action: no policy draws from Text("),
        (("CartPole-v1", "--wrappers", '[{"name": "NoSuchWrapper"}]'), EnvError, "NoSuchWrapper"),
        (("CartPole-v1", "--store", "nope://host/path"), SettingsError, "--store 'nope://host/path': obstore does not"),
        (("CartPole-v1", "--callbacks", '[{"name": "nope"}]'), SettingsError, "callback 'nope': not of the form"),
        (("CartPole-v1", "--behaviour", '{"nope": 1}'), PolicyError, "behaviour: unknown 'nope'"),
        (("CartPole-v1", "--connectors", '[{"name": "nope"}]'), PolicyError, "connector 0 'nope'"),
        (("CartPole-v1", "--device", "nope"), PolicyError, "nope"),
        (("CartPole-v1", "--infos", "a", "--infos", "a"), SettingsError, "--infos ['a', 'a']: each key once"),
        (
            (f"{ZOO}:CountingEnv", "--env-arguments", '{"longest": NaN}'),
            SettingsError,
            "--env-arguments, --wrappers, --policy-arguments, --behaviour or --connectors: no plain JSON",
        ),
    ],
)
def test_an_env_that_cannot_be_had_is_told_and_needs_no_kafka(env: tuple[str, ...], error: Any, told: str) -> None:
    settings = settings_of(*env, "--bootstrap-servers", "127.0.0.1:1", "--num-envs", "2")
    with pytest.raises(error, match=re.escape(told)):
        serve(settings, threading.Event())


def test_an_unknown_env_is_one_error_line() -> None:
    ended = run("--stream", "s", "--bootstrap-servers", "127.0.0.1:1", "--env", "Nope-v0")
    assert ended.returncode == 1, ended.stderr
    *logged, last = ended.stderr.splitlines()
    assert last.startswith("error: environment 'Nope-v0': gymnasium has no such id: Environment `Nope` doesn't exist.")
    assert [line for line in logged if "Traceback" in line or line.startswith("error")] == []
    assert ended.stdout == ""


def stopped_at_a_line(*flags: str) -> tuple[int, str, str]:
    """Run a producer without a Kafka until its env writes a line; its status, all lines, and its log."""
    start = ("--stream", "s", "--bootstrap-servers", "127.0.0.1:1")
    command = [sys.executable, "-m", "penstock_producers", *start, *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as producer:  # noqa: S603 - ours
        try:
            assert producer.stdout is not None
            line = producer.stdout.readline()
            producer.terminate()
            written, told = producer.communicate(timeout=SECONDS)
        finally:
            producer.kill()
    return producer.returncode, line + written, told


@pytest.mark.parametrize("env", [NEVER_MADE, NEVER_RESET])
def test_a_stop_while_an_env_hangs_at_the_start_is_a_clean_one(env: str) -> None:
    status, written, told = stopped_at_a_line("--env", env)
    assert (status, written) == (0, "hangs\n")
    assert "SIGTERM: stopping" in told.splitlines()[-1]


def test_a_stop_while_it_waits_for_kafka_closes_the_envs() -> None:
    status, written, told = stopped_at_a_line("--env", TELLS_ITS_END, "--num-envs", "1")
    assert (status, written) == (0, "made\nclosed\n"), told
