"""Random actions: the policy of whoever has none yet."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.fragment import Recording
from penstock_producers.policy.base import Actions, Recomputed
from penstock_producers.policy.behaviour import Behaviour
from penstock_producers.policy.distributions import distribution_for, uniform
from penstock_producers.policy.mask import mask_among
from penstock_schemas.chunks import Exploration
from penstock_schemas.columns import Column
from penstock_schemas.errors import PolicyError, PolicyRejectedError
from penstock_schemas.policies import PolicyRecord, digest
from penstock_schemas.spaces import Discrete, LeafSpace, MultiBinary, MultiDiscrete, Space, leaves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock_producers.policy.base import Inputs
    from penstock_producers.policy.distributions import Distribution
    from penstock_schemas.connectors import Pipeline
    from penstock_schemas.spaces import Leaves

_FLOAT32 = np.dtype(np.float32)


class RandomPolicy:
    """Draws from the action space without looking: uniformly where it is bounded, else as gymnasium's spaces do.

    Of its behaviour it has the mask, and draws among what that allows. Where an action is choices only, the
    log-probability is recorded. It has no weights, so every version that is published is refused.

    Raises `PolicyError` for a behaviour that has more.
    """

    version = 0
    mapping = "identity"
    states: tuple[Column, ...] = ()
    absent: frozenset[str] = frozenset()

    def __init__(
        self,
        pipeline: Pipeline,
        action: Space,
        *,
        behaviour: Behaviour | None = None,
        rng: np.random.Generator,
        infos: Sequence[Column] = (),
    ) -> None:
        behaviour = behaviour or Behaviour()
        if behaviour != Behaviour(mask=behaviour.mask):
            raise PolicyError(f"policy 'random': of a behaviour it has the mask only, not {behaviour.to_json()}")
        self.pipeline = pipeline
        self.digest = digest({}, {})
        self._behaviour = behaviour
        self._rng = rng
        self._spaces = [leaf.space for leaf in leaves(action)]
        self._distribution: Distribution | None = None
        columns = tuple(Column.of(leaf, "action") for leaf in leaves(action))
        choices = all(isinstance(space, Discrete | MultiDiscrete | MultiBinary) for space in self._spaces)
        self.extras = (Column("log_prob", (), _FLOAT32),) if choices else ()
        if behaviour.mask is not None:
            self._distribution = distribution_for(action, behaviour)
            self._mask = mask_among(behaviour.mask, infos, self._distribution.choices)
            columns += (Column("parameters", (self._distribution.parameters,), _FLOAT32),)
        self._log_prob = -sum(map(_log_choices, self._spaces)) if choices else 0.0
        self.recording = Recording(columns, self._finish)

    @property
    def exploration(self) -> Exploration:
        """Always RANDOM."""
        return Exploration.RANDOM

    @exploration.setter
    def exploration(self, wanted: Exploration) -> None:
        if wanted not in {Exploration.ON, Exploration.RANDOM}:
            raise PolicyError(f"policy 'random': exploration {wanted.name}: it has no best action; leave it RANDOM")

    def act(self, inputs: Inputs) -> Actions:
        """Draw an action for each of n envs."""
        if self._distribution is None:
            n = len(inputs.observation[0])
            drawn = tuple(uniform(space, n, self._rng) for space in self._spaces)
            return Actions(drawn, drawn)
        parameters, _, _ = self.recompute(inputs, Exploration.RANDOM)
        drawn = self._distribution.draw(parameters, self._rng, Exploration.RANDOM)
        return Actions((*drawn, parameters), drawn)

    def recompute(self, inputs: Inputs, exploration: Exploration) -> Recomputed:
        """Compute again what actions were drawn from: logits of what is allowed; none without a mask."""
        del exploration
        n = len(inputs.observation[0])
        if self._distribution is None:
            return Recomputed(np.zeros((n, 0), np.float32), None)
        logits = np.zeros((n, self._distribution.parameters), np.float32)
        behaved = self._distribution.behave(logits, self._mask(inputs.infos), self._behaviour, Exploration.RANDOM)
        return Recomputed(behaved, None)

    def log_prob(self, parameters: NDArray[np.float32], action: Leaves) -> NDArray[np.float32]:
        """Give the log-probabilities (n,) of actions as recorded; raises `PolicyError` where they are not choices."""
        if not self.extras:
            raise PolicyError("policy 'random': the actions are not choices only, so they have no probabilities")
        if self._distribution is None:
            return np.full(len(parameters), self._log_prob, np.float32)
        return self._distribution.log_prob(parameters, action)

    def value(self, inputs: Inputs) -> NDArray[Any]:
        """Refuse: it values nothing."""
        raise PolicyError(f"random actions have no values, so none of {len(inputs.observation[0])} observations has")

    def check(self, record: PolicyRecord) -> None:
        """Refuse every version."""
        detail = f"policy version {record.version}: random actions have no weights; choose another --policy"
        raise PolicyRejectedError("random", detail)

    def load(self, record: PolicyRecord) -> None:
        """Refuse every version."""
        self.check(record)

    def _finish(self, drawn: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        count = len(self._spaces)
        action = drawn[:count]
        if not self.extras:
            return action
        parameters = drawn[count] if self._distribution is not None else np.empty((len(action[0]), 0), np.float32)
        return [*action, self.log_prob(parameters, tuple(action))]


def _log_choices(space: LeafSpace) -> float:
    """The log of how many values a space has, each as likely."""
    if isinstance(space, Discrete):
        return log(space.n)
    if isinstance(space, MultiDiscrete):
        return sum(log(n) for n in space.nvec)
    return log(2) * int(np.prod(space.shape))
