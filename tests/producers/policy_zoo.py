"""Policies of a user's own, and some that are broken."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from penstock_producers.policy.actor_critic import ActorCritic

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
    return Doubling(observation.shape, action.n)


def rectified(observation: Any, action: Any) -> nn.Module:
    """The built-in network with other layers in it."""
    network = ActorCritic(observation.shape, action.n)
    network.trunk[1] = nn.ReLU()
    network.trunk[3] = nn.ReLU()
    return network


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
    }
    return Answering(answers[what])


def of_other_width(observation: Any, action: Any) -> nn.Module:
    return ActorCritic((99,), action.n)


def no_module(observation: Any, action: Any) -> str:
    return "no module"


def raising(observation: Any, action: Any) -> nn.Module:
    raise ValueError("the weights are at home")
