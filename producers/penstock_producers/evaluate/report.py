"""What an evaluation found: an episode a seed, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_schemas.chunks import Ends

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_WHOLE = Ends.TERMINATED | Ends.TRUNCATED
_OUTCOMES = {
    Ends.TERMINATED: "terminated",
    Ends.TRUNCATED: "truncated",
    _WHOLE: "terminated and truncated",
    Ends.CUT: "cut",
    Ends.ABORTED: "failed",
}


class EvaluatedEpisode(NamedTuple):
    """What became of one seed."""

    seed: int
    ends: Ends
    """TERMINATED, TRUNCATED or both; CUT where it reached the most steps that were allowed; ABORTED where a fault of
    its env ended it as often as it was played."""
    episode_return: float | None
    """The sum of its rewards, up to a cut; None where it failed."""
    length: int | None
    """In steps; None where it failed."""
    attempts: int
    """How often it was played: more than once after faults only, and never where faults left no env to play it."""
    reason: str | None = None
    """Why it failed, the last time; None where it did not."""

    @property
    def is_whole(self) -> bool:
        """Whether the env itself ended it."""
        return bool(self.ends & _WHOLE)

    @property
    def outcome(self) -> str:
        """How it ended, in words."""
        return _OUTCOMES[self.ends]


class Statistics(NamedTuple):
    """Of one number an episode."""

    mean: float
    standard_error: float | None
    """Of the mean: the deviation divided by the root of the number of episodes. None for a single one."""
    std: float | None
    """The deviation of a sample, with one degree of freedom taken off. None for a single episode."""
    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: NDArray[Any]) -> Statistics | None:
        """Of values (n,); None where n is 0."""
        if not len(values):
            return None
        std = float(np.std(values, ddof=1)) if len(values) > 1 else None
        error = None if std is None else std / len(values) ** 0.5
        return cls(
            float(np.mean(values)),
            error,
            std,
            float(np.min(values)),
            float(np.median(values)),
            float(np.max(values)),
        )


@dataclass(frozen=True)
class Evaluation:
    """What a policy without exploration got in the episodes of a list of seeds.

    Attributes:
        env: the environment's name.
        policy_version: the version that acted in all of them.
        policy_digest: its digest.
        batch: how many rows each forward had: the last bits of what a policy answers depend on it.
        episodes: one a seed, in the order of the list.
    """

    env: str
    policy_version: int
    policy_digest: bytes
    batch: int
    episodes: tuple[EvaluatedEpisode, ...]

    @property
    def whole(self) -> tuple[EvaluatedEpisode, ...]:
        """The episodes that the env itself ended: the statistics are of these only."""
        return tuple(episode for episode in self.episodes if episode.is_whole)

    @property
    def returns(self) -> Statistics | None:
        """Of the returns of whole episodes; None where there are none."""
        return Statistics.of(np.array([episode.episode_return for episode in self.whole], np.float64))

    @property
    def lengths(self) -> Statistics | None:
        """Of the lengths of whole episodes, in steps; None where there are none."""
        return Statistics.of(np.array([episode.length for episode in self.whole], np.int64))

    def count(self, ends: Ends) -> int:
        """How many episodes ended in this way, whatever else holds."""
        return sum(bool(episode.ends & ends) for episode in self.episodes)

    def table(self) -> str:
        """Lay it out for a terminal: a line an episode, then the statistics."""
        episodes = [("seed", "return", "length", "ended", "")]
        for episode in self.episodes:
            notes = [f"played {episode.attempts} times"] if episode.attempts > 1 else []
            notes += [] if episode.reason is None else [episode.reason]
            figures = (str(episode.seed), _figure(episode.episode_return), _figure(episode.length))
            episodes.append((*figures, episode.outcome, "; ".join(notes)))
        summary = [("", *(name.replace("_", " ") for name in Statistics._fields))]
        for name, statistics in (("return", self.returns), ("length", self.lengths)):
            summary.append((name, *map(_figure, statistics or [None] * len(Statistics._fields))))
        head = f"{self.env}: policy version {self.policy_version}, digest {self.policy_digest.hex()[:12]}"
        return "\n".join([head, "", *_aligned(episodes, left=2), "", self._counts(), "", *_aligned(summary)])

    def to_json(self) -> dict[str, Any]:
        """Describe it as plain JSON."""
        return {
            "env": self.env,
            "policy_version": self.policy_version,
            "policy_digest": self.policy_digest.hex(),
            "batch": self.batch,
            "whole": len(self.whole),
            "return": None if self.returns is None else self.returns._asdict(),
            "length": None if self.lengths is None else self.lengths._asdict(),
            "episodes": [
                {
                    "seed": episode.seed,
                    "return": episode.episode_return,
                    "length": episode.length,
                    "ended": episode.outcome,
                    "whole": episode.is_whole,
                    "attempts": episode.attempts,
                    "reason": episode.reason,
                }
                for episode in self.episodes
            ],
        }

    def _counts(self) -> str:
        counts = f"{len(self.whole)} of {len(self.episodes)} episodes are whole"
        for ends, told in ((Ends.CUT, "cut at the most steps allowed"), (Ends.ABORTED, "failed")):
            if number := self.count(ends):
                counts += f", {number} {told}"
        return counts


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"


def _aligned(rows: Sequence[tuple[str, ...]], left: int = 0) -> list[str]:
    """Align columns to the right, the last `left` ones to the left."""
    *widths, _ = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = len(rows[0]) - left
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if at < right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        last = row[-1] if left else row[-1].rjust(max(len(other[-1]) for other in rows))
        lines.append("  ".join([*cells, last]).rstrip())
    return lines
