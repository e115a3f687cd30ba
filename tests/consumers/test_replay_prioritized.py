from __future__ import annotations

import itertools
import re
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from penstock_consumers.replay import Replay, Where
from penstock_consumers.replay.choosing import Drawn, Mixture, Prioritized, Sampler, Uniform
from penstock_consumers.replay.choosing.groups import holding
from penstock_consumers.replay.choosing.sums import Sums
from penstock_consumers.replay.index import Index
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.segments import episode_keys, key_sum
from penstock_schemas.errors import SettingsError, StoreError
from tests.consumers.stores import Episodes, Writer, episodes, stream

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

LAYOUTS: dict[str, dict[str, Any]] = {
    "steps": {},
    "windows": {"stride": 4, "overlap": 3},
    "windows that lie in chunks": {"stride": 2, "by_chunk": True},
}


class Stored:
    """A store that grows, is compacted and forgets, and one reader of it."""

    def __init__(self, rng: np.random.Generator | None = None, **layout: Any) -> None:
        self.rng = rng or np.random.default_rng(0)
        self.layout = layout
        self.bucket = open_bucket("memory://")
        self.writer = Writer(self.bucket, stream())
        self.episodes = 0
        self.commits = 0
        for partition in (0, 1):
            self.add(partition)
        self.replay = Replay.open(self.bucket)

    def add(self, partition: int, count: int = 3) -> None:
        lengths = self.rng.integers(1, 12, size=count)
        stored = episodes(self.writer.spec, lengths, first=self.episodes, closed_offset=self.commits)
        self.writer.commit(partition, stored)
        self.episodes += count
        self.commits += 1

    def compact(self, partition: int) -> None:
        """Join all segments of a partition."""
        held = self.of(partition)
        batch = pa.concat_batches([self.replay._snapshot.segment(number).batch for number in held])
        names = tuple(self.replay._snapshot.entries[number].name for number in held)
        lengths = np.diff(batch.column("reward").offsets.to_numpy())
        self.writer.commit(partition, Episodes(self.writer.spec, batch, lengths, lengths, 0), removed=names)

    def forget(self, partition: int) -> None:
        """Let the oldest segment of a partition go."""
        held = self.of(partition)
        if len(held) > 1:
            self.writer.commit(partition, removed=(self.replay._snapshot.entries[held[0]].name,))

    def of(self, partition: int) -> list[int]:
        prefix = f"segments/{partition:05d}/"
        return [n for n, entry in enumerate(self.replay._snapshot.entries) if entry.name.startswith(prefix)]

    def index(self, where: Where | None = None) -> Index:
        snapshot = self.replay._snapshot
        return Index(snapshot, (where or Where()).at(snapshot), **self.layout)


def draw(
    sampler: Sampler, rng: np.random.Generator, size: int | tuple[int, int]
) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
    drawn = sampler.draw(rng, size)
    return drawn.items, drawn.beside


def names_of(index: Index) -> list[tuple[int, int]]:
    """The episode and the step with which each item begins."""
    names: list[tuple[int, int]] = []
    for number in holding(index):
        segment = index.snapshot.segment(number)
        place = index.places(number, np.arange(index.first_item[number + 1] - index.first_item[number]))
        step = place.step - segment.step_offsets[place.row]
        names += zip(segment.fixed("episode")[place.row].tolist(), step.tolist(), strict=True)
    return names


