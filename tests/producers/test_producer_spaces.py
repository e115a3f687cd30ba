from __future__ import annotations

import copy
import re
import string
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from hypothesis import given
from hypothesis import strategies as st

from penstock_producers.spaces import Role, batch_reader, batch_writer, from_gymnasium, snapshot
from penstock_schemas.columns import Column, list_column, list_values
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
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

BITS = gym.spaces.Box(0, 1, (3,), np.bool_)  # type: ignore[arg-type]  # gymnasium takes it, its types do not
NUMBERS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
CHARSET = "ab é漢😀~."
INT64 = st.integers(-(1 << 62), 1 << 62)


@st.composite
def boxes(draw: st.DrawFn) -> Any:
    dtype = np.dtype(draw(st.sampled_from((*NUMBERS, "bool"))))
    if dtype.kind == "f":
        low, high = -np.inf, np.inf
    elif dtype.kind == "b":
        low, high = 0, 1
    else:
        bounds: Any = np.iinfo(dtype.name)
        low, high = bounds.min, bounds.max
    return gym.spaces.Box(low, high, draw(SHAPES), dtype)


@st.composite
def multi_discretes(draw: st.DrawFn) -> Any:
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple))
    size = int(np.prod(shape))
    nvec = draw(st.lists(st.integers(1, 1 << 40), min_size=size, max_size=size))
    start = draw(st.lists(st.integers(-(1 << 40), 1 << 40), min_size=size, max_size=size))
    return gym.spaces.MultiDiscrete(np.reshape(nvec, shape), start=np.reshape(start, shape))


LEAVES = st.one_of(
    boxes(),
    st.builds(lambda n, start: gym.spaces.Discrete(n, start=start), st.integers(1, 1 << 62), INT64),
    multi_discretes(),
    SHAPES.filter(bool).map(gym.spaces.MultiBinary),
    st.integers(0, 5).map(lambda most: gym.spaces.Text(5, min_length=most, charset=CHARSET)),
)
SPACES: st.SearchStrategy[gym.Space[Any]] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.text(string.printable, max_size=3), inner, min_size=1, max_size=3).map(gym.spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(gym.spaces.Tuple),
    ),
    max_leaves=6,
)


