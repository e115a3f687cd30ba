"""Stores of what a policy did in an env: rolled out here, published to a log in memory, assembled by a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from penstock_consumers.policies import PolicyPublisher
from penstock_consumers.store.bucket import open_bucket
from penstock_producers.envs import EnvSource, Seeds, make_envs
from penstock_producers.envs.rows import Answer
from penstock_producers.making import describe
from penstock_producers.policy.torch_policy import TorchPolicy
from penstock_producers.rollout import Rollout
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import encode_begin, encode_chunks
from penstock_schemas.spaces import leaves
from tests.consumers.messages import STREAM, TOPIC, Clock, append, store_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock_producers.envs import Envs
    from penstock_schemas.chunks import Exploration
    from penstock_schemas.stream import StreamSpec

ZOO = "tests.consumers.rolled"
PRODUCER = "a/pod-0"
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-np.inf, np.inf, (4,), np.float32),
    "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
    "discrete": spaces.Discrete(5, start=-2),
    "nested": spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (2, 2, 1), np.uint8),
            "rest": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,))]),
        }
    ),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4, start=1),
    "multi": spaces.MultiDiscrete([2, 3]),
    "box": spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 3.0], np.float32)),
    "wide": spaces.Box(-1, 1, (9,), np.float32),
    "nested": spaces.Dict({"go": spaces.Discrete(2), "push": spaces.Box(-1, 1, (1,), np.float32)}),
}
MASKS = {"discrete": 4, "multi": 5, "box": 1, "wide": 1, "nested": 2}


class Wandering(gymnasium.Env[Any, Any]):
    """Observes noise, and ends after some steps; the first choice of each component is always allowed."""

    def __init__(self, observation: str = "vector", action: str = "discrete", longest: int = 30) -> None:
        self.observation_space = OBSERVATIONS[observation]
        self.action_space = ACTIONS[action]
        self.longest = longest
        self.first = np.isin(np.arange(MASKS[action]), [0, 2] if action == "multi" else [0])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        self.left = int(self.np_random.integers(1, self.longest + 1))
        return self._observed()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        observation, info = self._observed()
        done = self.left == 0
        ended = bool(self.np_random.random() < 0.5)
        return observation, float(self.np_random.standard_normal()), done and ended, done and not ended, info

    def _observed(self) -> tuple[Any, dict[str, Any]]:
        observation = self.observation_space.sample()
        info = {"mask": (self.first | (self.np_random.random(len(self.first)) < 0.6)).astype(np.int8)}
        return observation, info if self.np_random.random() < 0.9 else {}


class Late:
    """Envs that keep their answers to themselves now and then, so that a fragment ends while actions are on their way.

    `due` tells whether it just did.
    """

    def __init__(self, inner: Envs) -> None:
        self._inner = inner
        self._asked = 0
        self.due = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def recv(self, timeout: float = 1.0) -> Answer:
        self._asked += 1
        self.due = self._asked % 5 == 0
        if self.due:
            nothing = tuple(
                np.empty((0, *leaf.space.shape), leaf.space.dtype) for leaf in leaves(self.observation_space)
            )
            return Answer(None, (), None, np.empty(0, np.int32), nothing)
        return self._inner.recv(timeout)


class Mirror(nn.Module):
    """Answers what it was given, so that the parameters recorded are what the policy saw; and the first of it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        return observation.clone(), observation[:, 0].clone()


def mirror(observation: Any, action: Any) -> nn.Module:
    return Mirror()


def changed(weights: dict[str, NDArray[Any]], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Other weights of the same shapes; the statistics of connectors stay positive."""

    def change(name: str, value: NDArray[Any]) -> NDArray[Any]:
        drawn = rng.standard_normal(value.shape)
        return np.asarray(
            np.abs(drawn) if name.startswith("connectors.") else value + 0.1 * drawn * (np.abs(value).mean() + 0.1),
            value.dtype,
        )

    return {name: change(name, value) for name, value in weights.items()}


def rolled(
    folder: Path,
    policy: str = "actor-critic",
    *,
    observation: str = "vector",
    action: str = "discrete",
    arguments: dict[str, Any] | None = None,
    behaviour: dict[str, Any] | None = None,
    connectors: Sequence[dict[str, Any]] = (),
    settings: Sequence[dict[str, Any]] = ({}, {}),
    exploration: Sequence[Exploration] = (),
    num_envs: int = 4,
    fragments: int = 12,
    fragment_steps: int = 9,
    cut_steps: int | None = 13,
    longest: int = 30,
    late: bool = False,
    alter: Callable[[dict[str, NDArray[Any]]], dict[str, NDArray[Any]]] = lambda weights: weights,
    tamper: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch,
) -> StreamSpec:
    """Roll out, a new version of each of these settings coming between fragments now and then; give the stream.

    `exploration` is what each fragment is chosen by, in turn; as the policy is where there are none. `late` ends
    fragments while actions are on their way, `alter` changes the weights further, `tamper` alters what is published.
    """
    rng = np.random.default_rng(0)
    source = EnvSource(f"{ZOO}:Wandering", {"observation": observation, "action": action, "longest": longest})
    env: Any = make_envs(source, num_envs, seeds=Seeds(0, PRODUCER), clock=Clock(), infos=["mask"])
    env = Late(env) if late else env
    try:
        spec, acting = describe(
            STREAM,
            env,
            {"id": source.env, "arguments": dict(source.kwargs)},
            policy=policy,
            arguments=arguments,
            behaviour=behaviour,
            connectors=connectors,
            rng=rng,
        )
        log = MemoryLog(clock=Clock())
        log.create(TOPIC)
        bucket = open_bucket(folder)
        publisher = PolicyPublisher(STREAM, store=bucket, log=log)
        incarnation = append(log, encode_begin(spec, PRODUCER, "start"), PRODUCER).offset
        rollout = Rollout(
            env,
            acting,
            spec,
            fragment_steps=fragment_steps,
            fragment_seconds=60.0,
            message_bytes=1 << 18,
            cut_steps=cut_steps,
            clock=Clock(),
            interrupt=(lambda: env.due) if late else None,
        )
        sequence = 0
        waiting = list(settings) if isinstance(acting, TorchPolicy) else []
        for fragment in range(fragments):
            if fragment % 3 == 2 and waiting:
                acting.load(publisher.publish(alter(changed(acting._weights(), rng)), **waiting.pop(0)))
            if exploration:
                acting.exploration = exploration[fragment % len(exploration)]
            for batch in rollout.fragment().batches:
                append(
                    log,
                    encode_chunks(spec, tamper(batch), producer=PRODUCER, incarnation=incarnation, sequence=sequence),
                    PRODUCER,
                )
                sequence += 1
    finally:
        env.close()
    store_all(log, bucket)
    return spec
