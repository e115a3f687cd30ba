"""The settings of a consumer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from penstock_consumers.store.commits import MAX_EPISODE_BYTES
from penstock_consumers.upkeep.upkeep import MOST_COMPACT_BYTES
from penstock_schemas.messages import MAX_MESSAGE_BYTES, MAX_RAW_BYTES
from penstock_schemas.service import ServiceSettings
from penstock_schemas.service.settings import Positive, PositiveSeconds

# Beside the largest episode, what waits and the message on top of it: the text of all fits into one array of Arrow's.
_MOST_PENDING_BYTES = 256 << 20


class ConsumerSettings(ServiceSettings):
    """Assembles a stream's episodes into a replay store, as one of any number of members of a group."""

    model_config = SettingsConfigDict(cli_prog_name="penstock-consumer")

    store: str
    """Where the replay store lies: a folder, or a URL that obstore opens."""

    group: str = "penstock"
    """The consumer group; its members share the stream's partitions."""

    commit_seconds: PositiveSeconds = 1.0
    """How long what was read waits for its commit, at most."""

    commit_bytes: Annotated[int, Field(ge=1, le=_MOST_PENDING_BYTES)] = 32 << 20
    """How many bytes of messages wait for their commit, at most, in all partitions together; 256 MiB at most."""

    idle_seconds: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 600.0
    """How long, in the log's time, a producer may be silent before its open episodes are aborted."""

    session_seconds: PositiveSeconds = 10.0
    """After how long without a sign of life the group gives this member's partitions to others."""

    instance: str | None = None
    """A name for this member that outlives its process, such as its pod's: a restart within the session then moves no
    partition. Each member needs its own."""

    revoke_seconds: PositiveSeconds = 5.0
    """How long a commit may take when a partition is given to another member; after that it is given up. For
    so long the group also waits for one that is loaded, which goes on meanwhile after that."""

    max_message_bytes: Positive = MAX_MESSAGE_BYTES
    """The largest message that is taken; larger ones are quarantined."""

    max_raw_bytes: Annotated[int, Field(ge=1, le=_MOST_PENDING_BYTES)] = MAX_RAW_BYTES
    """The largest message that is taken once decompressed; 256 MiB at most."""

    max_episode_bytes: Annotated[int, Field(ge=1, le=MAX_EPISODE_BYTES)] = MAX_EPISODE_BYTES
    """Past which size an episode that goes on is aborted, as `too large`; 1 GiB at most. A producer that cuts its
    episodes (`--cut-steps`) stays below it."""

    max_bad_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Which share of the last messages may be quarantined before the consumer stops and says so; 1 never stops it."""

    upkeep_seconds: PositiveSeconds = 10.0
    """How often a partition is compacted, retired and collected, at most."""

    compact_bytes: Annotated[int, Field(ge=1, le=MOST_COMPACT_BYTES)] = 128 << 20
    """Up to which size small segments are joined; 1 GiB at most."""

    collect_seconds: Annotated[float, Field(ge=0)] = 3600.0
    """How long what is no longer needed stays readable for those who opened the store before."""

    retain_steps: Positive | None = None
    """How many steps to keep in the whole store, at least; the oldest segments go. All are kept where not given."""

    retain_bytes: Positive | None = None
    """How many bytes of segments to keep in the whole store, at most; the oldest go."""

    retain_seconds: PositiveSeconds | None = None
    """How old, in the log's time, an episode's end may be before its segment goes, once all of the segment is."""

    retain_versions: Positive | None = None
    """How many policy versions to keep, counted back from the newest that acted; older segments go."""
