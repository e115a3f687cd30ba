"""What a stream is: its spaces, its columns, its environment and policy, under one fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_schemas.columns import Column
from penstock_schemas.errors import SettingsError
from penstock_schemas.spaces import bounded, leaves, space_from_json
from penstock_schemas.spaces.arrays import OFFSET_BYTES, utf8_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock_schemas.spaces import LeafSpace, Space
    from penstock_schemas.spaces.arrays import Json

METADATA_KEY = b"penstock.stream"
# How the names of recorded infos, of recurrent states and of metrics begin.
INFO, STATE, METRIC = "info.", "state.", "metric."
ROW_FIELDS = (
    pa.field("env", pa.int32(), nullable=False),
    pa.field("episode", pa.int64(), nullable=False),
    pa.field("chunk", pa.int32(), nullable=False),
    pa.field("first_step", pa.int64(), nullable=False),
    pa.field("ends", pa.uint8(), nullable=False),
    pa.field("abort_reason", pa.string()),
    pa.field("seed", pa.int64()),
    pa.field("reset_options", pa.string()),
    # The number of the env's episode that was cut where this one begins.
    pa.field("continues", pa.int64()),
    pa.field("policy_version", pa.int64(), nullable=False),
    pa.field("policy_digest", pa.binary(32), nullable=False),
    pa.field("exploration", pa.uint8(), nullable=False),
)
# Names that a message, a segment or a learner's batch has for its own columns.
RESERVED = frozenset(
    (
        *(field.name for field in ROW_FIELDS),
        *("producer", "incarnation", "offset", "timestamp_ms", "bytes"),
        *("opened_offset", "closed_offset", "closed_ms"),
        *("length", "return", "chunk_first_step", "next_observation", "terminated", "truncated"),
        *("discount", "step", "id", "index", "weight", "mask", "valid", "lengths", "burn_in"),
    )
)
# A string counts as its offset; its bytes are rare.
_FIXED_BYTES = sum(OFFSET_BYTES if pa.types.is_string(row.type) else row.type.bit_width // 8 for row in ROW_FIELDS)
# What holds the bitmaps of those that may be null.
_VALID_BYTES = 1


@dataclass(frozen=True)
class StreamSpec:
    """One named experiment: everything that its producers must agree on.

    `extras` are the columns that the policy declares beside the action, one item a step; those that are nullable may
    be absent at some. `infos` are the env's infos that are recorded: one item with each observation, null where absent,
    in columns whose names begin with "info.". `states` are the policy's recurrent state before the first step of each
    chunk, one item a chunk, in columns whose names begin with "state."; zeros where a chunk has no step. `metrics` are
    the names of numbers that callbacks measure of an episode: one float64 each, in columns "metric.<name>", null but
    where the env ended the episode, and there too where it was not measured.
    `env` and `policy` describe how to make either again: ids, arguments, factories, connectors, the action mapping.
    """

    stream: str
    observation: Space
    action: Space
    reward_dtype: np.dtype[Any]
    extras: tuple[Column, ...] = ()
    infos: tuple[Column, ...] = ()
    states: tuple[Column, ...] = ()
    metrics: tuple[str, ...] = ()
    env: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.reward_column.is_text:
            raise SettingsError(f"rewards of dtype {self.reward_dtype}: a reward is a number")
        self._check_columns()
        self._check_names()

    def _check_columns(self) -> None:
        for info in self.infos:
            if not (info.overlap and info.nullable and info.name.startswith(INFO)):
                raise SettingsError(f"info column {info.name!r}: it is nullable, overlaps, and is named {INFO}…")
        for extra in self.extras:
            if "." in extra.name:
                raise SettingsError(
                    f"extra column {extra.name!r}: dots are for spaces and infos; rename it in the policy"
                )
            if extra.overlap:
                raise SettingsError(f"extra column {extra.name!r}: it overlaps, and an extra has one item a step")
        for state in self.states:
            if state.overlap or state.nullable or state.is_text or not state.name.startswith(STATE):
                raise SettingsError(f"state column {state.name!r}: it holds numbers, in every chunk, as {STATE}…")

    def _check_names(self) -> None:
        # A description that was read may hold anything.
        metrics: Sequence[object] = self.metrics
        for name in metrics:
            if not (isinstance(name, str) and utf8_size(name)):
                raise SettingsError(f"metric {name!r}: a name is text, and not empty")
        if len(set(self.metrics)) < len(self.metrics):
            raise SettingsError(f"metrics {list(self.metrics)}: each name once")
        names = [*RESERVED, *(column.name for column in (*self.columns, *self.states))]
        # As learners' tensors are named that tell what is there.
        names += [f"{column.name}.present" for column in self.columns if column.nullable]
        twice = sorted(name for name, times in Counter(names).items() if times > 1)
        if twice:
            raise SettingsError(f"column {twice}: the name is taken; rename it in the policy")

    @cached_property
    def observation_columns(self) -> tuple[Column, ...]:
        """The columns of the observation's leaves, in the tree's order."""
        return tuple(Column.of(leaf, "observation", overlap=True) for leaf in leaves(self.observation))

    @cached_property
    def action_columns(self) -> tuple[Column, ...]:
        """The columns of the action's leaves, in the tree's order."""
        return tuple(Column.of(leaf, "action") for leaf in leaves(self.action))

    @cached_property
    def reward_column(self) -> Column:
        """The column of the rewards."""
        return Column("reward", (), self.reward_dtype)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The list columns, in the order of the schema."""
        return (*self.observation_columns, *self.action_columns, self.reward_column, *self.extras, *self.infos)

    @cached_property
    def metric_columns(self) -> tuple[Column, ...]:
        """The columns of the metrics, one item a row."""
        return tuple(Column(METRIC + name, (), np.dtype(np.float64), nullable=True) for name in self.metrics)

    @cached_property
    def row_fields(self) -> tuple[pa.Field, ...]:
        """The fields of a message that hold one item a row, in the order of the schema."""
        return (*ROW_FIELDS, *(column.row_field for column in (*self.states, *self.metric_columns)))

    @cached_property
    def bounded(self) -> tuple[tuple[LeafSpace, Column], ...]:
        """The leaves of which not every value of their wire dtype is one, and their columns."""
        sides = ((self.observation, self.observation_columns), (self.action, self.action_columns))
        return tuple((leaves(space)[i].space, columns[i]) for space, columns in sides for i in bounded(space))

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of a chunk message, this description in its metadata."""
        metadata = {METADATA_KEY: self.canonical}
        return pa.schema([*self.row_fields, *(column.field for column in self.columns)], metadata)

    @cached_property
    def canonical(self) -> bytes:
        """This description as JSON, equal for equal streams."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @cached_property
    def fingerprint(self) -> bytes:
        """The sha256 of `canonical`."""
        return hashlib.sha256(self.canonical).digest()

    @cached_property
    def step_bytes(self) -> int:
        """Bytes that one more step adds to a chunk, at most."""
        return sum(column.item_bytes for column in self.columns)

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes of the states and metrics of one chunk, at most."""
        return sum(column.item_bytes for column in (*self.states, *self.metric_columns))

    @cached_property
    def row_bytes(self) -> int:
        """Bytes that one more chunk adds to a message, its steps left out: its fixed columns, offsets and overlap."""
        overlap = sum(column.item_bytes for column in self.columns if column.overlap)
        return _FIXED_BYTES + _VALID_BYTES + OFFSET_BYTES * len(self.columns) + overlap + self.chunk_bytes

    @cached_property
    def text_columns(self) -> tuple[Column, ...]:
        """The list columns of strings."""
        return tuple(column for column in self.columns if column.is_text)

    @cached_property
    def fixed_step_bytes(self) -> int:
        """Bytes of one step's values, those of its strings left out."""
        return sum(column.fixed_bytes for column in self.columns)

    @cached_property
    def fixed_row_bytes(self) -> int:
        """Bytes of a chunk's values without a step, those of its strings left out."""
        items = (*(column for column in self.columns if column.overlap), *self.states, *self.metric_columns)
        return _FIXED_BYTES + sum(column.fixed_bytes for column in items)

    def to_json(self) -> Json:
        """Describe the stream; `from_json` reads it back."""
        return {
            "stream": self.stream,
            "observation": self.observation.to_json(),
            "action": self.action.to_json(),
            "reward": self.reward_dtype.name,
            "extras": [extra.to_json() for extra in self.extras],
            "infos": [info.to_json() for info in self.infos],
            "states": [state.to_json() for state in self.states],
            "metrics": list(self.metrics),
            "env": dict(self.env),
            "policy": dict(self.policy),
        }

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> StreamSpec:
        """Read a description.

        Raises `KeyError`, `TypeError`, `ValueError`, `SpaceError` or `SettingsError` where it is none.
        """
        return cls(
            stream=described["stream"],
            observation=space_from_json(described["observation"]),
            action=space_from_json(described["action"]),
            reward_dtype=np.dtype(described["reward"]),
            extras=tuple(Column.from_json(extra) for extra in described["extras"]),
            infos=tuple(Column.from_json(info, overlap=True, nullable=True) for info in described["infos"]),
            states=tuple(Column.from_json(state) for state in described["states"]),
            metrics=tuple(described["metrics"]),
            env=described["env"],
            policy=described["policy"],
        )
