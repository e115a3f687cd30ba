"""Connectors: from the observations that are stored to those that a policy sees, the same for actor and reader."""

from __future__ import annotations

from penstock_schemas.connectors.acting import ActingPipeline, Context
from penstock_schemas.connectors.connector import Connector, Plain, Seen
from penstock_schemas.connectors.make import make_pipeline
from penstock_schemas.connectors.pipeline import Pipeline
from penstock_schemas.connectors.reading import Rows, Trajectories, observed, shown

__all__ = [
    "ActingPipeline",
    "Connector",
    "Context",
    "Pipeline",
    "Plain",
    "Rows",
    "Seen",
    "Trajectories",
    "make_pipeline",
    "observed",
    "shown",
]
