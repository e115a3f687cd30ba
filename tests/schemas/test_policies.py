from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from penstock_schemas.errors import PolicyRejectedError
from penstock_schemas.log import Record
from penstock_schemas.policies import (
    FOLDER,
    MAX_INLINE_BYTES,
    PolicyRecord,
    decode_announcement,
    digest,
    encode_policy,
)
from tests.schemas.announced import policy_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

WEIGHTS: dict[str, NDArray[Any]] = {
    "body.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "body.bias": np.array([np.nan, -0.0], np.float64),
    "count": np.array([3], np.int64),
}
SETTINGS: dict[str, Any] = {"epsilon": 0.25, "masks": [True, None]}
POLICY = PolicyRecord(7, WEIGHTS, SETTINGS)


def record(policy: PolicyRecord, value: bytes | None = None, **changes: bytes | None) -> Record:
    """A policy's record, its value or some headers changed or, where None, left out."""
    encoded, headers = encode_policy(policy)
    changed = {**dict(headers), **changes}
    kept = tuple((name, said) for name, said in changed.items() if said is not None)
    return Record("policies.test", 0, 5, 0, b"policy", encoded if value is None else value, kept)


def rejection(refused: Record) -> PolicyRejectedError:
    with pytest.raises(PolicyRejectedError) as caught:
        policy_in(refused)
    return caught.value


