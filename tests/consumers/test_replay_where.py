from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock_consumers.replay import Replay, Where, episodes, snapshot
from penstock_consumers.replay.drawn import Drawn
from penstock_consumers.replay.scan import scan
from penstock_consumers.replay.transitions import Transitions
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import SettingsError, StoreError
from tests.consumers.stores import Writer, stream
from tests.consumers.varied import NUMBERS, PRODUCERS, SPEC, Opened, Told, places, store, stored, stores, wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock_consumers.replay.snapshot import Snapshot


def taken(told: Iterable[tuple[int, Iterable[Told]]]) -> tuple[Snapshot, dict[int, Told]]:
    bucket = open_bucket("memory://")
    numbered = store(bucket, [(partition, list(of)) for partition, of in told])
    return snapshot.take(bucket, SPEC), numbered


# Each view's answer, as places.


def by_transitions(at: Snapshot, where: Where) -> list[tuple[int, int]]:
    view = Transitions(SPEC, where, n_step=1, gamma=0.9, columns=["observation"])
    index = view.index(at)
    return places(view.block(index, Drawn.of(np.arange(len(index))))(slice(None)))


def by_scan(at: Snapshot, where: Where) -> list[tuple[int, int]]:
    return [place for batch in scan(at, SPEC, where, batch_size=7) for place in places(batch)]


def by_episodes(at: Snapshot, where: Where) -> list[int]:
    return [episode.episode for episode in episodes.stored_in(at, SPEC, where)]


