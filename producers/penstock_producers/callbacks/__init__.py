"""Callbacks: a user's own code at the turns of an episode, which may choose its reset options and measure it."""

from __future__ import annotations

from penstock_producers.callbacks.base import BegunEpisode, Callbacks, EndedEpisode
from penstock_producers.callbacks.compose import CallbackList, make_callbacks
from penstock_producers.callbacks.runner import CallbackRunner, attach

__all__ = [
    "BegunEpisode",
    "CallbackList",
    "CallbackRunner",
    "Callbacks",
    "EndedEpisode",
    "attach",
    "make_callbacks",
]
