"""The rollout: fragments of the right length, each of one policy version, going on from each other."""

from __future__ import annotations

import os
import time
from contextlib import closing
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from penstock_producers.envs import Containment, Envs, EnvSource, Seeds, make_envs
from penstock_producers.policy import RandomPolicy, TorchPolicy, make_policy
from penstock_producers.rollout import Rollout
from penstock_schemas.chunks import Ends, check
from penstock_schemas.errors import EnvError
from penstock_schemas.policies import PolicyRecord
from penstock_schemas.stream import StreamSpec
from tests.producers.envs_that_end import ALWAYS_ENDS
from tests.producers.recorder import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ZOO = "tests.producers.env_zoo"
NUM_ENVS = 3
SEED = 11


def envs_of(env: str, num_envs: int = NUM_ENVS, kwargs: dict[str, Any] | None = None, **settings: Any) -> Envs:
    seeds = settings.pop("seeds", None) or Seeds(SEED, "pod-0")
    return make_envs(EnvSource(env, kwargs or {}), num_envs, seeds=seeds, clock=time.monotonic, **settings)


class Made:
    """A rollout with the envs, the policy and the stream that it is of."""

    def __init__(
        self,
        env: Envs,
        *,
        policy: str = "actor-critic",
        fragment_steps: int = 7,
        fragment_seconds: float = 1e9,
        cut_steps: int | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        beat: Callable[[], object] = lambda: None,
    ) -> None:
        self.env = env
        self.policy = make_policy(policy, env.observation_space, env.action_space, rng=np.random.default_rng(0))
        self.spec = StreamSpec(
            "test", env.observation_space, env.action_space, env.reward_dtype, self.policy.extras, env.infos
        )
        self.rollout = Rollout(
            env,
            self.policy,
            self.spec,
            fragment_steps=fragment_steps,
            fragment_seconds=fragment_seconds,
            message_bytes=1 << 19,
            cut_steps=cut_steps,
            clock=clock,
            beat=beat,
        )

    def episodes(self, fragments: int) -> dict[tuple[int, int], list[dict[str, Any]]]:
        """The chunk rows of so many fragments, by env and episode."""
        found: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for _ in range(fragments):
            for batch in self.rollout.fragment().batches:
                check(batch, self.spec)
                for row in batch.to_pylist():
                    found.setdefault((row["env"], row["episode"]), []).append(row)
        return found


@pytest.fixture(params=["NEXT_STEP", "SAME_STEP", "DISABLED"])
def env(request: pytest.FixtureRequest) -> Iterator[Envs]:
    env = envs_of(f"{ZOO}:CountingVectorEnv", kwargs={"mode": request.param})
    yield env
    env.close()


def test_a_step_after_which_a_reset_raises_is_published_where_the_reset_is_asked_for() -> None:
    settings = {"vectorization": "sync", "autoreset": AutoresetMode.DISABLED}
    made = Made(envs_of(ALWAYS_ENDS, 2, {"resets": 3}, **settings))
    with pytest.raises(EnvError, match="no more resets"):
        made.rollout.fragment()
    closed = made.rollout.close()
    check(*closed.batches, made.spec)
    assert (closed.steps, closed.episode_return.tolist(), closed.episode_length.tolist()) == (6, [1.0] * 6, [1] * 6)
    made.env.close()


def test_episodes_come_whole_in_every_mode(env: Envs) -> None:
    """The env observes (seed, episode, step), and rewards with 1000 · episode + step."""
    made = Made(env)
    finished = 0
    for (_, episode), rows in made.episodes(20).items():
        observations = [rows[0]["observation"][0], *(seen for row in rows for seen in row["observation"][1:])]
        rewards = [reward for row in rows for reward in row["reward"]]
        steps = len(rewards)
        assert [seen[1:] for seen in observations] == [[episode, step] for step in range(steps + 1)]
        assert rewards == [1000 * episode + step for step in range(1, steps + 1)]
        assert [row["chunk"] for row in rows] == list(range(len(rows)))
        assert [row["ends"] == 0 for row in rows[:-1]] == [True] * (len(rows) - 1)
        for row, following in pairwise(rows):
            assert row["observation"][-1] == following["observation"][0]
        if rows[-1]["ends"]:
            finished += 1
            assert rows[-1]["ends"] == (1, 2, 3)[episode % 3]
    assert finished > 3 * NUM_ENVS


