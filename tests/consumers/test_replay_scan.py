from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_consumers.progress import Progress
from penstock_consumers.replay import Where, snapshot
from penstock_consumers.replay.drawn import Drawn
from penstock_consumers.replay.scan import batch_steps, scan
from penstock_consumers.replay.seen import Lens
from penstock_consumers.replay.transitions import Transitions
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import SettingsError, StoreError
from penstock_schemas.spaces import flatten
from tests.consumers.stores import CHUNK_STEPS, Writer, episodes, stream
from tests.consumers.test_replay import nested_store
from tests.consumers.test_replay_seen import MADE, Store
from tests.consumers.varied import SPEC, Opened, Told, store, stores
from tests.schemas.random_spaces import same_bits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_consumers.replay.snapshot import Snapshot
    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.stream import StreamSpec

ENDS = (Ends.TERMINATED, Ends.TRUNCATED, Ends.TERMINATED | Ends.TRUNCATED, Ends.ABORTED, Ends.CUT)
# By segment, in the order of commits; of partitions 0, 1, 0.
LENGTHS = ([1, 2, 5, 9, 4], [8, 1, 1, 30, 7], [12, 3, 4, 6, 7])
STEPS = 100
# The episodes in the order of partitions.
IN_ORDER = [*range(5), *range(10, 15), *range(5, 10)]


@pytest.fixture
def bucket(bucket: Bucket) -> Bucket:
    writer = Writer(bucket, stream())
    for number, lengths in enumerate(LENGTHS):
        stored = episodes(writer.spec, lengths, first=5 * number, ends=ENDS, version=10 * number, closed_offset=number)
        writer.commit(number % 2, stored)
    return bucket


