"""Connectors: what each answers, which space it says that comes out, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_schemas.connectors import Seen, make_pipeline
from penstock_schemas.errors import PolicyError, PolicyRejectedError, SpaceError
from penstock_schemas.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    Text,
    Tuple,
    leaves,
)
from tests.schemas.test_connectors_equal import pipelines, values_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_schemas.connectors import Connector, Pipeline

ZOO = "tests.schemas.connector_zoo"
FLOAT32 = np.dtype(np.float32)
VECTOR = Box((2,), FLOAT32, (-1.0, 0.0), (1.0, 5.0))
IMAGE = Box((2, 3, 1), np.dtype(np.uint8), (0.0,), (255.0,))
NESTED = Dict((("camera", IMAGE), ("rest", Tuple((Discrete(3, -1), VECTOR)))))
ACTION = Discrete(3, 5)


def pipeline_of(space: Space, *described: Any, action: Space = ACTION) -> Pipeline:
    """Connectors, each a name or a name and its arguments."""
    named = [{"name": one} if isinstance(one, str) else {"name": one[0], "arguments": one[1]} for one in described]
    return make_pipeline(named, space, action)


def made(space: Space, name: str, action: Space = ACTION, **arguments: Any) -> Connector:
    return pipeline_of(space, (name, arguments), action=action).connectors[0]


def answer(
    connector: Connector,
    *observation: Any,
    age: Sequence[int] | None = None,
    action: Sequence[Any] = (),
    reward: Any = None,
    parameters: Any = None,
) -> tuple[NDArray[Any], ...]:
    n = len(observation[0])
    seen = Seen(
        observation,
        np.ones(n, np.int64) if age is None else np.array(age),
        tuple(action),
        np.zeros(n) if reward is None else np.asarray(reward),
        connector.parameters if parameters is None else parameters,
    )
    return connector(seen)


def test_normalize_takes_statistics_by_leaf() -> None:
    connector = made(NESTED, "normalize", epsilon=0.25, clip=2.0, only=["rest.1"])
    assert {name: (value.shape, value.dtype) for name, value in connector.parameters.items()} == {
        "mean.rest.1": ((2,), np.float64),
        "variance.rest.1": ((2,), np.float64),
    }
    camera, kind = np.zeros((2, 2, 3, 1), np.uint8), np.array([0, 1])
    values = np.array([[1.0, -9.0], [2.5, 3.0]], np.float32)
    parameters = {"mean.rest.1": np.array([1.0, 0.0]), "variance.rest.1": np.array([0.0, 8.75])}
    same_camera, same_kind, normalized = answer(connector, camera, kind, values, parameters=parameters)
    assert same_camera is camera
    assert same_kind is kind
    assert normalized.dtype == np.float32
    # Divided by sqrt(0.25) and by 3.
    np.testing.assert_array_equal(normalized, np.array([[0.0, -2.0], [2.0, 1.0]], np.float32))
    assert connector.space == Dict(
        (("camera", IMAGE), ("rest", Tuple((Discrete(3, -1), Box((2,), FLOAT32, (-2.0,), (2.0,))))))
    )


def test_normalize_does_nearly_nothing_before_the_first_version() -> None:
    connector = made(VECTOR, "normalize", clip=None)
    values = np.array([[0.5, 1e30], [-1e30, np.nan]], np.float32)
    np.testing.assert_allclose(answer(connector, values)[0], values)
    assert connector.space == Box((2,), FLOAT32)
    assert list(connector.parameters) == ["mean", "variance"]


def test_normalize_answers_floats_of_integers_too() -> None:
    connector = made(IMAGE, "normalize", clip=None)
    (normalized,) = answer(connector, np.full((1, 2, 3, 1), 200, np.uint8))
    assert normalized.dtype == np.float32
    np.testing.assert_allclose(normalized, 200.0)


def test_a_variance_below_0_is_refused() -> None:
    pipeline = pipeline_of(VECTOR, "flatten", "normalize")
    weights = dict(pipeline.weights)
    assert weights.keys() == {"connectors.1.mean", "connectors.1.variance"}
    pipeline.check(weights)
    weights["connectors.1.variance"] = np.array([1.0, -0.5])
    with pytest.raises(PolicyRejectedError, match=r"connector 1: variance has the value -0\.5"):
        pipeline.check(weights)


def test_parameters_act_from_their_loading_on() -> None:
    pipeline = pipeline_of(VECTOR, "normalize", "normalize")
    weights = {name: value + 1 for name, value in pipeline.weights.items()}
    pipeline.load(weights)
    assert all(np.array_equal(pipeline.weights[name], value) for name, value in weights.items())


@pytest.mark.parametrize(
    ("axis", "shape", "expected"),
    [
        (None, (3, 2, 2), [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]),
        (0, (6, 2), [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]),
        (-1, (2, 6), [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]),
    ],
)
def test_stack_lays_frames_along_an_axis_the_oldest_first(
    axis: int | None, shape: tuple[int, ...], expected: Any
) -> None:
    dtype = np.dtype(np.uint8)
    connector = made(Box((2, 2), dtype, (0.0, 1.0, 2.0, 3.0), (9.0,)), "stack", frames=3, axis=axis)
    assert connector.lookback == 2
    (stacked,) = answer(connector, np.arange(12, dtype=np.uint8).reshape(1, 3, 2, 2))
    np.testing.assert_array_equal(stacked, [expected])
    # Bounds go where their elements go.
    low = np.arange(12).reshape(3, 2, 2) % 4
    (bounds,) = answer(connector, low[np.newaxis].astype(np.uint8))
    assert connector.space == Box(shape, dtype, tuple(map(float, bounds.reshape(-1))), (9.0,))


@pytest.mark.parametrize(
    ("space", "axis", "stacked"),
    [
        (Discrete(3, -1, np.dtype(np.int32)), None, MultiDiscrete((2,), (3, 3), (-1, -1), np.dtype(np.int32))),
        (MultiDiscrete((2,), (2, 1 << 63), (0, -1)), None, MultiDiscrete((2, 2), (2, 1 << 63) * 2, (0, -1) * 2)),
        (MultiDiscrete((2,), (2, 3), (0, 1)), 0, MultiDiscrete((4,), (2, 3, 2, 3), (0, 1, 0, 1))),
        (MultiBinary((3,)), 0, MultiBinary((6,))),
    ],
)
def test_stacked_integers_stay_what_they_are(space: Space, axis: int | None, stacked: Space) -> None:
    assert made(space, "stack", frames=2, axis=axis).space == stacked


def test_stack_leaves_other_leaves_as_they_are_now() -> None:
    connector = made(NESTED, "stack", frames=2, only=["camera"])
    camera, kind, vector = np.zeros((1, 2, 2, 3, 1), np.uint8), np.array([[0, 1]]), np.arange(4.0).reshape(1, 2, 2)
    stacked, newest, same = answer(connector, camera, kind, vector)
    assert stacked.shape == (1, 2, 2, 3, 1)
    np.testing.assert_array_equal(newest, [1])
    np.testing.assert_array_equal(same, [[2.0, 3.0]])


def test_one_hot_counts_from_the_start() -> None:
    connector = made(Tuple((Discrete(3, -1), MultiDiscrete((2,), (2, 3), (5, 0)), VECTOR)), "one_hot")
    vector = np.zeros((2, 2), np.float32)
    first, second, same = answer(connector, np.array([-1, 1]), np.array([[6, 0], [5, 2]], np.int8), vector)
    np.testing.assert_array_equal(first, [[1, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(second, [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]])
    assert first.dtype == second.dtype == np.float32
    assert same is vector
    hot = [Box((size,), FLOAT32, (0.0,), (1.0,)) for size in (3, 5)]
    assert connector.space == Tuple((*hot, VECTOR))


def test_flatten_lays_leaves_side_by_side_within_their_bounds() -> None:
    connector = made(NESTED, "flatten")
    camera = np.arange(12, dtype=np.uint8).reshape(2, 2, 3, 1)
    (flat,) = answer(connector, camera, np.array([-1, 1]), np.array([[0.5, 4.0], [1.0, 2.0]], np.float32))
    np.testing.assert_array_equal(flat, [[*range(6), -1, 0.5, 4], [*range(6, 12), 1, 1, 2]])
    assert flat.dtype == np.float32
    assert connector.space == Box((9,), FLOAT32, (0.0,) * 6 + (-1.0, -1.0, 0.0), (255.0,) * 6 + (1.0, 1.0, 5.0))


def test_the_previous_action_is_one_hot_and_nothing_at_first() -> None:
    connector = made(VECTOR, "previous_action")
    (appended,) = answer(connector, np.ones((3, 2), np.float32), age=[0, 1, 2], action=[np.array([5, 5, 7])])
    np.testing.assert_array_equal(appended, [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 0, 1]])
    assert appended.dtype == np.float32
    assert connector.space == Box((5,), FLOAT32, (-1.0, 0.0, 0.0, 0.0, 0.0), (1.0, 5.0, 1.0, 1.0, 1.0))


def test_the_previous_action_of_floats_may_lie_outside_its_bounds() -> None:
    action = Dict((("push", Box((2,), FLOAT32, (-1.0,), (1.0,))), ("flags", MultiBinary((2,)))))
    connector = made(VECTOR, "previous_action", action)
    drawn = [np.array([[3.0, -3.0]], np.float32), np.array([[1, 0]], np.int8)]
    (appended,) = answer(connector, np.ones((1, 2), np.float32), action=drawn)
    np.testing.assert_array_equal(appended, [[1, 1, 3, -3, 1, 0]])
    infinity = (np.inf, np.inf)
    assert connector.space == Box(
        (6,), FLOAT32, (-1.0, 0.0, -np.inf, -np.inf, 0.0, 0.0), (1.0, 5.0, *infinity, 1.0, 1.0)
    )


def test_the_previous_reward_comes_in_the_observation_s_dtype() -> None:
    connector = made(VECTOR, "previous_reward")
    (appended,) = answer(connector, np.ones((2, 2), np.float32), age=[0, 4], reward=[0.0, 0.1])
    np.testing.assert_array_equal(appended, np.array([[1, 1, 0], [1, 1, 0.1]], np.float32))
    assert connector.space == Box((3,), FLOAT32, (-1.0, 0.0, -np.inf), (1.0, 5.0, np.inf))


def test_cast_makes_boxes_of_numbers() -> None:
    connector = made(
        Tuple((Discrete(3, -1), Box((1,), np.dtype(np.float64), (-1e300,), (0.1,)))), "cast", dtype="float32"
    )
    kind, value = answer(connector, np.array([1]), np.array([[1e300]]))
    assert (kind.dtype, value.dtype) == (FLOAT32, FLOAT32)
    assert value[0, 0] == np.inf
    tenth = float(np.float32(0.1))
    assert connector.space == Tuple((Box((), FLOAT32, (-1.0,), (1.0,)), Box((1,), FLOAT32, (-np.inf,), (tenth,))))


def test_scale_divides_images_and_can_put_their_channels_first() -> None:
    image = np.arange(6, dtype=np.uint8).reshape(1, 2, 3, 1) * 51
    for first, shape in ((False, (2, 3, 1)), (True, (1, 2, 3))):
        connector = made(NESTED, "scale", channel_first=first)
        scaled, _, _ = answer(connector, image, np.array([0]), np.zeros((1, 2), np.float32))
        assert scaled.dtype == np.float32
        assert scaled.shape == (1, *shape)
        assert scaled.flags.c_contiguous
        np.testing.assert_allclose(scaled.reshape(-1), np.arange(6) / 5, rtol=1e-7)
        assert leaves(connector.space)[0].space == Box(shape, FLOAT32, (0.0,), (1.0,))


def test_channels_come_first_with_their_own_bounds() -> None:
    space = Box((1, 2, 2), np.dtype(np.uint8), (0.0, 51.0, 102.0, 153.0), (255.0,))
    connector = made(space, "scale", channel_first=True)
    low = tuple(float(np.float32(bound)) for bound in (0.0, 0.4, 0.2, 0.6))
    assert connector.space == Box((2, 1, 2), FLOAT32, low, (1.0,))


@settings(max_examples=40, deadline=None)
@given(pipelines(), st.integers(0, 1 << 32))
def test_what_comes_out_is_of_the_space_that_was_told(made: tuple[Pipeline, Space], seed: int) -> None:
    """Where what comes in is of its own space."""
    pipeline, action = made
    rng = np.random.default_rng(seed)
    inside = []
    for leaf in leaves(pipeline.observation):
        values = values_of(leaf.space, 64, rng)
        inside.append(values[leaf.space.contains(values)][:4])
    n = min(map(len, inside))
    values, age = tuple(leaf[:n] for leaf in inside), np.arange(n)
    drawn = tuple(values_of(leaf.space, n, rng) for leaf in leaves(action))
    for connector, parameters in zip(pipeline.connectors, pipeline.parameters, strict=True):
        if connector.lookback:
            values = tuple(np.repeat(leaf[:, np.newaxis], 1 + connector.lookback, axis=1) for leaf in values)
        with np.errstate(all="ignore"):
            drawn = tuple(np.nan_to_num(leaf) for leaf in drawn)
        values = connector(Seen(values, age, drawn, rng.standard_normal(n), parameters))
        for leaf, found in zip(leaves(connector.space), values, strict=True):
            assert (found.shape, found.dtype) == ((n, *leaf.space.shape), leaf.space.dtype)
            if not np.isnan(found).any():  # a difference of infinities
                assert leaf.space.contains(found).all(), leaf


@pytest.mark.parametrize(
    ("space", "one", "told"),
    [
        (Text(3), "stack", r"connector 0 'stack': observation is Text: it takes numbers"),
        (Discrete(2), ("stack", {"axis": 0}), "observation is Discrete of 2 values and dtype int64: it has no axis 0"),
        (Dict((("note", Text(3)), ("x", VECTOR))), "flatten", "observation.note is Text"),
        (Discrete(2), "normalize", "it takes boxes of numbers; put 'one_hot' or 'cast' before"),
        (VECTOR, "one_hot", r"Box of shape \(2,\) and dtype float32: it takes Discrete"),
        (Discrete(1 << 40), "one_hot", "its one-hot vector would have 1099511627776 numbers"),
        (NESTED, "previous_action", "observation.camera is Box .* put the connector 'flatten' before"),
        (IMAGE, "previous_reward", "it takes one flat box of floats"),
        (Box((2,), np.dtype(np.int64)), "previous_reward", "it takes one flat box of floats"),
        (VECTOR, ("cast", {"dtype": "int64"}), "not every value of it is one of int64"),
        (Box((2,), np.dtype(np.int16)), ("cast", {"dtype": "uint16"}), "not every value of it is one of uint16"),
        (VECTOR, "scale", "it takes images"),
        (Box((4,), np.dtype(np.uint8)), ("scale", {"channel_first": True}), r"\(height, width, channels\)"),
        (NESTED, ("scale", {"only": ["camera", "rest.1"]}), r"observation\.rest\.1 is Box .* it takes images"),
    ],
)
def test_a_space_that_is_not_taken_is_named(space: Space, one: Any, told: str) -> None:
    with pytest.raises(SpaceError, match=told):
        pipeline_of(space, one)


def test_an_action_that_is_not_taken_is_named() -> None:
    with pytest.raises(SpaceError, match=r"connector 1 'previous_action': action\.name is Text"):
        pipeline_of(VECTOR, "flatten", "previous_action", action=Dict((("name", Text(3)),)))
    with pytest.raises(SpaceError, match="would have 1099511627776 numbers"):
        pipeline_of(VECTOR, "previous_action", action=Discrete(1 << 40))


@pytest.mark.parametrize(
    ("described", "told"),
    [
        ("stack", "connectors 'stack': a list, in order"),
        (["stack"], "connector 0: 'stack' is no object with a name"),
        ([{"name": "flatten"}, {"arguments": {}}], "connector 1: .* is no object with a name"),
        ([{"name": "stack", "frames": 3}], "connector 0: .* is no object with a name, and arguments"),
        ([{"name": "stack", "arguments": [3]}], r"connector 0 'stack': arguments \[3\] are no object"),
        ([{"name": "stuck"}], "connector 0 'stuck': there are cast, flatten, normalize"),
        ([{"name": "stack", "arguments": {"frames": 0}}], "connector 0 'stack': frames=0: how many"),
        ([{"name": "stack", "arguments": {"frames": "4"}}], "frames='4'"),
        ([{"name": "stack", "arguments": {"axis": 0.5}}], "axis=0.5"),
        ([{"name": "stack", "arguments": {"depth": 3}}], r"cannot be made with {'depth': 3}: TypeError: .*'depth'"),
        ([{"name": "stack", "arguments": {"only": ["x"]}}], r"only=\['x'\]: .* the observation has \[''\]"),
        ([{"name": "stack", "arguments": {"only": []}}], r"only=\[\]"),
        ([{"name": "stack", "arguments": {"only": ""}}], "only=''"),
        ([{"name": "normalize", "arguments": {"epsilon": 0}}], "epsilon=0: a finite number above 0"),
        ([{"name": "normalize", "arguments": {"clip": float("nan")}}], "clip=nan"),
        ([{"name": "cast", "arguments": {"dtype": "complex64"}}], "dtype='complex64': there are float16"),
        ([{"name": "no.such.module:factory"}], "it cannot be imported: ModuleNotFoundError"),
        ([{"name": f"{ZOO}:absent"}], "it cannot be imported: AttributeError"),
        ([{"name": f"{ZOO}:NOT_CALLABLE"}], "cannot be made with {}: TypeError"),
        ([{"name": f"{ZOO}:no_connector"}], "the factory returned str, which has no 'space'"),
    ],
)
def test_a_connector_that_cannot_be_made_is_named(described: Any, told: str) -> None:
    with pytest.raises(PolicyError, match=told):
        make_pipeline(described, VECTOR, ACTION)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("space", "its space is str"),
        ("lookback", "its lookback is -1"),
        ("parameters", "its parameter 'factor' is float"),
        ("argument", "cannot be made with .*: ZeroDivisionError: argument"),
        ("check", "check refused its own first parameters: ValueError: never content"),
        ("raising", "it raised for 3 rows: ArithmeticError: no"),
        ("writing", "it raised for 3 rows: ValueError: .*read-only"),
        ("dtype", r"for its leaf '' it answers \(3, 2\) of float64, not \(3, 2\) of float32"),
        ("shape", r"it answers \(3, 1\) of float32, not \(3, 2\) of float32"),
        ("list", "it answers list, not a tuple of 1 arrays"),
        ("two", "it answers 2 of them, not a tuple of 1"),
        ("batch", "a row comes out otherwise alone"),
    ],
)
def test_a_connector_of_the_user_s_is_tried_before_it_acts(wrong: str, told: str) -> None:
    with pytest.raises(PolicyError, match=f"connector 0 '{ZOO}:Scaled': .*{told}"):
        pipeline_of(VECTOR, (f"{ZOO}:Scaled", {"wrong": wrong}))
    assert pipeline_of(VECTOR, f"{ZOO}:Scaled").space == VECTOR


def test_a_connector_of_the_user_s_is_tried_in_any_space() -> None:
    everything = Dict(
        (("a", Text(3)), ("b", MultiDiscrete((1,), (1 << 63,), (-5,))), ("c", MultiBinary((2,))), ("d", VECTOR))
    )
    assert pipeline_of(everything, f"{ZOO}:nested", action=everything).space == Box((1,), FLOAT32)


def test_no_connectors_show_what_is_stored() -> None:
    pipeline = make_pipeline([], NESTED, ACTION)
    assert not pipeline
    assert pipeline.space is NESTED
    assert pipeline.weights == {}
