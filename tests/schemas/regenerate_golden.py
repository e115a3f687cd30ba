"""Write the golden records anew: `python -m tests.schemas.regenerate_golden`, in the root of the repository.

Do so only where the format is meant to change, which needs another format version in the headers as soon as anyone
has stored or logged records of this one. A file holds a record's headers and value in hex, 64 digits a line.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from penstock_schemas.chunks import Ends, Exploration
from penstock_schemas.columns import Column
from penstock_schemas.log import Record
from penstock_schemas.messages import Encoded, encode_begin, encode_chunks, encode_end, encode_tick
from penstock_schemas.policies import PolicyRecord, encode_policy
from penstock_schemas.spaces import Box, Dict, Discrete, MultiBinary, Text, Tuple
from tests.schemas.batches import Row, make_batch, masked, stream

FOLDER = Path(__file__).parent / "golden"
OFFSET = 9
_LINE_DIGITS = 64

SPEC = stream(name="golden")
ROWS = (
    Row(
        env=0, episode=5, seed=11, reset_options='{"low":0}', policy_version=3, policy_digest=bytes(range(32)), steps=2
    ),
    Row(env=0, episode=5, chunk=1, first_step=2, ends=Ends.TERMINATED | Ends.TRUNCATED, policy_version=4, steps=1),
    Row(
        env=3,
        episode=2,
        chunk=7,
        first_step=100,
        ends=Ends.ABORTED,
        abort_reason="env",
        exploration=Exploration.EPSILON,
        steps=1,
    ),
)
BATCH = make_batch(
    SPEC,
    ROWS,
    values={
        "observation": np.arange(28, dtype=np.float32).reshape(7, 4) / 8,
        "action": np.array([0, 1, 2, 1], np.int8),
        "reward": np.array([1, -0.5, np.inf, np.nan], np.float32),
    },
)
NESTED_SPEC = stream(
    Dict((("camera", Box((2, 1), np.dtype(np.uint8))), ("said.to", Text(8)))),
    Tuple((Discrete(3), MultiBinary((2,)))),
    name="golden-nested",
    infos=[
        Column("info.mask", (3,), np.dtype(np.int8), overlap=True, nullable=True),
        Column("info.note", (), np.dtype(object), overlap=True, nullable=True),
    ],
)
NESTED_BATCH = make_batch(
    NESTED_SPEC,
    (
        Row(episode=1, seed=5, ends=Ends.CUT, steps=2),
        Row(episode=2, continues=1, steps=1),
        Row(env=1, episode=4, chunk=2, first_step=9, ends=Ends.ABORTED, abort_reason="env_died", steps=0),
    ),
    values={
        "observation.camera": np.arange(12, dtype=np.uint8).reshape(6, 2, 1),
        "observation.said~1to": np.array(["", "é", "漢🙂", "a\0b", "\n", "~."], object),
        "action.0": np.array([0, 2, 1], np.int8),
        "action.1": np.array([[0, 1], [1, 1], [0, 0]], np.int8),
        "reward": np.array([1, 2, -0.0], np.float32),
        "info.mask": masked(
            np.arange(18, dtype=np.int8).reshape(6, 3), np.array([True, False, True, False, False, True])
        ),
        "info.note": masked(
            np.array(["a", "b", "c", "d", "e", "f"], object), np.array([False, True, False, False, True, False])
        ),
    },
)
RECURRENT_SPEC = stream(
    Discrete(9),
    name="golden-recurrent",
    extras=[
        Column("log_prob", (), np.dtype(np.float32), nullable=True),
        Column("place", (2,), np.dtype(np.int16), nullable=True),
    ],
    states=[Column("state.0", (2, 2), np.dtype(np.float32)), Column("state.1", (), np.dtype(np.float64))],
    metrics=["score", "laps"],
)
RECURRENT_BATCH = make_batch(
    RECURRENT_SPEC,
    (
        Row(episode=1, seed=5, steps=2),
        Row(episode=1, chunk=1, first_step=2, ends=Ends.TERMINATED, steps=1),
        Row(env=1, episode=4, chunk=2, first_step=9, ends=Ends.ABORTED, abort_reason="env_died", steps=0),
        Row(env=2, episode=8, ends=Ends.TRUNCATED, steps=1),
    ),
    values={
        "observation": np.arange(8, dtype=np.int8),
        "action": np.array([0, 2, 1, 0], np.int8),
        "reward": np.array([1, 2, -0.0, 3], np.float32),
        "log_prob": masked(np.array([-0.5, 9, 9, -1], np.float32), np.array([True, False, False, True])),
        "place": masked(np.arange(8, dtype=np.int16).reshape(4, 2), np.array([False, True, True, False])),
        "state.0": np.arange(16, dtype=np.float32).reshape(4, 2, 2) / 4,
        "state.1": np.array([0.0, np.inf, 0.0, -0.0]),
        "metric.score": masked(np.array([9, 0.25, 9, -4]), np.array([False, True, False, True])),
        "metric.laps": masked(np.array([9, 9.0, 9, 2]), np.array([False, False, False, True])),
    },
)
POLICY = PolicyRecord(
    12, {"b": np.array([0.5, -1], np.float32), "a": np.arange(4, dtype=np.int64).reshape(2, 2)}, {"epsilon": 0.125}
)


def records() -> dict[str, Encoded]:
    """Encode every golden record, by the name of its file."""
    return {
        "begin": encode_begin(SPEC, "pod-0", "a-start"),
        "chunks": encode_chunks(SPEC, BATCH, producer="pod-0", incarnation=4, sequence=6),
        "chunks-zstd": encode_chunks(SPEC, BATCH, producer="pod-0", incarnation=4, sequence=6, encoding="zstd"),
        "chunks-nested": encode_chunks(NESTED_SPEC, NESTED_BATCH, producer="pod-0", incarnation=4, sequence=6),
        "chunks-recurrent": encode_chunks(RECURRENT_SPEC, RECURRENT_BATCH, producer="pod-0", incarnation=4, sequence=6),
        "end": encode_end(producer="pod-0", incarnation=4, sequence=7, reason="stopped"),
        "tick": encode_tick(),
        "policy": Encoded(*encode_policy(POLICY)),
    }


def write(name: str, encoded: Encoded) -> None:
    """Write a record's file."""
    headers = [f"header {header} {value.hex()}" for header, value in encoded.headers]
    digits = (encoded.value or b"").hex()
    value = [digits[at : at + _LINE_DIGITS] for at in range(0, len(digits), _LINE_DIGITS)]
    text = "\n".join([*headers, "no value" if encoded.value is None else "value", *value])
    _path(name).write_text(text + "\n", encoding="ascii")


def read(name: str) -> Record:
    """Read a record's file, as a record at `OFFSET`."""
    lines = _path(name).read_text(encoding="ascii").splitlines()
    start = next(at for at, line in enumerate(lines) if not line.startswith("header "))
    headers = tuple(
        (header, bytes.fromhex(digits)) for _, header, digits in (line.split(" ") for line in lines[:start])
    )
    value = bytes.fromhex("".join(lines[start + 1 :])) if lines[start] == "value" else None
    return Record("golden", 0, OFFSET, 0, None, value, headers)


def _path(name: str) -> Path:
    return FOLDER / f"{name}.txt"


if __name__ == "__main__":
    for _name, _encoded in records().items():
        write(_name, _encoded)