@pytest.mark.parametrize("workers", [0, 1])
def test_in_lanes_every_episode_has_the_seed_that_it_was_reset_with(workers: int) -> None:
    seeds = Seeds(SEED, "pod-0")
    env = envs_of(f"{ZOO}:CountingEnv", seeds=seeds, vectorization="lanes", workers=workers)
    episodes = Made(env).episodes(5)
    env.close()
    assert len(episodes) > 2 * NUM_ENVS
    for (number, episode), rows in episodes.items():
        assert rows[0]["seed"] == seeds.episode(number, episode)
        assert {row["seed"] for row in rows[1:]} <= {None}
        # The env observes its seed, its episodes since it was seeded, and its step.
        assert rows[0]["observation"][0] == [np.float32(rows[0]["seed"]), 0, 0]


@pytest.mark.parametrize(("seconds", "steps"), [(1e9, 7), (3.0, 3), (0.1, 1)])
def test_a_fragment_ends_by_steps_or_by_time(seconds: float, steps: int) -> None:
    ticks = count()
    made = Made(
        envs_of(f"{ZOO}:CountingEnv", kwargs={"longest": 10**6}),
        fragment_seconds=seconds,
        clock=lambda: float(next(ticks)),
    )
    assert made.rollout.fragment().steps == steps * NUM_ENVS


def test_a_chunk_has_the_version_that_acted_in_it(env: Envs) -> None:
    made = Made(env)
    policy = made.policy
    assert isinstance(policy, TorchPolicy)
    initial = policy.digest
    weights = {name: value.numpy() * 2 for name, value in policy._module.state_dict().items()}
    rows = rows_of(made.rollout.fragment().batches)
    policy.load(PolicyRecord(4, weights))
    later = rows_of(made.rollout.fragment().batches)
    assert {(row["policy_version"], row["policy_digest"]) for row in rows} == {(0, initial)}
    assert {(row["policy_version"], row["policy_digest"]) for row in later} == {(4, PolicyRecord(4, weights).digest)}


