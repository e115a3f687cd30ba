from __future__ import annotations

import functools
import itertools
import re
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_consumers.replay import Replay, Uniform, Where
from penstock_consumers.replay.drawn import Drawn
from penstock_consumers.replay.seen import Lens
from penstock_consumers.replay.sequences import Sequences
from penstock_consumers.replay.versions import Versions
from penstock_consumers.store.bucket import open_bucket
from penstock_producers.policy import make_policy
from penstock_producers.policy.torch_policy import TorchPolicy
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import SettingsError, StoreError
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.spaces import flatten
from tests.consumers.messages import (
    NESTED,
    TOPIC,
    Clock,
    Row,
    ScriptedProducer,
    open_partition,
    store_messages,
    take_all,
)
from tests.consumers.rolled import rolled
from tests.consumers.stores import CHUNK_STEPS, Writer, episodes, stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from penstock_consumers.replay import Episode
    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.stream import StreamSpec

MEMORYLESS = replace(NESTED, states=())
ENDS = (Ends.TERMINATED, Ends.TRUNCATED, Ends.TERMINATED | Ends.TRUNCATED, Ends.ABORTED, Ends.CUT)
EVERYTHING = Where()
CONNECTORS: tuple[dict[str, Any], ...] = (
    {"name": "normalize"},
    {"name": "stack", "arguments": {"frames": 3, "axis": 0}},
    {"name": "previous_action"},
    {"name": "previous_reward"},
)


# A plain reader, to which the view is held.


@dataclass(frozen=True)
class Window:
    """Steps of an episode: those from `first` to `start` are burn-in, those up to `end` are to learn from."""

    episode: int
    first: int
    start: int
    end: int


def runs_of(episode: Episode, versions: tuple[int, int], *, by_chunk: bool) -> Iterator[tuple[int, int]]:
    """The stretches of steps that a version within bounds chose; no step being before the first nor behind the last."""
    chosen = [versions[0] <= version <= versions[1] for version in episode.policy_version]
    begin = None
    for step in range(episode.length + 1):
        inside = step < episode.length and chosen[step]
        if begin is not None and (not inside or (by_chunk and step in episode.chunk_first_step)):
            yield begin, step
            begin = None
        if inside and begin is None:
            begin = step


def first_of(episode: Episode, start: int, burn_in: int, *, from_state: bool) -> int | None:
    """The step with which the burn-in before a window begins; None where no state is stored so near."""
    reached = range(max(0, start - burn_in), start + 1)
    return next((step for step in reached if not from_state or step in episode.chunk_first_step), None)


def windows_of(
    found: list[Episode],
    length: int,
    overlap: int,
    burn_in: int,
    *,
    from_state: bool,
    versions: tuple[int, int] = (-1, 1 << 60),
) -> list[Window] | None:
    """All windows, in order; None where one has no stored state near enough."""
    windows = []
    for number, episode in enumerate(found):
        for begin, end in runs_of(episode, versions, by_chunk=from_state and not burn_in):
            for start in itertools.count(begin, length - overlap):
                first = first_of(episode, start, burn_in, from_state=from_state)
                if first is None:
                    return None
                windows.append(Window(number, first, start, min(start + length, end)))
                if start + length >= end:
                    break
    return windows


def assert_same(given: Any, expected: Any) -> None:
    """Equal in dtype and value, and masked alike."""
    assert isinstance(given, np.ma.MaskedArray) == isinstance(expected, np.ma.MaskedArray)
    assert (given.dtype, given.shape) == (expected.dtype, expected.shape)
    if isinstance(given, np.ma.MaskedArray):
        assert (np.ma.getmaskarray(given) == np.ma.getmaskarray(expected)).all()
        assert np.ma.filled(given == expected, fill_value=True).all(), (given, expected)
    else:
        assert (given == expected).all(), (given, expected)


def assert_padding(given: Any) -> None:
    if isinstance(given, np.ma.MaskedArray):
        assert np.ma.getmaskarray(given).all()
        given = given.data
    assert all(value == ("" if given.dtype == object else 0) for value in given.reshape(-1))


