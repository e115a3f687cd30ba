from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock_schemas.chunks import Ends
from penstock_schemas.columns import Column
from penstock_schemas.errors import SettingsError, SpaceError
from penstock_schemas.ipc import to_ipc
from penstock_schemas.spaces import Box, Dict, Discrete, MultiBinary, Text, Tuple
from penstock_schemas.stream import METADATA_KEY, RESERVED, ROW_FIELDS, StreamSpec
from tests.schemas.batches import Row, make_batch

FLOAT = np.dtype(np.float32)
SPEC = StreamSpec(
    stream="hopper",
    observation=Box((3, 2), FLOAT, (-np.inf, 0.0), (1.5,)),
    action=Discrete(5, start=-2),
    reward_dtype=np.dtype(np.float64),
    extras=(Column("log_prob", (), FLOAT, nullable=True), Column("logits", (5,), np.dtype(np.float16))),
    infos=(Column("info.mask", (5,), np.dtype(np.int8), overlap=True, nullable=True),),
    states=(Column("state.h", (7,), FLOAT), Column("state.c", (2, 3), FLOAT)),
    metrics=("score", "laps.done"),
    env={"id": "Hopper-v5", "kwargs": {"a": 1, "b": [True, None]}},
    policy={"factory": "m:f"},
)
NESTED = Dict((("pose", Box((3,), FLOAT)), ("said", Text(9))))
CHANGES: list[dict[str, Any]] = [
    {"stream": "hopper2"},
    {"observation": Box((2, 3), FLOAT, (-np.inf, 0.0), (1.5,))},
    {"observation": Box((3, 2), np.dtype(np.float64), (-np.inf, 0.0), (1.5,))},
    {"observation": Box((3, 2), FLOAT, (-np.inf, 0.25), (1.5,))},
    {"observation": Box((3, 2), FLOAT, (-np.inf, 0.0), (np.inf,))},
    {"action": Discrete(6, start=-2)},
    {"action": Discrete(5, start=-1)},
    {"action": Discrete(5, start=-2, dtype=np.dtype(np.int32))},
    {"action": Box((), np.dtype(np.int8))},
    {"reward_dtype": FLOAT},
    {"extras": ()},
    {"extras": SPEC.extras[::-1]},
    {"extras": (Column("log_prob", (), FLOAT), Column("logit", (5,), np.dtype(np.float16)))},
    {"extras": (Column("log_prob", (), FLOAT), Column("logits", (6,), np.dtype(np.float16)))},
    {"extras": (Column("log_prob", (), FLOAT), Column("logits", (5,), FLOAT))},
    {"extras": tuple(dataclasses.replace(extra, nullable=False) for extra in SPEC.extras)},
    {"extras": tuple(dataclasses.replace(extra, nullable=True) for extra in SPEC.extras)},
    {"states": ()},
    {"states": SPEC.states[::-1]},
    {"states": (Column("state.h", (7,), FLOAT), Column("state.d", (2, 3), FLOAT))},
    {"states": (Column("state.h", (7,), FLOAT), Column("state.c", (3, 2), FLOAT))},
    {"states": (Column("state.h", (7,), FLOAT), Column("state.c", (2, 3), np.dtype(np.float16)))},
    {"metrics": ()},
    {"metrics": SPEC.metrics[::-1]},
    {"metrics": ("score",)},
    {"infos": ()},
    {"infos": (dataclasses.replace(SPEC.infos[0], name="info.masks"),)},
    {"infos": (dataclasses.replace(SPEC.infos[0], dtype=np.dtype(np.uint8)),)},
    {"observation": Dict((("a", SPEC.observation),))},
    {"observation": Dict((("b", SPEC.observation),))},
    {"observation": Tuple((SPEC.observation,))},
    {"action": Text(3)},
    {"env": {"id": "Hopper-v5", "kwargs": {"a": 2, "b": [True, None]}}},
    {"policy": {}},
]


def test_a_stream_returns_from_json() -> None:
    back = StreamSpec.from_json(json.loads(SPEC.canonical))
    assert back == SPEC
    assert back.fingerprint == SPEC.fingerprint
    assert back.schema.equals(SPEC.schema, check_metadata=True)


def test_equal_streams_have_equal_fingerprints_whatever_the_order_of_their_keys() -> None:
    env = {"kwargs": {"b": [True, None], "a": 1}, "id": "Hopper-v5"}
    assert dataclasses.replace(SPEC, env=env).fingerprint == SPEC.fingerprint


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_any_change_is_another_fingerprint(change: dict[str, Any]) -> None:
    changed = dataclasses.replace(SPEC, **change)
    assert changed.fingerprint != SPEC.fingerprint
    assert StreamSpec.from_json(json.loads(changed.canonical)) == changed


