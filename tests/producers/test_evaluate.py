"""Evaluation: an episode a seed, the same in any number of lanes, and nothing left out unsaid."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from penstock_producers.envs import Containment, EnvSource
from penstock_producers.evaluate import Evaluation, Evaluator, evaluate
from penstock_producers.policy.base import Inputs
from penstock_schemas.chunks import Ends, Exploration
from penstock_schemas.errors import EnvError, PenstockError, PolicyError, PolicyRejectedError
from penstock_schemas.policies import PolicyRecord
from tests.producers.evaluation_zoo import NAME, VECTOR, Known, length_of, return_of
from tests.producers.recorder import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock_producers.policy import Policy

QUICK = Containment(backoff=1e-9)
WHOLE = Ends.TERMINATED | Ends.TRUNCATED


def policy_for(env: str, name: str = "actor-critic", **settings: Any) -> Policy:
    return Evaluator(env, [0]).describe("test", name, **settings)[1]


def source(**kwargs: Any) -> EnvSource:
    return EnvSource(NAME, kwargs)


STACKED = [{"name": "stack", "arguments": {"frames": 3}}]


@pytest.mark.parametrize(
    ("name", "connectors"), [("actor-critic", ()), ("actor-critic", STACKED), ("recurrent", ()), ("recurrent", STACKED)]
)
def test_the_result_is_the_same_to_the_last_bit_in_any_number_of_lanes(
    name: str, connectors: Sequence[dict[str, Any]]
) -> None:
    """Pendulum's rewards are of floats: were an action another in one bit, so would be the return."""
    policy = policy_for("Pendulum-v1", name, connectors=connectors)
    results = [evaluate("Pendulum-v1", policy, range(17), num_envs=n, max_steps=20) for n in (1, 3, 8, 17)]
    assert len({episode.episode_return for episode in results[0].episodes}) == 17
    assert results[1:] == results[:1] * 3


def test_it_is_the_same_in_workers() -> None:
    policy = policy_for("CartPole-v1")
    assert evaluate("CartPole-v1", policy, range(9), num_envs=5, workers=2) == evaluate("CartPole-v1", policy, range(9))


def test_what_a_seed_gives_does_not_depend_on_the_others_nor_on_their_order() -> None:
    """Some of them have the same place in a forward; each batch is computed in several forwards then."""
    policy = policy_for("Pendulum-v1")
    seeds = [64, 0, 5, 128, 1, 69, 2**63 - 64, 133]
    one_by_one = [evaluate("Pendulum-v1", policy, [seed], max_steps=20).episodes[0] for seed in seeds]
    assert list(evaluate("Pendulum-v1", policy, seeds, max_steps=20).episodes) == one_by_one
    assert list(evaluate("Pendulum-v1", policy, seeds[::-1], num_envs=3, max_steps=20).episodes) == one_by_one[::-1]


def test_it_plays_the_episodes_that_a_plain_loop_plays() -> None:
    policy = policy_for("CartPole-v1")
    weights = {name: 30 * value.numpy() for name, value in policy.module.state_dict().items()}  # type: ignore[attr-defined]  # a TorchPolicy
    policy.load(PolicyRecord(3, weights))
    found = evaluate("CartPole-v1", policy, range(50, 60), num_envs=4)
    policy.exploration = Exploration.OFF
    env = gymnasium.make("CartPole-v1")
    for seed, episode in zip(range(50, 60), found.episodes, strict=True):
        observation, _ = env.reset(seed=seed)
        total, length, terminated, truncated = 0.0, 0, False, False
        while not (terminated or truncated):
            action = policy.act(Inputs((observation[None],))).sent[0][0]
            observation, reward, terminated, truncated, _ = env.step(action)
            total, length = total + float(reward), length + 1
        ends = Ends(Ends.TERMINATED * terminated | Ends.TRUNCATED * truncated)
        assert episode == (seed, ends, total, length, 1, None)
    env.close()
    assert len({episode.length for episode in found.episodes}) > 2
    assert (found.policy_version, found.policy_digest) == (3, policy.digest)


