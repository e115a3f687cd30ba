"""The statistics for connectors that normalize, against numpy's over all that is stored at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_consumers.progress import bar
from penstock_consumers.replay import Replay, RunningStatistics, statistics
from penstock_consumers.replay.moments import Moments
from penstock_consumers.store import layout, segments
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.upkeep.compaction import join
from penstock_schemas.connectors import Pipeline, make_pipeline
from penstock_schemas.errors import StoreError
from penstock_schemas.spaces import Box, Dict, Discrete, Tuple
from tests.consumers.cut_stores import Part, commit, publish, rolled_out, stream
from tests.consumers.rolled import rolled
from tests.consumers.stores import Writer

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(0, 1 << 32))
def test_moments_are_those_of_all_values(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = (1e4 + rng.standard_normal((sum(sizes), 2)) * [1, 1e-2]).astype(np.float64)
    moments = Moments((2,))
    for part in np.split(values, np.cumsum(sizes)[:-1]):
        moments.add(part)
    assert moments.count == len(values)
    if len(values):
        np.testing.assert_allclose(moments.mean, values.mean(axis=0), rtol=1e-14)
        np.testing.assert_allclose(moments.variance, values.var(axis=0), rtol=1e-6, atol=1e-9)
    else:
        assert moments.mean.tolist() == [0, 0]
        assert moments.variance.tolist() == [1, 1]


def test_moments_of_more_than_is_summed_at_a_time() -> None:
    values = np.random.default_rng(0).integers(0, 256, (900, 30, 20)).astype(np.uint8)
    moments = Moments((30, 20))
    moments.add(values)
    np.testing.assert_allclose(moments.mean, values.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(moments.variance, values.var(axis=0), rtol=1e-12)


def test_what_is_no_number_is_left_out() -> None:
    moments = Moments((2,))
    moments.add(np.array([[1.0, 2.0], [np.nan, 0.0], [3.0, np.inf], [3.0, 4.0]], np.float32))
    assert (moments.count, moments.mean.tolist(), moments.variance.tolist()) == (2, [2, 3], [1, 1])
    scalar = Moments(())
    scalar.add(np.array([1, 3], np.uint8))
    assert (scalar.count, float(scalar.mean), float(scalar.variance)) == (2, 2, 1)
    moments.add(np.array([[np.nan, 1.0]]))
    assert moments.count == 2


def test_what_has_no_square_is_left_out() -> None:
    moments = Moments((2,))
    moments.add(np.array([[1e200, 0.0], [-1e200, 0.0], [1.0, 2.0], [3.0, -1e155], [3.0, 4.0]]))
    assert (moments.count, moments.mean.tolist(), moments.variance.tolist()) == (2, [2, 3], [1, 1])
    large = np.array([[1e140], [-1e140]])
    most = Moments((1,))
    for _ in range(1_000):
        most.add(large)
    assert most.count == 2_000
    np.testing.assert_allclose(most.variance, [1e280])


CONNECTORS: list[dict[str, Any]] = [
    {"name": "normalize", "arguments": {"only": ["rest.1"], "clip": 2.0}},
    {"name": "stack", "arguments": {"frames": 3, "only": ["rest.1"]}},
    {"name": "flatten"},
    {"name": "previous_reward"},
    {"name": "normalize"},
]
OBSERVATION = Dict(
    (
        ("camera", Box((2, 2), np.dtype(np.uint8), (0.0,), (255.0,))),
        ("rest", Tuple((Discrete(3), Box((2,), np.dtype(np.float32))))),
    )
)


class Store:
    """A store that grows, and what the connectors that normalize were given of what it holds."""

    def __init__(self, *, holes: bool = False) -> None:
        self.rng = np.random.default_rng(0)
        self.spec = stream(OBSERVATION, Discrete(2), CONNECTORS)
        self.pipeline = make_pipeline(CONNECTORS, OBSERVATION, Discrete(2))
        self.bucket = open_bucket("memory://")
        self.writer = Writer(self.bucket, self.spec)
        self.records = publish(self.bucket, self.pipeline, 3, self.rng)
        wholes = rolled_out(self.spec, 3, self.rng, envs=4, episodes=6, holes=holes)
        self.waiting = [part for whole in wholes for part in whole.parts]
        self.stored: list[Part] = []
        self.high_water = 0

    def grow(self, count: int | None = None) -> None:
        new, self.waiting = self.waiting[:count], self.waiting[len(self.waiting) if count is None else count :]
        self.high_water = commit(self.writer, new, self.records, self.rng, self.high_water)
        self.stored += [part for part in new if part.stored]

    def compact(self) -> None:
        schema = segments.episode_schema(self.spec)
        for partition, at in Replay.open(self.bucket)._snapshot.partitions.items():
            entries = at.live.segments
            batches = [segments.read(self.bucket, entry, schema) for entry in entries]
            joined = join(self.bucket, layout.segment(partition, at.commit.number + 1), entries, batches)
            names = tuple(entry.name for entry in entries)
            self.writer.commit(partition, joined, removed=names, high_water=at.commit.high_water)

    def check(self, statistics: RunningStatistics, hidden: Collection[str] = ()) -> None:
        weights = statistics.weights
        self.pipeline.check(weights)
        versions = [record.weights for record in self.records]
        given: dict[str, list[Any]] = {"connectors.0.{}.rest.1": [], "connectors.4.{}": []}
        for part in self.stored:
            # What two parts hold counts with the first.
            own = slice(int(part.continues is not None), None)
            stored = part.whole.observation[2][part.begin : part.begin + part.length + 1]
            given["connectors.0.{}.rest.1"].append(stored[own])
            if part.id not in hidden:
                before = Pipeline(OBSERVATION, self.pipeline.connectors[:4])
                given["connectors.4.{}"].append(part.whole.seen(part, before, versions)[0][own])
        assert statistics.count == sum(map(len, given["connectors.0.{}.rest.1"]))
        assert weights.keys() == {name.format(of) for name in given for of in ("mean", "variance")}
        for name, values in given.items():
            every = np.concatenate(values).astype(np.float64)
            every = every[np.isfinite(every).all(axis=1)]
            assert len(every) > 50
            np.testing.assert_allclose(weights[name.format("mean")], every.mean(axis=0), rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(weights[name.format("variance")], every.var(axis=0), rtol=1e-9, atol=1e-9)


def test_each_connector_is_told_what_it_is_given_once() -> None:
    """Behind others too; over refreshes, cuts and compaction."""
    store = Store()
    store.grow(25)
    replay = Replay.open(store.bucket)
    statistics = RunningStatistics(replay)
    assert statistics.count == 0
    store.pipeline.check(statistics.weights)
    assert {name: (value.shape, value.dtype) for name, value in statistics.weights.items()} == {
        name: (value.shape, value.dtype) for name, value in store.pipeline.weights.items()
    }
    assert statistics.update() == statistics.count > 0
    store.check(statistics)
    assert statistics.update() == 0
    store.grow(5)
    assert statistics.update() == 0
    for _ in range(2):
        replay.refresh()
        assert statistics.update() > 0
        store.check(statistics)
        store.compact()
        replay.refresh()
        assert statistics.update() == 0
        store.check(statistics)
        store.compact()
        store.grow(9)
    store.compact()
    store.grow()
    replay.refresh()
    statistics.update()
    store.check(statistics)
    anew = RunningStatistics(Replay.open(store.bucket))
    anew.update()
    store.check(anew)


def test_a_bar_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(statistics, "bar", partial(bar, delay_seconds=0.0))
    store = Store()
    store.grow()
    RunningStatistics(Replay.open(store.bucket)).update()
    assert capsys.readouterr().err == ""
    RunningStatistics(Replay.open(store.bucket)).update(progress=True)
    assert "statistics:" in capsys.readouterr().err


def test_what_was_not_seen_for_sure_does_not_count_behind_what_looks_back() -> None:
    store = Store(holes=True)
    store.grow()
    statistics = RunningStatistics(Replay.open(store.bucket))
    statistics.update()
    hidden = {part.id for part in store.stored if not part.shown(3, {part.id for part in store.stored})}
    assert len(hidden) > 5
    store.check(statistics, hidden)


def test_what_cannot_be_read_is_not_taken_in() -> None:
    store = Store()
    store.grow()
    statistics = RunningStatistics(Replay.open(store.bucket))
    before = {name: value.tolist() for name, value in statistics.weights.items()}
    missing = layout.POLICIES + store.records[2].object_name
    data = store.bucket.read(missing)
    store.bucket.delete(missing)
    with pytest.raises(StoreError, match="no policies/"):
        statistics.update()
    assert statistics.count == 0
    assert {name: value.tolist() for name, value in statistics.weights.items()} == before
    store.bucket.put(missing, data)
    statistics.update()
    store.check(statistics)


def test_where_nothing_is_normalized_there_is_nothing_to_publish(tmp_path: Path) -> None:
    rolled(tmp_path, connectors=[{"name": "previous_reward"}], settings=())
    statistics = RunningStatistics(Replay.open(tmp_path))
    assert (statistics.update(), statistics.weights) == (0, {})
