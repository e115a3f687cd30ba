"""Policy records: a version of the weights, under the digest of what acts.

One compacted topic holds a stream's newest version under one key. The weights travel inline as safetensors, or lie in
the stream's store where they are larger than a message may be; the record then names the object. Nothing is ever
unpickled.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from penstock_schemas.errors import PolicyRejectedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock_schemas.log import Headers, Record

KEY = b"policy"
FORMAT = b"1"
WEIGHTS_FORMAT = b"safetensors"
MAX_INLINE_BYTES = 1_000_000
# Where a store keeps the versions.
FOLDER = "policies/"
_METADATA = "penstock"
DIGEST_BYTES = hashlib.sha256().digest_size
_VERSION_DIGITS = len(str((1 << 63) - 1))


@dataclass(frozen=True)
class PolicyRecord:
    """One version of a policy: named weights, and the settings that act beside them (epsilon and the like)."""

    version: int
    weights: Mapping[str, NDArray[Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def digest(self) -> bytes:
        """The digest of what acts."""
        return digest(self.weights, self.settings)

    @property
    def object_name(self) -> str:
        """The name under which a store keeps this version, in its `FOLDER`."""
        return object_name(self.version, self.digest.hex())

    def to_safetensors(self) -> bytes:
        """The weights as a safetensors file, the version and the settings in its metadata."""
        arrays = {name: np.asarray(value, order="C") for name, value in self.weights.items()}
        # One key of metadata: safetensors writes several in any order, and equal versions are to be equal bytes.
        return save(arrays, {_METADATA: _canonical({"version": self.version, "settings": dict(self.settings)})})

    @classmethod
    def from_safetensors(cls, data: bytes, named: str = "a policy") -> PolicyRecord:
        """Read what `to_safetensors` wrote; raises `PolicyRejectedError` where it does not read, with its name."""
        try:
            weights = load(data)
            # The library has found the header sound, but does not give its metadata away.
            (length,) = struct.unpack_from("<Q", data)
            described = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_METADATA])
            return cls(_checked(described["version"]), weights, _object(described["settings"]))
        except (KeyError, ValueError, TypeError, RecursionError, SafetensorError) as error:
            raise PolicyRejectedError("unreadable", f"{named}: its weights do not read: {error!r}") from error


@dataclass(frozen=True)
class Announcement:
    """What a policy record says before its weights are read."""

    version: int
    digest: bytes
    settings: Mapping[str, Any]
    inline: bytes | None
    """The weights as a safetensors file; None where they lie in the store."""

    @property
    def object_name(self) -> str:
        """The name under which a store keeps this version, in its `FOLDER`."""
        return object_name(self.version, self.digest.hex())

    def policy(self, data: bytes) -> PolicyRecord:
        """Read the weights; raises `PolicyRejectedError` unless they are those that were announced."""
        what = f"policy version {self.version}"
        read = PolicyRecord.from_safetensors(data, what)
        if read.digest != self.digest or read.settings != self.settings:
            raise PolicyRejectedError("digest", f"{what}: its digest is not that of its weights; publish it again")
        if read.version != self.version:
            raise PolicyRejectedError("version", f"{what}: its weights are version {read.version}'s; publish it again")
        return read


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
    """Encode a version as a record's value and headers.

    Past the inline limit the value is empty and the header `object` names the object, which must be in the stream's
    store before the record is in the log.
    """
    value = record.to_safetensors()
    headers = (
        ("penstock", FORMAT),
        ("version", b"%d" % record.version),
        ("digest", record.digest),
        ("format", WEIGHTS_FORMAT),
        ("settings", _canonical(record.settings).encode()),
    )
    if len(value) <= MAX_INLINE_BYTES:
        return value, headers
    # Empty and not null: in a compacted topic null would delete the version before as well.
    return b"", (*headers, ("object", (FOLDER + record.object_name).encode()))


def decode_announcement(record: Record) -> Announcement:
    """Read what a record announces; raises `PolicyRejectedError` where it does not read."""
    # A null header says as much as one that is not there.
    headers = {name: value for name, value in record.headers if value is not None}
    if headers.get("penstock") != FORMAT or headers.get("format") != WEIGHTS_FORMAT:
        known = f"{FORMAT!r} with {WEIGHTS_FORMAT!r}"
        found = f"{headers.get('penstock')!r} with {headers.get('format')!r}"
        raise PolicyRejectedError("format", f"a policy record of format {found}: this reader knows {known}")
    try:
        inline = None if "object" in headers else record.value or b""
        settings = _object(json.loads(headers["settings"]))
        read = Announcement(_version(headers["version"]), headers.get("digest", b""), settings, inline)
        if inline is None:
            _check_object(headers["object"], read)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        detail = f"a policy record at offset {record.offset} that does not read: {error!r}"
        raise PolicyRejectedError("unreadable", detail) from error
    return read


def object_name(version: int, digest: str) -> str:
    """The name under which a store keeps a version of this digest, in hex, in its `FOLDER`."""
    return f"{version:012d}-{digest}.safetensors"


def _check_object(header: bytes, announced: Announcement) -> None:
    # What is read follows from version and digest alone: no record chooses another object.
    if header != (FOLDER + announced.object_name).encode() or len(announced.digest) != DIGEST_BYTES:
        raise ValueError(f"the object {header[:200]!r}, which is not named by version and digest")


def _version(header: bytes) -> int:
    # The length first: reading a long number takes the square of its digits.
    if not header.isdigit() or len(header) > _VERSION_DIGITS:
        raise ValueError(f"the version {header[:32]!r}")
    return _checked(int(header))


def _checked(version: Any) -> int:
    if type(version) is not int or not 0 < version < 1 << 63:
        raise ValueError(f"the version {version!r:.32}")
    return version


def _object(settings: Any) -> dict[str, Any]:
    if not isinstance(settings, dict):
        raise TypeError(f"settings that are no object: {settings!r:.32}")
    _canonical(settings)
    return settings


def _canonical(settings: Mapping[str, Any]) -> str:
    return json.dumps(dict(settings), sort_keys=True, separators=(",", ":"), allow_nan=False)
