from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from penstock_consumers.assemble import Episodes, assemble, ended_uids
from penstock_consumers.judge import Aborted, Accepted
from penstock_consumers.rows import Rows
from penstock_schemas.chunks import ChunkRows, Ends
from tests.consumers.messages import NESTED, SPEC, VALUES, Place, Row, digest, rows_to_batch

if TYPE_CHECKING:
    from penstock_schemas.stream import StreamSpec

PRODUCER, INCARNATION = "producer-4", 17


def piece(offset: int, uids: list[int], *rows: Row, spec: StreamSpec = SPEC) -> Rows:
    """The rows of one message, as the judge hands them over."""
    return of_message(rows_to_batch(PRODUCER, INCARNATION, rows, spec), offset, uids, spec)


def of_message(batch: pa.RecordBatch, offset: int, uids: list[int], spec: StreamSpec = SPEC) -> Rows:
    rows = ChunkRows.of(batch, spec)
    return Rows.accepted(Accepted(rows, np.array(uids), PRODUCER, INCARNATION, offset, 1_000 + offset))


def aborted(offset: int, *uids: int, reason: str = "gap") -> Aborted:
    return Aborted(np.array(uids), reason, offset, 1_000 + offset)


def assembled(pieces: list[Rows], *aborts: Aborted, spec: StreamSpec = SPEC) -> Episodes:
    return assemble(spec, pieces, ended_uids(pieces, aborts), aborts)


def test_the_overlap_of_chunks_is_dropped_and_the_last_observation_kept() -> None:
    episodes = assembled(
        [
            piece(3, [1], Row(2, 9, 0, 0, 2)),
            piece(4, [1], Row(2, 9, 1, 2, 3)),
            piece(5, [1], Row(2, 9, 2, 5, 1, Ends.TERMINATED)),
        ]
    )
    (episode,) = episodes.batch.to_pylist()
    assert episode["observation"] == [[4, 17, 2, 9, step] for step in range(7)]
    assert episode["action"] == [(2 + step) % 5 for step in range(6)]
    assert episode["reward"] == [9 + step / 8 for step in range(6)]
    assert episode["logits"] == [[2, -step] for step in range(6)]
    assert (episode["length"], episode["return"]) == (6, 54 + 15 / 8)


def test_a_row_says_where_it_came_from_and_how_it_ended() -> None:
    rows = piece(3, [1], Row(2, 9, 0, 0, 2, seed=5)), piece(8, [1], Row(2, 9, 1, 2, 3, Ends.CUT))
    (episode,) = assembled([*rows]).batch.to_pylist()
    told = ("producer", "incarnation", "env", "episode", "seed", "reset_options", "opened_offset", "closed_offset")
    assert [episode[name] for name in told] == ["producer-4", 17, 2, 9, 5, '{"seed":5}', 3, 8]
    assert (episode["ends"], episode["abort_reason"], episode["closed_ms"]) == (Ends.CUT, None, 1_008)
    assert episode["chunk_first_step"] == [0, 2]
    assert (episode["policy_version"], episode["policy_digest"]) == ([9, 10], [digest(9), digest(10)])
    assert episode["exploration"] == [1, 1]


def test_several_episodes_in_one_message_and_one_over_several() -> None:
    episodes = assembled(
        [
            piece(1, [0, 0, 1, 2], Row(0, 0, 0, 0, 1), Row(0, 0, 1, 1, 2), Row(1, 0, 0, 0, 3), Row(2, 0, 0, 0, 4)),
            piece(2, [0, 3], Row(0, 0, 2, 3, 1, Ends.TERMINATED), Row(0, 1, 0, 0, 2, Ends.TRUNCATED)),
            piece(3, [1], Row(1, 0, 1, 3, 1, Ends.TERMINATED | Ends.TRUNCATED)),
        ]
    )
    found = {(row["env"], row["episode"]): row["observation"] for row in episodes.batch.to_pylist()}
    assert found == {
        (env, episode): [[4, 17, env, episode, step] for step in range(length + 1)]
        for (env, episode), length in {(0, 0): 4, (0, 1): 2, (1, 0): 4}.items()
    }
    assert episodes.chunks.tolist() == [3, 2, 1]
    assert episodes.length.tolist() == [4, 4, 2]
    assert episodes.policy_version.tolist() == [2, 1, 1]