def test_the_schema_says_what_the_stream_is() -> None:
    assert SPEC.schema.metadata == {METADATA_KEY: SPEC.canonical}
    assert SPEC.schema.names == [
        *(row.name for row in ROW_FIELDS),
        *("state.h", "state.c", "metric.score", "metric.laps.done"),
        *("observation", "action", "reward", "log_prob", "logits", "info.mask"),
    ]
    observation = SPEC.schema.field("observation")
    assert observation.metadata == {b"shape": b"[3, 2]", b"dtype": b"float32"}
    assert observation.type.value_type == pa.list_(pa.field("item", pa.float32(), nullable=False), 6)
    assert SPEC.schema.field("action").type.value_type == pa.int8()
    assert SPEC.schema.field("reward").type.value_type == pa.float64()
    assert [column.overlap for column in SPEC.columns] == [True, False, False, False, False, True]
    assert [column.nullable for column in SPEC.columns] == [False, False, False, True, False, True]
    assert SPEC.schema.field("state.c").type == pa.list_(pa.field("item", pa.float32(), nullable=False), 6)
    assert SPEC.schema.field("state.c").metadata == {b"shape": b"[2, 3]", b"dtype": b"float32"}
    assert SPEC.schema.field("metric.score").type == pa.float64()
    assert [field.name for field in SPEC.row_fields] == SPEC.schema.names[: len(ROW_FIELDS) + 4]


def test_a_nested_space_is_a_column_a_leaf() -> None:
    spec = dataclasses.replace(
        SPEC, observation=NESTED, action=Tuple((Discrete(5), Dict((("on", MultiBinary((2,))),))))
    )
    assert spec.schema.names[len(SPEC.row_fields) :] == [
        *("observation.pose", "observation.said", "action.0", "action.1.on"),
        *("reward", "log_prob", "logits", "info.mask"),
    ]
    assert [column.overlap for column in spec.columns] == [True, True] + [False] * 5 + [True]
    assert spec.schema.field("observation.said").type == pa.list_(pa.field("item", pa.string(), nullable=False))
    assert [column.name for column in spec.observation_columns] == ["observation.pose", "observation.said"]
    assert [column.name for column in spec.action_columns] == ["action.0", "action.1.on"]
    assert StreamSpec.from_json(json.loads(spec.canonical)) == spec


def test_leaves_that_hold_less_than_their_wire_dtype_are_bounded() -> None:
    action = Tuple((Discrete(5), Box((2,), FLOAT), MultiBinary((2,)), Text(2), Box((1,), np.dtype(bool))))
    spec = dataclasses.replace(SPEC, action=action)
    assert [column.name for _, column in spec.bounded] == ["action.0", "action.2", "action.4"]
    assert [space for space, _ in spec.bounded] == [action.spaces[at] for at in (0, 2, 4)]


def test_only_what_tells_of_a_beginning_or_an_end_may_be_null() -> None:
    nullable = [row.name for row in SPEC.schema if row.nullable]
    assert nullable == ["abort_reason", "seed", "reset_options", "continues", "metric.score", "metric.laps.done"]


@pytest.mark.parametrize(
    "column",
    [
        Column("mask", (), FLOAT, overlap=True, nullable=True),
        Column("info.mask", (), FLOAT, overlap=True),
        Column("info.mask", (), FLOAT, nullable=True),
    ],
    ids=["name", "never null", "no overlap"],
)
def test_a_column_that_is_no_info_is_refused(column: Column) -> None:
    told = rf"^info column '{column.name}': it is nullable, overlaps, and is named info\.…$"
    with pytest.raises(SettingsError, match=told):
        dataclasses.replace(SPEC, infos=(column,))


@pytest.mark.parametrize("name", ["info.mask", "observation.a", "a.b"])
def test_an_extra_column_with_a_dot_is_refused(name: str) -> None:
    told = rf"^extra column '{name}': dots are for spaces and infos; rename it in the policy$"
    with pytest.raises(SettingsError, match=told):
        dataclasses.replace(SPEC, extras=(Column(name, (), FLOAT),))


def test_an_extra_column_that_overlaps_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^extra column 'value': it overlaps, and an extra has one item a step$"):
        dataclasses.replace(SPEC, extras=(Column("value", (), FLOAT, overlap=True),))


@pytest.mark.parametrize(
    "column",
    [
        Column("h", (2,), FLOAT),
        Column("state.h", (2,), FLOAT, overlap=True),
        Column("state.h", (2,), FLOAT, nullable=True),
        Column("state.h", (), np.dtype(object)),
    ],
    ids=["name", "overlap", "nullable", "text"],
)
def test_a_column_that_is_no_state_is_refused(column: Column) -> None:
    told = rf"^state column '{column.name}': it holds numbers, in every chunk, as state\.…$"
    with pytest.raises(SettingsError, match=told):
        dataclasses.replace(SPEC, states=(column,))


