"""Which autoreset mode a vector environment declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gymnasium.vector import AutoresetMode, VectorEnv

from penstock_schemas.errors import EnvError

if TYPE_CHECKING:
    from penstock_producers.envs.closing import AnyVectorEnv


def declared_mode(env: AnyVectorEnv) -> object:
    """Find the mode, whatever it is; None where there is none.

    An attribute of the env's own counts before its metadata: the class's are shared by all that have none of their own,
    and some envs write theirs into them.
    """
    metadata = env.metadata
    if metadata is env.unwrapped.metadata:  # no wrapper says otherwise
        own = getattr(env.unwrapped, "autoreset_mode", None)
        if isinstance(own, AutoresetMode):
            return own
    return None if metadata is VectorEnv.metadata else metadata.get("autoreset_mode")


def autoreset_mode(env: AnyVectorEnv, name: str) -> AutoresetMode:
    """Find the mode; raises `EnvError` where it is none of gymnasium's."""
    mode = declared_mode(env)
    if isinstance(mode, AutoresetMode):
        return mode
    declared = "none" if mode is None else repr(mode)
    raise EnvError(
        f"environment {name}: metadata['autoreset_mode'] must be a gymnasium.vector.AutoresetMode, but is {declared}: "
        "without it a reset cannot be told from a step; declare the mode that the environment has"
    )
