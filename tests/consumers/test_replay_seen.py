"""What the policy saw, read by windows, against the same connectors over whole episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock_consumers.replay import Replay, Where, snapshot, versions
from penstock_consumers.replay.lookback import Wanted
from penstock_consumers.replay.parts import parts_until
from penstock_consumers.replay.seen import Lens
from penstock_consumers.replay.versions import Acting, Versions
from penstock_consumers.store import commits, layout
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.chunks import Ends
from penstock_schemas.connectors import Seen, make_pipeline
from penstock_schemas.connectors.cast import Cast
from penstock_schemas.errors import CorruptStoreError, SettingsError, StoreError
from penstock_schemas.policies import PolicyRecord
from penstock_schemas.spaces import Box, Discrete, flatten
from tests.consumers.cut_stores import Part, batch_of, commit, publish, rolled_out, stream
from tests.consumers.mirrored import mirrored_store
from tests.consumers.stores import Writer
from tests.schemas.random_spaces import same_bits
from tests.schemas.test_connectors_equal import VECTOR, ZOO, descriptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock_schemas.spaces import Leaves

VERSIONS = 4
RECKONING = [{"name": f"{ZOO}:Reckoning"}]
COLUMNS = ("observation", "next_observation", "id", "step")


class Store:
    """A random store, read through random connectors."""

    def __init__(
        self,
        made: Any,
        seed: int,
        *,
        holes: bool,
        own: bool,
        later: bool = False,
        only: Callable[[Part], bool] = lambda part: True,
    ) -> None:
        described, observation, action = made
        self.rng = rng = np.random.default_rng(seed)
        self.spec = stream(observation, action, described)
        self.pipeline = make_pipeline(*made)
        self.bucket = open_bucket(f"memory://{seed}")
        self.writer = Writer(self.bucket, self.spec)
        self.records = publish(self.bucket, self.pipeline, VERSIONS, rng)
        envs, episodes = (int(rng.integers(1, 4)) for _ in range(2))
        self.wholes = rolled_out(self.spec, VERSIONS, rng, envs=envs, episodes=episodes, holes=holes)
        self.parts = [part for whole in self.wholes for part in whole.parts]
        self.connectors: Any = True
        self.versions: Any = [record.weights for record in self.records]
        if own:
            self.connectors, self.versions = make_pipeline(*made), None
            self.connectors.load(self.records[-1].weights)
            self.pipeline = self.connectors
        for part in self.parts:
            part.stored &= only(part)
        rng.shuffle(self.parts)  # type: ignore[arg-type]  # a list is shuffled as an array is
        self._later = self.parts[len(self.parts) // 2 :] if later else []
        self.new = {part.id for part in self._later}
        self._high_water = 0
        self._store([part for part in self.parts if part not in self._later])
        self.replay = Replay.open(self.bucket)
        self.known = {part.id: part for part in self.parts}

    def store_all(self) -> None:
        later, self._later = self._later, []
        self._store(later)

    def _store(self, parts: list[Part]) -> None:
        self._high_water = commit(self.writer, parts, self.records, self.rng, self._high_water)

    @property
    def stored(self) -> set[str]:
        return {part.id for part in self.parts if part.stored and part not in self._later}

    @property
    def hidden(self) -> set[str]:
        return {part.id for part in self.parts if not part.shown(self.pipeline.reach, self.stored)}

    @property
    def shown(self) -> list[Part]:
        return [part for part in self.parts if part.id in self.stored - self.hidden]

    def seen(self, name: str) -> Leaves:
        part = self.known[name]
        return part.whole.seen(part, self.pipeline, self.versions)


MADE = (descriptions(), st.integers(0, 1 << 32), st.booleans(), st.booleans())


@settings(max_examples=20, deadline=None)
@given(*MADE)
def test_windows_show_what_was_seen(made: Any, seed: int, holes: bool, own: bool) -> None:
    store = Store(made, seed, holes=holes, own=own)
    lens = Lens.of(store.connectors, store.spec, store.bucket)
    if lens is None:
        assert not store.pipeline
        return
    snapshot = store.replay._snapshot
    expected, wanted = [], []
    for number in store.rng.permutation(len(snapshot.entries)).tolist():
        segment = snapshot.segment(number)
        names = segment.ids(np.arange(segment.entry.rows))
        assert {
            name for name, hidden in zip(names, lens.hidden(snapshot, [number])[number], strict=True) if hidden
        } == (set(names) & store.hidden)
        rows = store.rng.integers(0, len(names), 5)
        rows = np.sort(rows[[name not in store.hidden for name in names[rows]]])
        if not len(rows):
            continue
        length = np.diff(segment.step_offsets)[rows]
        place = store.rng.integers(0, length + 1)
        size = store.rng.integers(1, length + 2 - place)
        wanted.append(Wanted(number, rows, segment.step_offsets[rows] + rows + place, size))
        for name, begin, count in zip(names[rows], place.tolist(), size.tolist(), strict=True):
            expected.append(tuple(leaf[begin : begin + count] for leaf in store.seen(name)))
    if wanted:
        for leaf, of_windows in zip(lens.show(snapshot, wanted), zip(*expected, strict=True), strict=True):
            assert same_bits(leaf, np.concatenate(of_windows))


@settings(max_examples=20, deadline=None)
@given(*MADE, st.sampled_from([1, 2, 6]))
def test_transitions_show_what_was_seen(made: Any, seed: int, holes: bool, own: bool, n_step: int) -> None:
    store = Store(made, seed, holes=holes, own=own)
    if not store.shown:
        with pytest.raises(StoreError, match=r"no steps? in the store"):
            store.replay.transitions(connectors=store.connectors)
        return
    drawn = store.replay.transitions(32, n_step=n_step, connectors=store.connectors, columns=COLUMNS, seed=seed)
    batch = next(drawn)
    observation, after = (flatten(store.pipeline.space, batch[name]) for name in ("observation", "next_observation"))
    for at, (name, step) in enumerate(zip(batch["id"], batch["step"].tolist(), strict=True)):
        assert name not in store.hidden
        last = min(step + n_step, store.known[name].length)
        for before, behind, seen in zip(observation, after, store.seen(name), strict=True):
            assert same_bits(before[at], seen[step])
            assert same_bits(behind[at], seen[last])


@settings(max_examples=20, deadline=None)
@given(*MADE, st.booleans())
def test_sequences_show_what_was_seen(made: Any, seed: int, holes: bool, own: bool, packed: bool) -> None:
    store = Store(made, seed, holes=holes, own=own)
    if not store.shown:
        return
    columns = ("observation", "id", "step", "lengths" if packed else "valid")
    drawn = store.replay.sequences(
        16, 4, burn_in=2, overlap=1, packed=packed, connectors=store.connectors, columns=columns, seed=seed
    )
    batch = next(drawn)
    length = batch["lengths"] if packed else batch["valid"].sum(axis=1)
    begin = np.cumsum(length + 1) - (length + 1)
    observation = flatten(store.pipeline.space, batch["observation"])
    for at, (name, step) in enumerate(zip(batch["id"], batch["step"].tolist(), strict=True)):
        for leaf, seen in zip(observation, store.seen(name), strict=True):
            read = leaf[begin[at] :] if packed else leaf[at]
            assert same_bits(read[: length[at] + 1], seen[step : step + length[at] + 1])


@settings(max_examples=20, deadline=None)
@given(*MADE)
@example(made=(RECKONING, VECTOR, Discrete(3)), seed=0, holes=False, own=False)
@example(made=(RECKONING, VECTOR, Box((2,), np.dtype(np.bool_))), seed=0, holes=False, own=False)
def test_a_scan_shows_what_was_seen(made: Any, seed: int, holes: bool, own: bool) -> None:
    store = Store(made, seed, holes=holes, own=own)
    given = set()
    batches = store.replay.scan(7, connectors=store.connectors, columns=COLUMNS)
    for batch in batches if store.shown else ():
        observation, after = (
            flatten(store.pipeline.space, batch[name]) for name in ("observation", "next_observation")
        )
        for at, (name, step) in enumerate(zip(batch["id"], batch["step"].tolist(), strict=True)):
            given.add((name, step))
            for before, behind, seen in zip(observation, after, store.seen(name), strict=True):
                assert same_bits(before[at], seen[step])
                assert same_bits(behind[at], seen[step + 1])
    assert given == {(part.id, step) for part in store.shown for step in range(part.length)}


@settings(max_examples=20, deadline=None)
@given(*MADE)
def test_episodes_show_what_was_seen(made: Any, seed: int, holes: bool, own: bool) -> None:
    """Those that are there, and those that are stored later."""
    store = Store(made, seed, holes=holes, own=own, later=True)
    followed = store.replay.follow(wait=lambda: False, connectors=store.connectors)
    found = list(store.replay.episodes(connectors=store.connectors)) if store.shown else []
    early = {part.id for part in store.shown}
    assert sorted(episode.id for episode in found) == sorted(early)
    store.store_all()
    found += followed
    late = {part.id for part in store.shown} - early
    # What was hidden for want of the part before it, which came later, is not given again.
    assert {episode.id for episode in found} - early == late & store.new
    for episode in found:
        observation = flatten(store.pipeline.space, episode.observation)
        assert all(map(same_bits, observation, store.seen(episode.id)))


@settings(max_examples=20, deadline=None)
@given(*MADE)
def test_an_episode_by_itself_shows_what_was_seen(made: Any, seed: int, holes: bool, own: bool) -> None:
    store = Store(made, seed, holes=holes, own=own)
    for name in sorted(store.stored):
        if name in store.hidden:
            with pytest.raises(StoreError, match=f"episode {name} continues another one, and the store does not hold"):
                store.replay.episode(name, connectors=store.connectors)
            continue
        episode = store.replay.episode(name, connectors=store.connectors)
        assert episode.id == name
        assert all(map(same_bits, flatten(store.pipeline.space, episode.observation), store.seen(name)))


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> Replay:
    """A store whose recorded parameters are what the policy saw, and whose final values are the first of it."""
    return Replay.open(mirrored_store(tmp_path_factory.mktemp("mirrored")))


def test_what_is_read_is_what_the_policy_was_given(mirrored: Replay) -> None:
    batch = next(mirrored.scan(connectors=True))
    assert len(batch["reward"]) == mirrored.steps
    assert set(batch["policy_version"].tolist()) == {0, 1, 2}
    assert same_bits(batch["observation"], np.asarray(batch["parameters"]))
    ended = ~np.ma.getmaskarray(batch["final_value"])
    assert ended.sum() > 3
    assert same_bits(batch["next_observation"][ended, 0], np.asarray(batch["final_value"][ended]))
    drawn = next(mirrored.transitions(1000, n_step=3, connectors=True))
    assert same_bits(drawn["observation"], np.asarray(drawn["parameters"]))
    sequences = next(mirrored.sequences(100, 5, burn_in=4, packed=True, connectors=True))
    without_last = np.delete(sequences["observation"], np.cumsum(sequences["lengths"] + 1) - 1, axis=0)
    assert same_bits(without_last, np.asarray(sequences["parameters"]))


def test_whoever_normalizes_otherwise_brings_a_pipeline(mirrored: Replay) -> None:
    """What it acts with is what the next block is shown by."""
    spec = mirrored.spec
    pipeline = make_pipeline([{"name": "normalize", "arguments": {"clip": None}}], spec.observation, spec.action)
    pipeline.load({"connectors.0.mean": np.full(4, 2.0), "connectors.0.variance": np.full(4, 0.25)})
    columns = ("observation", "next_observation")
    raw = next(mirrored.scan(columns=columns))
    shown = next(mirrored.scan(columns=columns, connectors=pipeline))
    for name in columns:
        np.testing.assert_allclose(shown[name], (raw[name] - 2.0) / 0.5, rtol=1e-6)
    assert shown["observation"].dtype == np.float32


@pytest.mark.parametrize("connectors", [None, False])
def test_without_connectors_it_is_what_is_stored(mirrored: Replay, connectors: Any) -> None:
    stored = next(mirrored.transitions(64))
    assert same_bits(next(mirrored.transitions(64, connectors=connectors))["observation"], stored["observation"])
    nothing = make_pipeline([], mirrored.spec.observation, mirrored.spec.action)
    assert same_bits(next(mirrored.transitions(64, connectors=nothing))["observation"], stored["observation"])


def test_an_episode_by_itself_is_what_the_policy_was_given(mirrored: Replay) -> None:
    """Over the borders of chunks, cuts and versions; the last observation too."""
    nothing = make_pipeline([], mirrored.spec.observation, mirrored.spec.action)
    seen_versions, cut, ended = set(), 0, 0
    for stored in mirrored.episodes():
        assert same_bits(mirrored.episode(stored.id, connectors=nothing).observation, stored.observation)
        episode = mirrored.episode(stored.id, connectors=True)
        assert episode.observation.shape == (episode.length + 1, 18)
        assert same_bits(episode.observation[:-1], np.asarray(episode.extras["parameters"]))
        final = episode.extras["final_value"]
        if not np.ma.getmaskarray(final)[-1]:
            assert final[-1] == episode.observation[-1, 0]
            ended += 1
        seen_versions |= set(episode.policy_version.tolist())
        cut += len(parts_until(mirrored, episode.id)) > 2
    assert seen_versions == {0, 1, 2}
    assert cut > 3
    assert ended > 3


def test_connectors_of_another_stream_are_refused(mirrored: Replay) -> None:
    other = make_pipeline([{"name": "stack"}], Discrete(3), mirrored.spec.action)
    for view in (mirrored.transitions, mirrored.sequences, mirrored.scan, mirrored.episodes, mirrored.follow):
        with pytest.raises(SettingsError, match=r"connectors for observations of Discrete.*replay\.spec\.observation"):
            view(connectors=other)
        for nothing in ("stack", "", [], 0):
            with pytest.raises(SettingsError, match=r"connectors .*: True for the stream's own"):
                view(connectors=nothing)


def test_an_episode_whose_beginning_is_gone_is_left_out_whole() -> None:
    """A draw never fails for it; whoever asks for it by hand is told."""
    store = Store(([{"name": "stack", "arguments": {"frames": 3}}], VECTOR, Discrete(2)), 0, holes=True, own=False)
    assert store.hidden & store.stored
    drawn = store.replay.transitions(1000, connectors=True, columns=["id"])
    assert set(next(drawn)["id"]) & store.hidden, "what is not shown needs no connectors"
    drawn = store.replay.transitions(1000, connectors=True, columns=["id", "observation"])
    assert not set(next(drawn)["id"]) & store.hidden
    snapshot = store.replay._snapshot
    lens = Lens.of(store.connectors, store.spec, store.bucket)
    assert lens is not None
    number = next(at for at in range(len(snapshot.entries)) if lens.hidden(snapshot, [at])[at].any())
    row = np.flatnonzero(lens.hidden(snapshot, [number])[number])[:1]
    segment = snapshot.segment(number)
    wanted = Wanted(number, row, segment.step_offsets[row] + row, np.array([1]))
    with pytest.raises(
        StoreError, match=f"episode {segment.ids(row)[0]} continues another one, and the store does not"
    ):
        lens.show(snapshot, [wanted])


def test_what_a_refresh_brings_is_shown_by_what_lies_before_it_there() -> None:
    store = Store(([{"name": "stack", "arguments": {"frames": 3}}], VECTOR, Discrete(2)), 1, holes=False, own=False)
    drawn = store.replay.transitions(200, connectors=True, columns=COLUMNS, seed=1)
    next(drawn)
    # As many segments as before, which hold the same episodes in another order.
    (newest,) = commits.newest_of_each(store.bucket)
    entries = commits.live_at(store.bucket, newest).segments
    again = np.array_split(np.array(store.parts)[::-1], len(entries))
    batches = (batch_of(store.spec, some.tolist(), store.records, 100 * at) for at, some in enumerate(again))
    store.writer.commit(newest.partition, *batches, removed=tuple(entry.name for entry in entries))
    assert store.replay.refresh()
    batch = next(drawn)
    (observation,) = flatten(store.pipeline.space, batch["observation"])
    for shown, name, step in zip(observation, batch["id"], batch["step"].tolist(), strict=True):
        assert same_bits(shown, store.seen(name)[0][step])


def test_what_a_refresh_brings_the_beginning_of_is_given_from_then_on() -> None:
    store = Store(([{"name": "stack"}], VECTOR, Discrete(2)), 6, holes=True, own=False, later=True)
    drawn = store.replay.transitions(500, connectors=True, columns=COLUMNS)
    assert set(next(drawn)["id"]) == {part.id for part in store.shown}
    hidden = store.hidden & store.stored
    store.store_all()
    assert store.replay.refresh()
    shown = {part.id for part in store.shown}
    assert hidden & shown
    assert store.hidden & store.stored
    assert set(next(drawn)["id"]) == shown


def test_an_episode_that_is_kept_keeps_nothing_beside_it_in_memory() -> None:
    store = Store(([{"name": "stack"}], VECTOR, Discrete(2)), 0, holes=False, own=False)
    for episode in store.replay.episodes(connectors=True):
        (observation,) = flatten(store.pipeline.space, episode.observation)
        assert observation.base is None


@pytest.mark.parametrize("name", ["normalize", "cast", "flatten", "stack"])
def test_what_looks_back_at_nothing_hides_nothing(name: str) -> None:
    described = [{"name": name} | ({"arguments": {"frames": 1}} if name == "stack" else {})]
    made = described, VECTOR, Discrete(3)
    store = Store(made, 0, holes=False, own=False, only=lambda part: part.continues is not None)
    assert store.stored
    found = {episode.id: episode for episode in store.replay.episodes(connectors=True)}
    assert found.keys() == store.stored
    assert all(same_bits(episode.observation, *store.seen(name)) for name, episode in found.items())


class Derived(Cast):
    """Derived from a connector that recalls nothing; it may do otherwise, and says nothing of it."""

    def __call__(self, seen: Seen) -> Leaves:
        return super().__call__(seen)


def test_a_connector_that_is_derived_from_one_that_recalls_nothing_may_recall() -> None:
    made = [{"name": f"{__name__}:Derived"}], VECTOR, Discrete(3)
    store = Store(made, 0, holes=False, own=False, only=lambda part: part.continues is not None)
    found = {episode.id for episode in store.replay.episodes(connectors=True)}
    assert found == store.stored - store.hidden
    assert store.stored & store.hidden


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (None, "can be shown as the policy saw it: .* read without connectors"),
        (Where(length=(1, None)), r"that fulfils length \(1, None\) can be shown as the policy saw it"),
        (Where(length=(1000, None)), r"fulfils length \(1000, None\): length reaches from "),
    ],
)
def test_where_all_is_hidden_it_is_said(where: Where | None, said: str) -> None:
    made = [{"name": "stack"}], VECTOR, Discrete(2)
    store = Store(made, 0, holes=False, own=False, only=lambda part: part.continues is not None and part.key[3] < 2)
    assert store.replay.steps
    assert not store.shown
    for view in (store.replay.transitions, store.replay.sequences, store.replay.scan):
        with pytest.raises(StoreError, match=f"no step in the store {said}"):
            next(view(where=where, connectors=True))
    with pytest.raises(StoreError, match=f"no episode in the store {said}"):
        next(store.replay.episodes(where=where, connectors=True))


def test_a_version_that_is_gone_is_told() -> None:
    store = Store(([{"name": "normalize"}], VECTOR, Discrete(2)), 0, holes=False, own=False)
    gone = layout.POLICIES + store.records[2].object_name
    store.bucket.delete(gone)
    with pytest.raises(StoreError, match=f"no {gone} in it"):
        next(store.replay.scan(connectors=True))
    own = make_pipeline([{"name": "normalize"}], VECTOR, Discrete(2))
    assert len(next(store.replay.scan(connectors=own))["observation"]) == store.replay.steps


def test_a_version_is_read_by_number_and_digest(mirrored: Replay, tmp_path: Path) -> None:
    stored = Versions(mirrored._bucket)
    episode = next(e for e in mirrored.episodes() if e.ends != Ends.ABORTED and e.policy_version[-1] == 2)
    record = stored.read(2, episode.policy_digest[-1])
    assert (record.version, record.digest) == (2, episode.policy_digest[-1])
    assert stored.read(2, record.digest).weights.keys() == record.weights.keys()
    bucket = open_bucket(tmp_path)
    with pytest.raises(StoreError, match=r"no policies/000000000002-.*\.safetensors in it"):
        Versions(bucket).read(2, record.digest)
    other: dict[str, Any] = {"weight": np.ones(1, np.float32)}
    for data in (b"no weights", PolicyRecord(2, other).to_safetensors()):
        bucket.put(layout.POLICIES + record.object_name, data)
        with pytest.raises(CorruptStoreError, match="restore it"):
            Versions(bucket).read(2, record.digest)


def test_what_needs_no_version_reads_none() -> None:
    store = Store(([{"name": "stack"}], VECTOR, Discrete(2)), 0, holes=False, own=False)
    for record in store.records[1:]:
        store.bucket.delete(layout.POLICIES + record.object_name)
    assert len(next(store.replay.scan(connectors=True))["reward"]) == store.replay.steps


def test_a_version_without_the_parameters_is_of_other_connectors() -> None:
    store = Store(([{"name": "normalize"}], VECTOR, Discrete(2)), 0, holes=False, own=False)
    acting = Acting(store.bucket, make_pipeline([{"name": "flatten"}, {"name": "normalize"}], VECTOR, Discrete(2)))
    places = acting.places(store.replay._snapshot.segment(0))
    with pytest.raises(CorruptStoreError, match=r"version \d, which acted, has no weight 'connectors\.1\.mean'"):
        acting.weights(np.unique(places).tolist())


def test_parameters_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(([{"name": "normalize"}], VECTOR, Discrete(2)), 0, holes=False, own=False)
    monkeypatch.setattr(versions, "_KEPT_BYTES", 2 * 2 * 3 * 8)
    acting = Acting(store.bucket, store.pipeline)
    known: dict[bytes, int] = {}
    for segment in store.replay._snapshot.segments:
        digests = segment.batch.column("policy_digest").flatten().to_pylist()
        known |= dict(zip(digests, acting.places(segment).tolist(), strict=True))
    for record in (*store.records, *store.records):
        (weights,) = acting.weights([known[record.digest]])
        for name, value in weights.items():
            assert same_bits(value, record.weights[name])
    assert len(acting._kept) == 2


def test_places_are_those_of_chunks_in_every_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(([{"name": "normalize"}], VECTOR, Discrete(2)), 0, holes=False, own=False)
    acting, other = (Acting(store.bucket, store.pipeline) for _ in range(2))
    segment = store.replay._snapshot.segment(0)
    expected = acting.places(segment)
    assert expected.shape == segment.chunk_first_step.shape
    unique = np.unique

    def of_numpy_2_0(values: Any, **options: Any) -> Any:
        each, back = unique(values, **options)
        return each, back.reshape(-1, 1)

    monkeypatch.setattr(np, "unique", of_numpy_2_0)
    assert same_bits(other.places(segment), expected)


def test_parts_are_found_in_one_look_through_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(([{"name": "stack"}], VECTOR, Discrete(2)), 1, holes=False, own=False)
    whole = max(store.wholes, key=lambda whole: len(whole.parts))
    looked_at = []
    segment = snapshot.Snapshot.segment
    monkeypatch.setattr(
        snapshot.Snapshot, "segment", lambda at, number: (looked_at.append(number), segment(at, number))[1]
    )
    parts = parts_until(store.replay, whole.parts[-1].id)
    assert [part.id for part in parts] == [part.id for part in whole.parts]
    assert len(parts) > 3
    # Once for the last part, once for those before it.
    assert max(looked_at.count(number) for number in looked_at) == 2


def test_a_part_that_lost_its_end_is_joined_with_none() -> None:
    store = Store(([{"name": "stack"}], VECTOR, Discrete(2)), 0, holes=True, own=False)
    behind = (part for part in store.parts if part.continues is not None and part.id in store.stored)
    lost = [part for part in behind if _before(part).id in store.stored and _before(part).ends == Ends.ABORTED]
    assert lost
    for part in lost:
        with pytest.raises(StoreError, match=f"{part.id} continues {_before(part).id}, of which the end was lost"):
            parts_until(store.replay, part.id)


def _before(part: Part) -> Part:
    return part.whole.parts[part.whole.parts.index(part) - 1]
