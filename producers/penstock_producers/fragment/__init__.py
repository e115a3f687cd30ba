"""A fragment: what one vector of envs produces between two policy refreshes, as a columnar log."""

from __future__ import annotations

from penstock_producers.fragment.fragment import ClosedFragment, Fragment
from penstock_producers.fragment.recording import ActingPolicy, Recording

__all__ = ["ActingPolicy", "ClosedFragment", "Fragment", "Recording"]
