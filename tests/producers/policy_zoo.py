"""Policies of a user's own, and some that are broken."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock_producers.policy import RandomPolicy
from penstock_producers.policy.networks import ActorCritic, Mlp
from penstock_schemas.connectors import Pipeline

if TYPE_CHECKING:
    from penstock_producers.policy import Behaviour

NOT_CALLABLE = "text"


class Constant(nn.Module):
    """Answers the same parameters for all observations, and their sum as the value."""

    def __init__(self, parameters: list[float]) -> None:
        super().__init__()
        self.parameters_ = nn.Parameter(torch.tensor(parameters))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        n = len(observation)
        return self.parameters_.expand(n, -1), observation.reshape(n, -1).sum(dim=1, dtype=torch.float32)


def constant(observation: Any, action: Any, parameters: list[float]) -> nn.Module:
    return Constant(parameters)


class Remembering(Constant):
    """Keeps the observations that it was given."""

    def __init__(self, parameters: int) -> None:
        super().__init__([0.0] * parameters)
        self.seen: list[Tensor] = []

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.append(observation)
        return super().forward(observation)


def remembering(observation: Any, action: Any) -> nn.Module:
    return Remembering(action.n)


class Looking(Constant):
    """Values an observation by its last number, which it answers as it lies in the observation."""

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(observation)[0], observation[:, -1]


def looking(observation: Any, action: Any) -> nn.Module:
    return Looking([0.0] * action.n)


class Doubling(ActorCritic):
    """The built-in network, twice."""

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        parameters, value = super().forward(observation)
        return 2 * parameters, 2 * value


def doubling(observation: Any, action: Any) -> nn.Module:
    return Doubling(Mlp(prod(observation.shape)), action.n)


def rectified(observation: Any, action: Any) -> nn.Module:
    """The built-in network with other layers in it."""
    network = ActorCritic(Mlp(prod(observation.shape)), action.n)
    network.trunk[1] = nn.ReLU()
    network.trunk[3] = nn.ReLU()
    return network


def tied(observation: Any, action: Any) -> nn.Module:
    """The built-in network, a layer of it twice."""
    network = ActorCritic(Mlp(prod(observation.shape)), action.n)
    network.trunk.add_module("again", network.trunk[2])
    return network


class Noting(Constant):
    """Counts how often it was asked, among its weights."""

    def __init__(self, parameters: list[float]) -> None:
        super().__init__(parameters)
        self.register_buffer("asked", torch.zeros((), dtype=torch.int64))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        self.asked += 1
        return super().forward(observation)


def noting(observation: Any, action: Any) -> nn.Module:
    return Noting([0.0] * action.n)


class Halved(nn.Module):
    """Keeps weights that numpy has no dtype for."""

    def __init__(self, inputs: int, parameters: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, parameters + 1).to(torch.bfloat16)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        out = self.layer(observation.to(torch.bfloat16)).float()
        return out[:, :-1], out[:, -1]


def halved(observation: Any, action: Any) -> nn.Module:
    return Halved(observation.shape[0], action.n)


class Stateful(Halved):
    """Keeps state that is no tensor."""

    def __init__(self, inputs: int, parameters: int) -> None:
        super().__init__(inputs, parameters)
        self.layer.to(torch.float32)

    def get_extra_state(self) -> str:
        return "tired"


def stateful(observation: Any, action: Any) -> nn.Module:
    return Stateful(observation.shape[0], action.n)


class Answering(nn.Module):
    """Answers whatever it is given."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, observation: Tensor) -> Any:
        return self.answer


def answering(observation: Any, action: Any, what: str) -> nn.Module:
    n, k = 2, action.n
    answers = {
        "no tuple": torch.zeros(n, k),
        "no tensors": ([0.0], [0.0]),
        "three": (torch.zeros(n, k), torch.zeros(n), torch.zeros(n)),
        "narrow": (torch.zeros(n, k - 1), torch.zeros(n)),
        "value column": (torch.zeros(n, k), torch.zeros(n, 1)),
        "double": (torch.zeros(n, k).double(), torch.zeros(n)),
        "nan": (torch.full((n, k), torch.nan), torch.zeros(n)),
        "nan value": (torch.zeros(n, k), torch.full((n,), torch.nan)),
    }
    return Answering(answers[what])


