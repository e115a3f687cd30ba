"""Stored episodes as the policy saw them, against what it recorded of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock_consumers.replay import Replay
from penstock_consumers.replay.observed import observed
from penstock_consumers.replay.parts import parts_until
from penstock_consumers.replay.versions import Versions
from penstock_consumers.store import layout
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.chunks import Ends
from penstock_schemas.connectors import make_pipeline
from penstock_schemas.errors import CorruptStoreError, StoreError
from penstock_schemas.policies import PolicyRecord
from tests.consumers.mirrored import CONNECTORS, mirrored_store
from tests.schemas.random_spaces import same_bits

if TYPE_CHECKING:
    from pathlib import Path

    from penstock_schemas.connectors import Pipeline
    from penstock_schemas.stream import StreamSpec


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store whose recorded parameters are what the policy saw."""
    return str(mirrored_store(tmp_path_factory.mktemp("mirrored")))


def opened(store: str) -> tuple[Replay, StreamSpec, Pipeline, Versions]:
    bucket = open_bucket(store)
    spec = Replay.open(bucket).spec
    return Replay.open(bucket), spec, make_pipeline(CONNECTORS, spec.observation, spec.action), Versions(bucket)


def test_an_episode_is_read_as_the_policy_saw_it(mirrored: str) -> None:
    """Over the borders of chunks, cuts and versions; the last observation too."""
    replay, spec, pipeline, versions = opened(mirrored)
    seen_versions, cut, ended = set(), 0, 0
    for episode in replay.episodes():
        parts = parts_until(replay, episode.id)
        seen = observed(parts, spec, pipeline, versions.weights)
        assert seen.shape == (episode.length + 1, 18)
        assert same_bits(seen[:-1], np.asarray(episode.extras["parameters"]))
        final = episode.extras["final_value"]
        if not np.ma.getmaskarray(final)[-1]:
            assert final[-1] == seen[-1, 0]
            ended += 1
        seen_versions |= set(episode.policy_version.tolist())
        cut += len(parts) > 2
    assert seen_versions == {0, 1, 2}
    assert cut > 3
    assert ended > 3


def test_a_policy_without_connectors_saw_what_is_stored(mirrored: str) -> None:
    replay, spec, _, versions = opened(mirrored)
    pipeline = make_pipeline([], spec.observation, spec.action)
    for episode in replay.episodes():
        assert same_bits(observed([episode], spec, pipeline, versions.weights), episode.observation)


def test_connectors_do_not_look_back_into_what_is_missing(mirrored: str) -> None:
    replay, spec, pipeline, versions = opened(mirrored)
    part = next(episode for episode in replay.episodes() if episode.continues is not None)
    with pytest.raises(StoreError, match=f"episode {part.id} continues another one, which is not among the parts"):
        observed([part], spec, pipeline, versions.weights)


def test_versions_without_the_connectors_parameters_are_others(mirrored: str) -> None:
    replay, spec, pipeline, _ = opened(mirrored)
    episode = next(e for e in replay.episodes() if e.continues is None and e.policy_version.max() > 0)
    with pytest.raises(CorruptStoreError, match=r"no weight 'connectors\.3\.mean': its stream has other connectors"):
        observed([episode], spec, pipeline, lambda version, digest: {})


def test_a_version_is_read_by_number_and_digest(mirrored: str, tmp_path: Path) -> None:
    replay, *_, versions = opened(mirrored)
    episode = next(e for e in replay.episodes() if e.ends != Ends.ABORTED and e.policy_version[-1] == 2)
    record = versions.read(2, episode.policy_digest[-1])
    assert (record.version, record.digest) == (2, episode.policy_digest[-1])
    assert versions.weights(2, record.digest).keys() == record.weights.keys()
    bucket = open_bucket(tmp_path)
    with pytest.raises(StoreError, match=r"no policies/000000000002-.*\.safetensors in it"):
        Versions(bucket).read(2, record.digest)
    other: dict[str, Any] = {"weight": np.ones(1, np.float32)}
    for data in (b"no weights", PolicyRecord(2, other).to_safetensors()):
        bucket.put(layout.POLICIES + record.object_name, data)
        with pytest.raises(CorruptStoreError, match="restore it"):
            Versions(bucket).read(2, record.digest)
