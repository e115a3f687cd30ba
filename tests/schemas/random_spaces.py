"""Random spaces and values, for property tests."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from penstock_schemas.spaces import Box, Dict, Discrete, LeafSpace, MultiBinary, MultiDiscrete, Space, Text, Tuple
from penstock_schemas.spaces.arrays import WIRE_DTYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
SOME_SHAPES = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)
BOX_NAMES = st.sampled_from((*WIRE_DTYPES, "bool"))
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
# Whatever can be written as UTF-8, and a few that separators, escapes and readers of C strings trip over.
TEXTS = st.text(max_size=6) | st.text("~.0é漢🙂\0\n", max_size=6)
KEYS = TEXTS


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    """A box of any dtype, shape and bounds."""
    shape = draw(SHAPES)
    of_one = st.floats(allow_nan=False).map(lambda bound: (bound,))
    of_each = st.lists(st.floats(allow_nan=False), min_size=prod(shape), max_size=prod(shape)).map(tuple)
    return Box(shape, np.dtype(draw(BOX_NAMES)), draw(of_one | of_each), draw(of_one | of_each))


@st.composite
def discretes(draw: st.DrawFn) -> Discrete:
    """A discrete space of any size, anywhere within 64 bits."""
    start = draw(INT64)
    return Discrete(draw(st.integers(1, (1 << 63) - start)), start, np.dtype(draw(st.sampled_from(["int32", "int64"]))))


@st.composite
def multi_discretes(draw: st.DrawFn) -> MultiDiscrete:
    """A multi-discrete space of elements of any size, within 64 bits."""
    shape = draw(SOME_SHAPES)
    start = draw(st.lists(INT64 | st.integers(-3, 3), min_size=prod(shape), max_size=prod(shape)))
    nvec = [
        draw(st.integers(1, 5) | st.integers(1, (1 << 63) - 1 - first)) if first < 1 << 62 else 1 for first in start
    ]
    return MultiDiscrete(shape, tuple(nvec), tuple(start))


multi_binaries = SOME_SHAPES.map(MultiBinary)


@st.composite
def texts(draw: st.DrawFn) -> Text:
    """A text space; some allow few characters only."""
    least = draw(st.integers(0, 2))
    return Text(draw(st.integers(max(least, 1), 6)), least, draw(st.none() | st.just("aé漢~.")))


leaf_spaces = st.one_of(boxes(), discretes(), multi_discretes(), multi_binaries, texts())


def _nested(inner: st.SearchStrategy[Space]) -> st.SearchStrategy[Space]:
    dicts = st.lists(st.tuples(KEYS, inner), min_size=1, max_size=3, unique_by=lambda item: item[0])
    tuples = st.lists(inner, min_size=1, max_size=3)
    return dicts.map(lambda items: Dict(tuple(items))) | tuples.map(lambda spaces: Tuple(tuple(spaces)))


spaces = st.recursive(leaf_spaces, _nested, max_leaves=6)


@st.composite
def items_of(draw: st.DrawFn, space: LeafSpace, count: int) -> NDArray[Any]:
    """So many values of a leaf, in its wire dtype; of a box any bytes: every NaN, infinity and subnormal there is."""
    match space:
        case Text():
            values = np.empty(count, object)
            characters = st.characters(codec="utf-8") if space.characters is None else st.sampled_from(space.characters)
            one = st.text(characters, min_size=space.min_length, max_size=space.max_length)
            values[:] = [draw(one) for _ in range(count)]
            return values
        case Discrete():
            last = space.start + space.n - 1
            drawn = draw(st.lists(st.integers(space.start, last), min_size=count, max_size=count))
            return np.array(drawn, space.wire_dtype)
        case MultiDiscrete():
            bounds = [(start, start + n - 1) for start, n in zip(space.start, space.nvec, strict=True)]
            one = st.tuples(*(st.integers(*bound) for bound in bounds))
            drawn = draw(st.lists(one, min_size=count, max_size=count))
            return np.array(drawn, space.wire_dtype).reshape(count, *space.shape)
        case MultiBinary():
            return _bits(draw, (count, *space.shape)).astype(space.wire_dtype)
        case _:
            shape = (count, *space.shape)
            if space.dtype == np.bool_:
                return _bits(draw, shape).astype(space.wire_dtype)
            size = prod(shape) * space.dtype.itemsize
            return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), space.dtype).reshape(shape)


def _bits(draw: st.DrawFn, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    size = prod(shape)
    drawn = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return np.array(drawn, np.bool_).reshape(shape)


def same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays are equal in shape, dtype and every bit, or text."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if one.dtype.kind == "O":
        return one.tolist() == other.tolist()
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()
