"""The settings of a consumer."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from penstock_schemas.messages import MAX_MESSAGE_BYTES, MAX_RAW_BYTES
from penstock_schemas.service import ServiceSettings

Positive: TypeAlias = Annotated[int, Field(ge=1)]
PositiveSeconds: TypeAlias = Annotated[float, Field(gt=0)]


class ConsumerSettings(ServiceSettings):
    """Assembles a stream's episodes into a replay store, as one of any number of members of a group."""

    model_config = SettingsConfigDict(cli_prog_name="penstock-consumer")

    store: str
    """Where the replay store lies: a folder, or a URL that obstore opens."""

    group: str = "penstock"
    """The consumer group; its members share the stream's partitions."""

    commit_seconds: PositiveSeconds = 1.0
    """How long what was read waits for its commit, at most."""

    commit_bytes: Positive = 32 << 20
    """How many bytes of messages wait for their commit, at most, in each partition."""

    idle_seconds: Annotated[float, Field(ge=1)] = 600.0
    """How long, in the log's time, a producer may be silent before its open episodes are aborted."""

    session_seconds: PositiveSeconds = 10.0
    """After how long without a sign of life the group gives this member's partitions to others."""

    max_message_bytes: Positive = MAX_MESSAGE_BYTES
    """The largest message that is taken; larger ones are quarantined."""

    max_raw_bytes: Positive = MAX_RAW_BYTES
    """The largest message that is taken once decompressed."""
