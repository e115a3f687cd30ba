from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from penstock_consumers.replay import Replay, Where
from penstock_consumers.replay.choosing import Mixture, Prioritized, Recency, Return, Staleness, Uniform
from penstock_consumers.replay.drawn import Drawn
from penstock_consumers.replay.index import Index
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import SettingsError
from tests.consumers.stores import CHUNK_STEPS, Episodes, Writer, episodes, stream
from tests.consumers.varied import Told, store

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from penstock_consumers.replay.choosing import Chooser, Sampler
    from penstock_consumers.store.bucket import Bucket

LENGTHS = np.array([1, 2, 5, 9, 4, 8, 1, 1, 13, 7, 12, 3, 4, 6, 7])
# Of each step, in the order of the episodes' numbers, which is that of the log's times.
NUMBER = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
STEP = np.concatenate([np.arange(length) for length in LENGTHS])
VERSION = 3 * (NUMBER // 3) + STEP // CHUNK_STEPS
NEWER = len(STEP) - 1 - np.arange(len(STEP))
RETURNS = np.array([1000.0 * n * t + t * (t - 1) / 2 for n, t in enumerate(LENGTHS)])
# The episodes of each segment, by partition.
LAYOUTS = {
    "one segment": {0: [[*range(15)]]},
    "a segment each": {0: [[number] for number in range(15)]},
    "three partitions": {0: [[0, 4, 5], [9]], 1: [[1, 2, 8, 10, 13]], 7: [[3], [6, 7], [11, 12, 14]]},
}


def standardised(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return (values - values.mean()) / values.std()


# A chooser, and what each step weighs by it.
WEIGHTS: dict[str, tuple[Callable[[], Chooser], NDArray[np.float64]]] = {
    "steps": (Uniform, np.ones(len(STEP))),
    "episodes": (lambda: Uniform(over="episodes"), 1.0 / LENGTHS[NUMBER]),
    "recency": (lambda: Recency(half_life_steps=20), 0.5 ** (NEWER / 20)),
    "long recency": (lambda: Recency(half_life_steps=1e9), 0.5 ** (NEWER / 1e9)),
    "staleness": (lambda: Staleness(half_life_versions=4), 0.5 ** ((VERSION.max() - VERSION) / 4)),
    "return": (Return, np.exp(standardised(RETURNS)[NUMBER])),
    "low return": (lambda: Return(temperature=-0.7), np.exp(standardised(RETURNS)[NUMBER] / -0.7)),
    "prioritized": (Prioritized, np.ones(len(STEP))),
}


def mixture() -> tuple[Chooser, NDArray[np.float64]]:
    parts = (("episodes", 1.0), ("recency", 2.0), ("return", 5.0))
    weights = [WEIGHTS[name][1] / WEIGHTS[name][1].sum() * share for name, share in parts]
    return Mixture([(WEIGHTS[name][0](), share) for name, share in parts]), np.sum(weights, axis=0)


WEIGHTS["mixture"] = (lambda: mixture()[0], mixture()[1])


def stored(layout: dict[int, list[list[int]]], **kwargs: Any) -> Bucket:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, stream())
    for partition, segments in layout.items():
        for closed_offset, numbers in enumerate(segments):
            each = [
                episodes(
                    writer.spec, LENGTHS[at], first=at, version=3 * (at // 3), closed_offset=closed_offset, **kwargs
                ).batch
                for at in numbers
            ]
            lengths = LENGTHS[numbers]
            writer.commit(
                partition, Episodes(writer.spec, pa.concat_batches(each), lengths, np.zeros(len(lengths), np.uint8), 0)
            )
    return bucket


def drawn(replay: Replay, draws: int, batch_size: int = 64, **kwargs: Any) -> dict[str, NDArray[Any]]:
    batches = list(itertools.islice(replay.transitions(batch_size, **kwargs), -(-draws // batch_size)))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def steps_of(batch: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Which steps of `NUMBER` and `STEP` a batch is of."""
    number, step = batch["observation"][:, 0].astype(np.int64), batch["observation"][:, 1].astype(np.int64)
    return (np.cumsum(LENGTHS) - LENGTHS)[number] + step


def assert_distributed(found: NDArray[np.int64], probability: NDArray[np.float64]) -> None:
    """Chi-squared within its 99.98 % bounds on either side (Wilson and Hilferty, 1931); the rarest are one class.

    Too near to what is expected is wrong as well: draws would not be independent of each other.
    """
    counts, expected = np.bincount(found, minlength=len(probability)), len(found) * probability
    rare = expected < 8
    assert counts[expected < 1e-6].sum() == 0
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    if len(counts) > 2 and expected[-1] < 1e-3:
        counts, expected = counts[:-1], expected[:-1]
    squared, freedom = ((counts - expected) ** 2 / expected).sum(), len(counts) - 1
    spread = 2 / (9 * freedom)
    least, most = (freedom * (1 - spread + sign * 3.7 * np.sqrt(spread)) ** 3 for sign in (-1, 1))
    assert least < squared < most


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", WEIGHTS)
def test_each_is_drawn_as_often_as_it_should_be(name: str, layout: str) -> None:
    make, weights = WEIGHTS[name]
    replay = Replay.open(stored(LAYOUTS[layout]))
    batch = drawn(replay, 16_000, choose=make(), seed=5)
    assert_distributed(steps_of(batch), weights / weights.sum())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", WEIGHTS)
def test_the_probability_of_each_is_what_it_should_be(name: str, layout: str) -> None:
    make, weights = WEIGHTS[name]
    replay = Replay.open(stored(LAYOUTS[layout]))
    index = Index(replay._snapshot, Where().at(replay._snapshot))
    probability = make().over(index).probability(np.arange(len(index)))
    in_order = [episode.episode for episode in replay.episodes()]
    expected = np.concatenate([weights[number == NUMBER] for number in in_order])
    np.testing.assert_allclose(probability, expected / expected.sum(), rtol=1e-6)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("windows", [{"stride": 3, "overlap": 2}, {"stride": 4}, {"stride": 2, "by_chunk": True}])
def test_the_probabilities_of_windows_are_of_their_first_steps(name: str, windows: dict[str, Any]) -> None:
    make, weights = WEIGHTS[name]
    replay = Replay.open(stored(LAYOUTS["three partitions"]))
    index = Index(replay._snapshot, Where().at(replay._snapshot), **windows)
    sampler = make().over(index)
    probability = sampler.probability(np.arange(len(index)))
    assert probability.sum() == pytest.approx(1.0)
    assert_distributed(sampler.draw(np.random.default_rng(3), 8_000).items, probability)
    if name in {"recency", "long recency", "staleness", "return", "low return", "steps"}:
        first = np.concatenate(
            [_first_steps(index, number) for number in range(len(replay._snapshot.entries))],
        )
        np.testing.assert_allclose(probability, weights[first] / weights[first].sum(), rtol=1e-6)
    elif name == "episodes":
        first = np.concatenate([_first_steps(index, number) for number in range(len(replay._snapshot.entries))])
        of_episode = np.bincount(NUMBER[first], weights=probability)
        np.testing.assert_allclose(of_episode, 1.0 / len(LENGTHS))


def _first_steps(index: Index, number: int) -> NDArray[np.int64]:
    """The step of `NUMBER` and `STEP` with which each item of a segment begins."""
    segment = index.snapshot.segment(number)
    items = np.arange(index.first_item[number + 1] - index.first_item[number])
    place = index.places(number, items)
    observation = segment.items("observation").view(slice(None))[place.step + place.row]
    return steps_of({"observation": observation})


def test_a_condition_leaves_out_what_it_leaves_out() -> None:
    replay = Replay.open(stored(LAYOUTS["three partitions"]))
    where = Where(policy_version=(4, 10))
    kept = (VERSION >= 4) & (VERSION <= 10)
    for name in ("episodes", "recency", "staleness"):
        batch = drawn(replay, 10_000, choose=WEIGHTS[name][0](), where=where, seed=1)
        found = steps_of(batch)
        assert kept[found].all()
        if name == "episodes":
            weights = kept / np.bincount(NUMBER, weights=kept)[NUMBER].clip(1)
        elif name == "recency":
            newer = np.cumsum(kept[::-1])[::-1] - 1
            weights = kept * 0.5 ** (newer / 20)
        else:
            weights = kept * 0.5 ** ((10 - VERSION) / 4)
        assert_distributed(found, weights / weights.sum())


@pytest.mark.parametrize("name", WEIGHTS)
def test_each_batch_is_of_the_whole_by_itself(name: str) -> None:
    """What is drawn in order is mixed before it is given: else the first batches would be of the first episodes."""
    make, weights = WEIGHTS[name]
    replay = Replay.open(stored(LAYOUTS["three partitions"]))
    expected = np.bincount(NUMBER // 5, weights=weights / weights.sum())
    mean, spread = np.average(STEP, weights=weights), 4.0
    for batch in itertools.islice(replay.transitions(1_000, choose=make(), seed=2), 5):
        found = steps_of(batch)
        np.testing.assert_allclose(np.bincount(NUMBER[found] // 5, minlength=3) / 1_000, expected, atol=0.08)
        assert abs(STEP[found[:500]].mean() - mean) < 5 * spread / np.sqrt(500)
        assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.15


@pytest.mark.parametrize("name", WEIGHTS)
def test_equal_seeds_give_equal_items(name: str) -> None:
    make, _ = WEIGHTS[name]
    bucket = stored(LAYOUTS["three partitions"])
    one, two, other = (steps_of(drawn(Replay.open(bucket), 1_000, choose=make(), seed=seed)) for seed in (7, 7, 8))
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()


@pytest.mark.parametrize("size", [0, 5, (4, 3)])
@pytest.mark.parametrize("name", WEIGHTS)
def test_what_is_drawn_has_the_shape_that_was_asked_for(name: str, size: int | tuple[int, int]) -> None:
    sampler = over(WEIGHTS[name][0](), Replay.open(stored(LAYOUTS["one segment"])))
    drawn = sampler.draw(np.random.default_rng(0), size)
    assert drawn.items.shape == (size if isinstance(size, tuple) else (size,))
    assert drawn.items.dtype == np.int64
    assert set(drawn.beside) == set(sampler.tells)
    assert {values.shape for values in drawn.beside.values()} <= {drawn.items.shape}


@pytest.mark.parametrize(
    ("chooser", "only"),
    [
        (Recency(half_life_steps=5e-324), len(STEP) - 1),
        (Recency(half_life_steps=1e-3), len(STEP) - 1),
        (Staleness(half_life_versions=5e-324), None),
        (Return(temperature=5e-324), None),
        (Return(temperature=-1e-300), 0),
    ],
)
def test_extremes_do_not_underflow(chooser: Chooser, only: int | None) -> None:
    replay = Replay.open(stored(LAYOUTS["three partitions"]))
    with np.errstate(all="raise", under="ignore"):
        found = np.unique(steps_of(drawn(replay, 500, choose=chooser)))
    if only is not None:
        assert found.tolist() == [only]
    elif isinstance(chooser, Staleness):
        assert set(found) == set(np.flatnonzero(VERSION.max() == VERSION))
    else:
        assert set(NUMBER[found]) == {np.argmax(RETURNS)}


@pytest.mark.parametrize("chooser", [Recency(5e-324), Staleness(5e-324), Return(5e-324)])
def test_extremes_of_windows_do_not_underflow(chooser: Chooser) -> None:
    """The newest window begins some steps before the newest step."""
    replay = Replay.open(stored(LAYOUTS["three partitions"]))
    index = Index(replay._snapshot, Where().at(replay._snapshot), stride=4, overlap=2)
    assert chooser.over(index).probability(np.arange(len(index))).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("chooser", [Recency(1e300), Staleness(1e300), Return(1e300)])
def test_the_mildest_is_uniform(chooser: Chooser) -> None:
    replay = Replay.open(stored(LAYOUTS["one segment"]))
    probability = over(chooser, replay).probability(np.arange(replay.steps))
    np.testing.assert_allclose(probability, 1.0 / replay.steps)


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1.0, 1e200, 1.7e308])
def test_a_temperature_means_the_same_however_large_returns_are(scale: float) -> None:
    bucket = open_bucket("memory://")
    store(bucket, [(0, [Told(length=1, return_=of * scale) for of in (1.0, -1.0, 0.0)])])
    probability = over(Return(), Replay.open(bucket)).probability(np.arange(3))
    expected = np.exp(standardised(np.array([1.0, -1.0, 0.0])))
    np.testing.assert_allclose(probability, expected / expected.sum(), rtol=1e-3)


def test_equal_returns_are_alike() -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, stream())
    writer.commit(0, episodes(writer.spec, [4], first=3))
    assert drawn(Replay.open(bucket), 100, choose=Return())["step"].max() == 3


def test_a_return_that_is_no_number_is_refused_by_name() -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, stream())
    stored = episodes(writer.spec, [4, 5])
    at = stored.batch.schema.get_field_index("return")
    batch = stored.batch.set_column(at, stored.batch.schema.field(at), pa.array([1.0, np.nan]))
    writer.commit(0, Episodes(writer.spec, batch, stored.lengths, stored.ends, 0))
    replay = Replay.open(bucket)
    with pytest.raises(
        SettingsError, match=r"Return\(temperature=1.0\): there are episodes with a return of nan.*where"
    ):
        replay.transitions(choose=Return())
    batch_ = next(replay.transitions(choose=Return(), where=Where(return_=(None, None), length=(None, 4))))
    assert set(batch_["episode"]) == {0}


def test_parts_of_a_cut_episode_are_episodes() -> None:
    replay = Replay.open(stored(LAYOUTS["one segment"], ends=Ends.CUT))
    counts = np.bincount(drawn(replay, 15_000, choose=Uniform(over="episodes"))["episode"])
    assert len(counts) == len(LENGTHS)
    assert counts.min() > 0.8 * counts.max()


def test_a_refreshed_snapshot_is_chosen_from_anew() -> None:
    bucket = stored(LAYOUTS["one segment"])
    replay = Replay.open(bucket)
    batches = replay.transitions(64, choose=Recency(half_life_steps=2))
    assert next(batches)["observation"][:, 0].max() < 15
    Writer(bucket, replay.spec).commit(1, episodes(replay.spec, [100], first=15))
    assert replay.refresh()
    news = [next(batches) for _ in range(500)][-1]
    assert (news["observation"][:, 0] == 15).all()


def test_a_mixture_tells_what_a_part_tells_with_the_weights_of_the_mixture() -> None:
    replay = Replay.open(stored(LAYOUTS["three partitions"]))
    prioritized = Prioritized(beta=0.5)
    sampler = over(Mixture([(prioritized, 1.0), (Recency(20), 3.0)]), replay)
    assert sampler.tells == ("index", "weight")
    drawn = sampler.draw(np.random.default_rng(0), (20, 16))
    items, beside = drawn.items, drawn.beside
    weights = (len(STEP) * sampler.probability(items)) ** -0.5
    np.testing.assert_allclose(beside["weight"], weights / weights.max(axis=1, keepdims=True), rtol=1e-6)
    prioritized.update(beside["index"].ravel(), np.full(items.size, 9.0))
    assert prioritized.ignored == 0
    np.testing.assert_array_equal(np.unique(beside["index"]), np.unique(items))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Uniform(over="segments"), r"Uniform\(over='segments'\): over 'steps' or 'episodes'"),
        (lambda: Recency(0.0), "half_life_steps 0.0: a number above 0"),
        (lambda: Recency(float("nan")), "half_life_steps nan"),
        (lambda: Recency(float("inf")), "half_life_steps inf"),
        (lambda: Staleness(-1), "half_life_versions -1: a number above 0"),
        (lambda: Return(0.0), "temperature 0.0: a number above 0, or below"),
        (lambda: Return(float("nan")), "temperature nan"),
        (lambda: Return("a"), "temperature a: a number above 0, or below"),
        (lambda: Mixture([]), r"Mixture\(\[\]\): at least one"),
        (lambda: Mixture(zip([], [], strict=True)), r"Mixture\(<zip .*>\): at least one"),
        (lambda: Mixture(5), r"Mixture\(5\): at least one"),
        (lambda: Mixture([(Uniform(), 1.0), (Recency(5), 0.0)]), r"Recency\(half_life_steps=5\): share 0.0: a number"),
        (lambda: Recency("5"), "half_life_steps 5: a number above 0"),
        (lambda: Mixture([Uniform(), Uniform()]), r"Mixture: Uniform\(over='steps'\): a pair \(chooser, share\)"),
        (lambda: Mixture([(Uniform, 1.0)]), "choose <class '.*Uniform'>: a chooser, as in"),
        (lambda: Mixture([(Uniform(), "1")]), "share 1: a number above 0"),
        (lambda: Prioritized(alpha="1"), "alpha 1: a number from 0 to 1"),
        (lambda: Prioritized(alpha=1.5), "alpha 1.5: a number from 0 to 1"),
        (lambda: Prioritized(beta=-0.1), "beta -0.1: a number from 0 to 1"),
        (lambda: Prioritized(ahead=2), "ahead 2: a number from 0 to 1"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], Chooser], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        make()


def test_the_parts_of_a_mixture_may_come_from_an_iterator() -> None:
    replay = Replay.open(stored(LAYOUTS["one segment"]))
    parts = [(Uniform(), 1.0), (Recency(5), 3.0)]
    one, other = (next(replay.transitions(choose=Mixture(given))) for given in (parts, iter(parts)))
    np.testing.assert_array_equal(steps_of(one), steps_of(other))


def test_two_parts_that_tell_the_same_are_refused() -> None:
    replay = Replay.open(stored(LAYOUTS["one segment"]))
    with pytest.raises(SettingsError, match="two parts tell index, weight of what they draw"):
        replay.transitions(choose=Mixture([(Prioritized(), 1.0), (Prioritized(), 1.0)]))


def over(chooser: Chooser, replay: Replay) -> Sampler:
    return chooser.over(Index(replay._snapshot, Where().at(replay._snapshot)))


@pytest.mark.parametrize("size", [0, 1, 1_000, (20, 50)])
@pytest.mark.parametrize("below", [1, 1 << 16, (1 << 16) + 1, 1 << 33, 1 << 62])
def test_items_are_laid_in_order_and_given_as_drawn(below: int, size: int | tuple[int, int]) -> None:
    items = np.random.default_rng(0).integers(below, size=size)
    drawn = Drawn.of(items)
    np.testing.assert_array_equal(drawn.lying, np.sort(items, axis=None))
    np.testing.assert_array_equal(drawn.items, items)