def values(space: Any, data: st.DataObject) -> Any:
    """A value of the space; a box has any bytes: every NaN, infinity and subnormal of its dtype."""
    if isinstance(space, gym.spaces.Dict):
        return {key: values(inner, data) for key, inner in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(values(inner, data) for inner in space.spaces)
    if isinstance(space, gym.spaces.Box) and space.dtype != np.bool_:
        size = space.low.nbytes
        raw = data.draw(st.binary(min_size=size, max_size=size))
        return np.frombuffer(raw, space.dtype).reshape(space.shape)
    if isinstance(space, gym.spaces.Text):
        return data.draw(st.text(CHARSET + "\0", min_size=space.min_length, max_size=space.max_length))
    space.seed(data.draw(st.integers(0, 1000)))
    return space.sample()


def bits(value: Any) -> Any:
    return (value.dtype, np.shape(value), value.tobytes()) if not isinstance(value, str) else value


def through_arrow(column: Column, batch: NDArray[Any]) -> NDArray[Any]:
    array = list_column(column, batch, np.array([0, len(batch) // 2, len(batch)], np.int32))
    array.validate(full=True)
    assert array.type == column.field.type
    return list_values(array, column)


@given(SPACES, st.integers(1, 3), st.data())
def test_values_return_from_a_batch_over_arrow_to_a_batch_bit_for_bit(
    space: gym.Space[Any], n: int, data: st.DataObject
) -> None:
    described = from_gymnasium(space, "action")
    assert space_from_json(described.to_json()) == described
    items = [values(space, data) for _ in range(n)]
    empty: Any = create_empty_array(space, n)
    batch = concatenate(space, items, empty)

    parts = batch_reader(described)(batch)
    spaces = leaves(described)
    assert [(part.dtype, part.shape) for part in parts] == [(s.space.dtype, (n, *s.space.shape)) for s in spaces]
    columns = [Column.of(leaf, "action") for leaf in spaces]
    stored = tuple(through_arrow(*each) for each in zip(columns, parts, strict=True))
    back = batch_writer(described)(stored)

    batched = batch_space(space, n)
    if not any(isinstance(leaf.space, Box | Text) for leaf in spaces):
        assert back in batched
    returned = list(iterate(batched, back))
    assert len(returned) == n
    for item, other in zip(items, returned, strict=True):
        mine = [bits(part) for part in flatten(described, item)]
        theirs = [bits(part) for part in flatten(described, other)]
        assert mine == theirs


@given(SPACES, st.data())
def test_what_the_environment_gives_is_what_the_space_contains(space: gym.Space[Any], data: st.DataObject) -> None:
    described = from_gymnasium(space, "observation")
    space.seed(data.draw(st.integers(0, 1000)))
    empty: Any = create_empty_array(space, 1)
    batch = concatenate(space, [space.sample()], empty)
    for leaf, part in zip(leaves(described), batch_reader(described)(batch), strict=True):
        assert leaf.space.contains(part).all()


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (gym.spaces.Box(-1, 1, (3,), np.float64), Box((3,), np.dtype(np.float64), (-1.0,), (1.0,))),
        (gym.spaces.Box(0, 255, (4, 4, 3), np.uint8), Box((4, 4, 3), np.dtype(np.uint8), (0.0,), (255.0,))),
        (gym.spaces.Box(-np.inf, np.inf, ()), Box((), np.dtype(np.float32))),
        (
            gym.spaces.Box(np.array([[-1, -2], [0, 0]]), np.array([[1, 2], [0, np.inf]]), dtype=np.float64),
            Box((2, 2), np.dtype(np.float64), (-1.0, -2.0, 0.0, 0.0), (1.0, 2.0, 0.0, np.inf)),
        ),
        (BITS, Box((3,), np.dtype(np.bool_), (0.0,), (1.0,))),
        (gym.spaces.Discrete(3), Discrete(3)),
        (gym.spaces.Discrete(4, start=-2), Discrete(4, -2)),
        (
            gym.spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, -1], [2, 3]])),
            MultiDiscrete((2, 2), (2, 3, 4, 5), (0, -1, 2, 3)),
        ),
        (gym.spaces.MultiDiscrete([2, 3], dtype=np.int8), MultiDiscrete((2,), (2, 3), (0, 0), np.dtype(np.int8))),
        (gym.spaces.MultiBinary((2, 3)), MultiBinary((2, 3))),
        (gym.spaces.Text(5, min_length=2, charset="ba"), Text(5, 2, "ab")),
        (
            gym.spaces.Dict({"b": gym.spaces.Tuple([gym.spaces.Discrete(2), BITS]), "a": gym.spaces.Text(1)}),
            Dict(
                (
                    ("a", Text(1, 1, "".join(sorted(string.ascii_letters + string.digits)))),
                    ("b", Tuple((Discrete(2), Box((3,), np.dtype(np.bool_), (0.0,), (1.0,))))),
                )
            ),
        ),
    ],
)
def test_spaces_are_described(space: gym.Space[Any], expected: object) -> None:
    assert from_gymnasium(space, "observation") == expected


@given(SPACES)
def test_spaces_that_look_alike_are_described_alike(space: gym.Space[Any]) -> None:
    twin = copy.deepcopy(space)
    assert twin is not space
    assert snapshot(twin) == snapshot(space)
    assert from_gymnasium(twin, "action") == from_gymnasium(space, "action")


def change(array: NDArray[Any]) -> None:
    array[-1] = 1


@pytest.mark.parametrize(
    ("space", "changed"),
    [
        (gym.spaces.Box(0, 2, (2,)), lambda box: change(box.low)),
        (gym.spaces.Box(0, 2, (2,)), lambda box: change(box.high)),
        (gym.spaces.Discrete(3), lambda space: setattr(space, "n", 2)),
        (gym.spaces.Discrete(3), lambda space: setattr(space, "start", 2)),
        (gym.spaces.MultiDiscrete([2, 3]), lambda many: change(many.nvec)),
        (gym.spaces.MultiDiscrete([2, 3]), lambda many: change(many.start)),
        (gym.spaces.MultiBinary(3), lambda bits: setattr(bits, "_shape", (2,))),
        (gym.spaces.Text(3), lambda text: setattr(text, "max_length", 2)),
    ],
)
def test_a_space_that_was_changed_in_place_looks_otherwise(space: gym.Space[Any], changed: Any) -> None:
    outer = gym.spaces.Dict({"x": gym.spaces.Discrete(2), "y": gym.spaces.Tuple([BITS, space])})
    looked, described = snapshot(outer), from_gymnasium(outer, "action")
    changed(space)
    assert from_gymnasium(outer, "action") != described
    assert snapshot(outer) != looked


