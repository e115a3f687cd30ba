"""Policy records: a version of the weights, under the digest of what acts.

One compacted topic holds a stream's newest version under one key. The weights travel inline as safetensors; nothing
is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from penstock_schemas.errors import PolicyRejectedError, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock_schemas.log import Headers, Record

KEY = b"policy"
FORMAT = b"1"
WEIGHTS_FORMAT = b"safetensors"
MAX_INLINE_BYTES = 1_000_000
_VERSION_DIGITS = len(str((1 << 63) - 1))


@dataclass(frozen=True)
class PolicyRecord:
    """One version of a policy: named weights, and the settings that act beside them (epsilon and the like)."""

    version: int
    weights: Mapping[str, NDArray[Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> bytes:
        """The digest of what acts."""
        return digest(self.weights, self.settings)

    @property
    def object_name(self) -> str:
        """The name under which a store keeps this version."""
        return f"{self.version:012d}-{self.digest.hex()}.safetensors"

    def to_safetensors(self) -> bytes:
        """The weights as a safetensors file, the settings in its metadata."""
        arrays = {name: np.asarray(value, order="C") for name, value in self.weights.items()}
        # One key of metadata: safetensors writes several in any order, and equal versions are to be equal bytes.
        return save(arrays, {"penstock": _canonical({"version": self.version, "settings": dict(self.settings)})})


def digest(weights: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> bytes:
    """Compute the sha256 of names, dtypes, shapes and bytes in the order of the names, then of the settings."""
    sha = hashlib.sha256()
    for name in sorted(weights):
        value = np.asarray(weights[name], order="C")
        sha.update(json.dumps([name, value.dtype.str, value.shape]).encode())
        sha.update(value.tobytes())
    sha.update(_canonical(settings).encode())
    return sha.digest()


def encode_policy(record: PolicyRecord) -> tuple[bytes, Headers]:
    """Encode a version as a record's value and headers; raises `TooLargeError` past the inline limit."""
    value = record.to_safetensors()
    if len(value) > MAX_INLINE_BYTES:
        raise TooLargeError(
            f"policy version {record.version}: {len(value)} bytes of weights, at most {MAX_INLINE_BYTES} travel inline"
        )
    headers = (
        ("penstock", FORMAT),
        ("version", b"%d" % record.version),
        ("digest", record.digest),
        ("format", WEIGHTS_FORMAT),
        ("settings", _canonical(record.settings).encode()),
    )
    return value, headers


def decode_policy(record: Record) -> PolicyRecord:
    """Read a version; raises `PolicyRejectedError` unless its digest is that of its own weights and settings."""
    # A null header says as much as one that is not there.
    headers = {name: value for name, value in record.headers if value is not None}
    if headers.get("penstock") != FORMAT or headers.get("format") != WEIGHTS_FORMAT:
        known = f"{FORMAT!r} with {WEIGHTS_FORMAT!r}"
        found = f"{headers.get('penstock')!r} with {headers.get('format')!r}"
        raise PolicyRejectedError("format", f"a policy record of format {found}: this reader knows {known}")
    try:
        read = PolicyRecord(_version(headers["version"]), load(record.value or b""), _settings(headers["settings"]))
        own = read.digest
    except (KeyError, ValueError, TypeError, RecursionError, SafetensorError) as error:
        detail = f"a policy record at offset {record.offset} that does not read: {error!r}"
        raise PolicyRejectedError("unreadable", detail) from error
    if own != headers.get("digest"):
        detail = f"policy version {read.version}: its digest is not that of its weights; publish it again"
        raise PolicyRejectedError("digest", detail)
    return read


def _version(header: bytes) -> int:
    # The length first: reading a long number takes the square of its digits.
    if not header.isdigit() or len(header) > _VERSION_DIGITS or not 0 < int(header) < 1 << 63:
        raise ValueError(f"the version {header[:32]!r}")
    return int(header)


def _settings(header: bytes) -> dict[str, Any]:
    settings = json.loads(header)
    if not isinstance(settings, dict):
        raise TypeError(f"settings that are no object: {header[:32]!r}")
    return settings


def _canonical(settings: Mapping[str, Any]) -> str:
    return json.dumps(dict(settings), sort_keys=True, separators=(",", ":"), allow_nan=False)
