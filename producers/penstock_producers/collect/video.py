"""An episode as a video file."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from penstock_producers.envs import EnvSource
from penstock_schemas.errors import EnvError, SettingsError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from penstock_producers.envs.wrapper import AnyEnv

_FPS = 30
# H.264 wants even sides; imageio's own choice would scale most frames.
_BLOCK = 2
_MILLISECONDS = 1000


class Filmed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Hands over a frame of the reset, and of every step of the first episode after `film`."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self._take: Callable[[NDArray[Any]], None] | None = None

    def film(self, take: Callable[[NDArray[Any]], None]) -> None:
        """Film the next episode."""
        self._take = take

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the env."""
        answer = super().reset(seed=seed, options=options)
        self._draw()
        return answer

    def step(self, action: Any) -> Any:
        """Step the env."""
        answer = super().step(action)
        self._draw()
        if answer[2] or answer[3]:
            self._take = None
        return answer

    def _draw(self) -> None:
        if self._take is None:
            return
        frame = self.env.render()
        if not isinstance(frame, np.ndarray):
            raise EnvError(
                f"environment {self.env}: render() gave a {type(frame).__name__}, no array; make it with "
                'render_mode="rgb_array"'
            )
        self._take(frame)


@contextmanager
def filming(
    source: EnvSource | AnyEnv, path: str | os.PathLike[str], *, steps: int | None, fps: float | None
) -> Iterator[Filmed]:
    """Make an env, or take one that exists, and film its next episode; the file is there when that has ended.

    Raises what `video` raises.

    Args:
        source: what is made of a source is closed.
        path: a file, .mp4 or .gif.
        steps: after how many steps the film ends at the latest.
        fps: frames a second; by default what the env's metadata say, else 30.
    """
    env = source.single(0, **{"render_mode": "rgb_array", **source.kwargs}) if isinstance(source, EnvSource) else source
    filmed = Filmed(env if steps is None else gymnasium.wrappers.TimeLimit(env, steps))
    try:
        with video(path, fps or env.metadata.get("render_fps")) as take:
            filmed.film(take)
            yield filmed
    finally:
        if isinstance(source, EnvSource):
            env.close()


@contextmanager
def video(path: str | os.PathLike[str], fps: float | None) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Write a video file, .mp4 or .gif, of frames of so many a second; it is there when it is whole.

    Raises `SettingsError` for another kind of file, and where imageio is not installed.
    """
    path, fps = Path(path), fps or _FPS
    kinds: dict[str, dict[str, Any]] = {
        ".mp4": {"fps": fps, "macro_block_size": _BLOCK},
        ".gif": {"duration": _MILLISECONDS / fps, "loop": 0},
    }
    if path.suffix not in kinds:
        raise SettingsError(f"video {path}: a file ends with one of {', '.join(kinds)}")
    try:
        imageio = import_module("imageio.v2")
    except ImportError as error:
        raise SettingsError(
            f"video {path}: imageio cannot be imported: {error}; pip install 'penstock[video]'"
        ) from error
    unfinished = path.with_name(f".{path.stem}.unfinished{path.suffix}")
    try:
        with imageio.get_writer(unfinished, mode="I", **kinds[path.suffix]) as writer:
            yield writer.append_data
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
