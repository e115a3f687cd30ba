from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_schemas.chunks import steps
from penstock_schemas.columns import Column
from penstock_schemas.sizes import row_bytes
from penstock_schemas.spaces import Discrete, Space, Text
from tests.schemas.batches import Row, make_batch, make_rows, stream
from tests.schemas.random_spaces import spaces

FLOAT = np.dtype(np.float32)
INFOS = (
    Column("info.note", (), np.dtype(object), overlap=True, nullable=True),
    Column("info.place", (2,), np.dtype(np.int16), overlap=True, nullable=True),
)
STATES = (Column("state.count", (), np.dtype(np.int8)), Column("state.memory", (2, 2), FLOAT))


def held(value: pa.Scalar) -> int:
    """The bytes of a value, an item at a time."""
    kind = value.type
    if pa.types.is_string(kind):
        return 4 + len((value.as_py() or "").encode())
    if pa.types.is_list(kind):
        return sum(held(item) for item in value.values)
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * int(kind.value_type.bit_width) // 8
    return int(kind.bit_width) // 8


@settings(deadline=None)
@given(st.integers(0, 1 << 32), spaces, spaces)
def test_a_row_is_as_large_as_its_values(seed: int, observation: Space, action: Space) -> None:
    generator = np.random.default_rng(seed)
    spec = stream(observation, action, infos=INFOS, states=STATES, metrics=["score"])
    rows = make_rows(generator, chunks=2)
    batch = make_batch(spec, rows, generator=generator)
    expected = [sum(held(column[at]) for column in batch.columns) for at in range(len(rows))]
    assert row_bytes(batch, spec, steps(batch)).tolist() == expected
    # However it was cut out of a larger one.
    part = batch.take(pa.array([len(rows) - 1, 0]))
    assert row_bytes(part, spec, steps(part)).tolist() == [expected[-1], expected[0]]
    later = batch.slice(1)
    assert row_bytes(later, spec, steps(later)).tolist() == expected[1:]


def test_no_rows_have_no_bytes() -> None:
    spec = stream()
    assert row_bytes(make_batch(spec, []), spec, np.empty(0, np.int32)).tolist() == []


def test_a_text_counts_its_bytes_and_not_its_characters() -> None:
    spec = stream(Text(3), Discrete(2))
    short, long = Row(env=0, steps=1), Row(env=1, steps=1)
    values = {"observation": np.array(["a", "b", "ü" * 1_000, "c"], object)}
    batch = make_batch(spec, [short, long], values=values)
    first, second = row_bytes(batch, spec, steps(batch)).tolist()
    assert second - first == 1_999