def test_long_episodes_count_as_much_as_short_ones() -> None:
    """Where a long episode pays more, the mean of whichever ended first would be far too low."""
    found = evaluate(NAME, "actor-critic", range(40), num_envs=8)
    assert [(episode.episode_return, episode.length) for episode in found.episodes] == [
        (return_of(seed), length_of(seed)) for seed in range(40)
    ]
    assert found.returns is not None
    assert found.returns.mean == np.mean([return_of(seed) for seed in range(40)])
    # Twenty envs that all go on, until as many episodes have ended as were asked for.
    lengths = [[length_of(seed) for seed in range(env, 400, 20)] for env in range(20)]
    ends = sorted((int(end), length) for lane in lengths for end, length in zip(np.cumsum(lane), lane, strict=True))
    first = [length * (length + 1) / 2 for _, length in ends[:40]]
    assert np.mean(first) < 0.8 * found.returns.mean


def test_it_explores_no_more_until_it_returns() -> None:
    policy = policy_for(NAME)
    seen = []
    act = policy.act

    def watched(inputs: Inputs) -> Any:
        seen.append(policy.exploration)
        return act(inputs)

    policy.act = watched  # type: ignore[method-assign]  # it still acts
    evaluate(NAME, policy, range(3))
    assert set(seen) == {Exploration.OFF}
    assert policy.exploration is Exploration.ON


def test_at_the_most_steps_allowed_an_episode_is_cut_and_no_longer_counts() -> None:
    found = evaluate(NAME, "actor-critic", range(22), num_envs=5, max_steps=10)
    for episode in found.episodes:
        length = length_of(episode.seed)
        if length > 10:
            assert episode == (episode.seed, Ends.CUT, 55.0, 10, 1, None)
        else:
            assert (episode.is_whole, episode.length) == (True, length)
    assert {length_of(seed) for seed in range(22)} > {10}
    assert found.lengths is not None
    assert found.lengths.max == 10
    assert len(found.whole) == sum(length_of(seed) <= 10 for seed in range(22))


@pytest.mark.parametrize(("num_envs", "workers"), [(1, 0), (2, 0), (5, 0), (3, 2)])
def test_every_episode_that_was_cut_is_recorded_with_its_end(num_envs: int, workers: int) -> None:
    """Also the last ones of all, behind which nothing is played."""
    evaluator = Evaluator(NAME, [1, 3, 5, 2, 6], num_envs=num_envs, workers=workers, max_steps=5)
    spec, policy = evaluator.describe("test", "actor-critic")
    rows: list[dict[str, Any]] = []

    @contextmanager
    def sink() -> Iterator[Any]:
        yield lambda fragment: rows.extend(rows_of(fragment.batches))

    found = evaluator.run(policy, spec=spec, sink=sink)
    assert {episode.ends for episode in found.episodes} == {Ends.CUT}
    of: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in rows:
        of.setdefault((row["env"], row["episode"]), []).append(row)
    played = [parts for parts in of.values() if parts[0]["seed"] in evaluator.seeds]
    assert sorted(sum(len(part["reward"]) for part in parts) for parts in played) == [5] * 5
    assert {(parts[-1]["ends"], parts[-1]["abort_reason"]) for parts in played} == {(Ends.ABORTED, "reset")}


@pytest.mark.parametrize("name", ["actor-critic", "q-network"])
def test_masks_reach_the_policy_each_with_its_env(name: str) -> None:
    env = source(strict=True)
    found = evaluate(env, name, range(9), num_envs=4, infos=["mask"], behaviour={"mask": "mask"}, attempts=1)
    assert [episode.episode_return for episode in found.episodes] == [return_of(seed) for seed in range(9)]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_episode_that_a_fault_aborts_is_played_again(tmp_path: Path, workers: int) -> None:
    env = source(breaks={"2": "step", "3": "reset", "5": "step"}, once=str(tmp_path))
    found = evaluate(env, policy_for(NAME), range(7), num_envs=3, workers=workers, containment=QUICK)
    assert [episode.attempts for episode in found.episodes] == [1, 1, 2, 2, 1, 2, 1]
    assert [episode.episode_return for episode in found.episodes] == [return_of(seed) for seed in range(7)]
    assert {episode.reason for episode in found.episodes} == {None}


