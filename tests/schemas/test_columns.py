from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_schemas.columns import (
    Column,
    item_column,
    item_values,
    list_column,
    list_offsets,
    list_valid,
    list_values,
)
from penstock_schemas.errors import SpaceError
from penstock_schemas.ipc import to_ipc
from penstock_schemas.spaces import Box, Dict, Discrete, Text, leaves
from penstock_schemas.spaces.arrays import WIRE_DTYPES
from tests.schemas.random_spaces import SHAPES, TEXTS, same_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

FLOAT = np.dtype(np.float32)
OBJECT = np.dtype(object)


@st.composite
def columns(draw: st.DrawFn) -> Column:
    """A column of any kind."""
    overlap, nullable = draw(st.booleans()), draw(st.booleans())
    if draw(st.integers(0, 3)) == 0:
        return Column("c", (), OBJECT, overlap, nullable)
    return Column("c", draw(SHAPES), np.dtype(draw(st.sampled_from(WIRE_DTYPES))), overlap, nullable)


@st.composite
def filled(draw: st.DrawFn) -> tuple[Column, NDArray[Any], NDArray[np.bool_] | None, NDArray[np.int32]]:
    """A column, items of any bits, which of them are there, and offsets of rows, some of them empty."""
    column, count = draw(columns()), draw(st.integers(0, 6))
    if column.is_text:
        items = np.empty(count, object)
        items[:] = draw(st.lists(TEXTS, min_size=count, max_size=count))
    else:
        size = count * prod(column.shape) * column.dtype.itemsize
        items = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), column.dtype)
        items = items.reshape(count, *column.shape)
    valid = None
    if column.nullable:
        valid = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    cuts = sorted(draw(st.lists(st.integers(0, count), max_size=3)))
    return column, items, valid, np.array([0, *cuts, count], np.int32)


def assert_holds(array: pa.ListArray, column: Column, items: NDArray[Any], valid: NDArray[np.bool_] | None) -> None:
    """These items, bit for bit where they are there."""
    there = np.ones(len(items), np.bool_) if valid is None else valid
    found, values = list_valid(array), list_values(array, column)
    assert (found is None) == there.all()
    assert (np.ones(len(items), np.bool_) if found is None else found).tolist() == there.tolist()
    assert (values.shape, values.dtype) == (items.shape, items.dtype)
    assert same_bits(values[there], items[there])
    if column.is_text:
        assert all(text is None for text in values[~there])


@given(filled())
def test_items_return_bit_for_bit(drawn: tuple[Column, NDArray[Any], Any, NDArray[np.int32]]) -> None:
    column, items, valid, offsets = drawn
    array = list_column(column, items, offsets, valid)
    array.validate(full=True)
    assert array.type == column.field.type
    assert np.array_equal(list_offsets(array), offsets)
    assert_holds(array, column, items, valid)


@given(filled())
def test_items_return_from_a_message(drawn: tuple[Column, NDArray[Any], Any, NDArray[np.int32]]) -> None:
    column, items, valid, offsets = drawn
    batch = pa.record_batch([list_column(column, items, offsets, valid)], schema=pa.schema([column.field]))
    with pa.ipc.open_stream(to_ipc(batch)) as reader:
        back = reader.read_next_batch()
    assert back.schema.equals(batch.schema, check_metadata=True)
    assert_holds(back.column(0), column, items, valid)


@given(filled(), st.data())
def test_rows_that_are_cut_out_or_picked_keep_their_items(
    drawn: tuple[Column, NDArray[Any], Any, NDArray[np.int32]], data: st.DataObject
) -> None:
    column, items, valid, offsets = drawn
    array, rows = list_column(column, items, offsets, valid), len(offsets) - 1
    start = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(start + 1, rows))
    at = slice(offsets[start], offsets[stop])
    assert_holds(array[start:stop], column, items[at], None if valid is None else valid[at])
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), np.bool_)
    kept = np.repeat(keep, np.diff(offsets))
    assert_holds(array.filter(pa.array(keep)), column, items[kept], None if valid is None else valid[kept])


@given(filled(), st.data())
def test_items_of_which_a_row_has_one_return_bit_for_bit_from_a_message(
    drawn: tuple[Column, NDArray[Any], NDArray[np.bool_] | None, Any], data: st.DataObject
) -> None:
    column, items, valid, _ = drawn
    array = item_column(column, items, valid)
    array.validate(full=True)
    assert array.type == column.row_field.type
    start = data.draw(st.integers(0, len(items)))
    batch = pa.record_batch([array], schema=pa.schema([column.row_field])).slice(start)
    with pa.ipc.open_stream(to_ipc(batch)) as reader:
        back = reader.read_next_batch()
    assert back.schema.equals(batch.schema, check_metadata=True)
    there = np.ones(len(items), np.bool_) if valid is None else valid
    for read in (back.column(0), batch.column(0), batch.filter(pa.array(np.ones(len(batch), np.bool_))).column(0)):
        assert read.is_valid().to_pylist() == there[start:].tolist()
        assert same_bits(item_values(read, column)[there[start:]], items[start:][there[start:]])


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_nan_and_infinity_keep_their_bits(name: str) -> None:
    dtype = np.dtype(name)
    items = np.array([[np.nan, -np.nan], [np.inf, -np.inf], [-0.0, 0.0]], dtype)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    items.view(unsigned)[0, 1] |= 1
    column = Column("c", (2,), dtype)
    back = list_values(list_column(column, items, np.array([0, 3], np.int32)), column)
    assert np.array_equal(back.view(unsigned), items.view(unsigned))