def joined(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Lay batches end to end; where a space has several leaves, each by its own name."""
    flat = [dict(leaves(batch)) for batch in batches]
    return {
        name: (np.ma.concatenate if isinstance(flat[0][name], np.ma.MaskedArray) else np.concatenate)(
            [batch[name] for batch in flat]
        )
        for name in flat[0]
    }


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from leaves(below, f"{name}/{key}")
    elif isinstance(value, tuple):
        for key, below in enumerate(value):
            yield from leaves(below, f"{name}/{key}")
    else:
        yield name, value


def assert_as_transitions(at: Snapshot, spec: StreamSpec, where: Where, batches: list[dict[str, Any]]) -> None:
    """What transitions are given when all of them are asked for one after the other."""
    view = Transitions(spec, where, n_step=1, gamma=1.0, columns=None)
    index = view.index(at)
    one_by_one = view.block(index, Drawn.of(np.arange(len(index))))(slice(None))
    expected, found = dict(leaves(one_by_one)), joined(batches)
    assert list(batches[0]) == list(one_by_one)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        assert type(found[name]) is type(values)
        np.testing.assert_array_equal(np.ma.getmaskarray(found[name]), np.ma.getmaskarray(values))
        np.testing.assert_array_equal(np.ma.compressed(found[name]), np.ma.compressed(values))


@pytest.mark.parametrize("batch_size", [1, 3, 21, STEPS, STEPS + 1, None])
def test_every_step_is_given_once_and_in_order(bucket: Bucket, batch_size: int | None) -> None:
    at = snapshot.take(bucket, stream())
    batches = list(scan(at, stream(), Where(), batch_size=batch_size))
    size = batch_size or STEPS
    full, rest = divmod(STEPS, size)
    assert [len(batch["reward"]) for batch in batches] == [size] * full + [rest] * (rest > 0)

    batch = joined([{f"/{name}": values for name, values in batch.items()} for batch in batches])
    batch = {name.lstrip("/"): values for name, values in batch.items()}
    lengths = np.concatenate(LENGTHS)[IN_ORDER]
    number = np.repeat(IN_ORDER, lengths)
    step = np.concatenate([np.arange(length) for length in lengths])
    last = step == np.repeat(lengths, lengths) - 1
    ends = np.asarray(ENDS * len(LENGTHS))[number]
    terminated = last & ((ends & Ends.TERMINATED) != 0)
    for name, first, second in (("observation", number, step), ("next_observation", number, step + 1)):
        np.testing.assert_array_equal(batch[name][:, 0], first)
        np.testing.assert_array_equal(batch[name][:, 1], second)
    np.testing.assert_array_equal(batch["action"], step % 3)
    np.testing.assert_array_equal(batch["reward"], 1000.0 * number + step)
    np.testing.assert_array_equal(batch["logits"], np.stack([number, step, -step], axis=1))
    np.testing.assert_array_equal(batch["terminated"], terminated)
    np.testing.assert_array_equal(batch["truncated"], last & ((ends & Ends.TRUNCATED) != 0))
    # Undiscounted.
    np.testing.assert_array_equal(batch["discount"], np.where(terminated, 0.0, 1.0))
    np.testing.assert_array_equal(batch["policy_version"], 10 * (number // 5) + step // CHUNK_STEPS)
    np.testing.assert_array_equal(np.asarray(IN_ORDER)[batch["episode"]], number)
    np.testing.assert_array_equal(batch["step"], step)


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_batches_are_as_those_of_transitions(batch_size: int) -> None:
    """Of nested spaces, text, and what may be absent."""
    bucket = nested_store()
    spec = snapshot.existing(bucket).spec
    at = snapshot.take(bucket, spec)
    assert_as_transitions(at, spec, Where(), list(scan(at, spec, Where(), batch_size=batch_size)))


@settings(max_examples=30, deadline=None)
@given(
    segments=stores,
    batch_size=st.integers(1, 40),
    versions=st.tuples(st.integers(0, 2), st.integers(2, 4)),
    length=st.integers(1, 8),
)
def test_what_a_condition_leaves_is_as_that_of_transitions(
    segments: Any, batch_size: int, versions: tuple[int, int], length: int
) -> None:
    """Wherever runs begin and end, and wherever batches cut them."""
    # So that there is something at all.
    segments = [*segments, (0, [Told(9, (2, 1, 2))])]
    bucket = open_bucket("memory://")
    store(bucket, segments)
    at, where = snapshot.take(bucket, SPEC), Where(policy_version=versions, length=(length, None))
    batches = list(scan(at, SPEC, where, batch_size=batch_size))
    assert {len(batch["reward"]) for batch in batches[:-1]} <= {batch_size}
    assert_as_transitions(at, SPEC, where, batches)


def test_a_batch_is_the_callers_own(bucket: Bucket) -> None:
    at = snapshot.take(bucket, stream())
    kept = list(scan(at, stream(), Where(), batch_size=7))
    for batch in scan(at, stream(), Where(), batch_size=7):
        for values in batch.values():
            values[...] = 0
    for batch, again in zip(kept, scan(at, stream(), Where(), batch_size=7), strict=True):
        for name, values in batch.items():
            np.testing.assert_array_equal(values, again[name])


def test_only_the_columns_that_are_asked_for(bucket: Bucket) -> None:
    at = snapshot.take(bucket, stream())
    (batch,) = scan(at, stream(), Where(), columns=["reward", "id"])
    assert list(batch) == ["reward", "id"]
    assert batch["id"][0] == "producer-0/7/0/0"
    with pytest.raises(SettingsError, match=r"columns \['colour'\]: not of this view"):
        scan(at, stream(), Where(), columns=["colour"])


@pytest.mark.parametrize("batch_size", [0, -3])
def test_a_batch_size_below_one_is_refused_at_once(bucket: Bucket, batch_size: int) -> None:
    with pytest.raises(SettingsError, match=f"batch_size {batch_size}: a batch has at least one item"):
        scan(snapshot.take(bucket, stream()), stream(), Where(), batch_size=batch_size)


def test_segments_are_opened_one_after_the_other() -> None:
    bucket = Opened()
    store(bucket, [(0, [Told(9)]), (0, [Told(3)]), (0, [Told(9)])])
    at = snapshot.take(bucket, SPEC)
    names = [entry.name for entry in at.entries]
    opened = [list(bucket.names) for _ in scan(at, SPEC, Where(), batch_size=5)]
    assert opened == [names[:1], names[:2], names, names, names]


def test_progress_counts_the_steps_of_the_segments_that_are_opened() -> None:
    bucket = open_bucket("memory://")
    store(bucket, [(0, [Told(9), Told(3)]), (0, [Told(2)]), (0, [Told(5)])])
    at, progress = snapshot.take(bucket, SPEC), Progress()
    seen = [
        (progress.done, progress.total)
        for _ in scan(at, SPEC, Where(length=(5, None)), batch_size=9, progress=progress)
    ]
    assert seen == [(0, 17), (17, 17)]
    assert (progress.done, progress.total) == (17, 17)


def test_a_store_without_steps_gives_nothing() -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, SPEC)
    assert list(scan(snapshot.take(bucket, SPEC), SPEC, Where())) == []
    writer.commit(0)
    assert list(scan(snapshot.take(bucket, SPEC), SPEC, Where())) == []


def test_a_batch_whose_size_is_not_asked_for_is_bounded_in_bytes() -> None:
    assert batch_steps(80) == 65_536
    # Two frames of 84 x 84 x 4 bytes.
    assert batch_steps(2 * 28_224) * 2 * 28_224 <= 256 << 20 < (batch_steps(2 * 28_224) + 1) * 2 * 28_224
    assert batch_steps(1 << 40) == 1


@settings(max_examples=15, deadline=None)
@given(*MADE, st.integers(1, 20))
def test_observations_are_as_the_policy_saw_them(made: Any, seed: int, holes: bool, own: bool, batch_size: int) -> None:
    seen = Store(made, seed, holes=holes, own=own)
    at = snapshot.take(seen.bucket, seen.spec)
    lens = Lens.of(seen.connectors, seen.spec, seen.bucket)
    known = [seen.known[episode.id] for episode in seen.replay.episodes()]
    expected = [part for part in known if lens is None or part.id not in seen.hidden]
    if lens and known and not expected:
        with pytest.raises(StoreError, match="in the store can be shown as the policy saw it"):
            list(scan(at, seen.spec, Where(), lens=lens))
        return
    columns = ["observation", "next_observation", "id", "step"]
    batches = list(scan(at, seen.spec, Where(), batch_size=batch_size, columns=columns, lens=lens))
    assert [place for batch in batches for place in zip(batch["id"], batch["step"].tolist(), strict=True)] == [
        (part.id, step) for part in expected for step in range(part.length)
    ]
    for name, places in (("observation", slice(0, -1)), ("next_observation", slice(1, None))):
        shown = [flatten(seen.pipeline.space, batch[name]) for batch in batches]
        wanted = [tuple(leaf[places] for leaf in seen.seen(part.id)) for part in expected]
        for of, parts in zip(zip(*shown, strict=True), zip(*wanted, strict=True), strict=True):
            assert same_bits(np.concatenate(of), np.concatenate(parts))
