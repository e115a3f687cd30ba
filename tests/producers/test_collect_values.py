"""What a collection holds: every row of the envs, in their structures, as episodes and laid out by time."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock_producers.callbacks import BegunEpisode, Callbacks, EndedEpisode
from penstock_producers.collect import Collector, collect
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import SettingsError
from penstock_schemas.spaces import flatten
from tests.producers.collect_zoo import BREAKING, NESTED
from tests.producers.collecting import MODES, SEED, ZOO, collector_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock_producers.collect import Collection

EXAMPLE = Path(__file__).parents[2] / "examples" / "collect.py"
LOCKSTEP = [*MODES, "workers"]


def lockstep(mode: str, **settings: Any) -> Collector:
    return collector_of("lanes", workers=2, **settings) if mode == "workers" else collector_of(mode, **settings)


def test_an_episode_has_the_structures_of_its_spaces() -> None:
    collector = Collector(NESTED, seed=SEED, infos=["even"], behaviour={"mapping": "clip"})
    with collector:
        first, second = collector.collect(5).episodes
    assert (first.ends, first.is_whole, first.length, first.return_) == (Ends.TRUNCATED, True, 3, 6.0)
    assert (second.ends, second.is_whole, second.length, second.return_) == (Ends.OPEN, False, 2, 3.0)
    box, bits = first.observation["rest"]
    np.testing.assert_array_equal(first.observation["at"], [1, 2, 3, 4])
    np.testing.assert_array_equal(box, [[at, at] for at in range(4)])
    np.testing.assert_array_equal(bits, [[0, 1, at % 2] for at in range(4)])
    assert (first.observation["at"].dtype, box.dtype, bits.dtype) == (np.int64, np.float64, np.int8)
    assert first.infos["even"].tolist() == [0.0, None, 2.0, None]
    assert second.infos["even"].tolist() == [0.0, None, 2.0]
    np.testing.assert_array_equal(first.action_sent, np.clip(first.action, -0.1, 0.1).astype(np.float32))
    assert (first.action_sent != first.action).any()
    assert first.chunk_first_step.tolist() == [0]
    assert first.policy_digest == (collector.policy.digest,)
    assert first.seed is not None
    assert first.seed != second.seed
    assert (first.terminated, first.truncated, first.abort_reason, first.options) == (False, True, None, None)
    assert repr(first) == ("Episode(env=0, episode=0, first_step=0, length=3, return_=6, ends=<Ends.TRUNCATED: 2>)")


def test_a_nullable_extra_is_masked_where_there_is_none() -> None:
    with Collector(NESTED, seed=SEED) as collector:
        collection = collector.collect(4, explore=False)
        for episode in collection.episodes:
            assert np.ma.getmaskarray(episode.extras["log_prob"]).all()
            assert episode.extras["log_prob"].shape == (episode.length,)
        assert torch.isnan(collection.tensors()["log_prob"]).all()
        assert not np.ma.getmaskarray(collector.collect(4).episodes[0].extras["log_prob"]).any()


def test_a_recurrent_state_is_that_before_each_chunk() -> None:
    with Collector("CartPole-v1", "recurrent", num_envs=2, seed=SEED, vectorization="lanes", lookback=3) as collector:
        begun = collector.collect(6).episodes[0]
        later = collector.collect(6).episodes[0]
    ((name, first),) = begun.chunk_state.items()
    assert first.shape[0] == 1
    assert not first.any()
    assert later.chunk_state[name].shape == first.shape
    assert later.chunk_state[name].any()
    assert later.chunk_first_step.tolist() == later.with_lookback().chunk_first_step.tolist() == [3]


def test_episodes_are_a_sequence() -> None:
    with collector_of("lanes") as collector:
        episodes = collector.collect(30).episodes
    keys = [(episode.env, episode.episode) for episode in episodes]
    assert keys == sorted(keys)
    assert len(keys) == len(episodes)
    assert [(e.env, e.episode) for e in episodes[-2:]] == keys[-2:]
    assert (episodes[-1].env, episodes[-1].episode) == keys[-1]
    with pytest.raises(IndexError):
        episodes[len(keys)]


@pytest.mark.parametrize("mode", LOCKSTEP)
def test_tensors_are_the_steps_of_all_envs_by_time(mode: str) -> None:
    """Twice, for the steps of one call may begin and end within a vector step."""
    with lockstep(mode) as collector:
        for n in (20, 25):
            collection = collector.collect(n)
            check_tensors(collection, n)


@pytest.mark.parametrize("mode", MODES)
def test_tensors_of_whole_episodes_are_padded(mode: str) -> None:
    with collector_of(mode) as collector:
        collector.collect(5)
        collection = collector.collect(n_episodes=5)
        check_tensors(collection, collection.steps)
        assert not collection.tensors()["mask"].all()


def test_tensors_are_whole_where_nothing_but_steps_happened() -> None:
    with collector_of("lanes") as collector:
        assert collector.collect(30).tensors()["mask"].shape == (10, 3)
        assert collector.collect(30).tensors()["mask"].all()


def check_tensors(collection: Collection, n: int) -> None:
    tensors = collection.tensors()
    mask = tensors["mask"]
    assert mask.sum() == n
    for name, tensor in tensors.items():
        assert tensor.shape[:2] == mask.shape, name
        assert not tensor[~mask].any(), name
    for env in range(3):
        mine: dict[str, Any] = {name: tensor[:, env][mask[:, env]].numpy() for name, tensor in tensors.items()}
        episodes = [episode for episode in collection.episodes if episode.env == env]
        for name, expected in {
            "observation": [e.observation[:-1] for e in episodes],
            "next_observation": [e.observation[1:] for e in episodes],
            "action": [e.action for e in episodes],
            "reward": [e.reward for e in episodes],
            "value": [e.extras["value"] for e in episodes],
            "terminated": [np.arange(1, e.length + 1) == e.length * e.terminated for e in episodes],
            "truncated": [np.arange(1, e.length + 1) == e.length * e.truncated for e in episodes],
        }.items():
            np.testing.assert_array_equal(mine[name], np.concatenate(expected), err_msg=name)


def test_tensors_have_the_structures_of_the_spaces() -> None:
    with Collector(NESTED, num_envs=2, seed=SEED, infos=["even"]) as collector:
        tensors = collector.collect(8).tensors()
    box, bits = tensors["next_observation"]["rest"]
    assert (box.shape, bits.shape, tensors["observation"]["at"].shape) == ((4, 2, 2), (4, 2, 3), (4, 2))
    assert tensors["info.even"][:, 0].tolist() == [0, 0, 2, 0]
    assert tensors["truncated"][:, 0].tolist() == [False, False, True, False]
    assert tensors["action"].dtype == torch.float32


def test_tensors_of_envs_out_of_lockstep_are_refused_where_they_are_of_no_common_time() -> None:
    pytest.importorskip("envpool")
    arguments = {"batch_size": 1}
    with Collector("envpool:CartPole-v1", num_envs=3, seed=SEED, env_arguments=arguments, lockstep=False) as collector:
        collection = collector.collect(10)
        with pytest.raises(SettingsError, match=r"out of lockstep and stepped \d to \d times"):
            collection.tensors()


def test_tensors_without_the_steps_of_aborted_episodes_are_refused() -> None:
    collection = collect(BREAKING, "random", num_envs=2, n_episodes=6, seed=SEED)
    with pytest.raises(SettingsError, match="those of aborted episodes were left out"):
        collection.tensors()


def test_tensors_of_text_are_refused() -> None:
    with (
        Collector(f"{ZOO}:TalkingEnv", "random", seed=SEED) as collector,
        pytest.raises(SettingsError, match="tensors of observation: text has none"),
    ):
        collector.collect(2).tensors()


class Measuring(Callbacks):
    metrics = ("steps", "unmeasured")

    def __init__(self) -> None:
        self.ended: list[EndedEpisode] = []
        self.fragments = 0
        self.told: dict[int, str] = {}

    def on_episode_start(self, env: int, begun: BegunEpisode) -> None:
        self.told[env] = self.told.get(env, "") + "("

    def on_episode_end(self, ended: EndedEpisode) -> Mapping[str, float]:
        self.ended.append(ended)
        self.told[ended.env] += ")"
        return {"steps": float(ended.length)}

    def on_fragment_end(self, fragment: Any) -> None:
        self.fragments += fragment.steps


@pytest.mark.parametrize("mode", MODES)
def test_callbacks_are_called_and_what_they_measure_is_with_the_episode(mode: str) -> None:
    measuring = Measuring()
    with collector_of(mode, longest=6, callbacks=[measuring]) as collector:
        collection = collector.collect(n_episodes=7)
        assert [e.metrics for e in collection.episodes] == [
            {"steps": float(e.length), "unmeasured": None} for e in collection.episodes
        ]
        assert collection.statistics.metrics["steps"] == collection.statistics.lengths
        assert collection.statistics.metrics["unmeasured"].count == 0
        assert measuring.fragments == collection.steps
        for _ in range(8):
            collector.collect(4, reset=True)
        aborted = [ended for ended in measuring.ended if ended.ends == Ends.ABORTED]
        assert {ended.abort_reason for ended in aborted} == {"reset"}
        assert sum(ended.length for ended in aborted) > 0
        # Each was told of its end once, with the steps that no call was given too.
        assert all(told.removesuffix("(") == "()" * (len(told) // 2) for told in measuring.told.values())


class Curriculum(Callbacks):
    def on_reset(self, env: int, episode: int) -> Mapping[str, Any]:
        return {"level": 10 * env + episode}


def test_a_callback_may_choose_the_options_of_resets() -> None:
    with collector_of("lanes", callbacks=[Curriculum()]) as collector:
        collection = collector.collect(n_episodes=6)
        assert [(e.env, e.options, e.is_whole) for e in collection.episodes] == [
            (env, {"level": 10 * env + episode}, True) for env in range(3) for episode in range(2)
        ]
        check_tensors(collection, collection.steps)
        collection = collector.collect(30)
        check_tensors(collection, 30)
        levels = [e.options["level"] for e in collection.episodes if e.env == 2 and e.options]
        assert levels == [levels[0] + later for later in range(len(levels))]
        assert levels[0] > 21


def test_text_and_trees_go_on_from_call_to_call() -> None:
    with Collector(NESTED, seed=SEED, lookback=2) as collector:
        collector.collect(1)
        (episode, *_) = collector.collect(2).episodes
    at, *_ = flatten(collector.spec.observation, episode.with_lookback().observation)
    assert at.tolist() == [1, 2, 3, 4]


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE))
    told = capsys.readouterr().out
    assert "batch['observation'].shape=torch.Size([64, 8, 4])" in told
    assert "version 1: " in told