def test_items_that_are_not_contiguous_travel_in_c_order() -> None:
    items = np.arange(24, dtype=np.int16).reshape(2, 3, 4).transpose(0, 2, 1)
    column = Column("c", (4, 3), items.dtype)
    array = list_column(column, items, np.array([0, 2], np.int32))
    assert array.to_pylist() == [[item.ravel().tolist() for item in items]]
    assert np.array_equal(list_values(array, column), items)


@pytest.mark.parametrize("valid", [None, np.array([True, True, True])], ids=["not asked", "all there"])
def test_contiguous_items_are_not_copied(valid: NDArray[np.bool_] | None) -> None:
    items = np.arange(6, dtype=np.float32).reshape(3, 2)
    column = Column("c", (2,), items.dtype, nullable=True)
    back = list_values(list_column(column, items, np.array([0, 3], np.int32), valid), column)
    assert np.shares_memory(back, items)


def test_items_of_another_dtype_are_taken_as_the_columns_own() -> None:
    column = Column("c", (), np.dtype(np.int8))
    array = list_column(column, np.array([0, 1, 2], np.int64), np.array([0, 3], np.int32))
    assert array.type == column.field.type
    assert array.to_pylist() == [[0, 1, 2]]


@given(columns())
def test_columns_return_from_json(column: Column) -> None:
    described = json.loads(json.dumps(column.to_json()))
    assert Column.from_json(described, overlap=column.overlap, nullable=column.nullable) == column


def test_the_field_says_what_the_items_are() -> None:
    plain = Column("c", (3, 2), FLOAT).field
    assert (plain.nullable, plain.metadata) == (False, {b"shape": b"[3, 2]", b"dtype": b"float32"})
    assert plain.type.value_field == pa.field(
        "item", pa.list_(pa.field("item", pa.float32(), nullable=False), 6), nullable=False
    )
    nullable = Column("info.note", (), OBJECT, overlap=True, nullable=True).field
    assert (nullable.nullable, nullable.metadata) == (False, {b"shape": b"[]", b"dtype": b"str"})
    assert nullable.type.value_field == pa.field("item", pa.string())


def test_the_field_of_a_column_that_has_an_item_a_row_is_no_list() -> None:
    plain = Column("state.h", (3, 2), FLOAT).row_field
    assert (plain.nullable, plain.metadata) == (False, {b"shape": b"[3, 2]", b"dtype": b"float32"})
    assert plain.type == pa.list_(pa.field("item", pa.float32(), nullable=False), 6)
    nullable = Column("metric.score", (), np.dtype(np.float64), nullable=True).row_field
    assert (nullable.nullable, nullable.type) == (True, pa.float64())


def test_a_description_says_that_items_may_be_absent_only_where_that_is_news() -> None:
    described = Column("c", (), FLOAT, nullable=True).to_json()
    assert described == {"name": "c", "shape": [], "dtype": "float32", "nullable": True}
    for column in (Column("c", (), FLOAT), Column("c", (), FLOAT, overlap=True, nullable=True)):
        assert column.to_json() == {"name": "c", "shape": [], "dtype": "float32"}


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="a column named 5: a name is text"):
        Column.from_json({"name": 5, "shape": [], "dtype": "float32"})


def test_a_leaf_is_a_column_of_its_wire_dtype() -> None:
    space = Dict((("on", Box((2,), np.dtype(bool))), ("go", Discrete(5)), ("say", Text(3))))
    made = [Column.of(leaf, "observation", overlap=True) for leaf in leaves(space)]
    assert made == [
        Column("observation.on", (2,), np.dtype(np.uint8), overlap=True),
        Column("observation.go", (), np.dtype(np.int8), overlap=True),
        Column("observation.say", (), OBJECT, overlap=True, max_item_bytes=Text(3).item_bytes),
    ]
    assert [column.item_bytes for column in made] == [2, 1, 16]


@pytest.mark.parametrize(
    ("column", "size"),
    [
        (Column("c", (3, 2), FLOAT), 24),
        (Column("c", (3, 2), FLOAT, nullable=True), 25),
        (Column("c", (), OBJECT), 64),
        (Column("c", (), OBJECT, nullable=True), 65),
        (Column("c", (), OBJECT, max_item_bytes=5), 5),
    ],
)
def test_an_item_weighs_what_is_said(column: Column, size: int) -> None:
    assert column.item_bytes == size


@pytest.mark.parametrize(
    ("shape", "dtype", "told"),
    [
        ((), "bool", "column 'c' of dtype bool: use one of float16, float32"),
        ((), "complex64", "column 'c' of dtype complex64: use one of float16, float32"),
        ((), ">f4", "column 'c' of dtype >f4: use one of float16, float32"),
        ((), "U3", "column 'c' of dtype <U3: use one of float16, float32"),
        ((0,), "float32", "column 'c' of shape (0,): every extent is at least 1"),
        ((2, -1), "float32", "column 'c' of shape (2, -1): every extent is at least 1"),
        ((2,), "object", "column 'c' of strings of shape (2,): a string has no shape"),
    ],
)
def test_a_column_that_cannot_be_is_refused(shape: tuple[int, ...], dtype: str, told: str) -> None:
    with pytest.raises(SpaceError) as caught:
        Column("c", shape, np.dtype(dtype))
    assert str(caught.value).startswith(told)
