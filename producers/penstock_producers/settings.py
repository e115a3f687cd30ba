"""The settings of a producer."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, StringConstraints, model_validator
from pydantic_settings import SettingsConfigDict

from penstock_producers.envs import Vectorization
from penstock_producers.refresh import FirstPolicy, OnPolicyLag
from penstock_schemas.service import ServiceSettings
from penstock_schemas.service.settings import Positive, PositiveSeconds

Described: TypeAlias = Annotated[list[dict[str, Any]], Field(default_factory=list)]
ProducerId: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]{1,200}$")]
Seed: TypeAlias = Annotated[int, Field(ge=0)]
Compression: TypeAlias = Literal["none", "zstd"]


class ProducerSettings(ServiceSettings):
    """Steps environments with a policy and publishes what they live; other commands: check --help, evaluate --help."""

    model_config = SettingsConfigDict(cli_prog_name="penstock-producer")

    env: str
    """The environment: a gymnasium id, module:factory, or envpool:task."""

    env_arguments: Annotated[dict[str, Any], Field(default_factory=dict)]
    """Keyword arguments for the environment, as JSON."""

    num_envs: Positive = 64
    """How many environments it steps."""

    wrappers: Described
    """Wrappers around each environment, the innermost first, as a JSON list of {"name": "module:Class" or a name in
    gymnasium.wrappers, "arguments": {…}}."""

    vectorization: Vectorization = "auto"
    """How they become one vector: the environment's own vector_entry_point, lanes (each env contained), gymnasium's
    sync or async, envpool; auto prefers the first where it is there, then lanes."""

    workers: Annotated[int, Field(ge=0)] = 0
    """How many processes step the lanes, each its share of the environments as their actions come; 0 for none."""

    lockstep: bool = False
    """Whether all environments in workers are stepped together, so that a run repeats itself."""

    autoreset: str | None = None
    """The autoreset mode of sync and async vectors: NextStep, which null is too, SameStep or Disabled."""

    infos: Annotated[list[str], Field(default_factory=list)]
    """The keys of the infos to record with each observation."""

    cut_steps: Positive | None = None
    """After how many steps an episode is cut, so that one that never ends is stored all the same; never without."""

    check_bounds: bool = True
    """Whether an observation outside its space's bounds aborts its episode, in lanes."""

    step_timeout_seconds: PositiveSeconds = 60.0
    """After how long without an answer a worker is taken to hang, and made anew."""

    max_rebuilds: Annotated[int, Field(ge=0)] = 10
    """How often in a row an environment in a lane is made anew before the producer gives up."""

    rebuild_backoff_seconds: PositiveSeconds = 0.1
    """How long an environment that broke rests before it is made anew; doubled each time in a row, up to 30 s."""

    policy: str = "actor-critic"
    """The policy: actor-critic, recurrent, convolutional, q-network, random, or module:factory."""

    policy_arguments: Annotated[dict[str, Any], Field(default_factory=dict)]
    """Keyword arguments for the policy, as JSON."""

    behaviour: Annotated[dict[str, Any], Field(default_factory=dict)]
    """What is made of the policy's answer before an action is drawn and sent, as JSON: mask, mapping, epsilon,
    temperature, noise, parameters, final_value."""

    connectors: Described
    """What observations go through on their way to the policy, in this order, as a JSON list of {"name": a built-in
    one's or "module:factory", "arguments": {…}}."""

    device: str = "cpu"
    """The device that the policy computes on, as torch names it."""

    first_policy: FirstPolicy = "act"
    """What happens before the first version of the policy: it acts with its initial weights, actions are random, or the
    producer waits."""

    max_policy_lag: Annotated[int, Field(ge=0)] | None = None
    """How many versions the one that acts may be behind the newest that was announced; any number without."""

    on_policy_lag: OnPolicyLag = "wait"
    """What happens where it is farther behind, and the newer one is not at hand: the producer waits for it, or goes
    on."""

    store: str | None = None
    """The stream's store, for weights that are larger than a message: a folder, or a URL that obstore opens."""

    max_policy_bytes: Positive = 1 << 30
    """The largest weights that are read from the store."""

    callbacks: Described
    """Your own code at the turns of an episode, as a JSON list of {"name": "module:factory", "arguments": {…}}."""

    state: Path | None = None
    """The file in which counters are kept, so that a producer that restarts goes on counting; none without."""

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

    compression: Compression = "none"
    """How messages are compressed; worth it for images."""

    max_in_flight_bytes: Positive = 16 << 20
    """How many bytes may wait for Kafka's acknowledgement before the environments wait."""

    delivery_timeout_seconds: PositiveSeconds = 120.0
    """After how long a message without acknowledgement is sent again."""

    liveness_seconds: PositiveSeconds = 60.0
    """How long the main loop may stand still before /healthz fails; longer than making the environments, a step or a
    reset takes."""

    grace_seconds: PositiveSeconds = 20.0
    """How long a stop may take to publish what is at hand."""

    seed: Seed | None = None
    """The seed of environments and actions, with which a restart repeats itself; a new one at each start without."""

    @model_validator(mode="after")
    def _a_first_policy_can_come(self) -> Self:
        if self.policy == "random" and self.first_policy == "wait":
            raise ValueError("--policy random has no versions, so --first-policy wait would wait for ever")
        return self
