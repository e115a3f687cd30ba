from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_schemas import chunks
from penstock_schemas.chunks import MAX_ENVS, ChunkRows, Ends, Exploration, check, steps
from penstock_schemas.columns import Column
from penstock_schemas.errors import RejectedError
from penstock_schemas.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from tests.schemas.batches import Row, make_batch, make_rows, replaced, stream
from tests.schemas.random_spaces import spaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock_schemas.spaces import Space

FLOAT = np.dtype(np.float32)
SPEC = stream(extras=[Column("logits", (3,), FLOAT)])
INFO = Column("info.place", (2,), np.dtype(np.int16), overlap=True, nullable=True)
STATES = (Column("state.count", (), np.dtype(np.int8)), Column("state.memory", (2, 2), FLOAT))
# Two envs; the first goes through an episode of two chunks and begins another.
ROWS = (
    Row(env=0, episode=4, seed=7, reset_options="{}", steps=2),
    Row(env=0, episode=4, chunk=1, first_step=2, ends=Ends.TERMINATED, steps=3),
    Row(env=0, episode=5, ends=Ends.ABORTED, abort_reason="env", steps=1),
    Row(env=2, episode=0, chunk=6, first_step=9, ends=Ends.CUT, exploration=Exploration.EPSILON, steps=2),
)
BATCH = make_batch(SPEC, ROWS)


def rejection(batch: pa.RecordBatch) -> str:
    with pytest.raises(RejectedError) as caught:
        check(batch, SPEC)
    assert caught.value.reason == "rows"
    return str(caught.value)


def altered(row: int, **changes: Any) -> list[Row]:
    return [Row(**{**vars(old), **changes}) if at == row else old for at, old in enumerate(ROWS)]


def test_valid_rows_are_taken() -> None:
    check(BATCH, SPEC)
    assert steps(BATCH).tolist() == [2, 3, 1, 2]


@settings(deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 4), st.integers(1, 5), spaces, spaces)
def test_what_a_producer_can_make_is_taken(seed: int, envs: int, count: int, observation: Space, action: Space) -> None:
    generator = np.random.default_rng(seed)
    extras = [Column("value", (), FLOAT), Column("log_prob", (2,), FLOAT, nullable=True)]
    spec = stream(observation, action, extras=extras, infos=[INFO], states=STATES, metrics=["score"])
    rows = make_rows(generator, envs=envs, chunks=count)
    batch = make_batch(spec, rows, generator=generator)
    found = check(batch, spec)
    for name in ("env", "episode", "chunk", "first_step", "ends", "steps"):
        assert getattr(found, name).tolist() == [getattr(row, name) for row in rows], name
    assert found.batch is batch
    assert len(found) == len(rows)


def test_rows_are_picked_whole() -> None:
    kept = ChunkRows.of(BATCH, SPEC).where(np.array([False, True, False, True]))
    assert (kept.env.tolist(), kept.steps.tolist(), kept.ends.tolist()) == ([0, 2], [3, 2], [1, 8])
    assert (kept.episode.tolist(), kept.chunk.tolist(), kept.first_step.tolist()) == ([4, 0], [1, 6], [2, 9])
    assert kept.batch.equals(BATCH.take(pa.array([1, 3])))


def test_no_rows_are_no_wrong_rows() -> None:
    assert len(check(BATCH.slice(0, 0), SPEC)) == 0


def test_an_empty_list_column_needs_no_offsets() -> None:
    kind = SPEC.schema.field("reward").type
    bare = pa.Array.from_buffers(kind, 0, [None, pa.py_buffer(b"")], children=[pa.array([], pa.float32())])
    check(replaced(make_batch(SPEC, []), "reward", bare), SPEC)


