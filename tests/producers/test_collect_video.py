"""Envs drawn, and an episode as a film."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import imageio.v2 as imageio
import numpy as np
import pytest

from penstock_producers.collect import Collector
from penstock_schemas.errors import EnvError, SettingsError
from tests.producers.collect_zoo import DRAWN, LONG, SHORT, Drawn
from tests.producers.collecting import SEED, assert_equal, collector_of, joined

if TYPE_CHECKING:
    from pathlib import Path


def shades(path: Path) -> list[int]:
    """How bright each frame is, in the tens that the env draws."""
    return [round(float(np.asarray(frame)[..., :3].mean()) / 10) for frame in imageio.mimread(path)]


def test_every_env_draws_itself() -> None:
    with Collector(DRAWN, "random", num_envs=2, seed=SEED, env_arguments={"render_mode": "rgb_array"}) as collector:
        before = collector.render()
        collection = collector.collect(2)
        frames = collector.render()
    assert [frame.shape for frame in before if frame is not None] == [(16, 32, 3)] * 2
    for env, frame in enumerate(frames):
        newest = [episode for episode in collection.episodes if episode.env == env][-1]
        left = newest.observation[-1, 0]
        assert frame is not None
        # An env whose episode has ended shows the next one already.
        assert newest.ends or (frame == 10 * left).all()


def test_an_env_without_frames_gives_none() -> None:
    with Collector(DRAWN, "random", seed=SEED) as collector:
        assert collector.render() == [None]


def test_a_ready_made_vector_is_not_drawn() -> None:
    with collector_of("SAME_STEP") as collector:
        with pytest.raises(EnvError, match="step them in lanes"):
            collector.render()
        with pytest.raises(EnvError, match="no single one can be had"):
            collector.record_video("film.gif")


@pytest.mark.parametrize("kind", ["gif", "mp4"])
def test_a_film_has_a_frame_of_the_reset_and_of_every_step(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"film.{kind}"
    with Collector(DRAWN, "random", seed=SEED) as collector:
        lengths = set()
        for _ in range(4):
            episode = collector.record_video(path, explore=True)
            assert shades(path) == list(range(episode.length, -1, -1))
            lengths.add(episode.length)
        assert lengths == {SHORT, LONG}
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_an_episode_that_was_collected_is_filmed_by_its_seed(tmp_path: Path) -> None:
    path = tmp_path / "film.gif"
    with (
        Collector(DRAWN, "random", num_envs=3, seed=SEED, infos=()) as collector,
        Collector(DRAWN, "random", num_envs=3, seed=SEED) as other,
    ):
        episodes = collector.collect(n_episodes=6).episodes
        for episode in episodes:
            assert collector.record_video(path, seed=episode.seed, explore=True).length == episode.length
        assert collector.record_video(path, seed=episodes[0].seed, steps=1, explore=True).length == 1
        assert shades(path)[0] == episodes[0].length
        # What is being collected has not been touched.
        other.collect(n_episodes=6)
        one, two = (joined([of.collect(n_episodes=6)]) for of in (collector, other))
        for rows in (*one.values(), *two.values()):
            del rows["action.0"]  # drawn by the generator that the film has used too
        assert_equal(one, two)


@pytest.mark.parametrize("seed", [123, np.int64(123), None])
def test_an_episode_that_was_filmed_tells_the_seed_that_it_was_played_with(tmp_path: Path, seed: Any) -> None:
    path = tmp_path / "film.gif"
    with Collector("CartPole-v1", seed=SEED) as collector:
        film = collector.record_video(path, seed=seed)
        assert seed is None or film.seed == 123
        again = collector.record_video(path, seed=film.seed, options=film.options)
    np.testing.assert_array_equal(film.observation, again.observation)
    assert again.seed == film.seed


@pytest.mark.parametrize("seed", [-1, "x", 2**70])
def test_a_seed_that_is_none_is_no_film(tmp_path: Path, seed: Any) -> None:
    with Collector(DRAWN, "random", seed=SEED) as collector, pytest.raises(EnvError, match="seed is an integer from"):
        collector.record_video(tmp_path / "film.gif", seed=seed)


def test_an_env_that_was_handed_over_is_filmed_itself(tmp_path: Path) -> None:
    collector = Collector(Drawn("rgb_array"), "random", seed=SEED)
    collector.collect(n_episodes=1)
    assert collector.record_video(tmp_path / "film.gif", explore=True).is_whole
    assert all(episode.is_whole for episode in collector.collect(n_episodes=2).episodes)


def test_an_env_that_draws_no_frames_is_no_film(tmp_path: Path) -> None:
    collector = Collector(Drawn(), "random", seed=SEED)
    with pytest.raises(EnvError, match="gave a NoneType, no array"):
        collector.record_video(tmp_path / "film.gif", explore=True)
    assert list(tmp_path.iterdir()) == []


def test_a_film_of_another_kind_is_refused(tmp_path: Path) -> None:
    with Collector(DRAWN, "random", seed=SEED) as collector, pytest.raises(SettingsError, match=r"\.mp4, \.gif"):
        collector.record_video(tmp_path / "film.avi")


def test_without_imageio_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules: Any = sys.modules
    monkeypatch.setitem(modules, "imageio.v2", None)
    with Collector(DRAWN, "random", seed=SEED) as collector, pytest.raises(SettingsError, match=r"penstock\[video\]"):
        collector.record_video(tmp_path / "film.gif")