class Checked:
    """Sequences of a batch, one by one, held to what the episode says."""

    def __init__(self, spec: StreamSpec, found: list[Episode], extent: int | None) -> None:
        self._spec = spec
        self._found = found
        self._extent = extent

    def check(self, batch: dict[str, Any], expected: list[Window]) -> None:
        observed = flatten(self._spec.observation, batch["observation"])
        acted = flatten(self._spec.action, batch["action"])
        lengths = [window.end - window.first for window in expected]
        at, seen = np.cumsum([0, *lengths]), np.cumsum([0, *(length + 1 for length in lengths)])
        for place, window in enumerate(expected):
            steps = self._cut(place, at)
            observations = self._cut(place, seen)
            episode = self._found[window.episode]
            within, around = slice(window.first, window.end), slice(window.first, window.end + 1)
            ends = [step == episode.length - 1 for step in range(window.first, window.end)]
            for leaf, whole in zip(observed, flatten(self._spec.observation, episode.observation), strict=True):
                self._is(leaf[observations], whole[around])
            for leaf, whole in zip(acted, flatten(self._spec.action, episode.action), strict=True):
                self._is(leaf[steps], whole[within])
            self._is(batch["reward"][steps], episode.reward[within])
            for name, values in episode.extras.items():
                self._is(batch[name][steps], values[within])
            for key, infos in episode.infos.items():
                self._is(batch[f"info.{key}"][observations], infos[around])
            self._is(batch["policy_version"][steps], episode.policy_version[within])
            self._is(batch["terminated"][steps], np.array(ends) & bool(episode.ends & Ends.TERMINATED))
            self._is(batch["truncated"][steps], np.array(ends) & bool(episode.ends & Ends.TRUNCATED))
            self._is(batch["mask"][steps], np.arange(window.first, window.end) >= window.start)
            assert batch["episode"][place] == window.episode
            assert batch["step"][place] == window.first
            assert batch["id"][place] == episode.id
            if self._extent:
                self._is(batch["valid"][steps], np.ones(lengths[place], np.bool_))
            else:
                assert batch["lengths"][place] == lengths[place]
                assert batch["burn_in"][place] == window.start - window.first
            for state, values in episode.chunk_state.items():
                (chunk,) = np.flatnonzero((episode.chunk_first_step == window.first) & (window.first < episode.length))
                assert_same(batch[f"state.{state}"][place], values[chunk])

    def _cut(self, place: int, bounds: NDArray[np.int64]) -> Any:
        return place if self._extent else slice(bounds[place], bounds[place + 1])

    def _is(self, given: Any, expected: Any) -> None:
        assert_same(given[: len(expected)], expected)
        if self._extent:
            assert len(given) in {self._extent, self._extent + 1}
        assert_padding(given[len(expected) :])


# Stores.


@functools.cache
def random_store(seed: int, *, recurrent: bool) -> tuple[Replay, list[Episode]]:
    """A store of episodes in chunks of 1 to 6 steps, in up to 4 segments; some cut, some aborted in an empty chunk."""
    rng = np.random.default_rng(seed)
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    producer = ScriptedProducer(log, spec=NESTED if recurrent else MEMORYLESS)
    producer.begin()
    bucket = open_bucket("memory://")
    partition = open_partition(log, bucket)
    episode, continues = [0, 0], [None, None]
    for _ in range(rng.integers(1, 5)):
        rows = []
        for env in rng.integers(0, 2, rng.integers(1, 4)).tolist():
            lengths = rng.integers(1, 7, rng.integers(1, 5)).tolist()
            ends = ENDS[rng.integers(len(ENDS))]
            if ends == Ends.ABORTED and rng.integers(2):
                lengths.append(0)
            for chunk, length in enumerate(lengths):
                row = Row(env, episode[env], chunk, sum(lengths[:chunk]), length, continues=continues[env])
                if chunk == len(lengths) - 1:
                    row = replace(row, ends=ends, reason="env_died" if ends == Ends.ABORTED else None)
                rows.append(row)
            continues[env] = episode[env] if ends == Ends.CUT else None
            episode[env] += 1
        producer.send(*rows)
        take_all(partition, log)
        partition.commit()
    replay = Replay.open(bucket)
    return replay, list(replay.episodes())


