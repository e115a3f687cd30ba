"""What an episode is known by, whichever segment it lies in."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from penstock_consumers.store.segments import _mix
from penstock_schemas.chunks import fixed

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


def episode_keys(batch: pa.RecordBatch) -> NDArray[np.uint64]:
    """Hash the names of episodes, each with its length, shape (E,); their sum is the `key_sum` of a segment."""
    owners = batch.column("producer").dictionary_encode()
    names = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in owners.dictionary.to_pylist()]
    mixed: NDArray[np.uint64] = np.frombuffer(b"".join(names), np.uint64)[owners.indices.to_numpy()]
    for name in ("incarnation", "env", "episode", "length"):
        mixed = _mix(mixed ^ fixed(batch, name).astype(np.uint64))
    return mixed