def test_what_is_not_named_stays_out() -> None:
    pieces = [piece(1, [0, 1], Row(0, 0, 0, 0, 1, Ends.TERMINATED), Row(1, 0, 0, 0, 1))]
    assert ended_uids(pieces, []).tolist() == [0]
    assert assembled(pieces).batch.column("env").to_pylist() == [0]
    assert len(ended_uids([], [])) == 0


def test_aborted_episodes_keep_their_steps() -> None:
    episodes = assembled(
        [
            piece(1, [5, 6, 7], Row(0, 0, 0, 0, 2), Row(1, 0, 0, 0, 3, Ends.TERMINATED), Row(2, 0, 0, 0, 1)),
            piece(2, [5], Row(0, 0, 1, 2, 2)),
        ],
        aborted(9, 7, reason="gap"),
        aborted(11, 5, reason="restarted"),
    )
    ends = [(row["env"], row["length"], row["ends"], row["abort_reason"]) for row in episodes.batch.to_pylist()]
    assert ends == [
        (0, 4, Ends.ABORTED, "restarted"),
        (1, 3, Ends.TERMINATED, None),
        (2, 1, Ends.ABORTED, "gap"),
    ]
    assert episodes.batch.column("closed_offset").to_pylist() == [11, 1, 9]
    assert episodes.batch.column("closed_ms").to_pylist() == [1_011, 1_001, 1_009]
    assert episodes.aborted.tolist() == [True, False, True]


def test_an_episode_that_its_producer_aborted_keeps_its_own_reason() -> None:
    episodes = assembled([piece(1, [0], Row(0, 0, 0, 0, 2, Ends.ABORTED, "env raised"))])
    (episode,) = episodes.batch.to_pylist()
    assert (episode["ends"], episode["abort_reason"]) == (Ends.ABORTED, "env raised")
    assert episodes.aborted.tolist() == [True]


def test_a_return_is_added_up_in_double_precision() -> None:
    """A float32 sum would stand still at 2 ** 24."""
    rows = 3
    batch = rows_to_batch(PRODUCER, INCARNATION, [Row(0, 0, 0, 0, rows, Ends.TERMINATED)])
    at = batch.schema.get_field_index("reward")
    rewards = pa.array([[2.0**24, 1.0, 0.0]], batch.schema.field(at).type)
    batch = batch.set_column(at, batch.schema.field(at), rewards)
    assert assembled([of_message(batch, 1, [0])]).batch.column("return").to_pylist() == [2.0**24 + 1]


def test_every_kind_of_column_is_gathered_alike() -> None:
    """Nested, of text, with absent items; a column that has none absent in one message and some in another."""
    pieces = [
        piece(1, [0, 1], Row(1, 2, 0, 0, 1), Row(2, 0, 0, 0, 3), spec=NESTED),
        piece(2, [1], Row(2, 0, 1, 3, 2, Ends.TERMINATED), spec=NESTED),
        piece(3, [0], Row(1, 2, 1, 1, 4, Ends.TRUNCATED), spec=NESTED),
    ]
    episodes = assembled(pieces, spec=NESTED).batch
    episodes.validate(full=True)
    assert [(row["env"], row["length"]) for row in episodes.to_pylist()] == [(1, 5), (2, 5)]
    for row in episodes.to_pylist():
        for column in NESTED.columns:
            places = [Place(4, 17, row["env"], row["episode"], step) for step in range(5 + column.overlap)]
            assert row[column.name] == [VALUES[column.name](place) for place in places], column.name
    nulls = [episodes.column(f"info.{name}").values.null_count for name in ("place", "note")]
    assert nulls == [4, 6]


def test_every_chunk_keeps_the_state_with_which_it_began() -> None:
    episodes = assembled(
        [
            piece(1, [0, 1], Row(1, 2, 0, 0, 1), Row(2, 0, 0, 0, 3), spec=NESTED),
            piece(2, [1, 1], Row(2, 0, 1, 3, 2), Row(2, 0, 2, 5, 0, Ends.ABORTED, "env raised"), spec=NESTED),
            piece(3, [0], Row(1, 2, 1, 1, 4, Ends.TRUNCATED), spec=NESTED),
        ],
        spec=NESTED,
    ).batch
    assert episodes.column("chunk_first_step").to_pylist() == [[0, 1], [0, 3, 5]]
    assert episodes.column("state.memory").to_pylist() == [
        [[1, 2, 0], [1, 2, 1]],
        [[2, 0, 0], [2, 0, 3], [2, 0, 5]],
    ]
    assert episodes.column("state.count").to_pylist() == [[0, 7], [0, 21, 35]]


