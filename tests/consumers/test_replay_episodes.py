from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings

from penstock_consumers.replay import Where, episodes, snapshot
from penstock_consumers.replay.seen import Lens
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.chunks import Ends
from penstock_schemas.connectors import make_pipeline
from penstock_schemas.errors import SettingsError, StoreError
from penstock_schemas.spaces import Discrete, flatten
from tests.consumers.messages import NESTED
from tests.consumers.stores import Writer
from tests.consumers.test_replay import nested_store
from tests.consumers.test_replay_seen import MADE, Store
from tests.consumers.varied import SPEC, Opened, Told, store, stored
from tests.schemas.random_spaces import same_bits
from tests.schemas.test_connectors_equal import VECTOR

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from penstock_consumers.replay import Episode

TOLD = (
    Told(9, (1, 2, 3), score=1.5),
    Told(4, (5,), return_=7.0, producer="a"),
    Told(6, (2, 4), stepless=9, ends=Ends.ABORTED, closed_ms=3_000),
    Told(1, (0,), ends=Ends.CUT),
    Told(11, (4, 4, 6), return_=-3.0, producer="b", score=2.5),
)


def numbers(found: Iterable[Episode]) -> list[int]:
    return [episode.episode for episode in found]


def assert_same(one: Any, other: Any) -> None:
    """Two values of an episode, whatever they are."""
    if isinstance(one, dict | tuple):
        assert len(one) == len(other)
        pairs = zip(one, other, strict=True) if isinstance(one, tuple) else ((one[key], other[key]) for key in one)
        for pair in pairs:
            assert_same(*pair)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.ma.getmaskarray(one), np.ma.getmaskarray(other))
        np.testing.assert_array_equal(np.ma.compressed(one), np.ma.compressed(other))
    else:
        assert one == other


@pytest.mark.parametrize(
    ("where", "left"),
    [
        (Where(), [0, 1, 2, 3, 4]),
        (Where(length=(5, None)), [0, 2, 4]),
        (Where(length=(None, 5)), [1, 3]),
        (Where(policy_version=(4, None)), [1, 4]),
        # A chunk without a step says nothing of any step.
        (Where(policy_version=(2, 4)), [2]),
        (Where(versions_behind=(2, 4)), [2]),
        (Where(producer="b"), [4]),
    ],
)
def test_an_episode_is_the_same_whatever_is_left_out_beside_it(where: Where, left: list[int]) -> None:
    bucket = open_bucket("memory://")
    numbered = store(bucket, [(0, TOLD[:3]), (0, TOLD[3:])])
    at = snapshot.take(bucket, SPEC)
    found = list(episodes.stored_in(at, SPEC, where))
    assert numbers(found) == left
    everything = {episode.episode: episode for episode in episodes.stored_in(at, SPEC)}
    for episode in found:
        told = numbered[episode.episode]
        assert episode.policy_version.tolist() == [told.version(step) for step in range(told.length)]
        assert [digest[0] for digest in episode.policy_digest] == told.chunk_versions()
        assert (episode.length, episode.ends, episode.producer) == (told.length, told.ends, told.producer)
        assert episode.metrics == {"score": told.score, "laps": None}
        for field in fields(episode):
            assert_same(getattr(episode, field.name), getattr(everything[episode.episode], field.name))


def test_what_was_not_asked_for_is_not_there() -> None:
    at = snapshot.take(nested_store(), NESTED)
    everything = list(episodes.stored_in(at, NESTED))

    def assert_has(columns: Collection[str], **there: Any) -> None:
        found = list(episodes.stored_in(at, NESTED, columns=columns))
        for episode, whole in zip(found, everything, strict=True):
            assert (episode.observation is None, episode.action is None) == (
                "observation" not in columns,
                "action" not in columns,
            )
            for name in ("extras", "infos", "metrics", "chunk_state"):
                assert sorted(getattr(episode, name)) == sorted(there.get(name, ()))
                assert_same(getattr(episode, name), {key: getattr(whole, name)[key] for key in there.get(name, ())})
            for name in ("id", "length", "return_", "reward", "policy_version", "exploration", "chunk_first_step"):
                assert_same(getattr(episode, name), getattr(whole, name))

    assert_has(["reward"])
    assert_has(["observation", "logits"], extras=["logits"])
    assert_has(["action", "info.note", "state.count"], infos=["note"], chunk_state=["count"])
    assert_has(["policy_version", "episode", "id"])
    assert_has({"metric.score", "log_prob", "info.place"}, metrics=["score"], extras=["log_prob"], infos=["place"])


@pytest.mark.parametrize("columns", ["reward", [], ["place"], ["next_observation"]])
def test_columns_that_there_are_not(columns: Any) -> None:
    at = snapshot.take(nested_store(), NESTED)
    with pytest.raises(SettingsError, match=r"columns .*(as in columns=|there are observation, action, reward)"):
        episodes.stored_in(at, NESTED, columns=columns)


def test_what_is_stored_since_is_given_where_it_fulfils() -> None:
    bucket = Opened()
    writer = Writer(bucket, SPEC)
    writer.commit(0, stored([Told(9), Told(2)], 0, closed_offset=5), high_water=6)
    before = snapshot.take(bucket, SPEC)
    writer.commit(
        0, stored([Told(3), Told(8)], 2, closed_offset=7), stored([Told(1)], 4, closed_offset=8), high_water=9
    )
    writer.commit(1, stored([Told(7)], 5, closed_offset=3), high_water=4)
    at = snapshot.take(bucket, SPEC)
    assert numbers(episodes.stored_since(before, at, SPEC, Where(length=(5, None)))) == [3, 5]
    assert sorted(set(bucket.names)) == sorted(at.entries[number].name for number in (1, 3))
    assert numbers(episodes.stored_since(before, at, SPEC, Where(length=(4, 6)))) == []
    (episode, *_) = episodes.stored_since(before, at, SPEC, columns=["reward"])
    assert (episode.episode, episode.observation) == (2, None)


