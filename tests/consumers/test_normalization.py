"""The statistics for connectors that normalize, against numpy's over all that is stored at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_consumers.replay import Replay
from penstock_consumers.replay.normalization import Moments, Normalization
from penstock_consumers.replay.parts import parts_until
from penstock_consumers.replay.versions import Versions
from penstock_consumers.store.bucket import open_bucket
from penstock_schemas.connectors import make_pipeline
from tests.consumers.rolled import rolled

if TYPE_CHECKING:
    from pathlib import Path


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(0, 1 << 32))
def test_moments_are_those_of_all_values(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = (1e4 + rng.standard_normal((sum(sizes), 2)) * [1, 1e-2]).astype(np.float64)
    moments = Moments((2,))
    for part in np.split(values, np.cumsum(sizes)[:-1]):
        moments.add(part)
    assert moments.count == len(values)
    if len(values):
        np.testing.assert_allclose(moments.mean, values.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(moments.variance, values.var(axis=0), rtol=1e-6, atol=1e-9)
    else:
        assert moments.mean.tolist() == [0, 0]
        assert moments.variance.tolist() == [1, 1]


def test_what_is_no_number_is_left_out() -> None:
    moments = Moments((2,))
    moments.add(np.array([[1.0, 2.0], [np.nan, 0.0], [3.0, np.inf], [3.0, 4.0]], np.float32))
    assert (moments.count, moments.mean.tolist(), moments.variance.tolist()) == (2, [2, 3], [1, 1])
    scalar = Moments(())
    scalar.add(np.array([1, 3], np.uint8))
    assert (scalar.count, float(scalar.mean), float(scalar.variance)) == (2, 2, 1)


def test_each_connector_is_told_what_it_is_given(tmp_path: Path) -> None:
    """Behind other connectors too, each observation once, over cuts."""
    connectors = (
        {"name": "normalize", "arguments": {"only": ["rest.1"]}},
        {"name": "flatten"},
        {"name": "previous_reward"},
        {"name": "normalize"},
    )
    spec = rolled(tmp_path, observation="nested", connectors=connectors, cut_steps=5, settings=())
    replay = Replay.open(tmp_path)
    normalization = Normalization(spec, Versions(open_bucket(tmp_path)).weights)
    position, flat = [], []
    for episode in replay.episodes():
        parts = parts_until(replay, episode.id)
        normalization.add(parts)
        own = slice(0 if episode.continues is None else 1, None)
        position.append(episode.observation["rest"][1][own])
        reward = np.concatenate([[0.0], *(part.reward for part in parts)])[-episode.length - 1 :]
        normalized = np.clip(episode.observation["rest"][1] / np.sqrt(1 + 1e-8), -10, 10)
        camera = episode.observation["camera"].reshape(episode.length + 1, -1)
        kind = episode.observation["rest"][0]
        flat.append(np.column_stack([camera, kind, normalized, reward]).astype(np.float32)[own])
    weights = normalization.weights
    pipeline = make_pipeline(connectors, spec.observation, spec.action)
    assert {name: (value.shape, value.dtype) for name, value in weights.items()} == {
        name: (value.shape, value.dtype) for name, value in pipeline.weights.items()
    }
    pipeline.check(weights)
    for prefix, suffix, values in (("connectors.0", ".rest.1", position), ("connectors.3", "", flat)):
        every = np.concatenate(values).astype(np.float64)
        np.testing.assert_allclose(weights[f"{prefix}.mean{suffix}"], every.mean(axis=0), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(weights[f"{prefix}.variance{suffix}"], every.var(axis=0), rtol=1e-6)
