"""The settings of `penstock-producer evaluate`."""

from __future__ import annotations

import re
from typing import Literal, Self, TypeAlias

from pydantic import FilePath, model_validator
from pydantic_settings import SettingsConfigDict

from penstock_producers.envs.seeds import ListedSeeds
from penstock_producers.evaluate.run import ATTEMPTS, BATCH
from penstock_producers.settings import ProducerSettings
from penstock_schemas.errors import EnvError
from penstock_schemas.service.settings import Positive, StreamName

Output: TypeAlias = Literal["table", "json"]

_MOST_SEEDS = 1_000_000
_PART = re.compile(r"(\d{1,19})(?:\.\.(\d{1,19}))?")


class EvaluationSettings(ProducerSettings):
    """Evaluates a policy without exploration: an episode for each seed, in lanes, the same however many there are.

    A producer's settings are taken too, so that one file and one environment serve both: those of the environment and
    the policy mean the same here, and what only producing needs is left alone.
    """

    model_config = SettingsConfigDict(cli_prog_name="penstock-producer evaluate")

    stream: StreamName = "evaluation"
    """The stream whose policy is evaluated: the newest version in its topic; required without --weights."""

    weights: FilePath | None = None
    """A version's weights to evaluate instead, a file as stores keep them in policies/."""

    seeds: str = "0..99"
    """The seeds of the episodes: 0..99, or 3,5,8, or both as in 0..9,20."""

    max_steps: Positive | None = None
    """After how many steps an episode is cut, which counts in no statistics; never without."""

    attempts: Positive = ATTEMPTS
    """How often a seed is played whose episode a fault aborts."""

    batch: Positive = BATCH
    """How many rows each forward is filled up to: the last bits of its results depend on that."""

    output: Output = "table"
    """What is written: a table, or json; with --watch an object a line."""

    watch: bool = False
    """Evaluate the stream's newest version, again and again as there are newer ones, until stopped, and serve /metrics
    meanwhile."""

    publish: StreamName | None = None
    """The stream of its own to which the episodes are published, chunk by chunk as a producer's; nowhere without."""

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The seeds, spelled out."""
        return parse_seeds(self.seeds)

    @model_validator(mode="after")
    def _it_is_told_what_to_evaluate(self) -> Self:
        named = "stream" in self.model_fields_set
        if self.weights is None and not named:
            raise ValueError("--weights FILE or --stream NAME is required: whose weights are to be evaluated?")
        if self.weights is not None and self.watch:
            raise ValueError(f"--weights {self.weights} is one version, so there is nothing to --watch: name --stream")
        if named and self.publish == self.stream:
            raise ValueError(
                f"--publish {self.publish} is the stream that is evaluated: its learners would train on it; give the "
                "episodes a stream of their own"
            )
        try:
            ListedSeeds(parse_seeds(self.seeds), 1)
        except EnvError as error:
            raise ValueError(f"--seeds {self.seeds!r}: {error}") from error
        return self


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read seeds and ranges of them, both ends included, between commas; raises `ValueError` for anything else."""
    ranges = []
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise ValueError(f"--seeds {text!r}: {part.strip()!r} is neither a seed nor a range: write 0..99 or 3,5,8")
        first = int(found[1])
        ranges.append(range(first, int(found[2] or first) + 1))
    # Not by `len`, which takes no range of more than 2**63 - 1.
    if not all(ranges) or sum(part.stop - part.start for part in ranges) > _MOST_SEEDS:
        raise ValueError(f"--seeds {text!r}: from one to {_MOST_SEEDS:,} seeds, each range from its lower end")
    return tuple(seed for part in ranges for seed in part)