@pytest.mark.parametrize("where", ["step", "reset"])
@pytest.mark.parametrize("num_envs", [1, 2, 8])
def test_one_that_always_breaks_has_failed_and_says_why(where: str, num_envs: int) -> None:
    """The last seed of an env too, behind which nothing comes."""
    env = source(breaks={"4": where, "7": where})
    found = evaluate(env, "actor-critic", range(8), num_envs=num_envs, containment=QUICK, attempts=2)
    for episode in found.episodes:
        if episode.seed in {4, 7}:
            told = f"env_raised: {where}() raised RuntimeError: seed {episode.seed} broke it"
            assert episode == (episode.seed, Ends.ABORTED, None, None, 2, told)
        else:
            assert episode.episode_return == return_of(episode.seed)
    assert found.count(Ends.ABORTED) == 2
    assert found.returns is not None
    assert found.returns.mean == np.mean([return_of(seed) for seed in range(8) if seed not in {4, 7}])


@pytest.mark.parametrize(("num_envs", "workers"), [(1, 0), (3, 0), (5, 2)])
def test_no_other_seed_than_the_listed_ones_is_asked_for(num_envs: int, workers: int) -> None:
    containment = Containment(backoff=1e-9, max_rebuilds=0)
    found = evaluate(
        source(levels=7), "actor-critic", range(7), num_envs=num_envs, workers=workers, containment=containment
    )
    assert [episode.episode_return for episode in found.episodes] == [return_of(seed) for seed in range(7)]


def test_a_process_that_ends_in_a_reset_costs_that_seed_and_not_the_one_before_it() -> None:
    env = source(breaks={"4": "exit"})
    found = evaluate(env, "actor-critic", range(3, 6), num_envs=1, workers=1, containment=QUICK, attempts=1)
    assert [episode.episode_return for episode in found.episodes] == [return_of(3), None, return_of(5)]
    assert found.episodes[1].reason == "env_died: its worker process ended with exit code 3"


def test_seeds_that_a_process_took_with_it_are_played_again_apart_from_the_one_that_ended_it() -> None:
    env = source(breaks={"4": "exit"})
    found = evaluate(env, "actor-critic", range(3, 6), num_envs=3, workers=1, containment=QUICK, attempts=2)
    assert [episode.episode_return for episode in found.episodes] == [return_of(3), None, return_of(5)]


def test_an_env_that_uses_up_its_budget_ends_it_and_nothing_is_left_out() -> None:
    env = source(breaks={str(seed): "reset" for seed in range(3, 100)})
    containment = Containment(backoff=1e-9, max_rebuilds=2)
    found = evaluate(env, "actor-critic", range(20), num_envs=1, containment=containment)
    assert [episode.ends & WHOLE != 0 for episode in found.episodes] == [True] * 3 + [False] * 17
    assert [episode.attempts for episode in found.episodes] == [1] * 6 + [0] * 14
    assert found.episodes[5].reason == "env_raised: reset() raised RuntimeError: seed 5 broke it"
    assert re.search(r"env 0 failed 3 times in a row .*seed 5 broke it", found.episodes[19].reason or "")


def test_envs_that_exist_are_played_and_left_open() -> None:
    envs = [Known(), Known()]
    found = evaluate(envs, policy_for(NAME), range(6))
    assert [episode.episode_return for episode in found.episodes] == [return_of(seed) for seed in range(6)]
    assert [[seed for seed, _ in env.resets] for env in envs] == [[0, 2, 4], [1, 3, 5]]
    assert evaluate(envs[0], policy_for(NAME), [9]).episodes[0].length == length_of(9)