def pairs(bounds: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    two = st.tuples(st.none() | bounds, st.none() | bounds)
    return two.filter(lambda pair: None in pair or pair[0] <= pair[1])


conditions: dict[str, st.SearchStrategy[Any]] = {
    "policy_version": pairs(st.integers(-1, 5)),
    "versions_behind": pairs(st.integers(-1, 5)),
    "age_seconds": pairs(st.sampled_from([-0.5, 0, 0.25, 0.5, 1.0, 2.5, 3])),
    "return_": pairs(st.sampled_from(NUMBERS[:-1])),
    "length": pairs(st.integers(0, 12)),
    "ends": st.integers(1, 15).map(Ends),
    "producer": st.sampled_from((*PRODUCERS, "none")) | st.sets(st.sampled_from(PRODUCERS), min_size=1),
    "metrics": st.dictionaries(st.just("score"), pairs(st.sampled_from(NUMBERS[:-1])), min_size=1),
}


def assert_fulfilled(segments: list[tuple[int, list[Told]]], asked: dict[str, Any]) -> None:
    at, numbered = taken(segments)
    where, expected = Where(**asked), wanted(numbered, asked)
    given_steps = Counter(number for number, _ in expected)
    whole = [number for number, of in numbered.items() if given_steps[number] == of.length]
    for view, answer in ((by_transitions, expected), (by_scan, expected), (by_episodes, whole)):
        if answer:
            assert view(at, where) == answer
        else:
            with pytest.raises(StoreError, match="in the store fulfils "):
                view(at, where)


@pytest.mark.parametrize("name", conditions)
@settings(max_examples=20, deadline=None)
@given(data=st.data(), segments=stores)
def test_each_condition_leaves_what_fulfils_it(name: str, data: st.DataObject, segments: Any) -> None:
    assert_fulfilled(segments, {name: data.draw(conditions[name])})


@settings(max_examples=60, deadline=None)
@given(segments=stores, asked=st.fixed_dictionaries({}, optional=conditions).filter(bool))
@example(
    segments=[(0, [Told(9, (1, 2, 1)), Told(9, (2,))]), (0, [Told(4, (2,))])],
    asked={"policy_version": (2, 2), "length": (5, None)},
)
def test_conditions_together_leave_what_fulfils_all(segments: Any, asked: dict[str, Any]) -> None:
    assert_fulfilled(segments, asked)


def test_where_without_conditions_leaves_everything() -> None:
    at, numbered = taken([(0, [Told(5)]), (1, [Told(9, (1, 2)), Told(1)])])
    assert not Where().at(at)
    assert by_transitions(at, Where()) == by_scan(at, Where()) == wanted(numbered, {})
    assert by_episodes(at, Where()) == list(numbered)


# A condition, an episode that fulfils it and one that does not; versions and ages are of the two together.
CASES: list[tuple[dict[str, Any], Told, Told]] = [
    ({"policy_version": (5, None)}, Told(versions=(5,)), Told(versions=(4,))),
    ({"policy_version": (None, 4)}, Told(versions=(4,)), Told(versions=(5,))),
    ({"versions_behind": (None, 2)}, Told(versions=(9,)), Told(versions=(6,))),
    ({"versions_behind": (1, None)}, Told(versions=(8,)), Told(versions=(9,))),
    ({"age_seconds": (None, 1.5)}, Told(closed_ms=9_000), Told(closed_ms=7_000)),
    ({"age_seconds": (2, None)}, Told(closed_ms=7_000), Told(closed_ms=9_000)),
    ({"return_": (100, None)}, Told(return_=100.0), Told(return_=99.5)),
    ({"return_": (None, math.inf)}, Told(return_=3.0), Told(return_=math.nan)),
    ({"return_": (None, None)}, Told(return_=math.inf), Told(return_=math.nan)),
    ({"length": (4, 6)}, Told(6), Told(7)),
    ({"ends": Ends.TERMINATED}, Told(ends=Ends.TERMINATED | Ends.TRUNCATED), Told(ends=Ends.TRUNCATED)),
    ({"ends": ~Ends.ABORTED}, Told(ends=Ends.CUT), Told(ends=Ends.ABORTED)),
    ({"producer": "a"}, Told(producer="a"), Told(producer="b")),
    ({"producer": ["a", "c"]}, Told(producer="c"), Told(producer="b")),
    ({"metrics": {"score": (None, 3)}}, Told(score=-math.inf), Told(score=3.5)),
    ({"metrics": {"score": (None, None)}}, Told(score=1.0), Told(score=None)),
    ({"metrics": {"score": (None, None)}}, Told(score=1.0), Told(score=math.nan)),
]


@pytest.mark.parametrize("view", [by_transitions, by_scan, by_episodes])
@pytest.mark.parametrize(("asked", "one", "other"), CASES)
def test_a_segment_that_cannot_match_is_not_opened(
    asked: dict[str, Any], one: Told, other: Told, view: Callable[[Snapshot, Where], list[Any]]
) -> None:
    bucket = Opened()
    numbered = store(bucket, [(0, [other]), (1, [one, replace(one, length=5)]), (0, [other, other])])
    at = snapshot.take(bucket, SPEC)
    assert bucket.names == []
    expected: list[Any] = wanted(numbered, asked)
    assert len(expected) == one.length + 5
    assert view(at, Where(**asked)) == ([1, 2] if view is by_episodes else expected)
    assert set(bucket.names) == {at.entries[2].name}


def test_segments_of_more_producers_than_a_commit_names_are_opened() -> None:
    bucket = Opened()
    store(bucket, [(0, [Told(producer=f"p{number}") for number in range(65)]), (0, [Told(producer="q")])])
    at = snapshot.take(bucket, SPEC)
    assert by_episodes(at, Where(producer="p64")) == [64]
    assert bucket.names == [at.entries[0].name]


def test_a_snapshot_gives_the_same_for_ever() -> None:
    """Ages are measured from the newest that it holds, whatever is stored and however late it is meanwhile."""
    bucket = open_bucket("memory://")
    store(bucket, [(0, [Told(versions=(3,), closed_ms=1_000), Told(versions=(4,), closed_ms=2_000)])])
    before = snapshot.take(bucket, SPEC)
    Writer(bucket, SPEC).commit(5, stored([Told(versions=(9,), closed_ms=900_000)], 2))
    after = snapshot.take(bucket, SPEC)
    for where in (Where(versions_behind=(0, 0)), Where(age_seconds=(None, 0.5))):
        assert by_episodes(before, where) == [1]
        assert by_episodes(after, where) == [2]


# A condition that nothing fulfils, and what is said of it.
NOTHING: list[tuple[dict[str, Any], str]] = [
    ({"policy_version": (8, None)}, r"policy_version \(8, None\): policy_version reaches from 1 to 7 "),
    ({"versions_behind": (7, 9)}, r"versions_behind \(7, 9\): versions_behind reaches from 0 to 6 "),
    ({"age_seconds": (60, None)}, r"age_seconds \(60, None\): age_seconds reaches from 0\.0 to 8\.5 "),
    ({"return_": (450.5, None)}, r"return_ \(450\.5, None\): return_ reaches from -2\.0 to 30\.0 "),
    ({"length": (None, 2)}, r"length \(None, 2\): length reaches from 3 to 9 "),
    ({"ends": Ends.ABORTED | Ends.CUT}, r"ends ABORTED \| CUT: episodes end TERMINATED, TERMINATED \| TRUNCATED "),
    ({"producer": {"x", "w"}}, r"producer w, x: producers are a, b "),
    ({"metrics": {"score": (5, None)}}, r"metrics 'score' \(5, None\): metrics 'score' reaches from 1\.0 to 2\.0 "),
    ({"metrics": {"laps": (None, None)}}, r"metrics 'laps' \(None, None\): metrics 'laps' is nowhere a number "),
    # Of several, only those that nothing fulfils by itself; or all, where each is fulfilled somewhere.
    ({"length": (9, None), "return_": (450, None)}, r"return_ \(450, None\): return_ reaches from "),
    (
        {"length": (9, None), "return_": (30, None)},
        r"return_ \(30, None\) and length \(9, None\): return_ .* 30\.0; length reaches from 3 to 9 ",
    ),
]


@pytest.mark.parametrize(("asked", "said"), NOTHING)
@pytest.mark.parametrize("view", [by_transitions, by_scan, by_episodes])
def test_a_condition_that_nothing_fulfils_is_named_with_what_there_is(
    asked: dict[str, Any], said: str, view: Callable[[Snapshot, Where], list[Any]]
) -> None:
    bucket = Opened()
    both = Ends.TERMINATED | Ends.TRUNCATED
    long = Told(9, (1, 3), return_=-2.0, producer="a", closed_ms=500, score=1.0)
    short = Told(3, (7,), return_=30.0, producer="b", closed_ms=9_000, score=2.0, ends=both)
    store(bucket, [(0, [long]), (3, [short])])
    at = snapshot.take(bucket, SPEC)
    what = "episode" if view is by_episodes else "step"
    with pytest.raises(StoreError, match=rf"^no {what} in the store fulfils {said}.*\{{0: 0, 3: 0\}}.*refresh\(\)$"):
        view(at, Where(**asked))
    assert bucket.names == []


def test_many_producers_are_not_all_named() -> None:
    at, _ = taken([(0, [Told(producer=f"p{number}")]) for number in range(9)])
    with pytest.raises(StoreError, match="producers are p0, p1, p2, p3, p4, p5, p6, p7 and others "):
        by_scan(at, Where(producer="x"))


def test_what_only_opening_tells_is_told_too() -> None:
    """No range leaves the segment out, and none of its episodes fulfils it."""
    at, _ = taken([(0, [Told(3), Told(9)])])
    for view in (by_transitions, by_scan, by_episodes):
        with pytest.raises(StoreError, match=r"fulfils length \(5, 6\): length reaches from 3 to 9 "):
            view(at, Where(length=(5, 6)))


def test_a_store_without_steps_says_so_whatever_is_asked() -> None:
    bucket = open_bucket("memory://")
    Writer(bucket, SPEC).commit(0)
    at = snapshot.take(bucket, SPEC)
    assert by_scan(at, Where()) == by_episodes(at, Where()) == []
    for where in (Where(length=(5, 6)), Where(age_seconds=(0, 1)), Where(versions_behind=(0, 1))):
        for view in (by_transitions, by_scan, by_episodes):
            with pytest.raises(StoreError, match=r"^no steps in the store yet \(commits read, by partition: \{0: 0\}"):
                view(at, where)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"policy_version": 3}, r"where policy_version 3: a pair \(least, most\)"),
    ({"policy_version": (1, 2, 3)}, r"where policy_version \(1, 2, 3\): a pair"),
    ({"length": "ab"}, r"where length 'ab': a pair"),
    ({"versions_behind": (2, 1)}, r"where versions_behind \(2, 1\): the least comes first"),
    ({"age_seconds": (math.nan, None)}, r"where age_seconds \(nan, None\): .*not a number.*None is no bound"),
    ({"return_": (0, math.nan)}, r"where return_ \(0, nan\): .*not a number"),
    ({"return_": ("1", None)}, r"where return_ \('1', None\): bounds are numbers"),
    ({"ends": 4}, r"where ends 4: members of `Ends`"),
    ({"ends": Ends.OPEN}, r"where ends <Ends\.OPEN: 0>: .*every stored episode ended"),
    ({"ends": [Ends.CUT]}, r"where ends \[.*\]: members of `Ends`, combined with \|"),
    ({"producer": ()}, r"where producer \(\): the name of one, or a collection"),
    ({"producer": 3}, r"where producer 3: the name"),
    ({"producer": ["a", 3]}, r"where producer \['a', 3\]: the name"),
    ({"metrics": ["score"]}, r"where metrics \['score'\]: a pair \(least, most\) for each name"),
    ({"metrics": {"score": 3}}, r"where metrics 'score' 3: a pair"),
    ({"metrics": {"score": (3, 2)}}, r"where metrics 'score' \(3, 2\): the least"),
]


