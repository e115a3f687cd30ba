from __future__ import annotations

import itertools
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock_consumers.progress import Progress
from penstock_consumers.replay import Prioritized, Recency, Replay, Uniform, Where, transitions
from penstock_consumers.replay.opening import Opener
from penstock_consumers.replay.where import Condition
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import SettingsError, StoreError, StoreUnavailableError
from tests.consumers.stores import CHUNK_STEPS, Writer, episodes, stream

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from penstock_consumers.replay.segment import Segment
    from penstock_consumers.store.bucket import Bucket

ENDS = (Ends.TERMINATED, Ends.TRUNCATED, Ends.TERMINATED | Ends.TRUNCATED, Ends.ABORTED, Ends.CUT)
LENGTHS = ([1, 2, 5, 9, 4], [8, 1, 1, 30, 7], [12, 3, 4, 6, 7])


@pytest.fixture
def bucket(bucket: Bucket) -> Bucket:
    writer = Writer(bucket, stream())
    for number, lengths in enumerate(LENGTHS):
        stored = episodes(writer.spec, lengths, first=5 * number, ends=ENDS, version=10 * number)
        writer.commit(number % 2, stored)
    return bucket


def drawn(replay: Replay, draws: int, **kwargs: Any) -> dict[str, NDArray[Any]]:
    batches = list(itertools.islice(replay.transitions(64, **kwargs), -(-draws // 64)))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def test_every_transition_is_the_stored_one(bucket: Bucket) -> None:
    replay = Replay.open(bucket)
    batch = drawn(replay, 6_000)
    number, step = batch["observation"][:, 0].astype(int), batch["observation"][:, 1].astype(int)
    lengths = np.concatenate(LENGTHS)
    last = step == lengths[number] - 1
    ends = np.asarray(ENDS * len(LENGTHS))[number]

    assert len(set(zip(number.tolist(), step.tolist(), strict=True))) == lengths.sum() == replay.steps
    np.testing.assert_array_equal(batch["next_observation"][:, 0], number)
    np.testing.assert_array_equal(batch["next_observation"][:, 1], step + 1)
    np.testing.assert_array_equal(batch["action"], step % 3)
    np.testing.assert_array_equal(batch["reward"], 1000.0 * number + step)
    np.testing.assert_array_equal(batch["log_prob"], -step)
    np.testing.assert_array_equal(batch["logits"], np.stack([number, step, -step], axis=1))
    np.testing.assert_array_equal(batch["terminated"], last & ((ends & Ends.TERMINATED) != 0))
    np.testing.assert_array_equal(batch["truncated"], last & ((ends & Ends.TRUNCATED) != 0))
    np.testing.assert_array_equal(batch["policy_version"], 10 * (number // 5) + step // CHUNK_STEPS)
    in_order = np.array([episode.episode for episode in replay.episodes()])
    np.testing.assert_array_equal(in_order[batch["episode"]], number)


def test_a_batch_has_the_declared_names_shapes_and_dtypes(bucket: Bucket) -> None:
    batch = next(Replay.open(bucket).transitions(7))
    assert {name: (values.shape, values.dtype.name) for name, values in batch.items()} == {
        "observation": ((7, 4), "float32"),
        "action": ((7,), "int64"),
        "reward": ((7,), "float64"),
        "discount": ((7,), "float32"),
        "next_observation": ((7, 4), "float32"),
        "terminated": ((7,), "bool"),
        "truncated": ((7,), "bool"),
        "log_prob": ((7,), "float32"),
        "logits": ((7, 3), "float32"),
        "policy_version": ((7,), "int64"),
        "episode": ((7,), "int64"),
        "step": ((7,), "int64"),
    }


def test_a_batch_is_the_callers_own(bucket: Bucket) -> None:
    replay = Replay.open(bucket)
    batches = replay.transitions(4)
    first = next(batches)
    kept = {name: values.copy() for name, values in first.items()}
    for _ in range(200):
        for values in next(batches).values():
            values[...] = 0
    for name, values in first.items():
        np.testing.assert_array_equal(values, kept[name])
    assert drawn(replay, 64)["reward"].any()


def test_draws_are_uniform_and_independent(bucket: Bucket) -> None:
    """Chi-squared within its 99.8 % bounds on either side: without replacement it would come out near zero."""
    replay = Replay.open(bucket)
    reward = drawn(replay, 100 * replay.steps, seed=1)["reward"]
    _, counts = np.unique(reward, return_counts=True)
    expected = len(reward) / replay.steps
    assert len(counts) == replay.steps == 100
    assert 60.1 < ((counts - expected) ** 2 / expected).sum() < 149.4


def test_each_batch_is_uniform_by_itself(bucket: Bucket) -> None:
    """A block is read in the order in which it lies; were it given in that order, a batch would be of one segment."""
    replay = Replay.open(bucket)
    for batch in itertools.islice(replay.transitions(1_000, seed=2), 5):
        number = batch["observation"][:, 0].astype(int) // 5
        shares = np.bincount(number, minlength=3) / len(number)
        np.testing.assert_allclose(shares, np.array([21, 47, 32]) / 100, atol=0.06)
        halves = np.array_split(number, 2)
        np.testing.assert_allclose(halves[0].mean(), halves[1].mean(), atol=0.15)
        successive = np.corrcoef(batch["reward"][1:], batch["reward"][:-1])[0, 1]
        assert abs(successive) < 0.15


def test_equal_seeds_give_equal_batches(bucket: Bucket) -> None:
    one, two = Replay.open(bucket), Replay.open(bucket)
    same = [drawn(one, 500, seed=3), drawn(two, 500, seed=3), drawn(one, 500, seed=np.random.default_rng(3))]
    for other in same[1:]:
        for name, values in same[0].items():
            np.testing.assert_array_equal(values, other[name])
    assert (drawn(one, 500, seed=4)["reward"] != same[0]["reward"]).any()


@pytest.mark.parametrize("batch_size", [1, 3, 100_000])
def test_any_batch_size(bucket: Bucket, batch_size: int) -> None:
    for batch in itertools.islice(Replay.open(bucket).transitions(batch_size), 3):
        assert {len(values) for values in batch.values()} == {batch_size}


def test_a_block_is_bounded_in_bytes(bucket: Bucket) -> None:
    """A batch is a view of its block, so what it is a view of tells the block's size."""
    batch = next(Replay.open(bucket).transitions(100_000))
    assert sum(values.base.nbytes for values in batch.values() if values.base is not None) <= 32 << 20
    assert batch["observation"].base is not None


def test_an_iterator_goes_on_to_a_refreshed_snapshot_with_its_next_batch(bucket: Bucket) -> None:
    replay = Replay.open(bucket)
    batches, begun = replay.transitions(8), replay.transitions(8)
    next(begun)
    writer = Writer(bucket, replay.spec)
    writer.commit(5, episodes(replay.spec, [50_000], first=15))
    assert replay.refresh()
    for some in (batches, begun):
        assert all((next(some)["observation"][:, 0] == 15).any() for _ in range(200))


def test_an_iterator_in_progress_does_not_see_what_was_not_refreshed(bucket: Bucket) -> None:
    replay = Replay.open(bucket)
    batches = replay.transitions(8)
    writer = Writer(bucket, replay.spec)
    writer.commit(5, episodes(replay.spec, [50_000], first=15))
    assert not any((next(batches)["observation"][:, 0] == 15).any() for _ in range(200))


def test_many_small_segments(tmp_path: Path) -> None:
    writer = Writer(open_bucket(tmp_path), stream())
    writer.commit(0, *(episodes(writer.spec, [1 + number % 3], first=number) for number in range(100)))
    replay = Replay.open(tmp_path)
    batch = drawn(replay, 64 * 500)
    _, counts = np.unique(batch["reward"], return_counts=True)
    assert len(counts) == replay.steps
    assert counts.min() > 90
    np.testing.assert_array_equal(batch["next_observation"][:, 0], batch["observation"][:, 0])


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_size_below_one(bucket: Bucket, batch_size: int) -> None:
    with pytest.raises(SettingsError, match=f"batch_size {batch_size}: a batch has at least one"):
        Replay.open(bucket).transitions(batch_size)


def test_a_store_without_steps() -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, stream())
    replay = Replay.open(bucket)
    with pytest.raises(StoreError, match="no steps in the store yet"):
        replay.transitions()
    writer.commit(0)
    replay.refresh()
    with pytest.raises(StoreError, match=r"by partition: \{0: 0\}"):
        replay.transitions()
    writer.commit(0, episodes(writer.spec, [2]))
    replay.refresh()
    assert len(next(replay.transitions())["reward"]) == 256


@pytest.mark.parametrize(("n_step", "at_a_time"), [(2, 1 << 18), (3, 100), (10, 1 << 18), (10**30, 1)])
def test_n_steps_are_summed_up_to_the_end_of_the_episode(
    bucket: Bucket, n_step: int, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transitions, "_REWARDS_AT_A_TIME", at_a_time)
    replay = Replay.open(bucket)
    batch = drawn(replay, 3_000, n_step=n_step, gamma=0.9)
    stored = list(replay.episodes())
    for at in range(0, 3_000, 7):
        episode, step = stored[batch["episode"][at]], batch["step"][at]
        ahead = min(n_step, episode.length - step)
        rewards = episode.reward[step : step + ahead]
        np.testing.assert_allclose(batch["reward"][at], (rewards * 0.9 ** np.arange(ahead)).sum(), rtol=1e-12)
        np.testing.assert_array_equal(batch["observation"][at], episode.observation[step])
        np.testing.assert_array_equal(batch["next_observation"][at], episode.observation[step + ahead])
        last = step + ahead == episode.length
        terminated = last and bool(episode.ends & Ends.TERMINATED)
        assert batch["terminated"][at] == terminated
        assert batch["truncated"][at] == (last and bool(episode.ends & Ends.TRUNCATED))
        np.testing.assert_allclose(batch["discount"][at], 0.0 if terminated else 0.9**ahead, rtol=1e-6)
        assert batch["policy_version"][at] == episode.policy_version[step]
        assert batch["log_prob"][at] == episode.extras["log_prob"][step]
    assert batch["reward"].dtype == episode.reward.dtype


def test_sums_of_rewards_that_are_integers_are_not_rounded() -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, replace(stream(), reward_dtype=np.dtype(np.int32)))
    writer.commit(0, episodes(writer.spec, [9]))
    replay = Replay.open(bucket)
    batch = drawn(replay, 64, n_step=2, gamma=0.25)
    later = np.append(np.arange(1, 9), 0)[batch["step"]]
    np.testing.assert_array_equal(batch["reward"], batch["step"] + 0.25 * later)
    assert drawn(replay, 64)["reward"].dtype == np.int32


def test_only_the_columns_that_are_asked_for_in_their_own_order(bucket: Bucket) -> None:
    replay = Replay.open(bucket)
    batch = next(replay.transitions(64, columns=["id", "step", "reward"], seed=5))
    assert list(batch) == ["reward", "step", "id"]
    for name, step, reward in zip(batch["id"], batch["step"], batch["reward"], strict=True):
        assert replay.episode(name).reward[step] == reward
    everything = next(replay.transitions(64, seed=5))
    np.testing.assert_array_equal(everything["reward"], batch["reward"])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"n_step": 1.5}, "n_step 1.5: a whole number, from 1 on"),
        ({"gamma": "1"}, "gamma '1': a number"),
        ({"batch_size": 2.5}, "batch_size 2.5: a whole number"),
        ({"seed": -1}, "seed -1: a seed is at least 0, or a numpy.random.Generator"),
        ({"seed": "1"}, "seed '1': a whole number"),
        ({"choose": "uniform"}, r"choose 'uniform': a chooser, as in Uniform\(\)"),
        ({"choose": Uniform}, "choose <class .*a chooser, as in"),
        ({"where": {"length": (1, 2)}}, r"where \{'length': \(1, 2\)\}: a Where, as in where=Where"),
        ({"n_step": 0}, "n_step 0: a transition has at least one step"),
        ({"gamma": 1.5}, "gamma 1.5: a discount is between 0 and 1"),
        ({"gamma": float("nan")}, "gamma nan"),
        (
            {"columns": ["reward", "rewards"]},
            r"columns \['rewards'\]: not of this view; there are observation, action",
        ),
        ({"columns": ["reward", 1]}, r"columns \[1\]: not of this view"),
        ({"columns": [["reward"]]}, r"columns \[\['reward'\]\]: not of this view"),
        ({"columns": []}, "columns"),
        ({"columns": iter(["reward"])}, r"columns <list_iterator .*>: a collection of names, as in columns="),
        ({"columns": 5}, "columns 5: a collection of names"),
        ({"columns": "reward"}, r"as in columns=\['reward'\]"),
    ],
)
def test_arguments_that_make_no_sense(bucket: Bucket, wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        Replay.open(bucket).transitions(**{"batch_size": 8, **wrong})


def test_names_of_columns_in_an_array(bucket: Bucket) -> None:
    replay = Replay.open(bucket)
    assert list(next(replay.transitions(8, columns=np.array(["step", "reward"])))) == ["reward", "step"]


def test_the_whole_return_takes_no_more_memory_than_a_block() -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, stream())
    writer.commit(0, episodes(writer.spec, [2_000] * 5))
    batches = Replay.open(bucket).transitions(256, n_step=10**9, columns=["reward"])
    tracemalloc.start()
    try:
        next(batches)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


