"""Connectors: from the observations that are stored to those that a policy sees, the same for actor and reader."""

from __future__ import annotations

from penstock_schemas.connectors.connector import Connector, Seen
from penstock_schemas.connectors.pipeline import ActingPipeline, Context, Pipeline

__all__ = ["ActingPipeline", "Connector", "Context", "Pipeline", "Seen"]
