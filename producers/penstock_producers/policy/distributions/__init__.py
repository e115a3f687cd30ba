"""Action distributions over a network's outputs: drawn and recorded with numpy, whole batches at a time.

numpy, because a batch of an env's size is small: a torch operation costs more to call than to compute.
"""

from __future__ import annotations

from penstock_producers.policy.distributions.base import Distribution
from penstock_producers.policy.distributions.categorical import Categorical, Categoricals
from penstock_producers.policy.distributions.gaussian import DiagonalGaussian
from penstock_producers.policy.distributions.joint import Joint
from penstock_producers.policy.distributions.make import check_behaviour, distribution_for
from penstock_producers.policy.distributions.uniform import uniform

__all__ = [
    "Categorical",
    "Categoricals",
    "DiagonalGaussian",
    "Distribution",
    "Joint",
    "check_behaviour",
    "distribution_for",
    "uniform",
]