@pytest.fixture
def bucket() -> Bucket:
    """Episodes of chunks of 4 steps; observations say which and where."""
    bucket = open_bucket("memory://")
    writer = Writer(bucket, stream())
    writer.commit(0, episodes(writer.spec, [1, 30, 8], ends=ENDS[:3], version=10))
    writer.commit(1, episodes(writer.spec, [5, 17], first=3, ends=ENDS[3:], version=20))
    return bucket


def every_window(replay: Replay, *, where: Where = EVERYTHING, **asked: Any) -> dict[str, Any]:
    """Each window once, in order."""
    view = Sequences(replay.spec, where, **{"burn_in": 0, "overlap": 0, "packed": False, "columns": None, **asked})
    index = view.index(replay._snapshot)
    return view.block(index, Drawn.of(np.arange(len(index))))(slice(0, len(index)))


# Tests.


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 9),
    st.booleans(),
    st.booleans(),
    st.integers(1, 12),
    st.integers(0, 11),
    st.integers(0, 9),
    st.sampled_from([None, (1, 2), (0, 3), (2, 9)]),
)
def test_sequences_are_the_windows_of_the_episodes(
    seed: int,
    recurrent: bool,
    packed: bool,
    length: int,
    overlap: int,
    burn_in: int,
    versions: tuple[int, int] | None,
) -> None:
    replay, found = random_store(seed, recurrent=recurrent)
    spec, overlap = replay.spec, overlap % length
    bounds = {"versions": versions} if versions else {}

    def windows(length: int, burn_in: int) -> list[Window] | None:
        return windows_of(found, length, overlap, burn_in, from_state=recurrent, **bounds)

    expected = windows(length, burn_in)
    columns = [*names(spec, packed=packed), "id"]
    view = Sequences(
        spec,
        Where(policy_version=versions),
        length=length,
        burn_in=burn_in,
        overlap=overlap,
        packed=packed,
        columns=columns,
    )
    if expected is None:
        with pytest.raises(SettingsError) as refused:
            view.index(replay._snapshot)
        told = {name: int(least) for name, least in re.findall(r"(length|burn_in)=(\d+)", str(refused.value))}
        for name, least in told.items():
            asked = {"length": length, "burn_in": burn_in}
            assert windows(**asked | {name: least})
            assert windows(**asked | {name: least - 1}) is None
        return
    if not expected:
        with pytest.raises(StoreError, match="no step"):
            view.index(replay._snapshot)
        return
    index = view.index(replay._snapshot)
    assert len(index) == len(expected)
    # Some twice, some never, in any order; and given in two batches.
    items = np.random.default_rng(0).integers(0, len(index), 2 * len(index))
    drawn = [expected[item] for item in items]
    block = view.block(index, Drawn.of(items))
    checked = Checked(spec, found, None if packed else burn_in + length)
    for some in (slice(0, len(index)), slice(len(index), 2 * len(index))):
        checked.check(block(some), drawn[some])


def names(spec: StreamSpec, *, packed: bool) -> list[str]:
    """All that is given unless columns says otherwise."""
    return [
        *("observation", "action", "reward", "terminated", "truncated"),
        *(column.name for column in (*spec.extras, *spec.infos, *spec.states)),
        *(("lengths", "burn_in", "mask") if packed else ("mask", "valid")),
        *("policy_version", "episode", "step"),
    ]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("recurrent", [False, True])
def test_by_default_all_is_given_but_ids(recurrent: bool, packed: bool) -> None:
    replay, _ = random_store(0, recurrent=recurrent)
    assert list(next(replay.sequences(2, packed=packed))) == names(replay.spec, packed=packed)
    some = ["valid" if not packed else "lengths", "observation"]
    assert set(next(replay.sequences(2, packed=packed, columns=some))) == set(some)
    with pytest.raises(SettingsError, match=r"columns \['next_observation'\]: not of this view"):
        replay.sequences(columns=["next_observation"])