@pytest.mark.parametrize("connected", [False, True])
def test_what_was_stored_before_is_not_opened_for_what_is_stored_since(connected: bool) -> None:
    bucket = Opened()
    writer = Writer(bucket, SPEC)
    for at in range(3):
        writer.commit(0, stored([Told(9)], at, closed_offset=at), high_water=at + 1)
    before = snapshot.take(bucket, SPEC)
    new = writer.commit(0, stored([Told(8)], 3, closed_offset=3), high_water=4)
    at = snapshot.take(bucket, SPEC, before)
    pipeline = make_pipeline([{"name": "stack", "arguments": {"frames": 2, "axis": 0}}], SPEC.observation, SPEC.action)
    lens = Lens.of(pipeline if connected else None, SPEC, bucket)
    assert numbers(episodes.stored_since(before, at, SPEC, lens=lens)) == [3]
    assert bucket.names == [new.segments_added[0].name]


def arrays(values: Any) -> Iterator[np.ndarray[Any, Any]]:
    """All that there are in an episode, or in what it has."""
    if isinstance(values, np.ndarray):
        yield np.ma.getdata(values)
        if isinstance(values, np.ma.MaskedArray):
            yield np.ma.getmaskarray(values)
    elif isinstance(values, dict | tuple):
        for value in values.values() if isinstance(values, dict) else values:
            yield from arrays(value)


def assert_own(episode: Episode) -> None:
    """Nobody writes to what it has, and it keeps no more of other episodes than the store itself."""
    held = list(arrays({field.name: getattr(episode, field.name) for field in fields(episode)}))
    assert len(held) > 5
    for array in held:
        assert not array.flags.writeable
        base = array if array.base is None else array.base
        # What is of the store has a buffer of its own beneath.
        assert not isinstance(base, np.ndarray) or base.base is not None or base.size == array.size


def test_an_episode_s_arrays_are_its_own_or_the_store_s_and_read_only() -> None:
    at = snapshot.take(nested_store(), NESTED)
    for episode in episodes.stored_in(at, NESTED):
        assert_own(episode)
    seen = Store(([{"name": "stack", "arguments": {"frames": 2}}], VECTOR, Discrete(2)), 0, holes=False, own=False)
    found = list(seen.replay.episodes(connectors=True))
    assert len(found) > 2
    for episode in found:
        assert_own(episode)


def test_an_episode_is_printed_without_its_arrays() -> None:
    for episode in episodes.stored_in(snapshot.take(nested_store(), NESTED), NESTED):
        assert "array" not in repr(episode)
        assert f"episode={episode.episode}, length={episode.length}" in repr(episode)


def test_what_is_stored_since_is_not_given_again_where_it_moved() -> None:
    bucket = Opened()
    writer = Writer(bucket, SPEC)
    old = writer.commit(0, stored([Told(9), Told(7)], 0, closed_offset=5), high_water=6)
    before = snapshot.take(bucket, SPEC)
    moved = stored([Told(9), Told(7)], 0, closed_offset=5)
    writer.commit(0, moved, removed=(old.segments_added[0].name,), high_water=6)
    at = snapshot.take(bucket, SPEC)
    assert numbers(episodes.stored_since(before, at, SPEC, Where(length=(5, None)))) == []
    # All that is in it ended before, which its commit tells.
    assert bucket.names == []

    joined = stored([Told(9), Told(7), Told(8)], 0, closed_offset=[5, 5, 6])
    writer.commit(0, joined, removed=(at.entries[0].name,), high_water=7)
    at = snapshot.take(bucket, SPEC)
    assert numbers(episodes.stored_since(before, at, SPEC, Where(length=(5, None)))) == [2]


def test_an_episode_is_looked_for_among_those_of_its_producer() -> None:
    bucket = Opened()
    store(bucket, [(0, [Told(producer="a")]), (0, [Told(producer="b"), Told(producer="c")]), (1, [Told(producer="c")])])
    at = snapshot.take(bucket, SPEC)
    assert episodes.named(at, SPEC, "d/7/0/0") is None
    assert bucket.names == []
    found = episodes.named(at, SPEC, "c/7/3/3")
    assert found is not None
    assert found.id == "c/7/3/3"
    assert set(bucket.names) == {at.entries[1].name, at.entries[2].name}


@settings(max_examples=15, deadline=None)
@given(*MADE)
def test_observations_are_as_the_policy_saw_them(made: Any, seed: int, holes: bool, own: bool) -> None:
    seen = Store(made, seed, holes=holes, own=own)
    at = snapshot.take(seen.bucket, seen.spec)
    lens = Lens.of(seen.connectors, seen.spec, seen.bucket)
    expected = [episode for episode in seen.replay.episodes() if lens is None or episode.id not in seen.hidden]
    if lens and at.entries and not expected:
        with pytest.raises(StoreError, match="no episode in the store can be shown as the policy saw it"):
            list(episodes.stored_in(at, seen.spec, lens=lens))
        # Nothing needs to be shown.
        plain = episodes.stored_in(at, seen.spec, columns=["reward"], lens=lens)
        assert len(list(plain)) == seen.replay.episodes_stored
        return
    found = list(episodes.stored_in(at, seen.spec, lens=lens))
    assert [episode.id for episode in found] == [episode.id for episode in expected]
    for episode, stored_one in zip(found, expected, strict=True):
        for leaf, saw in zip(flatten(seen.pipeline.space, episode.observation), seen.seen(episode.id), strict=True):
            assert same_bits(leaf, saw)
        assert_same(episode.reward, stored_one.reward)