class Reference:
    """A table of priorities by name."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha
        self.largest = 1.0
        # What those have that were never updated.
        self.assumed = 1.0
        self.updated: dict[tuple[int, int], float] = {}
        self.priorities: dict[tuple[int, int], float] = {}
        self.ignored = 0

    def over(self, names: list[tuple[int, int]]) -> None:
        self.assumed = self.largest
        self.updated = {name: self.updated[name] for name in names if name in self.updated}
        self.priorities = {name: self.updated.get(name, self.assumed) for name in names}

    def update(self, names: list[tuple[int, int]], priorities: NDArray[np.float64]) -> None:
        for name, priority in zip(names, priorities.tolist(), strict=True):
            if name in self.priorities:
                self.updated[name] = self.priorities[name] = priority
            else:
                self.ignored += 1
        self.largest = max(self.largest, priorities.max())
        if self.largest >= 2 * self.assumed:
            self.assumed = self.largest
            self.priorities = {name: self.updated.get(name, self.assumed) for name in self.priorities}

    def probability(self) -> NDArray[np.float64]:
        priorities = np.array(list(self.priorities.values()))
        powered = np.where(priorities > 0.0, priorities**self.alpha, 0.0)
        return powered / powered.sum()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(6))
def test_it_equals_a_table_whatever_happens(tmp_path: Path, layout: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    stored = Stored(rng, **LAYOUTS[layout])
    alpha = float(rng.choice([0.0, 0.6, 1.0]))
    prioritized, reference = Prioritized(alpha, beta=0.7), Reference(alpha)

    def over() -> Sampler:
        index = stored.index()
        reference.over(names_of(index))
        return prioritized.over(index)

    sampler = over()
    held: list[tuple[list[tuple[int, int]], NDArray[np.int64]]] = []
    steps = {"draw": 6, "update": 6, "add": 2, "compact": 1, "forget": 1, "restart": 1}
    shares = np.array(list(steps.values())) / sum(steps.values())
    for step in rng.choice(list(steps), size=60, p=shares):
        names = list(reference.priorities)
        match step:
            case "draw":
                items, beside = draw(sampler, rng, (2, 5))
                expected = (len(names) * reference.probability()[items]) ** -0.7
                expected /= expected.max(axis=1, keepdims=True)
                np.testing.assert_allclose(beside["weight"], expected, rtol=1e-5)
                held.append(([names[item] for item in items.ravel()], beside["index"].ravel()))
            case "update" if held:
                which = int(rng.integers(len(held)))
                drawn, index = held[which]
                priorities = rng.choice([0.0, 1e-8, 0.3, 1.9, 5e6], size=len(index), p=[0.1, 0.2, 0.4, 0.28, 0.02])
                reference.update(drawn, priorities)
                prioritized.update(index, priorities)
            case "restart":
                prioritized.save(tmp_path / "priorities")
                ignored = prioritized.ignored
                prioritized = Prioritized.load(tmp_path / "priorities")
                assert ignored == reference.ignored
                reference.ignored = 0
                sampler = over()
            case "add" | "compact" | "forget":
                getattr(stored, step)(int(rng.integers(2)))
                assert stored.replay.refresh() or step == "forget"
                sampler = over()
        probability = sampler.probability(np.arange(len(reference.priorities)))
        np.testing.assert_allclose(probability, reference.probability(), rtol=1e-5, atol=1e-12)
    assert prioritized.ignored == reference.ignored


def test_draws_follow_the_priorities() -> None:
    """Chi-squared within its 99.8 % bounds on either side, and what has a priority of 0 is never drawn."""
    stored = Stored()
    stored.add(0, 30)
    stored.replay.refresh()
    prioritized = Prioritized(alpha=0.7)
    sampler = prioritized.over(stored.index())
    rng = np.random.default_rng(1)
    items, beside = draw(sampler, rng, 10_000)
    assert len(np.unique(items)) == len(stored.index()) > 150
    priorities = rng.choice([0.0, 0.5, 1.0, 4.0], size=len(items))
    prioritized.update(beside["index"], priorities)
    probability = sampler.probability(np.arange(len(stored.index())))
    found = np.bincount(sampler.draw(rng, (200, 256)).items.ravel(), minlength=len(probability))
    assert not found[probability == 0.0].any()
    found, expected = found[probability > 0.0], 51_200 * probability[probability > 0.0]
    freedom = len(found) - 1
    squared = ((found - expected) ** 2 / expected).sum()
    spread = 2 / (9 * freedom)
    least, most = (freedom * (1 - spread + sign * 3.09 * np.sqrt(spread)) ** 3 for sign in (-1, 1))
    assert least < squared < most


def test_a_learner_raises_what_surprises_it() -> None:
    """Through the view: what is given with a batch is of its steps, and updates count from the next batch on."""
    stored = Stored()
    prioritized = Prioritized(alpha=1.0, beta=1.0, ahead=0.0)
    batches = stored.replay.transitions(32, choose=prioritized)
    seen: dict[int, tuple[float, float]] = {}
    for batch in itertools.islice(batches, 20):
        for index, number, step in zip(
            batch["index"].tolist(), batch["observation"][:, 0], batch["observation"][:, 1], strict=True
        ):
            assert seen.setdefault(index, (number, step)) == (number, step)
    assert len(seen) == stored.replay.steps
    prioritized.update(np.array(list(seen)), np.array([1e6 if step == 0 else 1e-3 for _, step in seen.values()]))
    assert (next(batches)["step"] == 0).all()
    assert batch["weight"].dtype == np.float32
    assert batch["index"].dtype == np.int64


def test_the_rare_weigh_most() -> None:
    stored = Stored()
    prioritized = Prioritized(alpha=1.0, beta=1.0)
    sampler = prioritized.over(stored.index())
    items, beside = draw(sampler, np.random.default_rng(0), 500)
    prioritized.update(beside["index"], np.where(items % 2, 4.0, 1.0))
    items, beside = draw(sampler, np.random.default_rng(0), (10, 50))
    np.testing.assert_allclose(beside["weight"], np.where(items % 2, 0.25, 1.0))
    prioritized.beta = 0.0
    np.testing.assert_array_equal(sampler.draw(np.random.default_rng(0), 50).beside["weight"], 1.0)
    prioritized.beta = 0.5
    weight = sampler.draw(np.random.default_rng(0), 500).beside["weight"]
    np.testing.assert_allclose(np.unique(weight), [0.5, 1.0])


def test_what_is_new_has_the_largest_priority_so_far() -> None:
    stored = Stored()
    prioritized = Prioritized(alpha=1.0)
    sampler = prioritized.over(stored.index())
    items, beside = draw(sampler, np.random.default_rng(0), 2_000)
    prioritized.update(beside["index"], np.full(len(items), 7.0))
    prioritized.update(beside["index"], np.full(len(items), 0.5))
    before = set(names_of(stored.index()))
    stored.add(0, 2)
    stored.replay.refresh()
    sampler = prioritized.over(stored.index())
    names = names_of(stored.index())
    weights = np.array([0.5 if name in before else 7.0 for name in names])
    np.testing.assert_allclose(sampler.probability(np.arange(len(names))), weights / weights.sum(), rtol=1e-6)


@pytest.mark.parametrize("layout", [{}, {"stride": 3, "overlap": 1}])
def test_priorities_stay_where_a_condition_moves(layout: dict[str, int]) -> None:
    """An item is known by its step in the episode, not by its place in what a condition leaves of it."""
    stored = Stored(**layout)
    stored.add(1, 20)
    stored.replay.refresh()
    prioritized, reference = Prioritized(alpha=1.0), Reference(alpha=1.0)
    rng = np.random.default_rng(0)
    # A version is a chunk of four steps: 1 is the first of an episode, 2 the second; then all of them come back.
    for least, most in ((None, None), (2, 2), (2, 3), (None, None), (1, 2)):
        index = stored.index(Where(policy_version=(least, most)))
        names = names_of(index)
        reference.over(names)
        sampler = prioritized.over(index)
        probability = sampler.probability(np.arange(len(names)))
        np.testing.assert_allclose(probability, reference.probability(), rtol=1e-6)
        items, beside = draw(sampler, rng, 100)
        priorities = rng.random(100) * 10
        prioritized.update(beside["index"], priorities)
        reference.update([names[item] for item in items], priorities)


@pytest.mark.parametrize("wrong", [-1.0, -1e-30, np.nan, np.inf, -np.inf, 1e39])
def test_a_priority_that_is_none_changes_nothing(wrong: float) -> None:
    stored = Stored()
    prioritized = Prioritized()
    sampler = prioritized.over(stored.index())
    _, beside = draw(sampler, np.random.default_rng(0), 5)
    priorities = np.array([2.0, 3.0, wrong, wrong, 9.0])
    with pytest.raises(SettingsError, match=rf"priority {re.escape(str(wrong))} \(number 2 of 5\): a number from 0"):
        prioritized.update(beside["index"], priorities)
    probability = sampler.probability(np.arange(len(stored.index())))
    np.testing.assert_allclose(probability, 1.0 / len(probability))
    stored.add(0)
    stored.replay.refresh()
    probability = prioritized.over(stored.index()).probability(np.arange(len(stored.index())))
    np.testing.assert_allclose(probability, 1.0 / len(probability))


@pytest.mark.parametrize(
    ("wrong", "told"), [(np.array([1j] * 5), "complex128"), (np.array(["1"] * 5), "<U1"), (np.full(5, None), "object")]
)
def test_what_is_no_number_changes_nothing(wrong: NDArray[Any], told: str) -> None:
    stored = Stored()
    prioritized = Prioritized()
    _, beside = draw(prioritized.over(stored.index()), np.random.default_rng(0), 5)
    with pytest.raises(SettingsError, match=f"priorities of dtype {told}: numbers from 0 to"):
        prioritized.update(beside["index"], wrong)


def test_what_is_above_0_may_be_drawn_however_small_it_is() -> None:
    stored = Stored()
    prioritized = Prioritized()
    sampler = prioritized.over(stored.index())
    items, beside = draw(sampler, np.random.default_rng(0), 5)
    prioritized.update(beside["index"], np.full(5, 1e-300))
    assert (sampler.probability(items) > 0.0).all()


def test_the_arrays_of_an_update_are_the_callers_again() -> None:
    stored = Stored()
    prioritized = Prioritized(alpha=1.0)
    sampler = prioritized.over(stored.index())
    items, beside = draw(sampler, np.random.default_rng(0), 1)
    index, priorities = beside["index"], np.full(1, 0.5, np.float32)
    prioritized.update(index, priorities)
    index += 1 if items[0] == 0 else -1
    priorities[:] = 9.0
    assert sampler.probability(np.arange(len(stored.index()))).argmin() == items[0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64, np.bool_])
def test_priorities_of_any_dtype(dtype: type) -> None:
    stored = Stored()
    prioritized = Prioritized(alpha=1.0)
    sampler = prioritized.over(stored.index())
    items, beside = draw(sampler, np.random.default_rng(0), 50)
    prioritized.update(beside["index"].tolist(), np.zeros(50, dtype))
    assert not sampler.probability(items).any()
    prioritized.update(beside["index"], -np.zeros(50, np.float32))
    assert not sampler.probability(items).any()


@pytest.mark.parametrize(
    ("index", "priorities", "told"),
    [
        ([0, 1], [1.0], r"index of shape \(2,\) in int64, priorities of shape \(1,\)"),
        ([[0]], [[1.0]], r"index of shape \(1, 1\)"),
        ([0.0], [1.0], "in float64"),
        ([0, -1], [1.0, 1.0], "index -1 was never drawn"),
        ([0, 1 << 40], [1.0, 1.0], f"index {1 << 40} was never drawn"),
    ],
)
def test_an_index_that_is_none(index: list[Any], priorities: list[Any], told: str) -> None:
    stored = Stored()
    prioritized = Prioritized()
    sampler = prioritized.over(stored.index())
    with pytest.raises(SettingsError, match=told):
        prioritized.update(index, priorities)
    prioritized.update(np.empty(0, np.int64), [])
    probability = sampler.probability(np.arange(len(stored.index())))
    np.testing.assert_allclose(probability, 1.0 / len(probability))


def test_nothing_left_to_draw() -> None:
    stored = Stored()
    prioritized = Prioritized()
    batches = stored.replay.transitions(2_000, choose=prioritized)
    prioritized.update(next(batches)["index"], np.zeros(2_000))
    with pytest.raises(SettingsError, match="all priorities are 0"):
        next(batches)


def test_one_iterator_at_a_time() -> None:
    stored = Stored()
    prioritized = Prioritized()
    first = prioritized.over(stored.index())
    second = prioritized.over(stored.index())
    with pytest.raises(SettingsError, match="another iterator has it since"):
        first.draw(np.random.default_rng(0), 1)
    second.draw(np.random.default_rng(0), 1)


@pytest.mark.parametrize("mixed", [False, True])
def test_an_older_iterator_ends_with_its_next_batch_and_takes_nothing_back(mixed: bool) -> None:
    stored = Stored()
    prioritized = Prioritized(ahead=1.0)
    choose = Mixture([(prioritized, 1.0)]) if mixed else prioritized
    older = stored.replay.transitions(2, choose=choose)
    next(older)
    newer = stored.replay.transitions(2, choose=choose)
    with pytest.raises(SettingsError, match="another iterator has it since"):
        next(older)
    stored.add(0)
    stored.replay.refresh()
    with pytest.raises(SettingsError, match="another iterator has it since"):
        next(older)
    next(newer)


def test_what_was_never_updated_has_the_largest_priority_within_a_snapshot() -> None:
    stored = Stored()
    prioritized = Prioritized(alpha=1.0)
    sampler = prioritized.over(stored.index())
    every = np.arange(len(stored.index()))
    _, beside = draw(sampler, np.random.default_rng(0), 1)
    for given, assumed in ((1.9, 1.0), (2.0, 2.0), (1e6, 1e6), (0.5, 1e6)):
        prioritized.update(beside["index"], [given])
        likely = sampler.probability(every)
        other = (sampler.slots.of(every) != beside["index"]).argmax()
        item = (sampler.slots.of(every) == beside["index"]).argmax()
        assert likely[item] / likely[other] == pytest.approx(given / assumed, rel=1e-6)


def test_what_was_never_updated_is_known_after_a_refresh_and_a_restart(tmp_path: Path) -> None:
    stored = Stored()
    prioritized = Prioritized(alpha=1.0)
    sampler = prioritized.over(stored.index())
    index = sampler.slots.of(np.arange(1))
    prioritized.update(index, [1.5])
    stored.add(0)
    stored.replay.refresh()
    prioritized.over(stored.index())
    prioritized.save(tmp_path / "priorities")
    for again in (prioritized, Prioritized.load(tmp_path / "priorities")):
        sampler = again.over(stored.index())
        again.update(index, [9.0])
        likely = sampler.probability(np.arange(len(stored.index())))
        np.testing.assert_allclose(likely, 1.0 / len(likely))


def test_a_priority_of_0_is_never_drawn_whatever_alpha_is() -> None:
    stored = Stored()
    prioritized = Prioritized(alpha=0.0)
    sampler = prioritized.over(stored.index())
    items, beside = draw(sampler, np.random.default_rng(0), 4)
    prioritized.update(beside["index"], np.zeros(4))
    assert not np.isin(sampler.draw(np.random.default_rng(1), 1_000).items, items).any()


def test_another_layout_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    stored = Stored()
    prioritized = Prioritized()
    prioritized.over(stored.index())
    prioritized.save(tmp_path / "priorities")
    for again in (prioritized, Prioritized.load(tmp_path / "priorities")):
        for layout in ({"stride": 4}, {"stride": 1, "overlap": 3}):
            stored.layout = layout
            told = "its priorities are of steps, here are windows of 4 steps"
            with pytest.raises(SettingsError, match=told):
                again.over(stored.index())
        stored.layout = {}
        again.over(stored.index())


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    stored = Stored()
    prioritized = Prioritized(0.5, 0.25, ahead=0.5)
    sampler = prioritized.over(stored.index())
    rng = np.random.default_rng(0)
    _, beside = draw(sampler, rng, 100)
    prioritized.update(beside["index"], rng.random(100) * 100)
    prioritized.save(tmp_path / "new" / "priorities.safetensors")
    again = Prioritized.load(str(tmp_path / "new" / "priorities.safetensors"))
    assert repr(again) == repr(prioritized) == "Prioritized(alpha=0.5, beta=0.25, ahead=0.5)"
    resumed = again.over(stored.index())
    for _ in range(3):
        one, two = (by.draw(np.random.default_rng(9), (4, 8)) for by in (sampler, resumed))
        np.testing.assert_array_equal(one.items, two.items)
        for name in ("index", "weight"):
            np.testing.assert_array_equal(one.beside[name], two.beside[name])
        for owner, found in ((prioritized, one), (again, two)):
            owner.update(found.beside["index"].ravel(), np.arange(32.0))
    assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / "priorities.safetensors"]


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    stored = Stored()
    prioritized = Prioritized()
    prioritized.over(stored.index())
    (tmp_path / "folder" / "in the way").mkdir(parents=True)
    with pytest.raises(StoreError, match="cannot write 'folder'"):
        prioritized.save(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_nothing_to_save_yet(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="it was given to no view yet"):
        Prioritized().save(tmp_path / "priorities")
    with pytest.raises(SettingsError, match="it was given to no view yet"):
        Prioritized().update([0], [1.0])


def test_a_file_that_is_something_else(tmp_path: Path) -> None:
    path = tmp_path / "priorities"
    with pytest.raises(SettingsError, match="priorities: no such file"):
        Prioritized.load(path)
    stored = Stored()
    prioritized = Prioritized()
    prioritized.over(stored.index())
    prioritized.save(path)
    whole = path.read_bytes()
    with safe_open(path, "numpy") as file:
        told = file.metadata()
    for wrong in (b"", whole[: len(whole) // 2], b"\x80" + whole[1:]):
        path.write_bytes(wrong)
        with pytest.raises(SettingsError, match="does not read as priorities"):
            Prioritized.load(path)
    path.write_bytes(whole)
    arrays = load_file(path)
    changes: dict[str, dict[str, NDArray[Any]]] = {
        "weights of another dtype": {"weights": arrays["weights"].astype(np.float64)},
        "fewer weights": {"weights": arrays["weights"][1:]},
        "a negative weight": {"weights": -arrays["weights"]},
        "fewer bases": {"bases": arrays["bases"][1:]},
        "fewer flags": {"fresh": arrays["fresh"][1:]},
        "keys out of order": {"keys": arrays["keys"][::-1].copy()},
    }
    for change in changes.values():
        save_file({**arrays, **change}, path, told)
        with pytest.raises(SettingsError, match="its arrays contradict each other"):
            Prioritized.load(path)
    save_file(arrays, path, {**told, "format": "another"})
    with pytest.raises(SettingsError, match="format 'another'"):
        Prioritized.load(path)
    save_file(arrays, path, {name: value for name, value in told.items() if name != "stride"})
    with pytest.raises(SettingsError, match="stride"):
        Prioritized.load(path)


class Meddler(Sampler):
    """Lets its share be drawn, and takes all priorities away meanwhile, as a thread may."""

    def __init__(self, prioritized: Prioritized) -> None:
        self.prioritized = prioritized

    def over(self, index: Index) -> Sampler:
        self.items = len(index)
        return self

    def draw(self, rng: np.random.Generator, size: Any) -> Drawn:
        self.prioritized.update(np.arange(self.items), np.zeros(self.items))
        return Drawn.of(rng.integers(self.items, size=size))

    def probability(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.zeros(items.shape)


@pytest.mark.parametrize("nested", [False, True])
def test_a_mixture_weighs_what_it_drew_by_what_it_drew_it_from(nested: bool) -> None:
    stored = Stored()
    prioritized = Prioritized(ahead=0.0)
    first = Mixture([(prioritized, 1.0)]) if nested else prioritized
    batches = stored.replay.transitions(64, choose=Mixture([(first, 1e9), (Meddler(prioritized), 1e-9)]))
    np.testing.assert_array_equal(next(batches)["weight"], 1.0)
    with pytest.raises(SettingsError, match="all priorities are 0"):
        next(batches)


def test_a_mixture_leaves_updates_to_its_part() -> None:
    stored = Stored()
    prioritized = Prioritized(alpha=1.0)
    batches = stored.replay.transitions(16, choose=Mixture([(prioritized, 0.5), (Uniform(), 0.5)]))
    for batch in itertools.islice(batches, 300):
        prioritized.update(batch["index"], np.where(batch["step"] == 0, 1e6, 0.0))
    last = [next(batches) for _ in range(200)]
    first = np.concatenate([batch["step"] == 0 for batch in last])
    alone = len(names_of(stored.index()))
    expected = 0.5 + 0.5 * 6 / alone
    assert first.mean() == pytest.approx(expected, abs=0.05)


def test_threads_draw_and_update_at_once() -> None:
    stored = Stored()
    stored.add(0, 100)
    stored.replay.refresh()
    prioritized = Prioritized()
    sampler = prioritized.over(stored.index())
    total = len(stored.index())
    failed: list[BaseException] = []

    def learn(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(100):
                drawn = sampler.draw(rng, (4, 64))
                prioritized.update(drawn.beside["index"].ravel(), rng.random(256))
        except BaseException as error:  # noqa: BLE001  (told below)
            failed.append(error)

    threads = [threading.Thread(target=learn, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sampler.probability(np.arange(total)).sum() == pytest.approx(1.0)
    assert prioritized.ignored == 0


def test_sums_do_not_drift_and_never_draw_what_weighs_nothing() -> None:
    rng = np.random.default_rng(0)
    weights = np.ones(1_003, np.float32)
    sums = Sums(weights)
    for _ in range(300):
        items = rng.integers(1_003, size=200)
        new = (10.0 ** rng.uniform(-30, 30, size=200)).astype(np.float32) * (rng.random(200) < 0.5)
        sums.write(items, new)
        drawn, weights_drawn = sums.draw(rng, 500)
        np.testing.assert_array_equal(weights_drawn, sums.weights[drawn])
        assert (weights_drawn > 0.0).all()
        assert (np.diff(drawn) >= 0).all()
    sums.write(np.arange(1_003), weights)
    assert sums.total == 1_003.0


def test_what_weighs_nothing_is_not_drawn_behind_what_weighs_much() -> None:
    """Where rounding leaves less than nothing within a group."""
    weights = np.zeros(32, np.float32)
    weights[[0, 17, 18]] = 1e16, 1.0, 2.0
    sums = Sums(weights)
    assert sums._cumulated[1] - sums._cumulated[0] == 4.0
    assert sums._found(sums._cumulated[:1], 0, 2).tolist() == [17]


def test_the_keys_of_episodes_are_those_that_a_commit_sums() -> None:
    batch = episodes(stream(), [3, 4, 5], first=2).batch
    keys = episode_keys(batch)
    assert len(set(keys.tolist())) == 3
    assert int(keys.sum(dtype=np.uint64)) == key_sum(batch)