def test_a_step_has_the_version_that_chose_its_action_also_where_the_policy_was_refreshed_meanwhile(
    tmp_path: Path,
) -> None:
    """Env 1 is in its third step from before the refresh until long after it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    env = envs_of(f"{ZOO}:HeldEnv", 2, {"path": str(pipe)}, vectorization="lanes", workers=2)
    with closing(env):
        made = Made(env)
        policy = made.policy
        assert isinstance(policy, TorchPolicy)
        first = (0, policy.digest)
        acted: dict[int, list[tuple[int, bytes]]] = {0: [], 1: []}

        def fragment() -> None:
            """Run one, and file of each step the version and the digest that it says acted."""
            for row in rows_of(made.rollout.fragment().batches):
                acted[row["env"]] += [(row["policy_version"], row["policy_digest"])] * len(row["reward"])

        while len(acted[1]) < 2:
            fragment()
        fragment()  # it begins with the action of env 1's third step, at the latest
        before = len(acted[0])
        record = PolicyRecord(4, {name: value.numpy() * 2 for name, value in policy._module.state_dict().items()})
        policy.load(record)
        second = (4, record.digest)
        for _ in range(3):
            fragment()
        assert acted[1] == [first] * 2
        os.close(os.open(pipe, os.O_WRONLY))
        while len(acted[1]) < 5:
            fragment()
        assert acted[1][:5] == [first, first, first, second, second]
        # Env 0's next action may have been on its way too.
        assert set(acted[0][:before]) == {first}
        assert set(acted[0][before + 1 :]) == {second}
        assert len(acted[0]) > before + 10


@pytest.mark.parametrize("settings", [{}, {"vectorization": "lanes"}, {"vectorization": "lanes", "workers": 2}])
def test_equal_seeds_give_equal_fragments(settings: dict[str, Any]) -> None:
    """To the last bit, over a refresh too: with workers, in lockstep."""
    runs = []
    for root in (SEED, SEED, 12):
        seeds = Seeds(root, "pod-0")
        env = envs_of("CartPole-v1", seeds=seeds, lockstep="workers" in settings, **settings)
        made = Made(env, fragment_steps=60)
        policy = made.policy
        assert isinstance(policy, TorchPolicy)
        batches = made.rollout.fragment().batches
        weights = {name: value.numpy() * 2 for name, value in policy._module.state_dict().items()}
        policy.load(PolicyRecord(4, weights))
        runs.append([*batches, *made.rollout.fragment().batches])
        env.close()
    assert all(one.equals(other) for one, other in zip(runs[0], runs[1], strict=True))
    assert not runs[0][0].equals(runs[2][0])


def test_what_an_env_gave_before_it_broke_is_there() -> None:
    made = Made(envs_of(f"{ZOO}:FailingEnv", 2, vectorization="sync"))
    with pytest.raises(EnvError, match="the pole is missing"):
        made.rollout.fragment()
    closed = made.rollout.close()
    assert closed.steps == 4
    assert [row["env"] for row in rows_of(closed.batches)] == [0, 1]
    check(*closed.batches, made.spec)


def test_an_env_may_break_with_no_episode_open() -> None:
    """Every fragment ends with its episode; the third reset raises, when there is nothing at hand."""
    made = Made(envs_of(ALWAYS_ENDS, 1, vectorization="sync"), fragment_steps=1)
    assert made.rollout.fragment().episode_length.tolist() == [1]
    assert made.rollout.fragment().steps == 0
    assert made.rollout.fragment().episode_length.tolist() == [1]
    with pytest.raises(EnvError, match="no more resets"):
        made.rollout.fragment()
    closed = made.rollout.close()
    assert (closed.steps, closed.batches, len(closed.episode_return)) == (0, (), 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_no_message_can_hold_costs_an_episode_or_an_info_and_no_producer(workers: int) -> None:
    """An exception with a lone surrogate; texts too long, and with surrogates, as observations and as infos."""
    env = envs_of(
        f"{ZOO}:TalkingEnv",
        4,
        workers=workers,
        infos=["said"],
        containment=Containment(max_rebuilds=10**6, backoff=1e-9, check_bounds=False),
    )
    made = Made(env, policy="random", fragment_steps=4)
    reasons: set[str] = set()
    while len(reasons) < 3:
        for batch in made.rollout.fragment().batches:
            check(batch, made.spec)
            reasons.update(reason for reason in batch.column("abort_reason").to_pylist() if reason)
            assert {said for row in batch.column("info.said").to_pylist() for said in row} <= {None, "hello"}
    env.close()
    assert reasons == {
        r"env_raised: step() raised RuntimeError: bad \ud800",
        "env_observation: observation: it has 9000 characters, but its space has 5 at most",
        "env_observation: observation: it has a lone surrogate, which UTF-8 has not",
    }
    assert env.unstorable["said"] > 0


def test_large_observations_are_those_that_were_seen() -> None:
    made = Made(envs_of(f"{ZOO}:FrameEnv", 1), fragment_steps=16)
    for rows in made.episodes(20).values():
        seen = [rows[0]["observation"][0], *(frame for row in rows for frame in row["observation"][1:])]
        assert [set(frame) for frame in seen] == [{step} for step in range(len(seen))]


def test_what_was_drawn_is_recorded_though_the_env_changes_what_it_is_given() -> None:
    made = Made(envs_of(f"{ZOO}:GreedyEnv"), policy="random")
    assert all(any(action) for rows in made.episodes(3).values() for row in rows for action in row["action"])


def test_what_a_module_answers_is_recorded_though_it_is_a_view_of_the_observation() -> None:
    made = Made(envs_of(f"{ZOO}:CountingVectorEnv"), policy="tests.producers.policy_zoo:looking")
    for rows in made.episodes(4).values():
        for row in rows:
            assert row["value"] == [seen[2] for seen in row["observation"][:-1]]


def test_a_vector_env_that_leaves_a_discrete_space_ends_and_nothing_is_stored_as_another_value() -> None:
    made = Made(envs_of(f"{ZOO}:RunawayEnv", 2))
    with pytest.raises(EnvError, match=r"observation has a value outside 0 … 4: 259 … 259; mend the environment"):
        made.rollout.fragment()
    assert {seen for row in rows_of(made.rollout.close().batches) for seen in row["observation"]} == {0, 3}


def test_the_loop_beats_with_every_answer() -> None:
    beats = count()
    made = Made(envs_of(f"{ZOO}:CountingEnv"), beat=lambda: next(beats))
    made.rollout.fragment()
    assert next(beats) == 7


def test_an_endless_episode_is_cut_and_goes_on() -> None:
    made = Made(envs_of(f"{ZOO}:CountingEnv", 2, {"longest": 10**6}), cut_steps=10)
    episodes = made.episodes(10)
    for env in range(2):
        parts = [rows for (of, _), rows in sorted(episodes.items()) if of == env]
        assert len(parts) == 7
        for part, (before, rows) in enumerate(zip([None, *parts], parts, strict=False)):
            assert rows[-1]["ends"] == Ends.CUT
            assert [step for row in rows for step in (seen[2] for seen in row["observation"][1:])] == list(
                range(10 * part + 1, 10 * part + 11)
            )
            assert rows[0]["continues"] == (part - 1 if before else None)
            if before:
                assert rows[0]["observation"][0] == before[-1]["observation"][-1]


def test_an_env_that_breaks_costs_its_own_episode_and_nothing_of_its_siblings() -> None:
    broken = Made(
        envs_of(f"{ZOO}:FailingEnv", 3, containment=Containment(max_rebuilds=10**6, backoff=1e-9)),
        policy="random",
        fragment_steps=6,
    )
    assert isinstance(broken.policy, RandomPolicy)
    episodes = broken.episodes(3)
    ends = [rows[-1] for rows in episodes.values() if rows[-1]["ends"]]
    assert {row["abort_reason"] for row in ends if row["ends"] == Ends.ABORTED} == {
        "env_raised: step() raised ValueError: the pole is missing"
    }
    broken.env.close()


def test_a_reset_ends_what_is_open_and_begins_anew_with_its_options(env: Envs) -> None:
    made = Made(env)
    made.rollout.fragment()
    before = rows_of(made.rollout.fragment().batches)
    open_ = {
        row["env"] for row in before if row is [r for r in before if r["env"] == row["env"]][-1] and not row["ends"]
    }
    made.rollout.record(made.rollout.reset({"level": 3}))
    closed = made.rollout.fragment()
    for batch in closed.batches:
        check(batch, made.spec)
    rows = rows_of(closed.batches)
    aborted = [row for row in rows if row["ends"] == Ends.ABORTED]
    assert {row["env"] for row in aborted} == open_
    assert {(row["abort_reason"], len(row["reward"])) for row in aborted} == {("reset", 0)}
    for number in range(NUM_ENVS):
        begun = next(row for row in rows if row["env"] == number and row["chunk"] == 0)
        assert begun["reset_options"] == '{"level": 3}'
        assert begun["observation"][0][2] == 0


def test_an_env_that_is_parked_is_stepped_no_more() -> None:
    made = Made(envs_of(f"{ZOO}:CountingEnv"))
    made.rollout.begin()
    made.rollout.parked = np.array([False, True, False])
    for _ in range(4):
        made.rollout.record(made.rollout.step(1.0))
    assert {row["env"] for row in rows_of(made.rollout.close().batches)} == {0, 2}


def test_the_first_reset_has_the_options_that_it_is_given() -> None:
    env = envs_of(f"{ZOO}:CountingEnv", 1)
    policy = make_policy("random", env.observation_space, env.action_space, rng=np.random.default_rng(0))
    spec = StreamSpec("test", env.observation_space, env.action_space, env.reward_dtype, policy.extras)
    limits: dict[str, Any] = {"fragment_steps": 3, "fragment_seconds": 1e9, "message_bytes": 1 << 19}
    rollout = Rollout(env, policy, spec, **limits, clock=lambda: 0.0, options={"level": 1})
    (row, *_) = rows_of(rollout.fragment().batches)
    assert row["reset_options"] == '{"level": 1}'
