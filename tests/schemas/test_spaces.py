from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_schemas.errors import SpaceError
from penstock_schemas.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Text,
    Tuple,
    flatten,
    leaves,
    space_from_json,
    unflatten,
)
from penstock_schemas.spaces.arrays import WIRE_DTYPES
from tests.schemas.random_spaces import discretes, items_of, leaf_spaces, multi_discretes, spaces

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_schemas.spaces import LeafSpace, Space

FLOAT = np.dtype(np.float32)
NAN, INF = np.nan, np.inf
NESTED = Dict(
    (("b", Tuple((Discrete(3), Text(4)))), ("a", Dict((("x.y", Box((2,), FLOAT)), ("~", MultiBinary((1,)))))))
)


# To JSON and back.


@given(spaces)
def test_spaces_return_from_json(space: Space) -> None:
    assert space_from_json(json.loads(json.dumps(space.to_json(), allow_nan=False))) == space


@pytest.mark.parametrize("name", ["Graph", "Sequence", "OneOf", "Fancy"])
def test_a_space_that_is_not_mapped_is_refused_by_name(name: str) -> None:
    with pytest.raises(SpaceError, match=rf"^space type '{name}': this version of Penstock does not map it to Arrow$"):
        space_from_json({"type": "Tuple", "spaces": [{"type": name}]})


# Trees.


def test_leaves_stand_in_the_trees_order_under_their_paths() -> None:
    found = [(leaf.path, type(leaf.space).__name__) for leaf in leaves(NESTED)]
    assert found == [
        (("b", "0"), "Discrete"),
        (("b", "1"), "Text"),
        (("a", "x.y"), "Box"),
        (("a", "~"), "MultiBinary"),
    ]
    names = [leaf.name("observation") for leaf in leaves(NESTED)]
    assert names == ["observation.b.0", "observation.b.1", "observation.a.x~1y", "observation.a.~0"]


def test_a_leaf_is_its_own_and_keeps_the_roots_name() -> None:
    (leaf,) = leaves(Discrete(2))
    assert (leaf.path, leaf.space, leaf.name("action")) == ((), Discrete(2), "action")


@given(spaces)
def test_no_two_leaves_share_a_name(space: Space) -> None:
    names = [leaf.name("observation") for leaf in leaves(space)]
    assert len(set(names)) == len(names)


@given(spaces)
def test_what_is_flattened_unflattens_to_the_same(space: Space) -> None:
    numbers = range(len(leaves(space)))
    structured = unflatten(space, numbers)
    assert flatten(space, structured) == tuple(numbers)
    assert unflatten(space, flatten(space, structured)) == structured


def test_the_structure_is_dicts_and_tuples() -> None:
    assert unflatten(NESTED, "wxyz") == {"b": ("w", "x"), "a": {"x.y": "y", "~": "z"}}
    assert unflatten(Discrete(2), [5]) == 5
    # Keys are found by name, whatever their order in the value.
    assert flatten(NESTED, {"a": {"~": 4, "x.y": 3}, "b": (1, 2)}) == (1, 2, 3, 4)