def test_a_state_of_a_taken_name_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^column \['state.h'\]: the name is taken; rename it in the policy$"):
        dataclasses.replace(SPEC, states=(SPEC.states[0], SPEC.states[0]))


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        (("score", "score"), r"metrics \['score', 'score'\]: each name once"),
        (("",), "metric '': a name is text, and not empty"),
        (("\ud800",), r"metric '\\ud800': a name is text, and not empty"),
        ((5,), "metric 5: a name is text, and not empty"),
    ],
)
def test_metrics_that_cannot_be_are_refused(metrics: tuple[Any, ...], told: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{told}$"):
        dataclasses.replace(SPEC, metrics=metrics)


def test_the_name_of_a_mask_s_tensor_is_taken() -> None:
    mask = SPEC.infos[0]
    present = dataclasses.replace(mask, name=f"{mask.name}.present")
    with pytest.raises(SettingsError, match=r"column \['info\.mask\.present'\]: the name is taken"):
        dataclasses.replace(SPEC, infos=(mask, present))


def test_a_stream_s_own_names_leave_those_of_states_and_metrics_alone() -> None:
    """Whatever a state or a metric is named, no other column of a message or a segment has its name."""
    for name in RESERVED | {"observation", "action", "reward"}:
        spec = dataclasses.replace(SPEC, states=(Column(f"state.{name}", (), FLOAT),), metrics=(name,))
        names = [*spec.schema.names, *RESERVED - set(spec.schema.names)]
        assert len(set(names)) == len(names)


def test_steps_and_rows_weigh_what_is_said() -> None:
    assert SPEC.step_bytes == 24 + 1 + 8 + (4 + 1) + 10 + 6
    assert SPEC.chunk_bytes == 28 + 24 + 2 * (8 + 1)
    # What may be absent counts a byte for its bit.
    plain = dataclasses.replace(SPEC, extras=(Column("log_prob", (), FLOAT), SPEC.extras[1]), infos=())
    for spec, spare in ((plain, 0), (SPEC, 2 * (64 - 64 // 8))):
        one, more = (len(to_ipc(make_batch(spec, [Row(steps=steps)]))) for steps in (8, 8 + 64))
        assert more - one == 64 * spec.step_bytes - spare
    rows = [Row(env=env, steps=1, ends=Ends.TERMINATED) for env in range(1 + 64)]
    one, more = (len(to_ipc(make_batch(SPEC, rows[:count]))) for count in (1, 65))
    grown = more - one
    spared = 1 + len(SPEC.metrics) + 3  # of what counts a byte for its bit
    assert 64 * (SPEC.row_bytes + SPEC.step_bytes - spared) <= grown + 8 * 32
    assert grown <= 64 * (SPEC.row_bytes + SPEC.step_bytes) + 8 * 32


@pytest.mark.parametrize("name", ["reward", "env", "observation", "log_prob"])
def test_an_extra_column_of_a_taken_name_is_refused(name: str) -> None:
    extras = (Column("log_prob", (), FLOAT), Column(name, (), FLOAT))
    with pytest.raises(SettingsError, match=rf"^column \['{name}'\]: the name is taken; rename it in the policy$"):
        dataclasses.replace(SPEC, extras=extras)


def test_a_column_of_an_unmapped_dtype_is_refused() -> None:
    with pytest.raises(SpaceError, match=r"^column 'mask' of dtype bool: use one of float16, "):
        dataclasses.replace(SPEC, extras=(Column("mask", (), np.dtype(bool)),))


@pytest.mark.parametrize("shape", [(0,), (2, -1), (-1,)])
def test_a_column_of_an_impossible_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SpaceError) as caught:
        dataclasses.replace(SPEC, extras=(Column("value", shape, FLOAT),))
    assert str(caught.value) == f"column 'value' of shape {shape}: every extent is at least 1"


@pytest.mark.parametrize(
    "change",
    [
        {"stream": None},
        {"observation": {"type": "Box"}},
        {"observation": {"type": "Box", "shape": [-1], "dtype": "float32", "low": [0], "high": [1]}},
        {"observation": 5},
        {"action": {"type": "Text"}},
        {"action": {"type": "Graph"}},
        {"action": {"type": "Dict", "spaces": []}},
        {"action": {"type": "Dict", "spaces": {"a": SPEC.action.to_json()}}},
        {"action": {"type": "Tuple", "spaces": [5]}},
        {"infos": [{"name": "mask", "shape": [], "dtype": "int8"}]},
        {"infos": None},
        {"states": None},
        {"states": [{"name": "h", "shape": [], "dtype": "int8"}]},
        {"metrics": None},
        {"metrics": [5]},
        {"reward": "no such dtype"},
        {"reward": "complex64"},
        {"extras": [{"name": "x"}]},
        {"env": 5},
        {"policy": "text"},
    ],
    ids=str,
)
def test_what_is_no_description_raises_what_is_promised(change: dict[str, Any]) -> None:
    described = SPEC.to_json() | change
    if described["stream"] is None:
        del described["stream"]
    with pytest.raises((KeyError, TypeError, ValueError, SpaceError, SettingsError)):
        _ = StreamSpec.from_json(described).canonical


def test_a_reward_is_a_number() -> None:
    with pytest.raises(SettingsError, match=r"^rewards of dtype object: a reward is a number$"):
        dataclasses.replace(SPEC, reward_dtype=np.dtype(object))
