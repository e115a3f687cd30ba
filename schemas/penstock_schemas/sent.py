"""The action that an env was sent, where it is not the one that was drawn: a column for each leaf of its space."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock_schemas.columns import Column
from penstock_schemas.spaces import leaves

if TYPE_CHECKING:
    from penstock_schemas.spaces import Space

_SENT = "action_sent"


def sent_columns(action: Space) -> tuple[Column, ...]:
    """The extras of a policy that maps what it draws: "action_sent", or "action_sent_<i>" for leaf i of a nested space.

    Dots, with which the columns of leaves are named else, are for spaces: extras have none.
    """
    columns = [Column.of(leaf, _SENT) for leaf in leaves(action)]
    if columns[0].name == _SENT:
        return tuple(columns)
    return tuple(replace(column, name=f"{_SENT}_{i}") for i, column in enumerate(columns))
