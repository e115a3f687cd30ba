"""The rollout: fragments of the right length, each of one policy version, going on from each other."""

from __future__ import annotations

from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from penstock_producers.envs import CanonicalEnv, make_env
from penstock_producers.policy import TorchPolicy, make_policy
from penstock_producers.rollout import Rollout
from penstock_producers.spaces import from_gymnasium
from penstock_schemas.chunks import check
from penstock_schemas.errors import EnvError
from penstock_schemas.policies import PolicyRecord
from penstock_schemas.stream import StreamSpec
from tests.producers.envs_that_end import ALWAYS_ENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

ZOO = "tests.producers.env_zoo"
NUM_ENVS = 3


class Made:
    """A rollout with the env, the policy and the stream that it is of."""

    def __init__(
        self,
        env: CanonicalEnv,
        *,
        fragment_steps: int = 7,
        fragment_seconds: float = 1e9,
        seed: int | None = 11,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        observation = from_gymnasium(env.observation_space, "observation")
        action = from_gymnasium(env.action_space, "action")
        self.policy: TorchPolicy = make_policy("actor-critic", observation, action, rng=np.random.default_rng(0))
        self.spec = StreamSpec("test", observation, action, env.reward_dtype, self.policy.extras)
        self.rollout = Rollout(
            env,
            self.policy,
            self.spec,
            fragment_steps=fragment_steps,
            fragment_seconds=fragment_seconds,
            row_bytes=1 << 19,
            seed=seed,
            clock=clock,
        )

    def episodes(self, fragments: int) -> dict[tuple[int, int], list[dict[str, Any]]]:
        """The chunk rows of so many fragments, by env and episode."""
        found: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for _ in range(fragments):
            batch: pa.RecordBatch = self.rollout.fragment().batch
            check(batch, self.spec)
            for row in batch.to_pylist():
                found.setdefault((row["env"], row["episode"]), []).append(row)
        return found


@pytest.fixture(params=["NEXT_STEP", "SAME_STEP", "DISABLED"])
def env(request: pytest.FixtureRequest) -> Iterator[CanonicalEnv]:
    env = make_env(f"{ZOO}:CountingVectorEnv", NUM_ENVS, kwargs={"mode": request.param})
    yield env
    env.close()


def test_a_step_after_which_a_reset_raises_is_published_where_the_reset_is_asked_for() -> None:
    env = make_env(ALWAYS_ENDS, 2, kwargs={"resets": 3}, autoreset=AutoresetMode.DISABLED)
    made = Made(env)
    with pytest.raises(EnvError, match="no more resets"):
        made.rollout.fragment()
    closed = made.rollout.close()
    check(closed.batch, made.spec)
    assert (closed.steps, closed.episode_return.tolist(), closed.episode_length.tolist()) == (6, [1.0] * 6, [1] * 6)
    env.close()


def test_episodes_come_whole_in_every_mode(env: CanonicalEnv) -> None:
    """The env observes (seed, episode, step), and rewards with 1000 · episode + step."""
    made = Made(env)
    finished = 0
    for (number, episode), rows in made.episodes(20).items():
        observations = [rows[0]["observation"][0], *(seen for row in rows for seen in row["observation"][1:])]
        rewards = [reward for row in rows for reward in row["reward"]]
        steps = len(rewards)
        assert observations == [[11 + number, episode, step] for step in range(steps + 1)]
        assert rewards == [1000 * episode + step for step in range(1, steps + 1)]
        assert [row["chunk"] for row in rows] == list(range(len(rows)))
        assert [row["ends"] == 0 for row in rows[:-1]] == [True] * (len(rows) - 1)
        for row, following in pairwise(rows):
            assert row["observation"][-1] == following["observation"][0]
        if rows[-1]["ends"]:
            finished += 1
            assert rows[-1]["ends"] == (1, 2, 3)[episode % 3]
    assert finished > 3 * NUM_ENVS


def test_seeds_stand_on_the_first_chunks_of_seeded_episodes_only() -> None:
    env = make_env(f"{ZOO}:CountingEnv", NUM_ENVS, vectorization="sync")
    for (number, episode), rows in Made(env).episodes(5).items():
        assert rows[0]["seed"] == (11 + number if episode == 0 else None)
        assert {row["seed"] for row in rows[1:]} <= {None}


@pytest.mark.parametrize(("seconds", "steps"), [(1e9, 7), (3.0, 3), (0.1, 1)])
def test_a_fragment_ends_by_steps_or_by_time(seconds: float, steps: int) -> None:
    ticks = count()
    env = make_env(f"{ZOO}:CountingEnv", NUM_ENVS, vectorization="sync", kwargs={"longest": 10**6})
    made = Made(env, fragment_seconds=seconds, clock=lambda: float(next(ticks)))
    assert made.rollout.fragment().steps == steps * NUM_ENVS


def test_a_chunk_has_the_version_that_acted_in_it(env: CanonicalEnv) -> None:
    made = Made(env)
    initial = made.policy.digest
    weights = {name: value.numpy() * 2 for name, value in made.policy._module.state_dict().items()}
    rows = made.rollout.fragment().batch.to_pylist()
    made.policy.load(PolicyRecord(4, weights))
    later = made.rollout.fragment().batch.to_pylist()
    assert {(row["policy_version"], row["policy_digest"]) for row in rows} == {(0, initial)}
    assert {(row["policy_version"], row["policy_digest"]) for row in later} == {(4, PolicyRecord(4, weights).digest)}


def test_equal_seeds_give_equal_fragments() -> None:
    batches = [Made(make_env("CartPole-v1", NUM_ENVS)).rollout.fragment().batch for _ in range(2)]
    assert batches[0].equals(batches[1])
    assert not batches[0].equals(Made(make_env("CartPole-v1", NUM_ENVS), seed=12).rollout.fragment().batch)


def test_what_an_env_gave_before_it_broke_is_there() -> None:
    made = Made(make_env(f"{ZOO}:FailingEnv", 2, vectorization="sync"))
    with pytest.raises(EnvError, match="the pole is missing"):
        made.rollout.fragment()
    closed = made.rollout.close()
    assert closed.steps == 4
    assert closed.batch.column("env").to_pylist() == [0, 1]
    check(closed.batch, made.spec)


def test_an_env_may_break_with_no_episode_open() -> None:
    """Every fragment ends with its episode; the third reset raises, when there is nothing at hand."""
    made = Made(make_env(ALWAYS_ENDS, 1, vectorization="sync"), fragment_steps=1)
    assert made.rollout.fragment().episode_length.tolist() == [1]
    assert made.rollout.fragment().steps == 0
    assert made.rollout.fragment().episode_length.tolist() == [1]
    with pytest.raises(EnvError, match="no more resets"):
        made.rollout.fragment()
    closed = made.rollout.close()
    assert (closed.steps, closed.batch.num_rows, len(closed.episode_return)) == (0, 0, 0)
