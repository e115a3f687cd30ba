"""What a user overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock_producers.envs import Envs, Rows
    from penstock_producers.fragment import ClosedFragment
    from penstock_schemas.chunks import Ends


class BegunEpisode(NamedTuple):
    """An episode that has begun."""

    seed: int | None
    """With which its env was reset; None where it had no seed of its own."""
    options: Mapping[str, Any] | None
    """With which its env was reset."""
    infos: Mapping[str, Any]
    """The recorded infos of the reset, by key, those left out that were not there."""


class EndedEpisode(NamedTuple):
    """An episode that has ended, the parts of a cut one joined."""

    env: int
    episode_return: float
    """The sum of its rewards."""
    length: int
    """In steps."""
    ends: Ends
    """TERMINATED, TRUNCATED or both; ABORTED where a fault or a forced reset ended it."""
    abort_reason: str | None
    """Its kind, and after a colon the details; None where it ended of itself."""
    seed: int | None
    """With which its env was reset; None where it had no seed of its own."""
    options: Mapping[str, Any] | None
    """With which its env was reset."""
    infos: Mapping[str, Any]
    """The recorded infos of its last step, by key, those left out that were not there; none where it was aborted."""


class Callbacks:
    """Does nothing; override what you need, the rest costs nothing.

    All methods are called in the process and the thread that collects. What one raises ends the collecting with an
    `EnvError` that names it; what was recorded before is not lost.

    Attributes:
        metrics: the names of the numbers that `on_episode_end` measures. They are columns of the stream,
            "metric.<name>", so all producers of a stream have the same ones in the same order.
    """

    metrics: tuple[str, ...] = ()

    def on_envs_created(self, envs: Envs) -> None:
        """Look at envs that were created, once, before their first reset."""

    def on_reset(self, env: int, episode: int) -> Mapping[str, Any] | None:
        """Choose the options of a reset that is to come, plain JSON, which is recorded with the episode; None for none.

        For envs in lanes only. It is asked before every reset for which nobody gave options: the first, those behind
        an episode's end or a fault, of which callbacks have been told by then, and forced ones, which they are told of
        after. It may be asked again for the same episode where a worker process was lost meanwhile.

        Args:
            env: its index.
            episode: which reset of this env it is, from 0, failed ones counted.
        """

    def on_episode_start(self, env: int, begun: BegunEpisode) -> None:
        """An episode has begun in this env."""

    def on_step(self, steps: Rows) -> None:
        """Look at steps, one row each of the envs that answered; reset rows are left out.

        The arrays may be the envs' own: they hold until the method returns, and are not to be written to.
        """

    def on_episode_end(self, ended: EndedEpisode) -> Mapping[str, float] | None:
        """Measure an episode that has ended: numbers by the names in `metrics`; what is left out, or NaN, is null.

        They are recorded with its last step. Those of an aborted episode are not recorded.
        """

    def on_fragment_end(self, fragment: ClosedFragment) -> None:
        """Look at a fragment that was closed; its batches hold until the method returns."""
