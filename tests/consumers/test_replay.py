from __future__ import annotations

import itertools
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from penstock_consumers.replay import Replay
from penstock_consumers.store import layout
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import CorruptStoreError, SettingsError, StoreError, StoreFormatError
from penstock_schemas.spaces import Box, Discrete
from tests.consumers.messages import NESTED, VALUES, Place, Row, WrappedBucket, store_messages
from tests.consumers.stores import CHUNK_STEPS, Episodes, Writer, episodes, stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock_consumers.replay import Episode
    from penstock_consumers.store.bucket import Bucket

OPEN_FILES = Path("/proc/self/fd")


class Watched(WrappedBucket):
    """A bucket that keeps the names of what is read, and whose listings can lag behind."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.reads: list[str] = []
        self.listed: dict[str, list[str]] | None = None

    def read(self, name: str) -> pa.Buffer:
        self.reads.append(name)
        return self.inner.read(name)

    def list(self, prefix: str) -> Iterable[str]:
        return self.inner.list(prefix) if self.listed is None else self.listed.get(prefix, [])

    def folders(self, prefix: str) -> Iterable[str]:
        return self.inner.folders(prefix) if self.listed is None else self.listed.get(prefix, [])


def listing(bucket: Bucket, prefix: str) -> dict[str, list[str]]:
    """What lists of a prefix and of all below it answer now."""
    below = list(bucket.folders(prefix))
    found = {prefix: below or list(bucket.list(prefix))}
    for folder in below:
        found |= listing(bucket, folder)
    return found


def numbers(found: Iterable[Episode]) -> list[int]:
    return [episode.episode for episode in found]


def assert_is(episode: Episode, stored: Episodes) -> None:
    number = episode.episode
    length = int(stored.lengths[number - stored.first])
    step = np.arange(length)
    chunk = step // CHUNK_STEPS
    ends = Ends(int(stored.ends[number - stored.first]))
    assert (episode.length, episode.ends) == (length, ends)
    assert (episode.producer, episode.incarnation, episode.env) == (f"producer-{number % 2}", 7, number % 5)
    assert episode.return_ == episode.reward.sum()
    assert episode.abort_reason == ("gap" if ends is Ends.ABORTED else None)
    assert episode.seed == (None if number % 2 else number)
    assert episode.closed_ms == 1_000 + number
    np.testing.assert_array_equal(episode.observation[:, 0], np.full(length + 1, number))
    np.testing.assert_array_equal(episode.observation[:, 1], np.arange(length + 1))
    np.testing.assert_array_equal(episode.action, step % 3)
    np.testing.assert_array_equal(episode.reward, 1000.0 * number + step)
    np.testing.assert_array_equal(episode.extras["log_prob"], -step)
    np.testing.assert_array_equal(episode.extras["logits"], np.stack([np.full(length, number), step, -step], axis=1))
    np.testing.assert_array_equal(episode.policy_version, 1 + chunk)
    np.testing.assert_array_equal(episode.exploration, chunk % 2)
    np.testing.assert_array_equal(episode.chunk_first_step, np.arange(0, length, CHUNK_STEPS))
    assert episode.policy_digest == tuple(bytes([1 + c]) * 32 for c in range(chunk[-1] + 1))


def test_episodes_are_what_was_written(bucket: Bucket) -> None:
    writer = Writer(bucket, stream())
    ends = [Ends.TERMINATED, Ends.TRUNCATED, Ends.TERMINATED | Ends.TRUNCATED, Ends.ABORTED, Ends.CUT]
    first = episodes(writer.spec, [1, 4, 5, 9, 12], ends=ends)
    second = episodes(writer.spec, [3, 8], first=5)
    third = episodes(writer.spec, [2], first=7)
    writer.commit(0, first)
    writer.commit(3, third)
    writer.commit(0, second)

    replay = Replay.open(bucket)
    found = list(replay.episodes())

    assert numbers(found) == list(range(8))
    for episode in found:
        assert_is(episode, (first, second, third)[(episode.episode >= 5) + (episode.episode >= 7)])
    assert (replay.steps, replay.episodes_stored) == (44, 8)
    assert replay.snapshot == {0: 1, 3: 0}
    assert replay.spec == writer.spec


def test_values_come_in_the_dtypes_of_the_spaces_and_as_views_where_those_are_stored(tmp_path: Path) -> None:
    writer = Writer(open_bucket(tmp_path), stream())
    writer.commit(0, episodes(writer.spec, [5]))
    (episode,) = Replay.open(str(tmp_path)).episodes()
    assert episode.action.dtype == np.int64
    assert (episode.observation.dtype, episode.reward.dtype) == (np.float32, np.float64)
    for view in (episode.observation, episode.reward, episode.extras["log_prob"]):
        assert not view.flags.owndata
        assert not view.flags.writeable


def test_discrete_observations_and_box_actions(bucket: Bucket) -> None:
    spec = replace(stream(), observation=Discrete(200), action=Box((), np.dtype(np.float16)), extras=())
    stored = episodes(stream(), [5, 3])
    values = {
        "observation": [[10, 11, 12, 13, 14, 15], [190, 191, 192, 193]],
        "action": [[0.0, 0.5, 1.0, 1.5, 2.0], [2.5, 3.0, 3.5]],
    }
    writer = Writer(bucket, spec)
    batch = stored.batch.drop_columns(["log_prob", "logits"])
    for name, lists in values.items():
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(place, spec.schema.field(name), pa.array(lists, spec.schema.field(name).type))
    writer.commit(0, replace(stored, spec=spec, batch=batch))

    replay = Replay.open(bucket)
    first, second = replay.episodes()
    assert first.observation.dtype == np.int64
    assert second.observation.tolist() == values["observation"][1]
    assert second.action.tolist() == values["action"][1]
    drawn = next(replay.transitions(64))
    assert (drawn["observation"].dtype, drawn["action"].dtype) == (np.int64, np.float16)
    np.testing.assert_array_equal(drawn["next_observation"], drawn["observation"] + 1)


def test_a_snapshot_stays_until_it_is_refreshed(bucket: Bucket) -> None:
    writer = Writer(bucket, stream())
    writer.commit(0, episodes(writer.spec, [3]))
    replay = Replay.open(bucket)
    assert replay.refresh() is False

    writer.commit(0, episodes(writer.spec, [4], first=1))
    writer.commit(1, episodes(writer.spec, [5], first=2))
    in_progress = replay.episodes()
    assert (replay.steps, replay.snapshot) == (3, {0: 0})

    assert replay.refresh() is True
    assert (replay.steps, replay.snapshot) == (12, {0: 1, 1: 0})
    assert numbers(in_progress) == [0]
    assert numbers(replay.episodes()) == [0, 1, 2]
    assert replay.refresh() is False


def test_a_snapshot_is_opened_again_by_its_commits(bucket: Bucket) -> None:
    writer = Writer(bucket, stream())
    writer.commit(0, episodes(writer.spec, [3]))
    writer.commit(1, episodes(writer.spec, [5], first=1))
    (entry,) = writer.commit(1, episodes(writer.spec, [5], first=2)).segments_added
    before = Replay.open(bucket)
    writer.commit(0, episodes(writer.spec, [4], first=3))
    writer.commit(1, removed=(entry.name,))
    writer.commit(2, episodes(writer.spec, [6], first=4))

    again = Replay.open(bucket, snapshot=before.snapshot)
    assert (again.steps, again.snapshot) == (13, {0: 0, 1: 1})
    assert numbers(again.episodes()) == numbers(before.episodes()) == [0, 1, 2]
    assert again.refresh() is False
    assert numbers(again.follow(lambda: False)) == []
    assert Replay.open(bucket, snapshot={}).steps == 0


def test_commits_that_are_none_are_told(bucket: Bucket) -> None:
    writer = Writer(bucket, stream())
    for number in range(3):
        writer.commit(0, episodes(writer.spec, [3], first=number))
    with pytest.raises(StoreError, match="no commit 3 of partition 0 in it, the newest is 2: give the commits that"):
        Replay.open(bucket, snapshot={0: 3})
    with pytest.raises(StoreError, match="no commit 0 of partition 1 in it, it has none"):
        Replay.open(bucket, snapshot={0: 2, 1: 0})
    bucket.delete(layout.commit(0, 1))
    with pytest.raises(CorruptStoreError, match="it is missing, though a later one exists: restore it"):
        Replay.open(bucket, snapshot={0: 1})


@pytest.mark.parametrize("wrong", [5, None, b"producer-0/7/0/0"])
def test_what_names_no_store_nor_episode_is_refused(bucket: Bucket, wrong: Any) -> None:
    Writer(bucket, stream()).commit(0)
    with pytest.raises(SettingsError, match=f"store {wrong!r}: a folder, a URL or a bucket"):
        Replay.open(wrong)
    with pytest.raises(SettingsError, match=f"name {wrong!r}: an episode's id"):
        Replay.open(bucket).episode(wrong)


@pytest.mark.parametrize(
    ("commits", "told"),
    [
        ({"0": 2}, "partition '0'"),
        ({0: 1.0}, "commit 1.0"),
        ({0: None}, "commit None"),
        ({0: -1}, "commit -1"),
        (5, "5"),
        ([0], "[0]"),
    ],
)
def test_commits_that_are_no_numbers_are_refused(bucket: Bucket, commits: Any, told: str) -> None:
    Writer(bucket, stream()).commit(0)
    with pytest.raises(SettingsError, match=re.escape(told)):
        Replay.open(bucket, snapshot=commits)


def test_what_no_commit_names_is_not_seen(bucket: Bucket) -> None:
    writer = Writer(bucket, stream())
    writer.commit(0, episodes(writer.spec, [3]))
    replay = Replay.open(bucket)
    written = writer.segment(0, episodes(writer.spec, [4], first=1))
    bucket.put(layout.segment(0, 1), b"half")
    assert replay.refresh() is False
    assert Replay.open(bucket).episodes_stored == 1
    writer.commit(0, written)
    assert replay.refresh() is True
    assert replay.episodes_stored == 2


def test_the_temporary_file_of_a_commit_is_not_seen(tmp_path: Path) -> None:
    writer = Writer(open_bucket(tmp_path), stream())
    commit = writer.commit(0, episodes(writer.spec, [3]))
    replay = Replay.open(tmp_path)
    (tmp_path / "commits/00000/.000000000001.json.0123").write_bytes(commit.to_json()[:20])
    assert replay.refresh() is False
    assert Replay.open(tmp_path).snapshot == {0: 0}


@pytest.mark.parametrize("refreshed_after", [1, 99, 150, 250])
def test_many_commits_are_caught_up_with(refreshed_after: int) -> None:
    """Whether step by step or through a commit that lists all that lives, a refresh sees what an opening sees."""
    bucket = open_bucket("memory://")
    writer = Writer(bucket, stream())
    added = [writer.commit(0, episodes(writer.spec, [2])).segments_added[0]]
    replay = Replay.open(bucket)
    for number in range(1, refreshed_after + 1):
        gone = (added.pop().name,) if number % 3 == 0 else ()
        added.extend(writer.commit(0, episodes(writer.spec, [2], first=number), removed=gone).segments_added)
    replay.refresh()
    assert numbers(replay.episodes()) == numbers(Replay.open(bucket).episodes())
    assert replay.episodes_stored == len(added)
    assert replay.snapshot == {0: refreshed_after}


def test_a_refresh_reads_what_is_new_and_no_more() -> None:
    bucket = Watched(open_bucket("memory://"))
    writer = Writer(bucket, stream())
    writer.commit(0, episodes(writer.spec, [2]))
    replay = Replay.open(bucket)
    assert numbers(replay.episodes()) == [0]
    added = writer.commit(0, episodes(writer.spec, [2], first=1)).segments_added
    bucket.reads.clear()
    replay.refresh()
    assert numbers(replay.episodes()) == [0, 1]
    assert [name for name in bucket.reads if name.startswith("segments/")] == [added[0].name]

    for _ in range(380):
        writer.commit(0)
    bucket.reads.clear()
    replay.refresh()
    # What was known; from the last commit that lists all that lives, the 350th, to the 381st; and one that is absent.
    assert set(bucket.reads) == {layout.commit(0, number) for number in (1, *range(350, 383))}


@pytest.mark.parametrize("commits", [6, 60])
def test_a_store_that_was_begun_anew_is_not_mixed_with_the_one_that_was_read(tmp_path: Path, commits: int) -> None:
    def begin(first: int, count: int) -> None:
        writer = Writer(open_bucket(tmp_path), stream())
        for number in range(count):
            writer.commit(0, episodes(writer.spec, [2], first=first + number, closed_offset=number))

    begin(0, 3)
    replay = Replay.open(tmp_path)
    assert numbers(replay.episodes()) == [0, 1, 2]
    shutil.rmtree(tmp_path)
    begin(1000, commits)
    with pytest.raises(StoreError, match="begun anew since it was read: commit 2 of partition 0 is not"):
        replay.refresh()
    assert numbers(replay.episodes()) == [0, 1, 2]
    assert numbers(Replay.open(tmp_path).episodes()) == list(range(1000, 1000 + commits))


@pytest.mark.parametrize("lags", ["by one commit", "wholly"])
def test_a_listing_that_lags_behind_hides_nothing_that_follows_what_is_known(lags: str) -> None:
    bucket = Watched(open_bucket("memory://"))
    writer = Writer(bucket, stream())
    writer.commit(0, episodes(writer.spec, [2]))
    replay = Replay.open(bucket)
    bucket.listed = {} if lags == "wholly" else listing(bucket, layout.COMMITS)
    assert replay.refresh() is False
    assert replay.snapshot == {0: 0}
    writer.commit(0, episodes(writer.spec, [2], first=1))
    assert replay.refresh() is True
    assert numbers(replay.episodes()) == [0, 1]


def test_a_removed_segment_is_read_to_the_end_by_who_has_opened_it(tmp_path: Path) -> None:
    writer = Writer(open_bucket(tmp_path), stream())
    (entry,) = writer.commit(0, episodes(writer.spec, [3])).segments_added
    replay = Replay.open(tmp_path)
    assert numbers(replay.episodes()) == [0]
    writer.commit(0, removed=(entry.name,))
    (tmp_path / entry.name).unlink()
    assert numbers(replay.episodes()) == [0]
    replay.refresh()
    assert numbers(replay.episodes()) == []


def test_follow_gives_each_new_episode_once(bucket: Bucket) -> None:
    writer = Writer(bucket, stream())
    writer.commit(0, episodes(writer.spec, [3]), high_water=10)
    replay = Replay.open(bucket)
    script = iter(
        [
            lambda: writer.commit(0, episodes(writer.spec, [4, 5], first=1, closed_offset=12), high_water=20),
            lambda: writer.commit(1, episodes(writer.spec, [6], first=3, closed_offset=4), high_water=5),
            lambda: writer.commit(1, high_water=9),
            lambda: writer.commit(1, episodes(writer.spec, [7], first=4, closed_offset=9), high_water=10),
        ]
    )

    def wait() -> bool:
        step = next(script, None)
        return step is not None and bool(step())

    assert numbers(replay.follow(wait)) == [1, 2, 3, 4]
    assert replay.snapshot == {0: 1, 1: 2}
    assert numbers(replay.episodes()) == [0, 1, 2, 3, 4]


def test_follow_does_not_repeat_episodes_that_moved_to_another_segment(bucket: Bucket) -> None:
    writer = Writer(bucket, stream())
    old = writer.commit(0, episodes(writer.spec, [3, 3], closed_offset=5), high_water=10)
    replay = Replay.open(bucket)
    merged = (episodes(writer.spec, [3, 3], closed_offset=5), episodes(writer.spec, [4], first=2, closed_offset=10))
    writer.commit(0, *merged, removed=(old.segments_added[0].name,), high_water=11)
    assert numbers(replay.follow(lambda: False)) == [2]


def test_follow_begins_where_it_was_called_whatever_is_refreshed_meanwhile(bucket: Bucket) -> None:
    writer = Writer(bucket, stream())
    writer.commit(0, high_water=1)
    replay = Replay.open(bucket)
    following = replay.follow(lambda: False)
    writer.commit(0, episodes(writer.spec, [3], closed_offset=1), high_water=2)
    replay.refresh()
    assert numbers(following) == [0]


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nothing'?: no store\.json there.*check the URL"):
        Replay.open(tmp_path / "nothing")
    with pytest.raises(StoreError, match=r"no store\.json there"):
        Replay.open("memory://")


def test_a_store_without_commits_is_empty(bucket: Bucket) -> None:
    Writer(bucket, stream())
    replay = Replay.open(bucket)
    assert (replay.steps, replay.episodes_stored, replay.snapshot) == (0, 0, {})
    assert list(replay.episodes()) == []


def test_another_format_version(tmp_path: Path) -> None:
    writer = Writer(open_bucket(tmp_path), stream())
    writer.commit(0, episodes(writer.spec, [3]))
    for name in (layout.commit(0, 0), layout.MANIFEST):
        path = tmp_path / name
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": layout.FORMAT + 1}))
        with pytest.raises(StoreFormatError, match="format version 4, this Penstock reads 3"):
            Replay.open(tmp_path)


def test_a_segment_that_is_missing_or_altered(tmp_path: Path) -> None:
    writer = Writer(open_bucket(tmp_path), stream())
    (entry,) = writer.commit(0, episodes(writer.spec, [3])).segments_added
    path = tmp_path / entry.name
    kept = path.read_bytes()
    path.unlink()
    with pytest.raises(CorruptStoreError, match=f"{entry.name}: it is missing"):
        list(Replay.open(tmp_path).episodes())
    path.write_bytes(kept)
    assert numbers(Replay.open(tmp_path).episodes()) == [0]
    written = writer.segment(1, episodes(writer.spec, [3], first=1))
    writer.commit(1, replace(written, steps=4))
    with pytest.raises(CorruptStoreError, match="3 steps and 4 observations, its commit names 4 steps"):
        list(Replay.open(tmp_path).episodes())


def test_a_segment_without_its_last_observations(bucket: Bucket) -> None:
    writer = Writer(bucket, stream())
    stored = episodes(writer.spec, [3, 2])
    place = stored.batch.schema.get_field_index("observation")
    short = stored.batch.column(place).to_pylist()
    short[1].pop()
    field = stored.batch.schema.field("observation")
    writer.commit(0, replace(stored, batch=stored.batch.set_column(place, field, pa.array(short, field.type))))
    with pytest.raises(CorruptStoreError, match="5 steps and 6 observations, its commit names 5 steps in 2 episodes"):
        list(Replay.open(bucket).episodes())


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="no /proc here to count open files in")
def test_many_segments_keep_no_file_open(tmp_path: Path) -> None:
    writer = Writer(open_bucket(tmp_path), stream())
    writer.commit(0, *(episodes(writer.spec, [2], first=number) for number in range(20)))
    before = len(list(OPEN_FILES.iterdir()))
    replay = Replay.open(tmp_path)
    drawn = list(itertools.islice(replay.transitions(8), 3))
    assert len(drawn) == 3
    assert len(list(OPEN_FILES.iterdir())) <= before


def nested_store() -> Bucket:
    """Two episodes of a nested stream, of which the second continues the first; then one that was aborted."""
    bucket = open_bucket("memory://")
    store_messages(
        bucket,
        [Row(2, 0, 0, 0, 4, Ends.CUT, seed=9), Row(2, 1, 0, 0, 3, continues=0), Row(3, 5, 0, 0, 2)],
        [Row(2, 1, 1, 3, 2, Ends.TERMINATED), Row(3, 5, 1, 2, 0, Ends.ABORTED, "env_died")],
        spec=NESTED,
    )
    return bucket


def assert_nested(values: Any, column: str, places: list[Place]) -> None:
    """Values of a column at these places; masked where there are none."""
    expected = [VALUES[column](place) for place in places]
    if not isinstance(values, np.ma.MaskedArray):
        assert values.tolist() == expected
        return
    assert values.mask.shape == values.shape
    assert [None if np.all(value.mask) else value.tolist() for value in map(np.ma.asarray, values)] == expected


def test_episodes_of_nested_spaces_have_their_structure() -> None:
    found = list(Replay.open(nested_store()).episodes())
    assert [(episode.env, episode.length, episode.continues) for episode in found] == [
        (2, 4, None),
        (2, 5, 0),
        (3, 2, None),
    ]
    for episode in found:
        places = [Place(0, 0, episode.env, episode.episode, step) for step in range(episode.length + 1)]
        assert episode.observation.keys() == {"place", "said"}
        assert isinstance(episode.action, tuple)
        assert_nested(episode.observation["place"], "observation.place", places)
        assert_nested(episode.observation["said"], "observation.said", places)
        assert_nested(episode.action[0], "action.0", places[:-1])
        assert_nested(episode.action[1], "action.1", places[:-1])
        assert episode.infos.keys() == {"place", "note"}
        assert_nested(episode.extras["logits"], "logits", places[:-1])
        assert isinstance(episode.extras["log_prob"], np.ma.MaskedArray)
        assert not isinstance(episode.extras["logits"], np.ma.MaskedArray)
        assert_nested(episode.extras["log_prob"], "log_prob", places[:-1])
        heads = [places[step] for step in episode.chunk_first_step]
        assert episode.chunk_state.keys() == {"memory", "count"}
        assert_nested(episode.chunk_state["memory"], "state.memory", heads)
        assert_nested(episode.chunk_state["count"], "state.count", heads)
        assert [state.dtype for state in episode.chunk_state.values()] == [np.float32, np.int64]
        for name, info in episode.infos.items():
            assert len(info) == episode.length + 1
            assert_nested(info, f"info.{name}", places)
        dtypes = [values.dtype for values in (*episode.observation.values(), *episode.action)]
        assert dtypes == [np.float64, object, np.int64, np.int8]
        assert len(episode.policy_version) == episode.length
    assert sum(found[0].reward) + sum(found[1].reward) == found[0].return_ + found[1].return_
    # A cut and an abort are no ends of the env's own: what is measured of an episode stands in its last part.
    assert [episode.metrics for episode in found] == [
        {"score": None, "laps": None},
        {"score": 1 + 5 / 4, "laps": 5.0},
        {"score": None, "laps": None},
    ]
    assert (found[2].abort_reason, found[2].chunk_first_step.tolist()) == ("env_died", [0, 2])


def test_transitions_of_nested_spaces_have_their_structure() -> None:
    replay = Replay.open(nested_store())
    of_episode = {number: (episode.env, episode.episode) for number, episode in enumerate(replay.episodes())}
    batch = next(replay.transitions(400))
    assert list(batch) == [
        *("observation", "action", "reward", "discount", "next_observation", "terminated", "truncated"),
        *("logits", "log_prob", "info.place", "next_info.place", "info.note", "next_info.note"),
        *("policy_version", "episode", "step"),
    ]
    steps = batch["observation"]["place"][:, 4].astype(int).tolist()
    here = [
        Place(0, 0, *of_episode[number], step) for number, step in zip(batch["episode"].tolist(), steps, strict=True)
    ]
    after = [place._replace(step=place.step + 1) for place in here]
    assert len(set(here)) == replay.steps
    for prefix, places in (("", here), ("next_", after)):
        assert_nested(batch[f"{prefix}observation"]["place"], "observation.place", places)
        assert_nested(batch[f"{prefix}observation"]["said"], "observation.said", places)
        assert_nested(batch[f"{prefix}info.place"], "info.place", places)
        assert_nested(batch[f"{prefix}info.note"], "info.note", places)
    assert isinstance(batch["log_prob"], np.ma.MaskedArray)
    assert not isinstance(batch["logits"], np.ma.MaskedArray)
    assert_nested(batch["log_prob"], "log_prob", here)
    assert_nested(batch["logits"], "logits", here)
    assert_nested(batch["action"][0], "action.0", here)
    assert_nested(batch["action"][1], "action.1", here)
    # A cut is neither end: what follows it is another part of the same.
    last = np.array([place.env == 2 and place.episode == 1 and place.step == 4 for place in here])
    assert np.array_equal(batch["terminated"], last)
    assert not batch["truncated"].any()
    version = [place.episode + (place.episode == 1 and place.step >= 3) for place in here]
    assert batch["policy_version"].tolist() == version


def test_a_batch_with_infos_is_the_callers_own() -> None:
    batches = Replay.open(nested_store()).transitions(8)
    first, second = next(batches), next(batches)
    kept = second["info.place"].copy()
    first["info.place"][...] = 0
    assert not first["info.place"].mask.any()
    np.testing.assert_array_equal(second["info.place"].mask, kept.mask)
    np.testing.assert_array_equal(second["info.place"].data, kept.data)


def test_a_bool_box_is_given_as_bools(bucket: Bucket) -> None:
    spec = replace(stream(), observation=Box((), np.dtype(bool)), extras=())
    batch = episodes(stream(), [2]).batch.drop_columns(["log_prob", "logits"])
    place, field = batch.schema.get_field_index("observation"), spec.schema.field("observation")
    batch = batch.set_column(place, field, pa.array([[0, 1, 1]], field.type))
    writer = Writer(bucket, spec)
    writer.commit(0, replace(episodes(stream(), [2]), spec=spec, batch=batch))
    replay = Replay.open(bucket)
    (episode,) = replay.episodes()
    assert (episode.observation.dtype, episode.observation.tolist()) == (np.bool_, [False, True, True])
    assert next(replay.transitions(4))["observation"].dtype == np.bool_


def test_an_episode_is_found_by_its_id(bucket: Bucket) -> None:
    writer = Writer(bucket, stream())
    writer.commit(0, episodes(writer.spec, [3, 8]))
    writer.commit(1, episodes(writer.spec, [2, 5], first=2))
    replay = Replay.open(bucket)
    for episode in replay.episodes():
        assert episode.id == f"{episode.producer}/7/{episode.env}/{episode.episode}"
        found = replay.episode(episode.id)
        assert (found.id, found.length) == (episode.id, episode.length)
        np.testing.assert_array_equal(found.observation, episode.observation)
        np.testing.assert_array_equal(found.policy_version, episode.policy_version)


@pytest.mark.parametrize(
    "name",
    [
        "producer-1/7/0/0",
        "producer-0/6/0/0",
        "producer-0/7/1/0",
        "producer-0/7/0/1",
        "producer-0/7/0",
        "",
        "x/-1/0/0",
        f"producer-0/7/0/{5_000 * '9'}",
    ],
)
def test_an_id_that_no_episode_has_is_named(bucket: Bucket, name: str) -> None:
    writer = Writer(bucket, stream())
    writer.commit(0, episodes(writer.spec, [3]))
    with pytest.raises(StoreError, match=f"no episode '{name}' in it"):
        Replay.open(bucket).episode(name)
