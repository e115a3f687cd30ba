"""Environments, all adapted to one canonical order of rows."""

from __future__ import annotations

from penstock_producers.envs.canonical import CanonicalEnv
from penstock_producers.envs.make import Vectorization, make_env
from penstock_producers.envs.rows import Rows

__all__ = ["CanonicalEnv", "Rows", "Vectorization", "make_env"]