def test_a_space_that_is_not_mapped_looks_like_none_that_is() -> None:
    assert snapshot(Special(0, 1)) is None


class Special(gym.spaces.Box):
    """A subclass may mean its values otherwise."""


class SpecialDict(gym.spaces.Dict):
    """The same."""


@pytest.mark.parametrize(("role", "remedy"), [("observation", "TransformObservation"), ("action", "TransformAction")])
@pytest.mark.parametrize(
    ("space", "name"),
    [
        (gym.spaces.Graph(gym.spaces.Discrete(2), None), "gymnasium.spaces.graph.Graph"),
        (gym.spaces.Sequence(gym.spaces.Discrete(2)), "gymnasium.spaces.sequence.Sequence"),
        (gym.spaces.OneOf([gym.spaces.Discrete(2)]), "gymnasium.spaces.oneof.OneOf"),
        (Special(0, 1), f"{__name__}.Special"),
        (SpecialDict({"a": gym.spaces.Discrete(2)}), f"{__name__}.SpecialDict"),
    ],
)
def test_a_space_that_is_not_mapped_is_refused_by_name_and_path_with_its_remedy(
    space: gym.Space[Any], name: str, role: Role, remedy: str
) -> None:
    told = (
        f"{name} is not mapped to Arrow, only Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict and Tuple are, and "
        f"no classes derived from them: wrap the environment, with gymnasium.wrappers.{remedy} for example"
    )
    nested = gym.spaces.Dict({"x": gym.spaces.Discrete(2), "y": gym.spaces.Tuple([BITS, space])})
    for outer, where in ((space, ""), (nested, " at 'y.1'")):
        with pytest.raises(SpaceError, match=f"^{re.escape(f'{role} space{where}: {told}')}$"):
            from_gymnasium(outer, role)
    with pytest.raises(SpaceError, match=rf"^environment 'some:env': {role} space at 'y\.1': "):
        from_gymnasium(nested, role, "'some:env'")


def wide(dtype: Any) -> gym.Space[Any]:
    space = gym.spaces.Box(0, 1, (2,))
    space.dtype = np.dtype(dtype)
    return space


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (wide(np.longdouble), "Box of dtype float128: not mapped to Arrow; use bool or float16"),
        (wide(np.complex64), "Box of dtype complex64: not mapped to Arrow; use bool or float16"),
        (gym.spaces.Box(0, 1, (3, 0)), "Box of shape (3, 0): an empty box holds nothing to record"),
        (gym.spaces.Discrete((1 << 63) - 1, start=5), "its values do not fit into 64 bits"),
        (gym.spaces.Dict({}), "Dict without keys"),
        (gym.spaces.Tuple([]), "Tuple without spaces"),
    ],
)
def test_a_space_that_arrow_does_not_have_is_refused_with_its_path(space: gym.Space[Any], told: str) -> None:
    with pytest.raises(SpaceError, match=f"^observation space at 'inner.0': .*{re.escape(told)}"):
        from_gymnasium(gym.spaces.Dict({"inner": gym.spaces.Tuple([space])}), "observation")


def test_a_key_that_is_no_string_is_refused() -> None:
    space = gym.spaces.Dict({"a": gym.spaces.Discrete(2)})
    space.spaces = {1: gym.spaces.Discrete(2)}  # type: ignore[dict-item]  # a wrong key on purpose
    with pytest.raises(SpaceError, match=r"^action space: Dict with the keys \[1\]: keys are strings"):
        from_gymnasium(space, "action")


def test_observations_pass_without_a_copy_and_actions_as_copies() -> None:
    space = from_gymnasium(gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": BITS}), "action")
    batch = {"a": np.array([0, 1]), "b": np.ones((2, 3), np.bool_)}
    parts = batch_reader(space)(batch)
    back = batch_writer(space)(parts)
    for part, (key, value) in zip(parts, batch.items(), strict=True):
        assert part is value
        assert np.array_equal(back[key], value)
        assert not np.shares_memory(back[key], value)
