"""What a call asks for."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock_schemas.chunks import Exploration
from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_producers.policy import Policy


def check_amount(n_steps: int | None, n_episodes: int | None, cut_steps: int | None) -> None:
    """Raise `SettingsError` unless one of the two is asked for, and can be had."""
    if (n_steps is None) == (n_episodes is None):
        raise SettingsError(f"n_steps {n_steps} and n_episodes {n_episodes}: give one of them")
    for name, value in (("n_steps", n_steps), ("n_episodes", n_episodes)):
        if value is not None and value < 1:
            raise SettingsError(f"{name} {value}: use 1 or more")
    if n_episodes is not None and cut_steps is not None:
        raise SettingsError(f"n_episodes {n_episodes} with cut_steps {cut_steps}: what is cut is no whole episode")


def exploration(*, random: bool, explore: bool) -> Exploration | None:
    """Tell how the policy is to choose; None for as it is."""
    if random and not explore:
        raise SettingsError("random=True with explore=False: random actions explore; give one of them")
    if random:
        return Exploration.RANDOM
    return None if explore else Exploration.OFF


@contextmanager
def exploring(policy: Policy, wanted: Exploration | None) -> Iterator[None]:
    """Have a policy choose so meanwhile; None for as it is."""
    before = policy.exploration
    if wanted is not None and wanted is not before:
        policy.exploration = wanted
    try:
        yield
    finally:
        if policy.exploration is not before:
            policy.exploration = before
