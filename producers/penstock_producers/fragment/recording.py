"""What is recorded of every action, and which policy chose it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from penstock_schemas.chunks import Exploration
from penstock_schemas.errors import PolicyError
from penstock_schemas.policies import DIGEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from penstock_schemas.columns import Column
    from penstock_schemas.stream import StreamSpec


@dataclass(frozen=True, slots=True)
class ActingPolicy:
    """Which weights acted, and how actions were chosen."""

    version: int
    digest: bytes
    exploration: Exploration = Exploration.ON
    absent: frozenset[str] = frozenset()
    """The nullable extras that are null in what it chose."""


class ActingColumns(NamedTuple):
    """What is written of the policies that acted, an item each."""

    version: NDArray[np.int64]
    digest: NDArray[np.uint8]
    """(policies, 32)"""
    exploration: NDArray[np.uint8]

    @classmethod
    def of(cls, policies: Sequence[ActingPolicy]) -> Self:
        """Write them down, in this order."""
        digest = np.array([list(policy.digest) for policy in policies], np.uint8).reshape(-1, DIGEST_BYTES)
        exploration = np.array([policy.exploration for policy in policies], np.uint8)
        return cls(np.array([policy.version for policy in policies], np.int64), digest, exploration)

    def columns(self, used: NDArray[np.intp]) -> dict[str, pa.Array]:
        """Make the columns of chunk rows, by the place of each row's policy."""
        digest = pa.py_buffer(np.take(self.digest, used, axis=0))
        return {
            "policy_version": pa.array(np.take(self.version, used)),
            "policy_digest": pa.Array.from_buffers(pa.binary(DIGEST_BYTES), len(used), [None, digest]),
            "exploration": pa.array(np.take(self.exploration, used)),
        }


@dataclass(frozen=True, slots=True)
class Recording:
    """What is copied of every action, and how the stream's columns come of it when a fragment closes.

    What can be computed later is computed then, for a whole fragment at once: at an env's batch sizes a numpy call
    costs more than what it computes.

    Attributes:
        columns: what the policy gives for each step, the action's leaves first.
        finish: maps those columns, an item a step, to the stream's action columns and extras, `final` left out.
        final: the nullable extra, the last one, that holds the value of the observation with which an episode ended;
            None for none.
    """

    columns: tuple[Column, ...]
    finish: Callable[[Sequence[NDArray[Any]]], Sequence[NDArray[Any]]]
    final: str | None = None

    def check(self, spec: StreamSpec) -> None:
        """Raise `PolicyError` where `final` is not what it must be in this stream."""
        last = spec.extras[-1] if spec.extras else None
        if self.final is not None and not (
            last and last.name == self.final and last.nullable and last.dtype.kind == "f" and not last.shape
        ):
            raise PolicyError(
                f"stream {spec.stream!r}: the values of last observations are recorded as {self.final!r}, which is not "
                "its last extra, nullable, a float without a shape: declare it so in the policy"
            )

    @classmethod
    def plain(cls, spec: StreamSpec) -> Recording:
        """The policy gives the stream's own columns."""
        return cls((*spec.action_columns, *spec.extras), lambda values: values)
