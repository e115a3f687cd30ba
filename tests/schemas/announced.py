"""The policy that a record holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_schemas.policies import decode_announcement

if TYPE_CHECKING:
    from penstock_schemas.log import Record
    from penstock_schemas.policies import PolicyRecord


def policy_in(record: Record) -> PolicyRecord:
    """Read a version whose weights travel inline."""
    announced = decode_announcement(record)
    assert announced.inline is not None
    return announced.policy(announced.inline)
