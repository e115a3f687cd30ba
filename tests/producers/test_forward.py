"""One batched forward a vector step, without gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from penstock_producers.policy import make_policy
from penstock_producers.policy.base import Inputs
from penstock_schemas.spaces import Box, Discrete

OBSERVATION = Box((4,), np.dtype(np.float32))
HERE = __name__


class Watched(nn.Module):
    """Notes how often it is asked, by how many observations, and whether gradients were on."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.head = nn.Linear(4, actions)
        self.asked: list[tuple[int, bool, bool]] = []

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        parameters = self.head(observation)
        self.asked.append((len(observation), torch.is_grad_enabled(), parameters.requires_grad))
        return parameters, parameters.sum(dim=1)


def watched(observation: Any, action: Any) -> nn.Module:
    return Watched(action.n)


@pytest.mark.parametrize("n", [1, 64])
def test_a_module_is_asked_once_for_all_envs_and_without_gradients(n: int) -> None:
    policy = make_policy(f"{HERE}:watched", OBSERVATION, Discrete(3), rng=np.random.default_rng(0))
    module: Any = policy.module  # type: ignore[attr-defined]  # a module's policy has it
    module.asked.clear()
    policy.act(Inputs((np.zeros((n, 4), np.float32),)))
    assert module.asked == [(n, False, False)]


@pytest.mark.parametrize("name", ["actor-critic", "recurrent", "q-network"])
def test_what_acts_in_a_built_in_module_s_stead_wants_no_gradients(name: str) -> None:
    policy = make_policy(name, OBSERVATION, Discrete(3), rng=np.random.default_rng(0))
    state = tuple(np.zeros((5, *column.shape), column.dtype) for column in policy.states)
    acted = policy.act(Inputs((np.ones((5, 4), np.float32),), (), state))
    assert all(isinstance(part, np.ndarray) for part in (*acted.drawn, *acted.state))
