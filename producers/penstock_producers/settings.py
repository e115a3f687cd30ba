"""The settings of a producer."""

from __future__ import annotations

import socket
from typing import Annotated, Any, TypeAlias

from pydantic import Field, StringConstraints
from pydantic_settings import SettingsConfigDict

from penstock_producers.envs import Vectorization
from penstock_schemas.service import ServiceSettings

VectorizationName: TypeAlias = Vectorization
ProducerId: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]{1,200}$")]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
Seed: TypeAlias = Annotated[int, Field(ge=0)]
PositiveSeconds: TypeAlias = Annotated[float, Field(gt=0)]


class ProducerSettings(ServiceSettings):
    """Steps a vector of environments with a policy and publishes their experience."""

    model_config = SettingsConfigDict(cli_prog_name="penstock-producer")

    env: str
    """The environment: a gymnasium id, or module:factory."""

    env_arguments: Annotated[dict[str, Any], Field(default_factory=dict)]
    """Keyword arguments for the environment, as JSON."""

    num_envs: Positive = 64
    """How many environments are stepped together."""

    vectorization: VectorizationName = "auto"
    """How they become one vector: the environment's own vector entry point, sync, async; auto prefers the first."""

    autoreset: str | None = None
    """The autoreset mode of sync and async vectors: NextStep, SameStep or Disabled."""

    policy: str = "actor-critic"
    """The policy: actor-critic, or module:factory."""

    policy_arguments: Annotated[dict[str, Any], Field(default_factory=dict)]
    """Keyword arguments for the policy, as JSON."""

    producer_id: ProducerId = socket.gethostname()
    """The stable name of this producer; a pod's name."""

    partitions: Positive = 4
    """How many partitions the stream's topic gets, where it does not exist yet."""

    fragment_steps: Positive = 256
    """After how many steps of each environment what was recorded is published, at most."""

    fragment_seconds: PositiveSeconds = 1.0
    """After how many seconds what was recorded is published, at most."""

    max_message_bytes: Annotated[int, Field(ge=16_384)] = 1 << 20
    """How large a message may be, all overhead included; the topic and the consumers' --max-message-bytes must take
    as much."""

    max_in_flight_bytes: Positive = 16 << 20
    """How many bytes may wait for Kafka's acknowledgement before the environments wait."""

    delivery_timeout_seconds: PositiveSeconds = 120.0
    """After how long a message without acknowledgement is sent again."""

    grace_seconds: PositiveSeconds = 20.0
    """How long a stop may take to publish what is at hand."""

    seed: Seed | None = None
    """The seed of environments and actions, with which a restart repeats itself; a new one at each start without."""