@pytest.mark.parametrize("value", [{"b": (1, 2)}, {"b": (1,), "a": {"x.y": 3, "~": 4}}, {"b": 1, "a": {}}, 7])
def test_a_value_of_another_structure_is_no_value(value: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        flatten(NESTED, value)


# What is of a space, and what can be stored as if it were.


@given(leaf_spaces, st.data())
def test_values_of_a_space_are_not_outside(space: LeafSpace, data: st.DataObject) -> None:
    values = data.draw(items_of(space, data.draw(st.integers(0, 4))))
    assert (values.shape[1:], values.dtype) == (space.shape, space.wire_dtype)
    assert space.outside(values) is None
    if not isinstance(space, Box):
        assert space.contains(values).tolist() == [True] * len(values)


UNIT = Box((2,), FLOAT, (0.0, -1.0), (1.0, INF))
BYTES = Box((), np.dtype(np.uint8), (0.0,), (255.0,))
TENS = Box((), np.dtype(np.int64), (-10.0,), (10.0,))


@pytest.mark.parametrize(
    ("space", "value", "inside"),
    [
        *((UNIT, value, True) for value in ([0, 0], [1, INF], [0.5, -1])),
        *((UNIT, value, False) for value in ([-0.1, 0], [1.1, 0], [0, -1.1], [NAN, 0], [0, NAN], [-INF, 0])),
        *((Box((), FLOAT), value, True) for value in (-INF, INF, 0, 3e38)),
        (Box((), FLOAT), NAN, False),
        *((BYTES, value, True) for value in (0, 255)),
        *((TENS, value, abs(value) <= 10) for value in (-11, -10, 10, 11, -(1 << 63), (1 << 63) - 1)),
        *((Box((), np.dtype(bool)), value, True) for value in (False, True)),
        *((Discrete(4, -2), value, -2 <= value <= 1) for value in (-3, -2, 1, 2, 1 << 40)),
        *((MultiDiscrete((2,), (2, 3), (0, 5)), [0, value], 5 <= value <= 7) for value in (4, 5, 7, 8)),
        (MultiDiscrete((2,), (2, 3), (0, 5)), [2, 5], False),
        *((MultiBinary((2,)), [1, value], value in {0, 1}) for value in (-1, 0, 1, 2)),
        *((Text(3, 1, "ab"), value, True) for value in ("a", "abb")),
        *((Text(3, 1, "ab"), value, False) for value in ("", "abba", "abc", 5, None, b"a")),
        *((Text(3), value, True) for value in ("", "é漢🙂", "\0")),
        (Text(3), "\ud800", False),
    ],
    ids=str,
)
def test_a_value_is_of_its_space_or_is_not(space: LeafSpace, value: Any, inside: bool) -> None:
    values = np.empty(2, object) if isinstance(space, Text) else np.zeros((2, *space.shape), _wide(space))
    fine = {"Text": "ab"}.get(type(space).__name__, 0)
    if isinstance(space, MultiDiscrete | Discrete):
        fine = np.reshape(space.start, space.shape)
    values[0], values[1] = fine, value
    assert space.contains(values).tolist() == [True, inside]


def _wide(space: LeafSpace) -> np.dtype[Any]:
    return space.dtype if isinstance(space, Box) else np.dtype(np.int64)


@pytest.mark.parametrize(
    ("space", "values", "told"),
    [
        (Discrete(4, -2), [-2, -3, 1], "a value outside -2 … 1: -3 … 1"),
        (Discrete(4, -2), [-2, 127, 1], "a value outside -2 … 1: -2 … 127"),
        (MultiDiscrete((2,), (2, 3), (0, 5)), [[0, 5], [1, 8]], "a value outside nvec [2, 3] from [0, 5]: [1, 8]"),
        (MultiBinary((2,)), [[0, 1], [1, 2]], "a value that is neither 0 nor 1: 0 … 2"),
        (MultiBinary((2,)), [[0, -1]], "a value that is neither 0 nor 1: -1 … 0"),
        (Box((1,), np.dtype(bool)), [[1], [2]], "a value of a bool above 1: 2"),
    ],
)
def test_what_is_outside_is_told(space: LeafSpace, values: Any, told: str) -> None:
    assert space.outside(np.array(values, space.wire_dtype)) == told


@pytest.mark.parametrize(
    "space", [Discrete(2), MultiDiscrete((1,), (2,), (0,)), MultiBinary((1,)), Text(1), Box((1,), np.dtype(bool))]
)
def test_no_value_at_all_is_of_every_space(space: LeafSpace) -> None:
    none = np.empty((0, *space.shape), space.wire_dtype)
    assert space.outside(none) is None
    assert space.contains(none).shape == (0,)


def test_bounds_of_boxes_and_lengths_of_texts_are_advice() -> None:
    assert UNIT.outside(np.array([[NAN, 9]], np.float32)) is None
    assert Text(2).outside(np.array(["abcd"], object)) is None


# What travels.


@given(discretes() | multi_discretes(), st.data())
def test_integers_travel_in_the_smallest_type_that_holds_them(
    space: Discrete | MultiDiscrete, data: st.DataObject
) -> None:
    if isinstance(space, Discrete):
        least, most = space.start, space.start + space.n - 1
    else:
        least = min(space.start)
        most = max(start + n - 1 for start, n in zip(space.start, space.nvec, strict=True))
    wire = np.iinfo(space.wire_dtype)
    assert wire.min <= least
    assert most <= wire.max
    smaller = [np.iinfo(name) for name in WIRE_DTYPES if "int" in name and np.iinfo(name).bits < wire.bits]
    assert not any(bounds.min <= least and most <= bounds.max for bounds in smaller)
    assert space.item_bytes == space.wire_dtype.itemsize * int(np.prod(space.shape))


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


def test_a_bool_travels_as_a_byte() -> None:
    box = Box((2, 3), np.dtype(bool))
    assert (box.wire_dtype, box.item_bytes) == (np.uint8, 6)


def test_a_text_takes_as_many_bytes_as_its_longest() -> None:
    assert Text(3).item_bytes == 4 + len("🙂🙂🙂".encode())


# What is refused.


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "longdouble", "object", "U3", "datetime64[s]", ">f4"])
def test_a_box_of_another_dtype_is_refused_by_name(dtype: str) -> None:
    refused = np.dtype(dtype)
    with pytest.raises(SpaceError) as caught:
        Box((2,), refused)
    told = f"Box of dtype {refused}: not mapped to Arrow; use bool or float16, float32"
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Box((3, 0), FLOAT), "Box of shape (3, 0): an empty box holds nothing to record; drop it"),
        (lambda: Discrete(0), "Discrete(0): a discrete space has at least one value"),
        (
            lambda: MultiDiscrete((2,), (2, 0), (0, 0)),
            "MultiDiscrete([2, 0]): each element has at least one value, and there is one",
        ),
        (
            lambda: MultiDiscrete((0,), (), ()),
            "MultiDiscrete([]): each element has at least one value, and there is one",
        ),
        (lambda: MultiDiscrete((2,), (2,), (0,)), "MultiDiscrete of shape (2,): 1 nvec and 1 starts"),
        (lambda: MultiBinary((0,)), "MultiBinary of shape (0,): it holds nothing to record; drop it"),
        (lambda: Text(1, 2), "Text of 2 to 1 characters: no string is of that length"),
        (lambda: Dict(()), "Dict without keys: it holds nothing to record; drop it"),
        (
            lambda: Dict((("a", Discrete(2)), ("a", Discrete(2)))),
            "Dict with the keys ['a', 'a']: keys are strings, each once",
        ),
        (lambda: Dict(((1, Discrete(2)),)), "Dict with the keys [1]: keys are strings, each once"),  # type: ignore[arg-type]  # that is the point
        (lambda: Tuple(()), "Tuple without spaces: it holds nothing to record; drop it"),
        (
            lambda: MultiDiscrete((1,), (2,), ((1 << 63) - 1,)).wire_dtype,
            f"MultiDiscrete(nvec=[2], start=[{(1 << 63) - 1}]): its values do not fit into 64 bits",
        ),
        *(
            (
                lambda n=n, start=start: Discrete(n, start).wire_dtype,
                f"Discrete(n={n}, start={start}): its values do not fit into 64 bits",
            )
            for n, start in ((2, (1 << 63) - 1), (1 << 64, 0), (1, -(1 << 63) - 1))
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object], told: str) -> None:
    with pytest.raises(SpaceError) as caught:
        make()
    assert str(caught.value) == told
