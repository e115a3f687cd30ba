"""Learning through the whole loop: how long it takes from nothing to a policy that solves CartPole-v1.

A local Kafka (or the one that KAFKA_BOOTSTRAP_SERVERS names), producers, a consumer, and `examples/dqn.py`, which sees
the store alone. Versions are evaluated here, from the files that the store keeps, without exploration, an episode for
each of 100 seeds, until the mean return of one is at least 475. `--seeds 5` begins anew from nothing with each of five.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from threadpoolctl import threadpool_limits

from deploy.local import watch
from deploy.local.pods import CONNECTORS, ENV, POLICY, POLICY_ARGUMENTS, check_alive, make_pods
from deploy.local.session import session
from penstock_consumers.cli.words import positive
from penstock_consumers.policies import newest_kept
from penstock_consumers.store.bucket import open_bucket
from penstock_producers.evaluate import Evaluator
from penstock_schemas.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.local.pods import Pods
    from penstock_consumers.store.bucket import Bucket

_PRODUCERS, _CONSUMERS = 2, 1
_STOP_SECONDS = 30.0
# Not those that a producer draws with the seeds of a learner: these are the evaluation's own.
_FIRST_SEED = 1_000_000
# Of the time that passes, evaluation takes one part in so many.
_SHARE = 3


@dataclass(frozen=True)
class Evaluated:
    """One version's evaluation."""

    seconds: float
    """Since the pods were started."""
    version: int
    mean_return: float
    standard_error: float | None


@dataclass(frozen=True)
class Learned:
    """What one seed came to; written as JSON."""

    seed: int
    seconds: float
    """From the start of the pods to the end of the last evaluation."""
    solved: bool
    steps: int
    """That were stored by then."""
    evaluations: list[Evaluated]


class Versions:
    """Evaluates the versions that a store keeps."""

    def __init__(self, bucket: Bucket, episodes: int) -> None:
        self._bucket = bucket
        self._evaluator = Evaluator(ENV, range(_FIRST_SEED, _FIRST_SEED + episodes))
        _, self._policy = self._evaluator.describe(
            "evaluation", POLICY, arguments=POLICY_ARGUMENTS, connectors=CONNECTORS
        )

    def evaluate_newest(self, since: float) -> Evaluated | None:
        """Evaluate the newest version unless it was already; tell it `since` when."""
        newest = newest_kept(self._bucket)
        if newest is None or newest.version == self._policy.version:
            return None
        self._policy.load(newest)
        returns = self._evaluator.run(self._policy).returns
        if returns is None:
            raise PenstockError(f"version {newest.version}: no episode of its evaluation came to an end")
        error = returns.standard_error
        seconds = round(time.monotonic() - since, 1)
        return Evaluated(seconds, self._policy.version, returns.mean, None if error is None else round(error, 2))


def learn(pods: Pods, versions: Versions, seed: int, words: argparse.Namespace, console: Console) -> Learned:
    """Run the loop from nothing until a version is good enough, or the time is up."""
    told: list[Evaluated] = []

    def title(now: float) -> str:
        last = f"version {told[-1].version} evaluated: {told[-1].mean_return:.1f}" if told else "nothing evaluated yet"
        return f"seed {seed}, {now:.0f} s: {last}, wanted: {words.target:g}"

    with ExitStack() as stack:
        for pod in pods.all:
            stack.enter_context(pod)
        started = time.monotonic()
        next_at, steps, solved = 0.0, 0.0, False
        for now, flows in watch.Watch(time.monotonic).show(console, pods.serving, words.limit, title):
            check_alive(pods.all)
            steps = max(steps, sum(flow.reading.steps for flow in flows if flow.pod.startswith("consumer")))
            evaluated = versions.evaluate_newest(started) if now >= next_at else None
            if evaluated is None:
                continue
            told.append(evaluated)
            solved = evaluated.mean_return >= words.target
            if solved:
                break
            next_at = evaluated.seconds + (_SHARE - 1) * (evaluated.seconds - now)
        seconds = round(time.monotonic() - started, 1)
        for pod in (pods.learner, *pods.producers, *pods.consumers):
            pod.stop(_STOP_SECONDS)
    return Learned(seed, seconds, solved, int(steps), told)


def median_seconds(learned: Sequence[Learned]) -> float | None:
    """The median of the seeds that got there: how long the others ran is how long they might."""
    seconds = [one.seconds for one in learned if one.solved]
    return median(seconds) if seconds else None


def main(argv: Sequence[str] | None = None) -> int:
    """Learn; 0 where every seed got there, 1 where one did not."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local.learn", description=__doc__)
    parser.add_argument("--seeds", type=positive, default=1, help="how many, one after the other (default: 1)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a seed may take (default: 600)")
    parser.add_argument("--target", type=float, default=475.0, help="mean return to reach (default: 475)")
    parser.add_argument("--episodes", type=positive, default=100, help="in an evaluation (default: 100)")
    parser.add_argument("--folder", type=Path, default=Path("build/learn"), help="where the files go")
    words = parser.parse_args(argv)
    console = Console()
    learned: list[Learned] = []
    began = time.monotonic()
    with session(words.folder, console) as (servers, _, suffix), threadpool_limits(1):
        for seed in range(words.first_seed, words.first_seed + words.seeds):
            folder = words.folder / f"seed-{seed}"
            folder.mkdir()
            stream = f"cartpole-{seed}{suffix}"
            pods = make_pods(servers, stream, folder, seed=seed, producers=_PRODUCERS, consumers=_CONSUMERS)
            versions = Versions(open_bucket(folder / "store"), words.episodes)
            learned.append(learn(pods, versions, seed, words, console))
            what = "solved" if learned[-1].solved else "not solved"
            console.print(f"seed {seed}: {what} after {learned[-1].seconds:g} s, {learned[-1].steps:,} steps")
    solved, took = sum(one.solved for one in learned), median_seconds(learned)
    summary = {
        "target": words.target,
        "episodes": words.episodes,
        "solved": solved,
        "seeds": words.seeds,
        "median_seconds": took,
        "seconds": round(time.monotonic() - began, 1),
        "learned": [asdict(one) for one in learned],
    }
    (words.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    of_these = "" if took is None else f", the median of these {took:g} s"
    console.print(f"{solved} of {words.seeds} solved{of_these}; in all {summary['seconds']:g} s")
    return 0 if solved == words.seeds else 1


if __name__ == "__main__":
    sys.exit(main())