def test_an_existing_env_that_no_reset_mends_is_told_to_be_out() -> None:
    """Env 1 breaks in two resets, one after the other, and is parked for good; later attempts find it in order."""
    envs = [Known(), Known({"3": "reset", "5": "reset"})]
    found = evaluate(envs, policy_for(NAME), range(8), containment=QUICK, attempts=1)
    assert [episode.seed for episode in found.episodes if not episode.is_whole] == [3, 5, 7]
    assert all(episode.reason for episode in found.episodes if not episode.is_whole)


def test_weights_are_loaded_first() -> None:
    policy = policy_for(NAME)
    weights = {name: value.numpy() * 0 for name, value in policy.module.state_dict().items()}  # type: ignore[attr-defined]  # a TorchPolicy
    record = PolicyRecord(12, weights)
    found = evaluate(NAME, "actor-critic", [1], weights=record)
    policy.load(record)
    assert (found.policy_version, found.policy_digest) == (12, policy.digest)
    with pytest.raises(PolicyRejectedError):
        evaluate(NAME, "actor-critic", [1], weights=PolicyRecord(13, {}))


@pytest.mark.parametrize(
    ("env", "settings", "told"),
    [
        ("envpool:CartPole-v1", {}, "environment 'envpool:CartPole-v1' is an EnvPool task: it takes one seed for all"),
        (VECTOR, {}, "is made as a ready-made vector environment only: it takes one seed for all its episodes"),
        (SyncVectorEnv([Known]), {}, "evaluation of a SyncVectorEnv: an evaluation begins each episode with a seed"),
        ([], {}, "evaluation of a list"),
        (NAME, {"seeds": [3, 3]}, "seed 3: it is listed twice"),
        (NAME, {"seeds": []}, "0 seeds for 1 envs"),
        (NAME, {"num_envs": 0}, "num_envs is 0, but must be at least 1"),
        (NAME, {"attempts": 0}, "attempts is 0"),
        (NAME, {"batch": 0}, "batch is 0"),
        (NAME, {"max_steps": 0}, "max_steps is 0"),
        (Known(), {"num_envs": 2}, "num_envs is 2, but 1 existing envs were given"),
        (NAME, {"policy": "random"}, "random"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_by_name(env: Any, settings: dict[str, Any], told: str) -> None:
    arguments = {"policy": "actor-critic", "seeds": [1], **settings}
    with pytest.raises(PenstockError, match=re.escape(told)) as refused:
        evaluate(env, **arguments)
    assert isinstance(refused.value, EnvError | PolicyError)


def test_what_exists_takes_no_arguments() -> None:
    with pytest.raises(PolicyError, match="are for a policy that is named, not for a TorchPolicy"):
        evaluate(NAME, policy_for(NAME), [1], policy_arguments={"hidden": [3]})
    with pytest.raises(EnvError, match="are for an environment that is named, not for a Known"):
        evaluate(Known(), "actor-critic", [1], env_arguments={"strict": True})


def test_what_is_named_is_made_with_its_arguments_in_its_wrappers() -> None:
    limit = {"name": "TimeLimit", "arguments": {"max_episode_steps": 4}}
    found = evaluate(
        NAME, "actor-critic", range(8), env_arguments={"breaks": {"1": "step"}}, wrappers=[limit], containment=QUICK
    )
    assert [episode.length for episode in found.episodes] == [
        None if seed == 1 else min(length_of(seed), 4) for seed in range(8)
    ]
    small = evaluate(NAME, "actor-critic", [1], policy_arguments={"hidden": [3]})
    assert small.policy_digest != found.policy_digest


def test_a_beat_that_raises_ends_it_and_the_policy_explores_again() -> None:
    policy = policy_for(NAME)

    def stop() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        Evaluator(NAME, range(3)).run(policy, beat=stop)
    assert policy.exploration is Exploration.ON


def test_the_default_is_as_many_lanes_as_a_forward_has_rows() -> None:
    found: Evaluation = evaluate(NAME, "actor-critic", range(6), batch=4)
    assert found.batch == 4
    assert [episode.episode_return for episode in found.episodes] == [return_of(seed) for seed in range(6)]
