"""The pods of the loop on one machine: producers that act, consumers that store, a learner that publishes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deploy.local.pod import Pod
from penstock_schemas.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ENV, POLICY, POLICY_ARGUMENTS = "CartPole-v1", "q-network", {"hidden": [128, 128]}
CONNECTORS = [{"name": "normalize", "arguments": {}}]
PARTITIONS = 2
# Few environments, so that an episode is over soon; small fragments and commits, so that its steps are learned from
# soon. The pace leaves two cores time to learn: the producers alone would make a hundred times as many steps.
_PRODUCING = {"num-envs": 4, "partitions": PARTITIONS, "fragment-seconds": 0.2}
_STEPS_PER_SECOND = 1500
_CONSUMING = {"commit-seconds": 0.25, "session-seconds": 3, "upkeep-seconds": 5}


@dataclass(frozen=True)
class Pods:
    """Pods that work together; none runs before it is started."""

    producers: Sequence[Pod]
    consumers: Sequence[Pod]
    learner: Pod

    @property
    def serving(self) -> list[Pod]:
        """Those that have metrics."""
        return [*self.producers, *self.consumers]

    @property
    def all(self) -> list[Pod]:
        """In the order in which they are started."""
        return [*self.consumers, *self.producers, self.learner]


def make_pods(
    servers: str, stream: str, folder: Path, *, seed: int | None = None, producers: int, consumers: int
) -> Pods:
    """Make the pods of a stream, whose store and logs lie in a folder; a seed is the learner's and the producers'."""
    common = ["--stream", stream, "--bootstrap-servers", servers]
    store = ["--store", str(folder / "store")]
    pace = [{"name": "deploy.local.pace:Pace", "arguments": {"steps_per_second": _STEPS_PER_SECOND}}]
    policy = ["--policy", POLICY, "--policy-arguments", json.dumps(POLICY_ARGUMENTS)]
    policy += ["--connectors", json.dumps(CONNECTORS), "--first-policy", "random"]
    acting = ["--env", ENV, *policy, "--callbacks", json.dumps(pace), *_flags(_PRODUCING)]
    seeds = [] if seed is None else ["--seed", str(seed)]
    return Pods(
        [
            Pod(name, "penstock_producers", [*common, *acting, *seeds, "--producer-id", name], folder)
            for name in (f"producer-{ordinal}" for ordinal in range(producers))
        ],
        [
            Pod(f"consumer-{ordinal}", "penstock_consumers", [*common, *store, *_flags(_CONSUMING)], folder)
            for ordinal in range(consumers)
        ],
        Pod("learner", "examples.dqn", [*common, *store, *seeds], folder, serves=False),
    )


def check_alive(pods: Sequence[Pod]) -> None:
    """Raise `PenstockError` where a pod has ended by itself."""
    for pod in pods:
        if not pod.running:
            raise PenstockError(f"{pod.name} ended by itself; the end of its log:\n{pod.last_lines()}")


def _flags(settings: dict[str, float]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]