def of_other_width(observation: Any, action: Any) -> nn.Module:
    return ActorCritic(Mlp(99), action.n)


def no_module(observation: Any, action: Any) -> str:
    return "no module"


def raising(observation: Any, action: Any) -> nn.Module:
    raise ValueError("the weights are at home")


class Bounded(nn.Module):
    """Does not take weights above 100, but has taken them when it finds that out; below -100 it answers infinity."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(parameters))
        self.register_load_state_dict_post_hook(self._taken)

    @staticmethod
    def _taken(module: Any, keys: Any) -> None:
        if float(module.bias.detach().max()) > 100:
            raise ValueError("a bias above 100")

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        n = len(observation)
        return self.bias.expand(n, -1), torch.where(self.bias[0] < -100, torch.inf, 0.0).expand(n)


def bounded(observation: Any, action: Any) -> nn.Module:
    return Bounded(action.n)


class Valueless(nn.Module):
    """Acts without a value: parameters are multiples of an observation's first number."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.arange(parameters, dtype=torch.float32))

    def forward(self, observation: Tensor) -> tuple[Tensor, None]:
        return observation.reshape(len(observation), -1)[:, :1] * self.slope, None


def valueless(observation: Any, action: Any) -> nn.Module:
    return Valueless(action.n)


class Counting(nn.Module):
    """Remembers how many observations of an episode it saw, and their sum; keeps what it was given last."""

    def __init__(self, parameters: int, width: int, state_shapes: Any = None) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(parameters))
        self.state_shapes = {"count": (), "sum": (width,)} if state_shapes is None else state_shapes
        self.given: Tensor | None = None

    def forward(self, observation: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        self.given = observation.clone()
        count, total = state
        after = (count + 1, total + observation)
        return after[0][:, None] * self.bias, after[1].sum(dim=1), after


def counting(observation: Any, action: Any, state_shapes: Any = None) -> nn.Module:
    return Counting(action.n, prod(observation.shape), state_shapes)


class Forgetting(Counting):
    """Answers other states than it must."""

    def __init__(self, parameters: int, width: int, what: str) -> None:
        super().__init__(parameters, width)
        self.what = what

    def forward(self, observation: Tensor, state: tuple[Tensor, ...]) -> Any:
        parameters, value, (count, total) = super().forward(observation, state)
        answers = {
            "no states": (parameters, value),
            "one state": (parameters, value, (count,)),
            "a list": (parameters, value, [count, total]),
            "no tensor": (parameters, value, (count, 0.0)),
            "wide": (parameters, value, (count, total[:, None])),
            "nan": (parameters, value, (count, total * torch.nan)),
            "no value": (parameters, None, (count, total)),
        }
        return answers[self.what]


def forgetting(observation: Any, action: Any, what: str) -> nn.Module:
    return Forgetting(action.n, prod(observation.shape), what)


def own_policy(
    observation: Any,
    action: Any,
    *,
    pipeline: Pipeline,
    rng: np.random.Generator,
    behaviour: Behaviour | None = None,
    infos: Any = (),
) -> RandomPolicy:
    return RandomPolicy(pipeline, action, behaviour=behaviour, rng=rng, infos=infos)


def policy_without_setting(observation: Any, action: Any, *, pipeline: Pipeline | None = None) -> RandomPolicy:
    return RandomPolicy(pipeline or Pipeline(observation), action, rng=np.random.default_rng(0))


def policy_of_its_own_pipeline(observation: Any, action: Any) -> RandomPolicy:
    return policy_without_setting(observation, action)


def half_a_policy(observation: Any, action: Any) -> Any:
    policy = policy_without_setting(observation, action)

    class Half:
        act, load = policy.act, policy.load

    return Half()


def on_device(observation: Any, action: Any, *, device: str, infos: Any) -> nn.Module:
    """Takes of the setting what it names."""
    assert (device, [column.name for column in infos]) == ("cpu", ["info.allowed"])
    return Constant([0.0] * action.n)
