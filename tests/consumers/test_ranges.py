"""What a commit says of a segment's episodes, by which whoever looks for others need not open it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from penstock_consumers.replay import Replay
from penstock_consumers.replay.opening import Opener
from penstock_consumers.replay.snapshot import Snapshot
from penstock_consumers.replay.where import Where
from penstock_consumers.store import commits, layout, segments
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Commit, SegmentEntry
from penstock_consumers.verify import quick
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import CorruptStoreError
from tests.consumers.stores import Writer, episodes, stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock_consumers.store.commits import Ranges

SPEC = replace(stream(), metrics=("height", "success"))


def written(rows: int = 4, *, ends: Any = Ends.TERMINATED, **columns: Sequence[Any]) -> SegmentEntry:
    """The entry of a segment with these columns; metrics are null unless they are given."""
    batch = episodes(stream(), [2] * rows, ends=ends).batch
    given = {"metric.height": [None] * rows, "metric.success": [None] * rows, **columns}
    for name, values in given.items():
        of = pa.array(values, pa.float64() if name != "producer" else pa.string())
        place = batch.schema.get_field_index(name)
        batch = batch.append_column(name, of) if place < 0 else batch.set_column(place, name, of)
    return segments.write_episodes(open_bucket("memory://"), layout.segment(0, 0), batch)


def ranges(*arguments: Any, **columns: Any) -> Ranges:
    return commits.ranges_of(written(*arguments, **columns))


def stepless(steps: int, *, version: int) -> Any:
    """An aborted episode of so many steps, whose last chunk has none."""
    stored = episodes(stream(), [steps], first=9, ends=Ends.ABORTED)
    chunks = {"chunk_first_step": steps, "policy_version": version, "policy_digest": bytes(32), "exploration": 0}
    batch = stored.batch
    for name, last in chunks.items():
        field = batch.schema.field(name)
        values = [[*batch.column(name)[0].as_py(), last]]
        batch = batch.set_column(batch.schema.names.index(name), field, pa.array(values, field.type))
    return replace(stored, batch=batch)


def test_a_chunk_without_a_step_has_no_version() -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, stream())
    writer.commit(0, episodes(writer.spec, [4, 8]), high_water=1)
    made = writer.commit(0, stepless(5, version=99), high_water=2)
    assert commits.ranges_of(made.segments_added[0]).policy_version == (1, 2)
    newest = next(Replay.open(bucket).transitions(64, where=Where(versions_behind=(None, 0))))
    assert set(newest["policy_version"].tolist()) == {2}
    # It finds that no counters were committed, and nothing else.
    assert not [told for told in quick(bucket).findings if "segment" in told]


def test_the_ends_that_occur() -> None:
    both = Ends.TERMINATED | Ends.TRUNCATED
    assert ranges(ends=Ends.CUT).ends == (Ends.CUT,)
    assert ranges(ends=[both, Ends.ABORTED, both, Ends.TERMINATED]).ends == (Ends.TERMINATED, both, Ends.ABORTED)


def test_the_producers_that_occur_unless_they_are_many() -> None:
    assert ranges(producer=["b", "ü", "a", "b"]).producers == ("a", "b", "ü")
    names = [f"producer-{at:03d}" for at in range(65)]
    assert ranges(65, producer=[*names[:64], names[0]]).producers == tuple(names[:64])
    assert ranges(65, producer=names).producers is None


def test_the_metrics_that_were_measured() -> None:
    found = ranges(**{"metric.height": [None, 2.5, -1.0, nan], "metric.success": [None, None, nan, nan]})
    assert found.metrics == {"height": (-1.0, 2.5)}
    assert ranges(**{"metric.success": [inf, None, 0.0, 1.0]}).metrics == {"success": (0.0, inf)}
    assert ranges().metrics == {}


def test_returns_that_are_no_number_are_left_out() -> None:
    assert ranges(**{"return": [nan, 3.0, 1.0, nan]}).return_ == (1.0, 3.0)
    assert ranges(**{"return": [-inf, 3.0, nan, inf]}).return_ == (-inf, inf)
    assert all(map(isnan, ranges(**{"return": [nan] * 4}).return_))


def test_what_a_commit_says_is_read_again() -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, SPEC)
    several = {"metric.height": [1.0, 2.0, None, nan], "return": [nan, -inf, 1.0, 2.0], "producer": list("abab")}
    added = [written(**several), written(ends=[Ends.CUT, Ends.ABORTED] * 2), written(65, producer=map(str, range(65)))]
    made = writer.commit(0, *added)
    assert commits.read(bucket, 0, 0) == made
    assert made.live is not None
    assert made.live.segments == tuple(added)
    # Where no return is a number both bounds are NaN, which equals nothing.
    odd = writer.commit(0, written(**{"return": [nan] * 4}))
    assert repr(commits.read(bucket, 0, 1)) == repr(odd)


@pytest.mark.parametrize("without", ["ends", "producers", "metrics", "return_"])
def test_a_commit_that_does_not_say_all_is_refused(without: str) -> None:
    bucket = open_bucket("memory://")
    commit = json.loads(Writer(bucket, SPEC).commit(0, written()).to_json())
    del commit["segments_added"][0]["ranges"][without]
    with pytest.raises(CorruptStoreError, match="does not read"):
        Commit.from_json(json.dumps(commit).encode(), "commit")


def test_a_fleet_makes_no_commit_large() -> None:
    entry = written(1000, producer=[f"a-pod-with-quite-a-long-name-{at}" for at in range(1000)])
    assert len(json.dumps(asdict(entry))) < 600


@pytest.mark.parametrize("seed", range(20))
def test_no_condition_leaves_out_a_segment_that_has_what_it_asks_for(seed: int) -> None:
    rng = np.random.default_rng(seed)
    odd = np.array([nan, inf, -inf, -1.0, 0.0, 1.0, 2.0, 3.0])
    rows = int(rng.integers(1, 6))
    returns, heights = rng.choice(odd, rows), rng.choice(odd, rows)
    measured = rng.random(rows) < 0.6
    producers = rng.choice(["a", "b", "c"], rows).tolist()
    ends = rng.choice([Ends.TERMINATED, Ends.TRUNCATED, Ends.TERMINATED | Ends.TRUNCATED, Ends.ABORTED], rows)
    height = [value if there else None for value, there in zip(heights.tolist(), measured, strict=True)]
    entry = written(rows, ends=ends, **{"return": returns.tolist(), "metric.height": height, "producer": producers})
    snapshot = Snapshot({}, (entry,), Opener(open_bucket("memory://"), SPEC))
    for least in (None, -1.5, 0.0, 1.0, 2.5):
        for most in (None, *(at for at in (-1.0, 0.5, 3.0) if least is None or at >= least)):
            low, high = -inf if least is None else least, inf if most is None else most
            # A pair of no bounds asks for a number, and nothing else.
            if ((returns >= low) & (returns <= high)).any():
                assert Where(return_=(least, most)).at(snapshot).may_hold(entry)
            if (measured & (heights >= low) & (heights <= high)).any():
                assert Where(metrics={"height": (least, most)}).at(snapshot).may_hold(entry)
    for name in "abc":
        assert Where(producer=name).at(snapshot).may_hold(entry) == (name in producers)
    for end in (Ends.TERMINATED, Ends.TRUNCATED, Ends.ABORTED, Ends.CUT):
        assert Where(ends=end).at(snapshot).may_hold(entry) == bool((ends & int(end)).any())
