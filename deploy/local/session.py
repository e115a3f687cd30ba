"""What a command of the local loop works with: a folder and a Kafka; and how it ends where something goes wrong."""

from __future__ import annotations

import os
import sys
import uuid
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from deploy.local.folder import own_folder
from deploy.local.kafka import LocalKafka
from penstock_schemas.errors import PenstockError
from penstock_schemas.log.kafka import KafkaLog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import Console


@contextmanager
def session(folder: Path, console: Console) -> Iterator[tuple[str, KafkaLog, str]]:
    """Give a Kafka's bootstrap servers, a log of it, and what to end a stream's name with.

    A local one is started in the folder, which is the command's own, unless KAFKA_BOOTSTRAP_SERVERS names one. An error
    is told and ends the process with status 1, Ctrl-C with 130.
    """
    try:
        with own_folder(folder), _cluster(folder, console) as given:
            yield given
    except PenstockError as error:
        console.print(f"error: {error}", markup=False)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("stopped; nothing was left behind")
        sys.exit(130)


@contextmanager
def _cluster(folder: Path, console: Console) -> Iterator[tuple[str, KafkaLog, str]]:
    with ExitStack() as stack:
        given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
        if given is None:
            console.print("starting a local Kafka")
        servers = given or stack.enter_context(LocalKafka(folder / "kafka")).bootstrap_servers
        # A cluster that stays has topics of earlier runs; this run's store is of this run's topic.
        suffix = f"-{uuid.uuid4().hex[:8]}" if given else ""
        yield servers, stack.enter_context(KafkaLog(servers, client_id="penstock-run")), suffix