class Tells(Uniform):
    """Tells how often it was asked to draw from another index."""

    asked = 0

    def over(self, index: Any) -> Any:
        self.asked += 1
        return super().over(index)


def test_a_commit_without_segments_changes_nothing(bucket: Bucket) -> None:
    replay, other = Replay.open(bucket), Replay.open(bucket)
    choose = Tells()
    batches, as_ever = replay.transitions(8, choose=choose), other.transitions(8)
    np.testing.assert_array_equal(next(batches)["reward"], next(as_ever)["reward"])
    Writer(bucket, replay.spec).commit(5, high_water=9)
    assert replay.refresh()
    for _ in range(3):
        np.testing.assert_array_equal(next(batches)["reward"], next(as_ever)["reward"])
    assert choose.asked == 1


@pytest.mark.parametrize("view", ["transitions", "sequences"])
def test_a_refresh_looks_only_into_new_segments(view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is found in the others is what a reader finds that opens the store by then."""
    looked: list[str] = []
    runs = Condition.runs

    def counted(self: Condition, segment: Segment) -> Any:
        looked.append(segment.entry.name)
        return runs(self, segment)

    monkeypatch.setattr(Condition, "runs", counted)
    newest = {"age_seconds": (None, 0.008)}, {"versions_behind": (None, 2)}
    for at, (where, again) in enumerate([(Where(length=(2, None)), 1), *((Where(**asked), 2) for asked in newest)]):
        folder = tmp_path / str(at)
        writer = Writer(open_bucket(folder), stream())
        for number in range(5):
            writer.commit(0, episodes(writer.spec, [3, 1, 4], first=3 * number, version=number))
        replay = Replay.open(folder)
        batches = getattr(replay, view)(200, where=where)
        next(batches)
        writer.commit(0, episodes(writer.spec, [5, 2, 6], first=15, version=5))
        replay.refresh()
        looked.clear()
        batch = next(batches)
        assert len(looked) >= again
        assert (len(looked) == 1) == (again == 1)
        new = next(getattr(Replay.open(folder), view)(200, where=where, seed=1))
        assert set(np.unique(batch["episode"])) == set(np.unique(new["episode"]))


@pytest.mark.parametrize("choose", [Uniform(), Recency(5), Prioritized(ahead=0.0)], ids=repr)
def test_a_store_that_does_not_answer_for_a_while_ends_no_view(
    bucket: Bucket, choose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = Replay.open(bucket)
    batches = replay.transitions(8, choose=choose)

    def nothing(self: Opener, entry: Any) -> None:
        raise StoreUnavailableError("timed out")

    with monkeypatch.context() as patched:
        patched.setattr(Opener, "_read", nothing)
        patched.setattr(Opener, "open", nothing)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="timed out"):
                next(batches)
        Writer(bucket, replay.spec).commit(5, episodes(replay.spec, [4], first=15))
        replay.refresh()
        with pytest.raises(StoreUnavailableError, match="timed out"):
            next(batches)
    assert 15 in {int(number) for _ in range(40) for number in next(batches)["observation"][:, 0]}


def test_a_filter_that_matches_nothing_for_a_while_ends_no_view(bucket: Bucket) -> None:
    replay = Replay.open(bucket)
    batches = replay.transitions(8, where=Where(age_seconds=(0.005, None)))
    next(batches)
    held = replay._snapshot
    old = open_bucket("memory://")
    writer = Writer(old, stream())
    writer.commit(0, episodes(writer.spec, [3]))
    replay._snapshot = Replay.open(old)._snapshot
    for _ in range(2):
        with pytest.raises(StoreError, match="no step in the store fulfils age_seconds"):
            next(batches)
    replay._snapshot = held
    assert len(next(batches)["reward"]) == 8


def test_a_reader_shows_what_it_reads(bucket: Bucket) -> None:
    replay = Replay.open(bucket)
    told = f"steps={replay.steps}, episodes=15, snapshot={{0: 1, 1: 0}})"
    assert repr(replay) == f"Replay({bucket.url!r}, {told}"


def test_a_scan_that_makes_no_sense_is_refused_at_once_with_a_bar_too(bucket: Bucket) -> None:
    for progress in (False, True):
        with pytest.raises(SettingsError, match="columns"):
            Replay.open(bucket).scan(columns=["rewards"], progress=progress)


def test_a_bar_over_episodes_expects_those_of_segments_that_may_match(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = Replay.open(bucket)
    expected: list[int] = []
    monkeypatch.setattr(Progress, "expect", lambda _, count: expected.append(count))
    found = list(replay.episodes(where=Where(policy_version=(20, None)), progress=True))
    assert expected == [sum(LENGTHS[2])] == [sum(episode.length for episode in found)]
