"""A producer over the log in memory, in a thread of this process."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from penstock_producers.envs import Seeds
from penstock_producers.making import make_env
from penstock_producers.metrics import ProducerMetrics
from penstock_producers.service import produce
from penstock_producers.settings import ProducerSettings
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.policies import KEY, encode_policy
from penstock_schemas.service import Health, load
from tests.producers.publishing import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock_producers.policy.fetcher import Weights
    from penstock_schemas.policies import PolicyRecord

STREAM = "live"


def settings_of(env: str, *flags: str) -> ProducerSettings:
    return load(ProducerSettings, ["--stream", STREAM, "--env", env, "--producer-id", "pod-0", "--seed", "3", *flags])


@dataclass
class Producer:
    """A producer that runs, and what it shows."""

    settings: ProducerSettings
    log: MemoryLog = field(default_factory=MemoryLog)
    weights: Weights | None = None
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    stop: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.health = Health("log", "env", "policy", clock=time.monotonic, beat_limit=60.0)
        self.metrics = ProducerMetrics(self.registry, self.health)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def value(self, name: str, **labels: str) -> float:
        """A sample of the registry, 0 where there is none."""
        return self.registry.get_sample_value(f"penstock_producer_{name}", labels) or 0.0

    def await_steps(self, more: int) -> None:
        wanted = self.value("steps_total") + more
        wait_until(lambda: self.value("steps_total") >= wanted or not self.thread.is_alive())

    def publish(self, record: PolicyRecord) -> None:
        value, headers = encode_policy(record)
        self.log.append(self.settings.policies_topic, 0, KEY, value, headers)

    def finish(self) -> None:
        """Ask it to stop, and wait until it has."""
        self.stop.set()
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()

    def _run(self) -> None:
        settings = self.settings
        seeds = Seeds(settings.seed, settings.producer_id)
        env = make_env(settings, seeds, time.monotonic)
        try:
            made = threading.Event()
            produce(settings, env, seeds, self.log, self.weights, self.metrics, self.health, self.stop, made)
        except Exception as error:  # noqa: BLE001 - told to the test's thread
            self.error = error
        finally:
            env.close()


@contextmanager
def running(env: str, *flags: str) -> Iterator[Producer]:
    producer = Producer(settings_of(env, *flags))
    producer.thread.start()
    try:
        yield producer
    finally:
        producer.log.outage = False
        producer.finish()
