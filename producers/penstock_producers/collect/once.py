"""Collecting once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock_producers.collect.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock_producers.collect.collection import Collection
    from penstock_producers.collect.setup import Collectable
    from penstock_producers.policy import Policy


def collect(
    env: Collectable,
    policy: str | Policy = "actor-critic",
    *,
    n_steps: int | None = None,
    n_episodes: int | None = None,
    random: bool = False,
    explore: bool = True,
    options: Mapping[str, Any] | None = None,
    progress: bool = False,
    **settings: Any,
) -> Collection:
    """Collect once: `settings` are those of a `Collector`, all else is as in its `collect`."""
    with Collector(env, policy, **settings) as collector:
        return collector.collect(
            n_steps, n_episodes, random=random, explore=explore, options=options, progress=progress
        )
