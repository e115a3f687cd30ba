"""What a stream is: its spaces, its columns, its environment and policy, under one fingerprint."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock_schemas.errors import SettingsError, SpaceError
from penstock_schemas.spaces import BOX_DTYPES, Json, Space, arrow_type, space_from_json

if TYPE_CHECKING:
    from collections.abc import Mapping

METADATA_KEY = b"penstock.stream"
ROW_FIELDS = (
    pa.field("env", pa.int32(), nullable=False),
    pa.field("episode", pa.int64(), nullable=False),
    pa.field("chunk", pa.int32(), nullable=False),
    pa.field("first_step", pa.int64(), nullable=False),
    pa.field("ends", pa.uint8(), nullable=False),
    pa.field("abort_reason", pa.string()),
    pa.field("seed", pa.int64()),
    pa.field("reset_options", pa.string()),
    pa.field("policy_version", pa.int64(), nullable=False),
    pa.field("policy_digest", pa.binary(32), nullable=False),
    pa.field("exploration", pa.uint8(), nullable=False),
)
# Names that a message, a segment or a learner's batch has for its own columns.
RESERVED = frozenset(
    (
        *(field.name for field in ROW_FIELDS),
        *("producer", "incarnation", "offset", "timestamp_ms", "opened_offset", "closed_offset", "closed_ms"),
        *("length", "return", "chunk_first_step", "next_observation", "terminated", "truncated"),
    )
)
_OFFSET_BYTES = 4
# A string counts as its offset; its bytes are rare. One more byte holds the bitmaps of what may be null.
_FIXED_BYTES = 1 + sum(_OFFSET_BYTES if pa.types.is_string(row.type) else row.type.bit_width // 8 for row in ROW_FIELDS)


@dataclass(frozen=True)
class Column:
    """One list column: an item a step, or, where `overlap`, one more (an observation on either side)."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    overlap: bool = False

    @property
    def field(self) -> pa.Field:
        """The Arrow field; shape and dtype stand in its metadata, for readers that know only Arrow."""
        item = pa.field("item", arrow_type(self.shape, self.dtype), nullable=False)
        metadata = {"shape": json.dumps(list(self.shape)), "dtype": self.dtype.name}
        return pa.field(self.name, pa.list_(item), nullable=False, metadata=metadata)

    @property
    def item_bytes(self) -> int:
        """Bytes of one item."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def to_json(self) -> Json:
        """Describe the column."""
        return {"name": self.name, "shape": list(self.shape), "dtype": self.dtype.name}


@dataclass(frozen=True)
class StreamSpec:
    """One named experiment: everything that its producers must agree on.

    `extras` are the columns that the policy declares beside the action, one item a step. `env` and `policy`
    describe how to make either again: ids, arguments, factories, the action mapping.
    """

    stream: str
    observation: Space
    action: Space
    reward_dtype: np.dtype[Any]
    extras: tuple[Column, ...] = ()
    env: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for column in self.columns:
            if column.dtype.name not in BOX_DTYPES:
                allowed = ", ".join(BOX_DTYPES)
                raise SpaceError(f"column {column.name!r} of dtype {column.dtype}: use one of {allowed}")
            if any(extent < 1 for extent in column.shape):
                raise SpaceError(f"column {column.name!r} of shape {column.shape}: every extent is at least 1")
        names = [*RESERVED, *(column.name for column in self.columns)]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise SettingsError(f"extra column {sorted(twice)}: the name is taken; rename it in the policy")

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The list columns, in the order of the schema."""
        return (
            Column("observation", self.observation.shape, self.observation.wire_dtype, overlap=True),
            Column("action", self.action.shape, self.action.wire_dtype),
            Column("reward", (), self.reward_dtype),
            *self.extras,
        )

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of a chunk message, this description in its metadata."""
        metadata = {METADATA_KEY: self.canonical}
        return pa.schema([*ROW_FIELDS, *(column.field for column in self.columns)], metadata)

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
        """Bytes that one more step adds to a chunk."""
        return sum(column.item_bytes for column in self.columns)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes that one more chunk adds to a message, its steps left out: its fixed columns, offsets and overlap."""
        overlap = sum(column.item_bytes for column in self.columns if column.overlap)
        return _FIXED_BYTES + _OFFSET_BYTES * len(self.columns) + overlap

    def to_json(self) -> Json:
        """Describe the stream; `from_json` reads it back."""
        return {
            "stream": self.stream,
            "observation": self.observation.to_json(),
            "action": self.action.to_json(),
            "reward": self.reward_dtype.name,
            "extras": [extra.to_json() for extra in self.extras],
            "env": dict(self.env),
            "policy": dict(self.policy),
        }

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> StreamSpec:
        """Read a description; raises `KeyError`, `TypeError`, `ValueError` or `SpaceError` where it is none."""
        return cls(
            stream=described["stream"],
            observation=space_from_json(described["observation"]),
            action=space_from_json(described["action"]),
            reward_dtype=np.dtype(described["reward"]),
            extras=tuple(
                Column(extra["name"], tuple(extra["shape"]), np.dtype(extra["dtype"])) for extra in described["extras"]
            ),
            env=described["env"],
            policy=described["policy"],
        )
