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


class Doubling(ActorCritic):
    """The built-in network, twice."""

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        parameters, value = super().forward(observation)
        return 2 * parameters, 2 * value


def doubling(observation: Any, action: Any) -> nn.Module:
    return Doubling(observation.shape, action.n)


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
