"""The modes in which an environment can be stepped, and which of them one has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gymnasium.vector import AutoresetMode

from penstock_schemas.errors import EnvError

if TYPE_CHECKING:
    from penstock_producers.envs.make import Vectorization
    from penstock_producers.envs.source import EnvSource

_ENVPOOL = "envpool:"


@dataclass(frozen=True)
class Mode:
    """One way to step several envs; see `make_envs`."""

    name: str
    vectorization: Vectorization
    autoreset: AutoresetMode | None = None
    workers: int = 0


VECTOR_MODES = (
    Mode("vector_entry_point", "vector_entry_point"),
    Mode("sync/NEXT_STEP", "sync", AutoresetMode.NEXT_STEP),
    Mode("sync/SAME_STEP", "sync", AutoresetMode.SAME_STEP),
    Mode("sync/DISABLED", "sync", AutoresetMode.DISABLED),
    Mode("async/NEXT_STEP", "async", AutoresetMode.NEXT_STEP),
    Mode("lanes", "lanes"),
    Mode("lanes/workers", "lanes", workers=1),
    Mode("envpool", "envpool"),
)


def why_unavailable(source: EnvSource, mode: Mode) -> str | None:
    """Say why an env does not have a mode; None where it has. Raises `EnvError` for an env that is not there."""
    if is_envpool(source) != (mode.vectorization == "envpool"):
        return "EnvPool steps only its own vectors" if is_envpool(source) else "it is no EnvPool task"
    if mode.vectorization == "vector_entry_point":
        if not source.has_vector:
            return "it has no vector entry point"
        return "a vector entry point takes no wrappers" if source.wrappers else None
    if mode.vectorization != "envpool" and not source.has_single:
        return "it makes vector environments only"
    if mode.workers:
        try:
            source.to_json()
        except EnvError as error:
            return str(error)
    return None


def why_no_single(source: EnvSource) -> str | None:
    """Say why no single env can be had; None where one can. Raises `EnvError` for an env that is not there."""
    if is_envpool(source):
        return "EnvPool steps only its own vectors"
    return None if source.has_single else "it makes vector environments only"


def is_envpool(source: EnvSource) -> bool:
    """Whether the source is an EnvPool task."""
    return source.env.startswith(_ENVPOOL)