@pytest.mark.parametrize("ends", [0, 1, 2, 3, 8])
def test_every_way_to_end_is_taken(ends: int) -> None:
    check(make_batch(SPEC, altered(3, ends=ends)), SPEC)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (altered(1, steps=0), "row 1 has no step, and aborts no episode that had one"),
        (altered(2, env=-1), "column 'env' has the negative value -1"),
        (altered(0, episode=-5), "column 'episode' has the negative value -5"),
        (altered(3, chunk=-6), "column 'chunk' has the negative value -6"),
        (altered(3, first_step=-9), "column 'first_step' has the negative value -9"),
        (altered(3, policy_version=-1), "column 'policy_version' has the negative value -1"),
        (altered(3, env=MAX_ENVS), f"env index {MAX_ENVS}: at most {MAX_ENVS} envs a producer"),
        *(
            (altered(3, ends=ends, abort_reason="env"), "column 'ends' has a value that is no way to end")
            for ends in (5, 6, 7, 9, 10, 12, 16, 255)
        ),
        (altered(0, exploration=4), "column 'exploration' has the unknown value 4"),
        (altered(3, chunk=0), "a row is the first chunk and not at step 0, or the other way round"),
        (altered(3, first_step=0), "a row is the first chunk and not at step 0, or the other way round"),
        (altered(2, abort_reason=None), "an abort without a reason, or a reason without an abort"),
        (altered(1, abort_reason="env"), "an abort without a reason, or a reason without an abort"),
        *(
            (altered(1, **begun), "a seed, reset options or what it continues on a chunk that is not the first")
            for begun in ({"seed": 1}, {"reset_options": "{}"}, {"continues": 3})
        ),
        *(
            (altered(0, **begun, continues=3), "a seed or reset options on an episode that continues another")
            for begun in ({}, {"seed": None}, {"reset_options": None})
        ),
        *((altered(2, continues=continued), "an episode that continues none before it") for continued in (-1, 5, 6)),
        (altered(1, steps=0, ends=Ends.OPEN), "row 1 has no step, and aborts no episode that had one"),
        (altered(2, steps=0), "row 2 has no step, and aborts no episode that had one"),
        # Where the episode goes on, the next row of its env is its next chunk.
        (altered(1, episode=5), "row 1 does not follow the row before it"),
        (altered(1, chunk=2), "row 1 does not follow the row before it"),
        (altered(1, first_step=3), "row 1 does not follow the row before it"),
        # Where it ended, the next row of its env begins a later one.
        (altered(2, episode=4), "row 2 does not follow the row before it"),
        (altered(2, episode=3), "row 2 does not follow the row before it"),
        (altered(2, chunk=1, first_step=5), "row 2 does not follow the row before it"),
        (altered(0, ends=Ends.TRUNCATED), "row 1 does not follow the row before it"),
        (altered(1, ends=Ends.OPEN), "row 2 does not follow the row before it"),
        # Envs come in order, each in one run.
        ([ROWS[3], *ROWS[:3]], "row 1 does not follow the row before it"),
        ([ROWS[0], ROWS[0]], "row 1 does not follow the row before it"),
    ],
)
def test_a_broken_row_rule_is_named(rows: Sequence[Row], message: str) -> None:
    assert rejection(make_batch(SPEC, rows)) == f"rows: {message}"


def test_an_abort_may_have_no_step_where_some_came_before() -> None:
    rows = [Row(env=0, episode=3, chunk=2, first_step=7, ends=Ends.ABORTED, abort_reason="env_died: killed", steps=0)]
    assert check(make_batch(SPEC, rows), SPEC).steps.tolist() == [0]
    assert [len(item) for item in make_batch(SPEC, rows).column("observation").to_pylist()] == [1]


def test_a_message_of_nothing_but_aborts_has_no_actions_to_look_at() -> None:
    spec = stream(action=Tuple((MultiDiscrete((2,), (2, 2), (0, 0)), MultiBinary((1,)), Discrete(2), Text(2))))
    rows = [Row(env=env, chunk=1, first_step=4, ends=Ends.ABORTED, abort_reason="x", steps=0) for env in range(2)]
    assert len(check(make_batch(spec, rows), spec)) == 2


def test_an_episode_may_continue_an_earlier_one() -> None:
    rows = [
        Row(episode=4, ends=Ends.CUT),
        Row(episode=5, continues=4, ends=Ends.CUT),
        Row(env=1, episode=9, continues=2),
        Row(env=2, seed=4),
    ]
    check(make_batch(SPEC, rows), SPEC)


@pytest.mark.parametrize("env", [0, MAX_ENVS - 1])
def test_env_indices_reach_up_to_the_bound(env: int) -> None:
    check(make_batch(SPEC, [Row(env=env)]), SPEC)