def safetensors(header: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_a_policy_returns_bit_for_bit() -> None:
    back = policy_in(record(POLICY))
    assert (back.version, back.settings, back.digest) == (7, SETTINGS, POLICY.digest)
    assert back.weights.keys() == WEIGHTS.keys()
    for name, weight in WEIGHTS.items():
        read = back.weights[name]
        assert (read.shape, read.dtype, read.tobytes()) == (weight.shape, weight.dtype, weight.tobytes())


def test_a_policy_without_weights_or_settings_returns() -> None:
    back = policy_in(record(PolicyRecord(1, {})))
    assert (back.version, back.weights, back.settings) == (1, {}, {})


def test_a_scalar_weight_keeps_its_shape() -> None:
    scalar = PolicyRecord(1, {"count": np.array(3, np.int64)})
    assert scalar.digest != PolicyRecord(1, {"count": np.array([3], np.int64)}).digest
    assert policy_in(record(scalar)).weights["count"].shape == ()


def test_weights_that_are_not_contiguous_return() -> None:
    transposed = PolicyRecord(1, {"w": np.arange(6, dtype=np.float32).reshape(2, 3).T})
    assert np.array_equal(policy_in(record(transposed)).weights["w"], transposed.weights["w"])


def test_the_digest_does_not_depend_on_any_order() -> None:
    weights = dict(reversed(WEIGHTS.items()))
    assert digest(weights, dict(reversed(SETTINGS.items()))) == POLICY.digest


def test_the_digest_does_not_depend_on_the_version() -> None:
    assert PolicyRecord(8, WEIGHTS, SETTINGS).digest == POLICY.digest


@pytest.mark.parametrize(
    ("weights", "changed"),
    [
        (WEIGHTS | {"count": np.array([4], np.int64)}, SETTINGS),
        (WEIGHTS | {"count": np.array([3], np.int32)}, SETTINGS),
        (WEIGHTS | {"count": np.array([[3]], np.int64)}, SETTINGS),
        (WEIGHTS | {"body.weight": np.arange(6, dtype=np.float32).reshape(3, 2)}, SETTINGS),
        (WEIGHTS | {"body.bias": np.array([np.nan, 0.0], np.float64)}, SETTINGS),
        (WEIGHTS | {"more": np.array(0)}, SETTINGS),
        ({"weight": WEIGHTS["body.weight"]}, SETTINGS),
        (WEIGHTS, SETTINGS | {"epsilon": 0.5}),
        (WEIGHTS, SETTINGS | {"more": 1}),
        (WEIGHTS, {}),
    ],
)
def test_whatever_acts_is_in_the_digest(weights: dict[str, Any], changed: dict[str, Any]) -> None:
    altered = PolicyRecord(7, weights, changed)
    assert altered.digest != POLICY.digest
    assert altered.object_name != POLICY.object_name
    error = rejection(record(altered, digest=POLICY.digest))
    assert error.reason == "digest"
    assert str(error) == "digest: policy version 7: its digest is not that of its weights; publish it again"


def test_a_store_names_it_by_version_and_digest() -> None:
    assert POLICY.object_name == f"000000000007-{POLICY.digest.hex()}.safetensors"


def test_altered_weights_are_rejected() -> None:
    value = bytearray(record(POLICY).value or b"")
    value[-1] ^= 1
    assert rejection(record(POLICY, bytes(value))).reason == "digest"


def test_altered_settings_are_rejected() -> None:
    assert rejection(record(POLICY, settings=b'{"epsilon":0.5}')).reason == "digest"


@pytest.mark.parametrize("digested", [None, b"", b"\x00" * 32])
def test_a_digest_that_is_none_is_rejected(digested: bytes | None) -> None:
    assert rejection(record(POLICY, digest=digested)).reason == "digest"


@pytest.mark.parametrize("version", [0, -1])
def test_versions_begin_at_one(version: int) -> None:
    assert rejection(record(PolicyRecord(version, WEIGHTS, SETTINGS))).reason == "unreadable"


@pytest.mark.parametrize(
    ("name", "value"), [("penstock", b"2"), ("penstock", None), ("format", b"pickle"), ("format", None)]
)
def test_another_format_is_rejected_by_name(name: str, value: bytes | None) -> None:
    error = rejection(record(POLICY, **{name: value}))
    found = {"penstock": b"1", "format": b"safetensors"} | {name: value}
    assert error.reason == "format"
    assert str(error) == (
        f"format: a policy record of format {found['penstock']!r} with {found['format']!r}: "
        "this reader knows b'1' with b'safetensors'"
    )


@pytest.mark.parametrize("name", ["penstock", "version", "digest", "format", "settings"])
def test_a_null_header_is_as_good_as_none(name: str) -> None:
    whole = record(POLICY)
    nulled = replace(whole, headers=tuple((one, None if one == name else said) for one, said in whole.headers))
    error = rejection(nulled)
    assert str(error) == str(rejection(record(POLICY, **{name: None})))
    assert error.reason in {"format", "unreadable", "digest"}


def test_the_largest_version_returns() -> None:
    assert policy_in(record(PolicyRecord((1 << 63) - 1, WEIGHTS))).version == (1 << 63) - 1


@pytest.mark.parametrize(
    "changes",
    [
        {"value": b""},
        {"value": b"garbage"},
        {"value": b"\x80\x04K\x01."},  # a pickle
        {"value": safetensors({"w": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}, bytes(2))},
        {"value": safetensors({"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}}, bytes(4))},
        {"value": struct.pack("<Q", 1 << 60)},
        {"version": None},
        {"version": b"seven"},
        {"version": b"\xff"},
        {"version": b"9" * 5000},
        {"version": b"0" * 19 + b"1" + b"0" * 60},
        {"version": b"%d" % (1 << 63)},
        {"version": b"7".zfill(20)},
        {"settings": None},
        {"settings": b"{"},
        {"settings": b"\xff"},
        {"settings": b"[" * 100_000},
    ],
    ids=lambda changes: repr(changes)[:40],
)
def test_garbage_is_unreadable(changes: dict[str, Any]) -> None:
    error = rejection(record(POLICY, **changes))
    assert error.reason == "unreadable"
    what = "policy version 7: its weights do not" if "value" in changes else "a policy record at offset 5 that does not"
    assert str(error).startswith(f"unreadable: {what} read: ")


@pytest.mark.parametrize(
    "settings_header", [b"5", b"null", b"[1]", b'"text"', b'{"epsilon":NaN}', b'{"epsilon":1e999}']
)
def test_settings_that_are_no_canonical_object_are_unreadable(settings_header: bytes) -> None:
    assert rejection(record(POLICY, settings=settings_header)).reason == "unreadable"


def test_a_value_cut_anywhere_is_unreadable() -> None:
    value = record(POLICY).value or b""
    assert {rejection(record(POLICY, value[:length])).reason for length in range(len(value))} == {"unreadable"}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_mutated_value_is_rejected_or_the_same(data: st.DataObject) -> None:
    value = bytearray(record(POLICY).value or b"")
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    reason, acted = "", b""
    try:
        acted = policy_in(record(POLICY, bytes(value))).digest
    except PolicyRejectedError as rejected:
        reason = rejected.reason
    assert reason in {"unreadable", "digest", "version"} or acted == POLICY.digest


LARGE = PolicyRecord(2, {"w": np.zeros(MAX_INLINE_BYTES, np.uint8)}, {"epsilon": 0.5})


def test_a_policy_past_the_inline_limit_is_named_in_the_record_and_read_elsewhere() -> None:
    announced = decode_announcement(record(LARGE))
    assert record(LARGE).value == b""
    assert dict(record(LARGE).headers)["object"] == (FOLDER + LARGE.object_name).encode()
    assert (announced.version, announced.digest, announced.settings) == (2, LARGE.digest, {"epsilon": 0.5})
    assert (announced.inline, announced.object_name) == (None, LARGE.object_name)
    read = announced.policy(LARGE.to_safetensors())
    assert (read.version, read.digest, read.settings) == (2, LARGE.digest, LARGE.settings)


def test_a_small_policy_is_announced_with_its_weights() -> None:
    announced = decode_announcement(record(POLICY))
    assert announced.inline == POLICY.to_safetensors()


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (PolicyRecord(3, LARGE.weights, LARGE.settings), "version"),
        (PolicyRecord(2, LARGE.weights, {"epsilon": 0.6}), "digest"),
        (PolicyRecord(2, {"w": np.ones(3, np.uint8)}, LARGE.settings), "digest"),
    ],
)
def test_an_object_that_is_not_the_announced_one_is_refused(other: PolicyRecord, reason: str) -> None:
    with pytest.raises(PolicyRejectedError, match=r"policy version 2: its .*; publish it again") as caught:
        decode_announcement(record(LARGE)).policy(other.to_safetensors())
    assert caught.value.reason == reason


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x80\x04K\x01.", save({"w": np.zeros(3)})])
def test_an_object_that_is_no_policy_is_unreadable(data: bytes) -> None:
    with pytest.raises(PolicyRejectedError, match="unreadable: policy version 2: its weights do not read"):
        decode_announcement(record(LARGE)).policy(data)
    with pytest.raises(PolicyRejectedError, match="unreadable: a policy: its weights do not read"):
        PolicyRecord.from_safetensors(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"object": b"store.json"},
        {"object": f"{FOLDER}../{LARGE.object_name}".encode()},
        {"object": b""},
        {"object": b"\xff"},
        {"digest": None, "object": f"{FOLDER}000000000002-.safetensors".encode()},
        {"version": b"3"},
    ],
    ids=lambda changes: repr(changes)[:40],
)
def test_a_record_chooses_no_other_object_than_its_own(changes: dict[str, Any]) -> None:
    error = rejection(record(LARGE, **changes))
    assert error.reason == "unreadable"
    assert "which is not named by version and digest" in str(error)


@pytest.mark.parametrize("version", [0, -1, 1 << 63, 1.5, True, "2", None])
def test_an_object_whose_version_is_none_is_unreadable(version: Any) -> None:
    metadata = {"penstock": json.dumps({"version": version, "settings": {}})}
    with pytest.raises(PolicyRejectedError, match="unreadable"):
        PolicyRecord.from_safetensors(save({"w": np.zeros(3)}, metadata))


def test_a_policy_at_the_inline_limit_travels() -> None:
    overhead = len(PolicyRecord(2, {"w": np.zeros(MAX_INLINE_BYTES - 200, np.uint8)}).to_safetensors())
    largest = PolicyRecord(2, {"w": np.zeros(2 * MAX_INLINE_BYTES - 200 - overhead, np.uint8)})
    assert len(largest.to_safetensors()) == MAX_INLINE_BYTES
    assert policy_in(record(largest)).digest == largest.digest