@pytest.mark.parametrize(("asked", "said"), WRONG)
def test_what_makes_no_sense_is_refused_by_name(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Where(**asked)


def test_a_metric_that_the_stream_does_not_record() -> None:
    at, _ = taken([(0, [Told()])])
    where = Where(metrics={"speed": (1, None)})
    for call in (
        lambda: Transitions(SPEC, where, n_step=1, gamma=0.9, columns=None).index(at),
        lambda: scan(at, SPEC, where),
        lambda: episodes.stored_in(at, SPEC, where),
    ):
        with pytest.raises(SettingsError, match=r"where metrics 'speed': the stream's are score, laps$"):
            call()
    bucket = open_bucket("memory://")
    Writer(bucket, stream()).commit(0)
    with pytest.raises(SettingsError, match=r"where metrics 'speed': the stream's are none$"):
        where.at(snapshot.take(bucket, stream()))


def test_bounds_of_any_number_type_and_infinite_ones() -> None:
    at, _ = taken([(0, [Told(3, (2,)), Told(9, (5,))])])
    assert by_episodes(at, Where(policy_version=(np.int64(3), math.inf))) == [1]
    assert by_episodes(at, Where(length=[-math.inf, np.float32(3)])) == [0]


def test_each_view_of_the_reader_asks_for_it() -> None:
    bucket = open_bucket("memory://")
    numbered = store(bucket, [(0, [Told(9, (1, 2, 1)), Told(3)]), (1, [Told(6, (2, 2))])])
    replay, where = Replay.open(bucket), Where(policy_version=(2, 2))
    expected = wanted(numbered, {"policy_version": (2, 2)})
    drawn = next(replay.transitions(400, where=where))
    assert set(places(drawn)) == set(expected)
    assert set(drawn["policy_version"].tolist()) == {2}
    for progress in (False, True):
        assert [
            place for batch in replay.scan(4, where=where, progress=progress) for place in places(batch)
        ] == expected
        assert [episode.episode for episode in replay.episodes(where=where, progress=progress)] == [2]
    following = replay.follow(lambda: False, where=where, columns=["reward"])
    Writer(bucket, SPEC).commit(7, stored([Told(3, (3,)), Told(2, (2,))], 3), high_water=1)
    assert [(episode.episode, episode.observation) for episode in following] == [(4, None)]