@pytest.mark.parametrize("name", [field.name for field in SPEC.schema if not pa.types.is_list(field.type)])
def test_a_null_that_must_not_be_is_named(name: str) -> None:
    field = SPEC.schema.field(name)
    if field.nullable:
        check(replaced(make_batch(SPEC, [Row()]), name, [None]), SPEC)
        return
    values = [None, *BATCH.column(name).to_pylist()[1:]]
    assert rejection(replaced(BATCH, name, values)) == f"rows: column {name!r} has nulls"


def with_items(name: str, offsets: Sequence[int], items: pa.Array, mask: pa.Array | None = None) -> pa.RecordBatch:
    array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=SPEC.schema.field(name).type, mask=mask)
    return replaced(BATCH, name, array)


@pytest.mark.parametrize("name", ["observation", "action", "logits"])
def test_a_null_list_is_named(name: str) -> None:
    array = BATCH.column(name)
    mask = pa.array([False, True, False, False])
    nulled = with_items(name, array.offsets.to_pylist(), array.values, mask)
    assert rejection(nulled) == f"rows: column {name!r} has nulls"


@pytest.mark.parametrize("name", ["observation", "action", "reward", "logits"])
def test_a_null_item_is_named(name: str) -> None:
    array = BATCH.column(name)
    bitmap = pa.py_buffer(b"\xfe\xff")
    items = array.values
    children = [items.values] if pa.types.is_fixed_size_list(items.type) else None
    buffers = items.buffers()[:1] if children else items.buffers()
    nulled = pa.Array.from_buffers(items.type, len(items), [bitmap, *buffers[1:]], children=children)
    assert rejection(with_items(name, array.offsets.to_pylist(), nulled)) == f"rows: column {name!r} has nulls"


@pytest.mark.parametrize("name", ["observation", "logits"])
def test_a_null_inside_of_an_item_is_named(name: str) -> None:
    array = BATCH.column(name)
    flat = array.values.values.to_pylist()
    inner = pa.array([None, *flat[1:]], pa.float32())
    items = pa.FixedSizeListArray.from_arrays(inner, type=array.values.type)
    assert rejection(with_items(name, array.offsets.to_pylist(), items)) == f"rows: column {name!r} has nulls"


def test_a_state_is_there_in_every_chunk() -> None:
    spec = stream(states=STATES)
    batch = make_batch(spec, ROWS)
    check(batch, spec)
    for name, absent in (("state.count", None), ("state.memory", None), ("state.memory", [0, 1, None, 3])):
        values = [*batch.column(name).to_pylist()[:2], absent, batch.column(name)[3].as_py()]
        with pytest.raises(RejectedError, match=rf"^rows: column '{name}' has nulls$"):
            check(replaced(batch, name, values), spec)


def test_only_an_episode_that_its_env_ended_has_metrics() -> None:
    spec = stream(metrics=["score", "laps"])
    ways = (Ends.OPEN, Ends.TERMINATED, Ends.TRUNCATED, Ends.TERMINATED | Ends.TRUNCATED, Ends.ABORTED, Ends.CUT)
    rows = [Row(env=env, ends=ends, abort_reason="x" if ends == 4 else None) for env, ends in enumerate(ways)]
    batch = make_batch(spec, rows)
    check(replaced(batch, "metric.laps", [None, 1.0, None, 3.0, None, None]), spec)
    check(replaced(batch, "metric.laps", [None] * 6), spec)
    for row in (0, 4, 5):
        values = [2.0 if at == row else None for at in range(6)]
        with pytest.raises(RejectedError, match=r"^rows: column 'metric.laps' has a value where the env ended no epi"):
            check(replaced(batch, "metric.laps", values), spec)


def test_what_a_policy_may_leave_out_may_be_null() -> None:
    spec = stream(extras=[Column("log_prob", (), FLOAT, nullable=True), Column("place", (2,), FLOAT, nullable=True)])
    batch = make_batch(spec, [Row(steps=2)])
    check(replaced(batch, "log_prob", [[None, 0.5]]), spec)
    check(replaced(batch, "place", [[[0.0, 1.0], None]]), spec)
    for name, values in (("log_prob", None), ("place", None), ("place", [[0.0, None], None])):
        with pytest.raises(RejectedError, match=rf"^rows: column '{name}' has nulls$"):
            check(replaced(batch, name, [values]), spec)
    with pytest.raises(RejectedError, match=r"^rows: column 'log_prob' does not hold L items in every row$"):
        check(replaced(batch, "log_prob", [[None]]), spec)


