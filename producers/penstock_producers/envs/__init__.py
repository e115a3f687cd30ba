"""Environments of every kind, adapted to one canonical order of rows."""

from __future__ import annotations

from penstock_producers.envs.canonical import CanonicalEnv
from penstock_producers.envs.lanes import Containment, Lanes
from penstock_producers.envs.make import Vectorization, make_envs
from penstock_producers.envs.rows import Abort, Answer, Envs, Rows
from penstock_producers.envs.seeds import Seeds
from penstock_producers.envs.source import EnvSource
from penstock_producers.envs.wrapper import Wrapper

__all__ = [
    "Abort",
    "Answer",
    "CanonicalEnv",
    "Containment",
    "EnvSource",
    "Envs",
    "Lanes",
    "Rows",
    "Seeds",
    "Vectorization",
    "Wrapper",
    "make_envs",
]
