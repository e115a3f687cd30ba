from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock_consumers.assemble import Episodes, Rows, assemble, ended_uids
from penstock_consumers.judge import Aborted, Accepted
from penstock_schemas.chunks import Ends
from tests.consumers.messages import SPEC, Row, digest, rows_to_batch

PRODUCER, INCARNATION = "producer-4", 17


def piece(offset: int, uids: list[int], *rows: Row) -> Rows:
    """The rows of one message, as the judge hands them over."""
    batch = rows_to_batch(PRODUCER, INCARNATION, rows)
    return Rows.of(Accepted(batch, np.array(uids), PRODUCER, INCARNATION, offset, 1_000 + offset))


def aborted(offset: int, *uids: int, reason: str = "gap") -> Aborted:
    return Aborted(np.array(uids), reason, offset, 1_000 + offset)


def assembled(pieces: list[Rows], *aborts: Aborted) -> Episodes:
    return assemble(SPEC, pieces, ended_uids(pieces, aborts), aborts)


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
    rewards = pa.array([[2.0**24, 1.0, 1.0]], batch.schema.field(at).type)
    batch = batch.set_column(at, batch.schema.field(at), rewards)
    accepted = Accepted(batch, np.array([0]), PRODUCER, INCARNATION, 1, 0)
    assert assembled([Rows.of(accepted)]).batch.column("return").to_pylist() == [2.0**24 + 2]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_episodes_are_whole_whatever_else_lies_between(order: list[int]) -> None:
    """Uids are in the order of beginning; which envs they are of makes no difference."""
    rows = [Row(env, 0, 0, 0, env + 1) for env in range(3)]
    tails = [Row(env, 0, 1, env + 1, 1, Ends.TERMINATED) for env in range(3)]
    episodes = assembled([piece(1, order, *rows), piece(2, order, *tails)])
    assert sorted(episodes.length.tolist()) == [2, 3, 4]
    for episode in episodes.batch.to_pylist():
        assert [item[4] for item in episode["observation"]] == list(range(episode["env"] + 3))


def test_where_keeps_rows_whole() -> None:
    rows = piece(1, [0, 1, 0], Row(0, 0, 0, 0, 2), Row(1, 0, 0, 0, 3), Row(1, 1, 0, 0, 1))
    kept = rows.where(rows.uid == 1)
    assert kept.uid.tolist() == [1]
    assert [len(item) for item in kept.batch.column("observation").to_pylist()] == [4]
    assert rows.where(rows.uid >= 0) is rows