def test_a_batch_has_the_declared_shapes_and_dtypes(bucket: Bucket) -> None:
    batch = next(Replay.open(bucket).sequences(7, 5, burn_in=3))
    assert {name: (values.shape, values.dtype.name) for name, values in batch.items()} == {
        "observation": ((7, 9, 4), "float32"),
        "action": ((7, 8), "int64"),
        "reward": ((7, 8), "float64"),
        "terminated": ((7, 8), "bool"),
        "truncated": ((7, 8), "bool"),
        "log_prob": ((7, 8), "float32"),
        "logits": ((7, 8, 3), "float32"),
        "mask": ((7, 8), "bool"),
        "valid": ((7, 8), "bool"),
        "policy_version": ((7, 8), "int64"),
        "episode": ((7,), "int64"),
        "step": ((7,), "int64"),
    }
    packed = next(Replay.open(bucket).sequences(7, 5, burn_in=3, packed=True))
    total = packed["lengths"].sum()
    assert {name: values.shape for name, values in packed.items()} == {
        "observation": (total + 7, 4),
        "logits": (total, 3),
        **dict.fromkeys(
            ["action", "reward", "terminated", "truncated", "log_prob", "mask", "policy_version"], (total,)
        ),
        **dict.fromkeys(["lengths", "burn_in", "episode", "step"], (7,)),
    }
    assert packed["lengths"].dtype == packed["burn_in"].dtype == np.int64


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("overlap", "times"), [(0, 1), (2, 2), (3, 4)])
def test_each_step_is_covered_as_often_as_the_overlap_says(
    bucket: Bucket, overlap: int, times: int, packed: bool
) -> None:
    """As often as windows that begin every 4 - overlap steps come by, but at the ends of an episode."""
    replay = Replay.open(bucket)
    batch = every_window(replay, length=4, overlap=overlap, packed=packed)
    steps, counts = np.unique(batch["reward"][batch["mask"]], return_counts=True)
    assert len(steps) == replay.steps
    inside = np.concatenate(
        [np.arange(episode.length)[3 : episode.length - 3] + 1000.0 * episode.episode for episode in replay.episodes()]
    )
    assert set(counts[np.isin(steps, inside)]) == {times}
    assert counts.max() == times


def test_sequences_longer_than_any_episode_are_whole_episodes(bucket: Bucket) -> None:
    replay = Replay.open(bucket)
    batch = every_window(replay, length=100)
    assert batch["observation"].shape == (5, 101, 4)
    assert batch["valid"].sum(axis=1).tolist() == [episode.length for episode in replay.episodes()]
    for longest in (1 << 40, sys.maxsize, 1 << 64):
        packed = every_window(replay, length=longest, burn_in=longest, packed=True)
        assert_same(packed["observation"], np.concatenate([episode.observation for episode in replay.episodes()]))
        assert packed["lengths"].tolist() == [episode.length for episode in replay.episodes()]
    # However long they might be, they are drawn many at a time.
    drawn = next(replay.sequences(2, 1 << 40, packed=True))
    assert len(drawn["reward"].base) > 10 * len(drawn["reward"])


def test_burn_in_reaches_over_what_the_condition_leaves_out(bucket: Bucket) -> None:
    """The steps of version 12 are steps 8 to 11 of an episode; what comes before them is context."""
    batch = every_window(Replay.open(bucket), length=2, burn_in=3, where=Where(policy_version=(12, 12)))
    assert batch["policy_version"].tolist() == [[11, 11, 11, 12, 12], [11, 12, 12, 12, 12]]
    assert batch["mask"].tolist() == [[False] * 3 + [True] * 2] * 2
    assert batch["valid"].all()
    assert batch["step"].tolist() == [5, 7]


