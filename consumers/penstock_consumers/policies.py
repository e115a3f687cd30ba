"""Publishing policies: a version is claimed, its weights are kept in the store, then it is announced to the producers.

Claiming is creating one object only if absent, so of two learners that publish to one stream the second one is told at
once. Versions are whole numbers, one after the other; whatever a crash leaves half-way, the next learner goes on behind
it: a version that was claimed and never announced is one that never acts. Weights that fit travel with the
announcement; larger ones the producers read from the store.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from penstock_consumers.store import layout, manifest
from penstock_consumers.store.bucket import create_once, open_bucket
from penstock_schemas.connectors.pipeline import PREFIX
from penstock_schemas.errors import LogUnavailableError, PolicyError, PolicyRejectedError, StoreMismatchError
from penstock_schemas.policies import KEY, PolicyRecord, decode_announcement, encode_policy, object_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_consumers.store.bucket import Bucket
    from penstock_schemas.log import Log

_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.2
# As producers take them: see `Behaviour` there.
_LIMITS = {"epsilon": (0.0, 1.0), "temperature": (1e-30, 1e30), "noise": (0.0, 1e30)}
_REAL = int | float | np.integer | np.floating
# What safetensors holds and numpy knows; the widest has 8 bytes.
_NUMBERS, _WIDEST = "biuf", 8
# Names that it does not hold: its own, and what has no UTF-8.
_RESERVED, _SURROGATE = "__metadata__", re.compile("[\ud800-\udfff]")


class PolicyPublisher:
    """Publishes one stream's policy, version after version; a learner's other half, beside `Replay`.

    Attributes:
        newest: the last version that is spent, 0 before the first: the next one is `newest` + 1.
    """

    def __init__(self, stream: str, *, store: str | Path | Bucket, log: str | Log) -> None:
        """Open a stream to publish to.

        Args:
            stream: its name; its topic `policies.<stream>` is made where there is none.
            store: its store, which keeps every version: a folder, a URL that obstore opens, or a bucket.
            log: Kafka's bootstrap servers, or a log that exists, as for TLS and SASL; that one is left open.

        Raises:
            StoreMismatchError: the store is of another stream.
            LogUnavailableError: the log does not answer.
            StoreUnavailableError: the store does not answer.
        """
        self._stream = stream
        self._topic = f"policies.{stream}"
        self._bucket = open_bucket(store) if isinstance(store, str | Path) else store
        # Threads may share a publisher: one version after the other.
        self._publishing = Lock()
        # Whether an announcement is, which the log may yet take.
        self._given_up = False
        # Tells this learner's claims from any other's.
        self._writer = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"
        described = manifest.load(self._bucket)
        if described is not None and described.spec.stream != stream:
            raise StoreMismatchError(
                f"store {self._bucket.url}: holds the stream {described.spec.stream!r}, not {stream!r}: choose its own"
            )
        with ExitStack() as opened:
            log = opened.enter_context(_kafka(log)) if isinstance(log, str) else log
            log.create(self._topic, compacted=True)
            self._appender = log.appender()
            opened.callback(self._appender.close)
            # A store that was begun anew is behind its topic, and producers never go back.
            self.newest = max(self._stored(), _announced(log, self._topic))
            self._opened = opened.pop_all()

    def publish(
        self,
        policy: Any,
        *,
        epsilon: float | None = None,
        temperature: float | None = None,
        noise: float | None = None,
        connectors: Mapping[str, NDArray[Any]] | None = None,
    ) -> PolicyRecord:
        """Publish the next version, and wait until the log has it; what is published is a copy.

        Args:
            policy: a torch module, of which the `state_dict()` is taken; or its weights, arrays or tensors by name.
            epsilon: how producers explore with this version; as they are set to where it is None.
            temperature: likewise.
            noise: likewise.
            connectors: what the stream's connectors normalize by, as `RunningStatistics.weights` gives it: arrays by
                the names `connectors.<i>.<name>`.

        Raises:
            PolicyError: another learner publishes to this stream; or a weight or a setting is none that can act, and
                no version is spent.
            LogUnavailableError: the log did not take it in time. Publish again: that is the next version.
            StoreUnavailableError: the store did not take it. Likewise.
        """
        settings = _settings(epsilon=epsilon, temperature=temperature, noise=noise)
        weights = _weights(policy, {} if connectors is None else connectors)
        with self._publishing:
            record = PolicyRecord(self._claim(weights, settings), weights, settings)
            self._bucket.put(layout.POLICIES + record.object_name, record.to_safetensors())
            # Whoever was stopped for a while may have been overtaken meanwhile: it announces nothing that goes back.
            if self._claimed_by(record.version + 1) is not None:
                raise self._contested(record.version + 1)
            self._announce(record)
            # Or while the announcement was under way.
            if self._claimed_by(record.version + 1) is not None:
                self._announce_newer(record.version)
                raise self._contested(record.version + 1)
        return record

    def last(self) -> PolicyRecord | None:
        """Read the newest version that the store keeps, for a learner to go on from; see `newest_kept`."""
        return newest_kept(self._bucket)

    def close(self) -> None:
        """Let go of the log; what was published is there."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _claim(self, weights: Mapping[str, NDArray[Any]], settings: Mapping[str, float]) -> int:
        """Take the next version; from here on it is spent, whatever becomes of it."""
        while True:
            version = self.newest + 1
            digest = PolicyRecord(version, weights, settings).digest
            told = json.dumps({"version": version, "digest": digest.hex(), "writer": self._writer}).encode()
            if create_once(self._bucket, layout.policy_claim(version), told):
                self.newest = version
                return version
            if self._claimed_by(version) != self._writer:
                if self._given_up:
                    # It may have come behind the other learner's since.
                    self._announce_newer(self.newest)
                raise self._contested(version)
            # An earlier try of our own, for other weights, whose answer was lost.
            self.newest = version

    def _announce(self, record: PolicyRecord) -> None:
        value, headers = encode_policy(record)
        try:
            self._appender.append(self._topic, 0, key=KEY, value=value, headers=headers).result(_TIMEOUT_SECONDS)
        except TimeoutError as error:
            self._given_up = True
            raise LogUnavailableError(
                f"topic {self._topic!r}: policy version {record.version} was not acknowledged within "
                f"{_TIMEOUT_SECONDS:g} s: check the log, and publish again"
            ) from error

    def _announce_newer(self, version: int) -> None:
        """Announce the newest version that is kept behind this one: the topic's last record is all that is left of it.

        One that is kept later is announced later.
        """
        while (newest := self.last()) is not None and newest.version > version:
            self._announce(newest)
            version = newest.version

    def _claimed_by(self, version: int) -> str | None:
        """Who has claimed a version; None where nobody has."""
        claim = _claim(self._bucket, version)
        return None if claim is None else str(claim.get("writer", "someone unknown"))

    def _contested(self, version: int) -> PolicyError:
        return PolicyError(
            f"stream {self._stream!r}: policy version {version} is claimed by {self._claimed_by(version)}, not by this "
            f"learner ({self._writer}): another learner publishes to this stream; stop one of the two, then start the "
            "other again, which goes on behind what is claimed; or give each a stream of its own"
        )

    def _stored(self) -> int:
        """The last version that the store knows of, claimed or kept."""
        listed = max(filter(None, map(layout.policy_version, self._bucket.list(layout.POLICIES))), default=0)
        # A listing may lag behind; asking for an object does not.
        while self._claimed_by(listed + 1) is not None:
            listed += 1
        return listed


