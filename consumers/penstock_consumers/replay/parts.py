"""An episode that was cut, joined with the parts that it continues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.replay.episodes import of_env
from penstock_consumers.replay.segment import episode_id
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import StoreError
from penstock_schemas.sent import sent_columns
from penstock_schemas.spaces import flatten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_consumers.replay.episodes import Episode
    from penstock_consumers.replay.replay import Replay
    from penstock_schemas.spaces import Leaves
    from penstock_schemas.stream import StreamSpec


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """T steps from a reset on, as they lie in one part or in several."""

    seed: int | None
    reset_options: str | None
    observation: Leaves
    """An array (T + 1, *shape) for each leaf of the observation space."""
    action_sent: Leaves
    """An array (T, *shape) for each leaf of the action space."""
    reward: NDArray[Any]
    """(T,)"""


def parts_until(replay: Replay, name: str) -> tuple[Episode, ...]:
    """Find an episode by its id, and all that it continues: the first is the part that began with the reset.

    Raises `StoreError` where one of them is not in the store, or lost its end.
    """
    part = replay.episode(name)
    number = part.continues
    if number is None:
        return (part,)
    find = of_env(replay._snapshot, replay.spec, part)  # noqa: SLF001  (the reader is of this package; its users have no snapshots)
    parts = [part]
    while number is not None:
        wanted = episode_id(part.producer, part.incarnation, part.env, number)
        before = find(number)
        lost = "which is not in the store" if before is None else "of which the end was lost"
        if before is None or before.ends != Ends.CUT:
            raise StoreError(f"episode {part.id} continues {wanted}, {lost}: its steps from the reset on cannot be had")
        part, number = before, before.continues
        parts.append(part)
    return tuple(reversed(parts))


def join(parts: Sequence[Episode], spec: StreamSpec) -> Steps:
    """Lay parts end to end; a part begins with the observation with which the one before it ended."""
    observations = [flatten(spec.observation, part.observation) for part in parts]
    later = [tuple(values[1:] for values in leaves) for leaves in observations[1:]]
    actions = [_sent(part, spec) for part in parts]
    return Steps(
        seed=parts[0].seed,
        reset_options=parts[0].reset_options,
        observation=tuple(map(np.concatenate, zip(observations[0], *later, strict=True))),
        action_sent=tuple(map(np.concatenate, zip(*actions, strict=True))),
        reward=np.concatenate([part.reward for part in parts]),
    )


def _sent(part: Episode, spec: StreamSpec) -> Leaves:
    drawn = zip(sent_columns(spec.action), flatten(spec.action, part.action), strict=True)
    return tuple(part.extras.get(column.name, leaf) for column, leaf in drawn)