def test_states_are_met_at_chunks() -> None:
    """In an episode of chunks of 4, 5 and 2 steps; the state counts steps by sevens."""
    bucket = open_bucket("memory://")
    store_messages(
        bucket, [Row(0, 0, 0, 0, 4)], [Row(0, 0, 1, 4, 5)], [Row(0, 0, 2, 9, 2, Ends.TERMINATED)], spec=NESTED
    )
    replay = Replay.open(bucket)

    chunks = every_window(replay, length=5, overlap=2)
    assert (chunks["step"].tolist(), chunks["valid"].sum(axis=1).tolist()) == ([0, 4, 9], [4, 5, 2])
    assert chunks["state.count"].tolist() == [0, 28, 63]

    told = "length 4: without burn-in each chunk is a sequence, as states are stored where chunks begin, and one has 5 "
    told += "steps: pass length=5 or more; or pass burn_in=4 or more, or leave the states out of columns"
    with pytest.raises(SettingsError, match=re.escape(told)):
        replay.sequences(length=4)
    # Of the windows over the episode, one begins at step 8; of those over chunks, none would so far behind.
    with pytest.raises(SettingsError, match="length=5 or more; or pass burn_in=4 or more"):
        replay.sequences(length=4, overlap=2)
    # It is as it says: windows at 0, 4 and 8, the last of them 4 steps behind its chunk.
    told = "burn_in 3: a sequence begins 4 steps behind the nearest stored state: pass burn_in=4 or more"
    with pytest.raises(SettingsError, match=re.escape(told)):
        replay.sequences(length=4, burn_in=3)
    burnt = every_window(replay, length=4, burn_in=4)
    assert burnt["step"].tolist() == [0, 0, 4]
    assert burnt["state.count"].tolist() == [0, 0, 28]
    assert (burnt["valid"] & ~burnt["mask"]).sum(axis=1).tolist() == [0, 4, 4]
    # The earliest that is near enough.
    assert every_window(replay, length=4, burn_in=8)["step"].tolist() == [0, 0, 0]

    anywhere = every_window(replay, length=4, burn_in=1, columns=["step", "reward"])
    assert anywhere["step"].tolist() == [0, 3, 7]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"batch_size": 0}, "batch_size 0"),
        ({"length": 0}, "length 0: a sequence has at least one step"),
        ({"burn_in": -1}, "burn_in -1"),
        ({"length": 4, "overlap": 4}, "overlap 4: it is at least 0 and less than the length, 4"),
        ({"overlap": -1}, "overlap -1"),
        ({"columns": "reward"}, "columns 'reward': a collection of names"),
        ({"columns": ["lengths"]}, r"columns ['lengths']: not of this view"),
        ({"columns": ["valid"], "packed": True}, r"columns ['valid']: not of this view"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(bucket: Bucket, asked: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(told)):
        Replay.open(bucket).sequences(**asked)


def test_an_empty_store_has_no_sequences() -> None:
    bucket = open_bucket("memory://")
    Writer(bucket, stream())
    with pytest.raises(StoreError, match="no steps in the store yet"):
        Replay.open(bucket).sequences()


def test_windows_are_drawn_uniformly(bucket: Bucket) -> None:
    """Chi-squared within its 99.8 % bounds on either side, over 18 windows of up to 4 steps."""
    replay = Replay.open(bucket)
    batch = next(replay.sequences(17_000, 4, choose=Uniform(), seed=1))
    _, counts = np.unique(batch["episode"] * 100 + batch["step"], return_counts=True)
    assert len(counts) == 18
    expected = 17_000 / 18
    assert 3.98 < ((counts - expected) ** 2 / expected).sum() < 40.8


def test_equal_seeds_give_equal_batches(bucket: Bucket) -> None:
    one, two = Replay.open(bucket), Replay.open(bucket)

    def drawn(replay: Replay, seed: Any) -> list[dict[str, Any]]:
        return list(itertools.islice(replay.sequences(8, 5, burn_in=2, seed=seed), 20))

    same = [drawn(one, 3), drawn(two, 3), drawn(one, np.random.default_rng(3))]
    for other in same[1:]:
        for ours, theirs in zip(same[0], other, strict=True):
            for name, values in ours.items():
                np.testing.assert_array_equal(values, theirs[name])
    assert any((ours["reward"] != theirs["reward"]).any() for ours, theirs in zip(same[0], drawn(one, 4), strict=True))


@pytest.mark.parametrize("packed", [False, True])
def test_a_batch_is_the_callers_own(bucket: Bucket, packed: bool) -> None:
    batches = Replay.open(bucket).sequences(4, 5, packed=packed)
    first = next(batches)
    kept = {name: values.copy() for name, values in first.items()}
    for _ in range(100):
        for values in next(batches).values():
            values[...] = 0
    for name, values in first.items():
        np.testing.assert_array_equal(values, kept[name])


def test_sequences_go_on_to_a_refreshed_snapshot() -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, stream())
    writer.commit(0, episodes(writer.spec, [6]))
    replay = Replay.open(bucket)
    batches = replay.sequences(32, 4)
    next(batches)
    writer.commit(0, episodes(writer.spec, [CHUNK_STEPS], first=1))
    replay.refresh()
    assert set(next(batches)["observation"][:, 0, 0]) == {0.0, 1.0}


