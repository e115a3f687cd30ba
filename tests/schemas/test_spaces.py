from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_schemas.chunks import list_column, list_offsets, list_values
from penstock_schemas.errors import SpaceError
from penstock_schemas.spaces import BOX_DTYPES, Box, Discrete, space_from_json, to_arrow, to_numpy
from penstock_schemas.stream import Column

SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)
BOX_NAMES = st.sampled_from(BOX_DTYPES)
BOUNDS = st.floats(allow_nan=False)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    shape = draw(SHAPES)
    bounds = st.one_of(st.lists(BOUNDS, min_size=1, max_size=1), st.lists(BOUNDS, min_size=4, max_size=4)).map(tuple)
    return Box(shape, np.dtype(draw(BOX_NAMES)), draw(bounds), draw(bounds))


@st.composite
def discretes(draw: st.DrawFn) -> Discrete:
    start = draw(INT64)
    return Discrete(draw(st.integers(1, (1 << 63) - start)), start)


@st.composite
def box_items(draw: st.DrawFn) -> tuple[Box, np.ndarray[Any, Any]]:
    """A box, and items of any bytes: every NaN, infinity and subnormal that the dtype has."""
    box = Box(draw(SHAPES), np.dtype(draw(BOX_NAMES)))
    items = draw(st.integers(0, 5))
    size = items * prod(box.shape) * box.dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    return box, np.frombuffer(raw, box.dtype).reshape(items, *box.shape)


@given(box_items())
def test_box_items_return_bit_for_bit(drawn: tuple[Box, np.ndarray[Any, Any]]) -> None:
    box, items = drawn
    array = to_arrow(items, box.shape, box.wire_dtype)
    back = to_numpy(array, box.shape)
    assert (back.shape, back.dtype) == (items.shape, items.dtype)
    assert back.tobytes() == items.tobytes()
    assert array.null_count == 0


@given(box_items(), st.data())
def test_list_columns_return_bit_for_bit(drawn: tuple[Box, np.ndarray[Any, Any]], data: st.DataObject) -> None:
    box, items = drawn
    cuts = sorted(data.draw(st.lists(st.integers(0, len(items)), max_size=3)))
    offsets = np.array([0, *cuts, len(items)], np.int32)
    column = Column("observation", box.shape, box.wire_dtype)
    array = list_column(column, items, offsets)
    array.validate(full=True)
    assert array.type == column.field.type
    assert np.array_equal(list_offsets(array), offsets)
    back = list_values(array, column)
    assert (back.shape, back.dtype) == (items.shape, items.dtype)
    assert back.tobytes() == items.tobytes()


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_nan_and_infinity_keep_their_bits(name: str) -> None:
    dtype = np.dtype(name)
    items = np.array([[np.nan, -np.nan], [np.inf, -np.inf], [-0.0, 0.0]], dtype)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    items.view(unsigned)[0, 1] |= 1
    back = to_numpy(to_arrow(items, (2,), dtype), (2,))
    assert np.array_equal(back.view(unsigned), items.view(unsigned))


def test_items_that_are_not_contiguous_travel_in_c_order() -> None:
    items = np.arange(24, dtype=np.int16).reshape(2, 3, 4).transpose(0, 2, 1)
    back = to_numpy(to_arrow(items, (4, 3), items.dtype), (4, 3))
    assert np.array_equal(back, items)


def test_contiguous_items_are_not_copied() -> None:
    items = np.arange(6, dtype=np.float32).reshape(3, 2)
    back = to_numpy(to_arrow(items, (2,), items.dtype), (2,))
    assert np.shares_memory(back, items)


@given(discretes(), st.data())
def test_discrete_values_return_in_the_smallest_integer(space: Discrete, data: st.DataObject) -> None:
    last = space.start + space.n - 1
    drawn = data.draw(st.lists(st.integers(space.start, last), max_size=4))
    values = np.array([space.start, last, *drawn], np.int64)
    back = to_numpy(to_arrow(values, space.shape, space.wire_dtype), space.shape)
    assert back.dtype == space.wire_dtype
    assert back.tolist() == values.tolist()
    assert space.outside(back) is None
    narrower = [name for name in BOX_DTYPES if "int" in name and np.dtype(name).itemsize < space.wire_dtype.itemsize]
    assert not any(np.iinfo(name).min <= space.start and last <= np.iinfo(name).max for name in narrower)


@pytest.mark.parametrize(
    ("n", "start", "name"),
    [
        (1, 0, "int8"),
        (128, 0, "int8"),
        (129, 0, "uint8"),
        (256, 0, "uint8"),
        (257, 0, "int16"),
        (2, -1, "int8"),
        (129, -1, "int8"),
        (130, -1, "int16"),
        (256, -128, "int8"),
        (1 << 16, 0, "uint16"),
        ((1 << 16) + 1, 0, "int32"),
        (1 << 32, 0, "uint32"),
        ((1 << 32) + 1, 0, "int64"),
        (1, -(1 << 63), "int64"),
    ],
)
def test_discrete_takes_the_smallest_integer_type(n: int, start: int, name: str) -> None:
    assert Discrete(n, start).wire_dtype == np.dtype(name)


@pytest.mark.parametrize("value", [-3, 2, 127])
def test_discrete_names_values_outside(value: int) -> None:
    outside = Discrete(4, start=-2).outside(np.array([-2, value, 1], np.int8))
    assert outside == f"a value outside -2 … 1: {min(-2, value)} … {max(1, value)}"


def test_no_value_at_all_is_of_every_space() -> None:
    assert Discrete(2).outside(np.empty(0, np.int8)) is None


def test_a_box_takes_values_beyond_its_bounds() -> None:
    box = Box((1,), np.dtype(np.float32), (0.0,), (1.0,))
    assert box.outside(np.array([[np.nan], [9]], np.float32)) is None


@given(st.one_of(boxes(), discretes()))
def test_spaces_return_from_json(space: Box | Discrete) -> None:
    assert space_from_json(space.to_json()) == space


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "longdouble", "object", "U3", "bool", "datetime64[s]"])
def test_a_box_of_another_dtype_is_refused_by_name(dtype: str) -> None:
    refused = np.dtype(dtype)
    with pytest.raises(SpaceError) as caught:
        Box((2,), refused)
    assert str(caught.value).startswith(f"Box of dtype {refused}: not mapped to Arrow; use one of float16, float32")


def test_an_empty_box_is_refused() -> None:
    with pytest.raises(SpaceError, match=r"^Box of shape \(3, 0\): an empty box holds nothing to record; drop it$"):
        Box((3, 0), np.dtype(np.float32))


def test_a_discrete_space_without_values_is_refused() -> None:
    with pytest.raises(SpaceError, match=r"^Discrete\(0\): a discrete space has at least one value$"):
        Discrete(0)


@pytest.mark.parametrize(("n", "start"), [(2, (1 << 63) - 1), (1 << 64, 0), (1, -(1 << 63) - 1)])
def test_a_discrete_space_past_64_bits_is_refused(n: int, start: int) -> None:
    with pytest.raises(SpaceError) as caught:
        _ = Discrete(n, start).wire_dtype
    assert str(caught.value) == f"Discrete(n={n}, start={start}): its values do not fit into 64 bits"


@pytest.mark.parametrize("name", ["Dict", "Tuple", "Graph", "MultiBinary"])
def test_a_space_that_is_not_mapped_is_refused_by_name(name: str) -> None:
    with pytest.raises(SpaceError, match=rf"^space type '{name}': this version of Penstock does not map it to Arrow$"):
        space_from_json({"type": name})
