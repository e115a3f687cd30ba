"""Pictures of what a store holds: returns against policy version, and over time."""

from __future__ import annotations

from penstock_consumers.plot.curves import BY, Curve, curves

__all__ = ["BY", "Curve", "curves"]