def test_what_was_measured_of_an_episode_stands_in_its_row() -> None:
    episodes = assembled(
        [
            piece(1, [0, 1, 2], Row(1, 2, 0, 0, 1), Row(2, 0, 0, 0, 3, Ends.CUT), Row(3, 0, 0, 0, 1), spec=NESTED),
            piece(2, [0, 3], Row(1, 2, 1, 1, 4, Ends.TRUNCATED), Row(2, 1, 0, 0, 2, Ends.TERMINATED), spec=NESTED),
        ],
        aborted(3, 2),
        spec=NESTED,
    ).batch
    assert episodes.select(["env", "metric.score", "metric.laps"]).to_pylist() == [
        {"env": 1, "metric.score": 2 + 5 / 4, "metric.laps": 5.0},
        {"env": 2, "metric.score": None, "metric.laps": None},
        {"env": 3, "metric.score": None, "metric.laps": None},
        {"env": 2, "metric.score": 1 + 2 / 4, "metric.laps": None},
    ]


def test_an_abort_without_a_step_closes_the_episode_with_its_reason() -> None:
    pieces = [
        piece(3, [1, 2], Row(2, 9, 0, 0, 2), Row(3, 0, 0, 0, 1), spec=NESTED),
        piece(
            4, [1, 2], Row(2, 9, 1, 2, 0, Ends.ABORTED, "env raised"), Row(3, 0, 1, 1, 1, Ends.TERMINATED), spec=NESTED
        ),
    ]
    episodes = assembled(pieces, spec=NESTED)
    first, second = episodes.batch.to_pylist()
    assert (first["length"], first["ends"], first["abort_reason"]) == (2, Ends.ABORTED, "env raised")
    assert first["observation.place"] == [[4, 17, 2, 9, step] for step in range(3)]
    assert (first["chunk_first_step"], first["closed_offset"], first["return"]) == ([0, 2], 4, 18 + 1 / 8)
    assert (second["length"], second["observation.said"]) == (2, ["é3 0 0", "é3 0 1", "é3 0 2"])
    assert episodes.chunks.tolist() == [2, 2]


def test_the_returns_of_parts_add_up_and_no_part_is_a_whole() -> None:
    uncut = assembled([piece(1, [0], Row(1, 4, 0, 0, 9, Ends.TERMINATED))])
    rewards = uncut.batch.column("reward").values
    parts = rows_to_batch(
        PRODUCER,
        INCARNATION,
        [
            Row(1, 4, 0, 0, 4, Ends.CUT),
            Row(1, 5, 0, 0, 3, Ends.CUT, continues=4),
            Row(1, 6, 0, 0, 2, Ends.TERMINATED, continues=5),
            Row(1, 7, 0, 0, 1, Ends.TRUNCATED),
        ],
    )
    at = parts.schema.get_field_index("reward")
    array = pa.ListArray.from_arrays([0, 4, 7, 9, 10], pa.concat_arrays([rewards, rewards[:1]]))
    parts = parts.set_column(at, parts.schema.field(at), array.cast(parts.schema.field(at).type))
    episodes = assembled([of_message(parts, 1, [0, 1, 2, 3])])
    assert episodes.batch.column("continues").to_pylist() == [None, 4, 5, None]
    returns = episodes.batch.column("return").to_pylist()
    assert sum(returns[:3]) == uncut.batch.column("return")[0].as_py()
    assert episodes.whole.tolist() == [False, False, False, True]
    assert uncut.whole.tolist() == [True]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_episodes_are_whole_whatever_else_lies_between(order: list[int]) -> None:
    """Uids are in the order of beginning; which envs they are of makes no difference."""
    rows = [Row(env, 0, 0, 0, env + 1) for env in range(3)]
    tails = [Row(env, 0, 1, env + 1, 1, Ends.TERMINATED) for env in range(3)]
    episodes = assembled([piece(1, order, *rows), piece(2, order, *tails)])
    assert sorted(episodes.length.tolist()) == [2, 3, 4]
    for episode in episodes.batch.to_pylist():
        assert [item[4] for item in episode["observation"]] == list(range(episode["env"] + 3))
