"""The bytes of format 1: red where what is written changes, or where what was written no longer reads."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from penstock_schemas.messages import Kind, Message, decode
from tests.schemas.announced import policy_in
from tests.schemas.regenerate_golden import (
    BATCH,
    FOLDER,
    NESTED_BATCH,
    NESTED_SPEC,
    OFFSET,
    POLICY,
    RECURRENT_BATCH,
    RECURRENT_SPEC,
    SPEC,
    read,
    records,
)

FINGERPRINT = "95ebe0f9481aa689935fc0940f1cd22f47b3a4fd29dfcae28ffc551c447d991c"
# What zstd makes of the same bytes is the library's own affair, and so is the order of a safetensors file's metadata.
SAME_BYTES = ("begin", "chunks", "chunks-nested", "chunks-recurrent", "end", "tick")


def safetensors(value: bytes | None) -> tuple[dict[str, Any], bytes]:
    """A safetensors file as its header and its data."""
    assert value is not None
    size = int.from_bytes(value[:8], "little")
    header: dict[str, Any] = json.loads(value[8 : 8 + size])
    return header, value[8 + size :]


def test_every_record_has_its_file() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(records())


@pytest.mark.parametrize("name", SAME_BYTES)
def test_the_same_content_gives_the_same_bytes(name: str) -> None:
    golden, encoded = read(name), records()[name]
    assert encoded.headers == golden.headers
    assert encoded.value == golden.value


@pytest.mark.parametrize("name", ["chunks-zstd", "policy"])
def test_the_same_content_gives_the_same_headers(name: str) -> None:
    assert records()[name].headers == read(name).headers


def test_the_same_weights_give_the_same_file() -> None:
    assert safetensors(records()["policy"].value) == safetensors(read("policy").value)


def test_the_fingerprint_stays() -> None:
    assert SPEC.fingerprint.hex() == FINGERPRINT


def test_the_begin_reads() -> None:
    assert decode(read("begin"), None) == Message(Kind.BEGIN, "pod-0", OFFSET, 0, start="a-start", spec=SPEC)


@pytest.mark.parametrize("name", ["chunks", "chunks-zstd"])
@pytest.mark.parametrize("spec", [SPEC, None], ids=["known", "learned"])
def test_the_chunks_read(name: str, spec: Any) -> None:
    message = decode(read(name), spec)
    assert (message.kind, message.producer, message.incarnation, message.sequence) == (Kind.CHUNKS, "pod-0", 4, 6)
    assert message.batch is not None
    rewards = message.batch.column("reward").values.to_numpy()
    assert rewards.tobytes() == np.array([1, -0.5, np.inf, np.nan], np.float32).tobytes()
    named = [name for name in BATCH.schema.names if name != "reward"]
    assert message.batch.select(named).equals(BATCH.select(named), check_metadata=True)
    assert message.batch.select(["env", "ends", "abort_reason", "seed", "action"]).to_pylist() == [
        {"env": 0, "ends": 0, "abort_reason": None, "seed": 11, "action": [0, 1]},
        {"env": 0, "ends": 3, "abort_reason": None, "seed": None, "action": [2]},
        {"env": 3, "ends": 4, "abort_reason": "env", "seed": None, "action": [1]},
    ]
    assert message.batch.column("observation").to_pylist()[2] == [[2.5, 2.625, 2.75, 2.875], [3.0, 3.125, 3.25, 3.375]]


@pytest.mark.parametrize("spec", [NESTED_SPEC, None], ids=["known", "learned"])
def test_the_nested_chunks_read(spec: Any) -> None:
    message = decode(read("chunks-nested"), spec)
    assert message.batch is not None
    assert message.batch.equals(NESTED_BATCH, check_metadata=True)
    names = (
        "continues",
        "observation.camera",
        "observation.said~1to",
        "action.0",
        "action.1",
        "info.mask",
        "info.note",
    )
    assert message.batch.select(names).to_pylist() == [
        {
            "continues": None,
            "observation.camera": [[0, 1], [2, 3], [4, 5]],
            "observation.said~1to": ["", "é", "漢🙂"],
            "action.0": [0, 2],
            "action.1": [[0, 1], [1, 1]],
            "info.mask": [[0, 1, 2], None, [6, 7, 8]],
            "info.note": [None, "b", None],
        },
        {
            "continues": 1,
            "observation.camera": [[6, 7], [8, 9]],
            "observation.said~1to": ["a\0b", "\n"],
            "action.0": [1],
            "action.1": [[0, 0]],
            "info.mask": [None, None],
            "info.note": [None, "e"],
        },
        {
            "continues": None,
            "observation.camera": [[10, 11]],
            "observation.said~1to": ["~."],
            "action.0": [],
            "action.1": [],
            "info.mask": [[15, 16, 17]],
            "info.note": [None],
        },
    ]


@pytest.mark.parametrize("spec", [RECURRENT_SPEC, None], ids=["known", "learned"])
def test_the_recurrent_chunks_read(spec: Any) -> None:
    message = decode(read("chunks-recurrent"), spec)
    assert message.batch is not None
    assert message.batch.equals(RECURRENT_BATCH, check_metadata=True)
    names = ("log_prob", "place", "state.0", "state.1", "metric.score", "metric.laps")
    assert [list(row.values()) for row in message.batch.select(names).to_pylist()] == [
        [[-0.5, None], [None, [2, 3]], [0.0, 0.25, 0.5, 0.75], 0.0, None, None],
        [[None], [[4, 5]], [1.0, 1.25, 1.5, 1.75], np.inf, 0.25, None],
        [[], [], [2.0, 2.25, 2.5, 2.75], 0.0, None, None],
        [[-1.0], [None], [3.0, 3.25, 3.5, 3.75], 0.0, -4.0, 2.0],
    ]


def test_the_end_reads() -> None:
    assert decode(read("end"), SPEC) == Message(Kind.END, "pod-0", 4, 7, reason="stopped")


def test_the_tick_reads() -> None:
    assert decode(read("tick"), SPEC) == Message(Kind.TICK)


def test_the_policy_reads() -> None:
    policy = policy_in(read("policy"))
    assert (policy.version, policy.settings, policy.digest) == (12, {"epsilon": 0.125}, POLICY.digest)
    assert policy.weights.keys() == {"a", "b"}
    assert np.array_equal(policy.weights["a"], np.array([[0, 1], [2, 3]], np.int64))
    assert np.array_equal(policy.weights["b"], np.array([0.5, -1], np.float32))