def newest_kept(bucket: Bucket) -> PolicyRecord | None:
    """Read the newest version whose weights a store keeps, announced or not; None where it keeps none.

    Raises `PolicyRejectedError` where it does not read.
    """
    names = {layout.policy_version(name) or 0: name for name in bucket.list(layout.POLICIES) if layout.is_weights(name)}
    # A listing may lag behind; asking for an object does not.
    version = max(names, default=0) + 1
    while (claim := _claim(bucket, version)) is not None:
        name = layout.POLICIES + object_name(version, str(claim.get("digest")))
        if layout.is_weights(name):  # no claim chooses another object
            names[version] = name
        version += 1
    for version in sorted(names, reverse=True):
        with suppress(FileNotFoundError):  # what is claimed need not be kept
            return PolicyRecord.from_safetensors(bucket.read(names[version]).to_pybytes(), names[version])
    return None


def _claim(bucket: Bucket, version: int) -> Mapping[str, Any] | None:
    """The claim on a version, empty where it does not read; None where there is none."""
    try:
        claim = json.loads(bucket.read(layout.policy_claim(version)).to_pybytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return claim if isinstance(claim, Mapping) else {}


def _kafka(servers: str) -> Log:
    from penstock_schemas.log.kafka import KafkaLog  # noqa: PLC0415  (a learner without Kafka has no client of it)

    return KafkaLog(servers, client_id="penstock-learner")


def _announced(log: Log, topic: str) -> int:
    """The newest version that a topic announces; 0 where there is none that reads."""
    reader = log.reader()
    newest = 0
    try:
        at, end = reader.bounds(topic, 0)
        reader.seek(topic, 0, at)
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while at < end:
            records = reader.poll(_POLL_SECONDS)
            for record in records:
                with suppress(PolicyRejectedError):
                    newest = max(newest, decode_announcement(record).version)
            if records:
                at, deadline = records[-1].offset + 1, time.monotonic() + _TIMEOUT_SECONDS
            elif time.monotonic() > deadline:
                raise LogUnavailableError(
                    f"topic {topic!r}: its records from offset {at} on did not come within {_TIMEOUT_SECONDS:g} s: "
                    "check it"
                )
        return newest
    finally:
        reader.close()


def _settings(**given: Any) -> dict[str, float]:
    settings = {}
    for name, value in given.items():
        if value is None:
            continue
        least, most = _LIMITS[name]
        # A bool is a number to Python; NaN is in no range.
        if isinstance(value, bool) or not isinstance(value, _REAL) or not least <= value <= most:
            raise PolicyError(f"{name}={value!r}: use a number from {least:g} to {most:g}")
        settings[name] = float(value)
    return settings


def _weights(policy: Any, connectors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Copy weights, each checked: what no producer would load is not to be published."""
    state = getattr(policy, "state_dict", None)
    given = policy if state is None else state()
    if not isinstance(given, Mapping):
        raise PolicyError(f"a {type(policy).__name__} to publish: give a torch module, or its weights by name")
    # What is given may be of any type, whatever is declared.
    if not isinstance(connectors, Mapping):
        raise PolicyError(
            f"connectors={connectors!r}: give arrays by name, as the `weights` of `RunningStatistics` has them"
        )
    named = dict(given)
    for name in (*named, *connectors):
        if not isinstance(name, str):
            raise PolicyError(f"weight {name!r}: its name is no text: give weights by their names")
        if name == _RESERVED or _SURROGATE.search(name):
            raise PolicyError(f"weight {name!r}: safetensors holds none of that name: rename it")
    if not named and not connectors:
        raise PolicyError("no weights to publish: a version without any would act as the one before it")
    for name in connectors:
        if not name.startswith(PREFIX) or name in named:
            raise PolicyError(
                f"connectors[{name!r}]: its name is to be {PREFIX}<i>.<name>, as `RunningStatistics.weights` has it, "
                "and not that of a weight"
            )
    return {name: _array(name, value) for name, value in {**named, **connectors}.items()}


def _array(name: str, value: Any) -> NDArray[Any]:
    try:
        # A tensor may be on a device, and may need a gradient.
        array = np.array(value.detach().cpu().numpy() if hasattr(value, "detach") else value, order="C")
    except (TypeError, ValueError, RuntimeError) as error:  # torch's, for a dtype that numpy has not, or no data
        raise PolicyError(f"weight {name!r}: {error}: give an array, or a tensor of a dtype that numpy has") from error
    if array.dtype.kind not in _NUMBERS or array.dtype.itemsize > _WIDEST:
        raise PolicyError(f"weight {name!r}: its dtype is {array.dtype}: give floats, integers or booleans")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        where = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        raise PolicyError(
            f"weight {name!r}: {array[where]} at {where} is not finite: no producer would load it; look at how the "
            "learner came to it (its learning rate, its targets)"
        )
    # What is written is of this byte order, whatever was given.
    return array.astype(array.dtype.newbyteorder("="), copy=False)