def test_a_null_item_of_an_info_is_none_to_be_named() -> None:
    spec = stream(infos=[INFO])
    info = np.ma.MaskedArray(np.arange(6, dtype=np.int16).reshape(3, 2), [[False, False], [True, True], [False, False]])
    batch = make_batch(spec, [Row()], values={"info.place": info})
    check(batch, spec)
    assert batch.column("info.place").to_pylist() == [[[0, 1], None, [4, 5]]]
    # Arrow itself leaves nulls under a null item.
    check(replaced(batch, "info.place", batch.column("info.place").to_pylist()), spec)
    with pytest.raises(RejectedError, match=r"^rows: column 'info.place' has nulls$"):
        check(replaced(batch, "info.place", [[[0, None], None, [4, 5]]]), spec)


def test_an_info_has_an_item_with_each_observation() -> None:
    spec = stream(infos=[INFO])
    batch = make_batch(spec, [Row(steps=2)])
    short = batch.column("info.place")[:1].to_pylist()[0][:2]
    with pytest.raises(RejectedError, match=r"^rows: column 'info.place' does not hold L \+ 1 items in every row$"):
        check(replaced(batch, "info.place", [short]), spec)


@pytest.mark.parametrize("name", ["observation", "action", "reward", "logits"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_lists_that_do_not_lie_end_to_end_are_named(name: str, side: str) -> None:
    array = BATCH.column(name)
    items = pa.concat_arrays([array.values, array.values[:1]])
    offsets = np.asarray(array.offsets) + (side == "before")
    assert rejection(with_items(name, offsets.tolist(), items)) == (
        f"rows: lists of column {name!r} do not lie end to end"
    )


@pytest.mark.parametrize(("name", "what"), [("observation", "L + 1"), ("action", "L"), ("logits", "L")])
def test_lists_of_another_length_are_named(name: str, what: str) -> None:
    array = BATCH.column(name)
    offsets = array.offsets.to_pylist()
    offsets[1] += 1
    assert rejection(with_items(name, offsets, array.values)) == (
        f"rows: column {name!r} does not hold {what} items in every row"
    )


def test_an_action_outside_of_its_space_is_named() -> None:
    actions = np.array([0, 1, 2, 0, 1, 2, 3, 0], np.int8)
    batch = make_batch(SPEC, ROWS, values={"action": actions})
    assert rejection(batch) == "rows: column 'action' has a value outside 0 … 2: 0 … 3"


@pytest.mark.parametrize(
    ("name", "value"),
    [("observation.b", [2, 0]), ("observation.d~1e", [0, 7]), ("action.0", 3), ("action.1.on", [2])],
)
def test_a_leaf_that_is_outside_of_its_space_is_named(name: str, value: Any) -> None:
    spec = stream(
        Dict((("b", MultiBinary((2,))), ("d.e", MultiDiscrete((2,), (2, 2), (0, 5))), ("t", Text(1)))),
        Tuple((Discrete(3), Dict((("on", Box((1,), np.dtype(bool))),)))),
    )
    batch = make_batch(spec, [Row(steps=3)])
    check(batch, spec)
    items = batch.column(name).to_pylist()[0]
    items[1] = value
    with pytest.raises(RejectedError, match=f"^rows: column '{name}' has a value "):
        check(replaced(batch, name, [items]), spec)


def test_an_array_that_arrow_finds_damaged_is_invalid() -> None:
    damaged = with_items("action", [0, 2, 1, 6, 8], BATCH.column("action").values)
    with pytest.raises(RejectedError, match=r"^invalid: Arrow finds it damaged: In column \d+: Invalid: ") as caught:
        check(damaged, SPEC)
    assert caught.value.reason == "invalid"


def test_text_that_is_no_utf8_is_invalid() -> None:
    text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
    )
    with pytest.raises(RejectedError, match=re.escape("invalid: Arrow finds it damaged")):
        check(replaced(make_batch(SPEC, [Row()]), "reset_options", text), SPEC)


def test_columns_are_read_from_batches_and_tables_alike() -> None:
    table = pa.Table.from_batches([BATCH, BATCH])
    assert chunks.fixed(BATCH, "env").tolist() == [0, 0, 0, 2]
    assert chunks.fixed(table, "env").tolist() == [0, 0, 0, 2] * 2