@pytest.mark.parametrize("packed", [False, True])
def test_a_block_is_bounded_in_bytes(bucket: Bucket, packed: bool) -> None:
    """A batch is a view of its block, so what it is a view of tells the block's size."""
    batch = next(Replay.open(bucket).sequences(100, 4_000, packed=packed))
    assert sum(values.base.nbytes for values in batch.values() if values.base is not None) <= 32 << 20
    assert batch["observation"].base is not None


# With a real policy.


@pytest.fixture(scope="module", params=[False, True], ids=["raw", "connected"])
def remembered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a GRU did over several versions, chunks, cuts and whole episodes."""
    folder = tmp_path_factory.mktemp("remembered")
    connectors = CONNECTORS if request.param else ()
    rolled(folder, policy="recurrent", arguments={"units": 8, "hidden": [6]}, connectors=connectors, cut_steps=21)
    return folder


@pytest.mark.parametrize(("length", "burn_in"), [(9, 0), (7, 9), (5, 20)])
def test_a_policy_unrolled_from_the_stored_state_answers_what_it_recorded(
    remembered: Path, length: int, burn_in: int
) -> None:
    """Over burn-in and what is learnt from, whichever version acted, and through its connectors."""
    replay = Replay.open(remembered)
    lens = Lens.of(connectors=True, spec=replay.spec, bucket=open_bucket(remembered))
    assert (lens is None) == (not replay.spec.policy.get("connectors"))
    batch = every_window(replay, length=length, burn_in=burn_in, lens=lens)
    drawn = next(replay.sequences(2, length, burn_in=burn_in, connectors=True))
    assert drawn["observation"].shape == (2, *batch["observation"].shape[1:])
    policies = {version: acting(replay.spec, remembered, version, digest) for version, digest in acted(replay).items()}
    assert len(policies) > 1
    hidden = batch["state.hidden"].copy()
    for step in range(burn_in + length):
        for version, policy in policies.items():
            here = batch["valid"][:, step] & (batch["policy_version"][:, step] == version)
            if not here.any():
                continue
            with torch.no_grad():
                observation, before = (torch.from_numpy(of[here]) for of in (batch["observation"][:, step], hidden))
                parameters, value, (after,) = policy.module(observation, (before,))
            hidden[here] = after
            log_prob = policy.log_prob(parameters.numpy(), (batch["action"][here, step],))
            np.testing.assert_allclose(value, batch["value"][here, step], atol=1e-5)
            np.testing.assert_allclose(log_prob, batch["log_prob"][here, step], atol=1e-5)
    packed = every_window(replay, length=length, burn_in=burn_in, lens=lens, packed=True)
    # A window has one more observation than it has valid steps.
    observed = np.pad(batch["valid"], ((0, 0), (1, 0)), constant_values=True)
    assert_same(packed["observation"], batch["observation"][observed])


def acted(replay: Replay) -> dict[int, bytes]:
    """The digests of the versions that acted."""
    return {
        int(episode.policy_version[step]): digest
        for episode in replay.episodes()
        for step, digest in zip(episode.chunk_first_step.tolist(), episode.policy_digest, strict=True)
        if step < episode.length
    }


def acting(spec: StreamSpec, store: Path, version: int, digest: bytes) -> TorchPolicy:
    """The policy of a version."""
    policy = make_policy(
        "recurrent",
        spec.observation,
        spec.action,
        arguments=spec.policy["arguments"],
        connectors=spec.policy.get("connectors", ()),
        rng=np.random.default_rng(0),
    )
    assert isinstance(policy, TorchPolicy)
    if version:
        policy.load(Versions(open_bucket(store)).read(version, digest))
    assert policy.digest == digest
    return policy
