"""Single envs for lanes: they tell in their observations what they did, and some do wrong on purpose."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from asyncio import CancelledError
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from collections.abc import Callable

PARENT = os.getppid()
KINDS = (
    "raise",
    "mute",
    "exit",
    "cancel",
    "raise_in_reset",
    "nan_reward",
    "no_reward",
    "nan",
    "outside",
    "shape",
    "dtype",
    "info",
    "spaces",
    "bounds",
)
IN_RESET = {"raise_in_reset", "spaces", "bounds"}
FAULT_OF = {
    **dict.fromkeys(("raise", "mute", "exit", "cancel", "raise_in_reset"), "env_raised"),
    **dict.fromkeys(("nan_reward", "no_reward"), "env_reward"),
    **dict.fromkeys(("nan", "outside", "shape", "dtype"), "env_observation"),
    "info": "env_info",
    **dict.fromkeys(("spaces", "bounds"), "env_spaces"),
    **dict.fromkeys(("hang", "leave"), "env_hung"),
    **dict.fromkeys(("kill", "fork", "signal"), "env_died"),
}


ANSWERS: dict[str, Any] = {
    "nan_reward": lambda good, info: (good, np.inf, False, False, info),
    "no_reward": lambda good, info: (good, "much", False, False, info),
    "nan": lambda good, info: (np.array([np.nan, 0, 0], np.float32), 0.0, False, False, info),
    "outside": lambda good, info: (good + 1001, 0.0, False, False, info),
    "shape": lambda good, info: (good[:2], 0.0, False, False, info),
    "dtype": lambda good, info: (good.astype(np.float64), 0.0, False, False, info),
    "info": lambda good, info: (good, 0.0, False, False, None),
}


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def spin() -> None:
    while True:
        pass


def leave() -> None:
    """Change the group for that of the parent, and hang."""
    os.setpgid(0, os.getpgid(os.getppid()))
    hang()


def spawn() -> None:
    subprocess.run([sys.executable, "-c", "import time; time.sleep(1000)"], check=False)


def fork() -> None:
    """Die, while a child lives that holds all that was open."""
    if os.fork():
        kill()
    hang()


def outlive() -> None:
    """Take until the parent is gone."""
    while os.getppid() == PARENT:
        time.sleep(0.01)


def shut() -> None:
    """Shut every socket, and live on."""
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as opened:
            opened.shutdown(socket.SHUT_RDWR)
    hang()


hang = partial(time.sleep, 1000)
kill = partial(signal.raise_signal, signal.SIGKILL)
RAISED = {
    "raise": RuntimeError("boom " + 500 * "x"),
    "mute": MuteError(),
    "exit": SystemExit(3),
    "cancel": CancelledError(),
}
DEEDS: dict[str, Callable[[], object]] = {
    "hang": hang,
    "spin": spin,
    "leave": leave,
    "outlive": outlive,
    "shut": shut,
    "spawn": spawn,
    "kill": kill,
    "fork": fork,
    "signal": partial(signal.raise_signal, signal.SIGRTMIN + 6),
}


class Course(gymnasium.Env[Any, Any]):
    """Observes (env, seed mod 1000, step) in one buffer; the reward is the action; infos count steps.

    Episode lengths come from the seed. Env `bad` does one of the words of `wrong` in one step of `one_in`, also by the
    seed; a word that stands there twice comes twice as often.
    """

    action_space: spaces.Space[Any] = spaces.Box(-100, 100, (), np.float64)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - gymnasium's own form

    def __init__(
        self, env_index: int, longest: int = 6, wrong: str = "", bad: int = -1, one_in: int = 4, slow: int = -1
    ) -> None:
        self.observation_space = spaces.Box(0, 1000, (3,), np.float32)
        self.render_mode = "rgb_array"
        self.env_index = env_index
        self.longest = longest
        self.wrong = wrong if env_index == bad else ""
        self.one_in = one_in
        self.pause = 0.05 if env_index == slow else 0.0
        self.buffer = np.zeros(3, np.float32)
        self.closed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        self.length = int(self.np_random.integers(1, self.longest + 1))
        self.buffer[:] = self.env_index, (seed or 0) % 1000, 0
        match self.goes_wrong(in_reset=True):
            case "raise_in_reset":
                raise RuntimeError("no more")
            case "spaces":
                self.observation_space = spaces.Box(0, 999, (3,), np.float32)
            case "bounds":
                self.observation_space.high[:] = 999
        return self.buffer, {"count": 0, "options": str(options)}

    def goes_wrong(self, *, in_reset: bool) -> str:
        words = [word for word in self.wrong.split() if (word in IN_RESET) == in_reset]
        if not words or self.np_random.integers(self.one_in):
            return ""
        return str(self.np_random.choice(words))

    def step(self, action: Any) -> Any:
        if self.pause:
            time.sleep(self.pause)
        self.count += 1
        self.buffer[2] = self.count
        done = self.count == self.length
        info = {"count": self.count}
        if self.wrong and (wrong := self.goes_wrong(in_reset=False)):
            return self.do_wrong(wrong, info)
        return self.buffer, float(action), done and self.length % 2 == 0, done and self.length % 2 == 1, info

    def do_wrong(self, wrong: str, info: Any) -> Any:
        good = self.buffer
        if wrong in ANSWERS:
            return ANSWERS[wrong](good, info)
        if wrong in RAISED:
            raise RAISED[wrong]
        DEEDS[wrong]()
        raise AssertionError(wrong)

    def render(self) -> Any:
        return np.full((2, 3, 3), self.env_index, np.uint8)

    def close(self) -> None:
        self.closed += 1


def course(env_index: int, **settings: Any) -> Course:
    return Course(env_index, **settings)


class Nested(gymnasium.Env[Any, Any]):
    """A nested observation with strings in it, and a nested action, which it shows."""

    observation_space = spaces.Dict(
        {
            "text": spaces.Text(8, min_length=0, charset="abc\0"),
            "pair": spaces.Tuple((spaces.Discrete(50, start=-3), spaces.Box(-9, 9, (2, 2), np.float64))),
            "bits": spaces.MultiBinary(3),
        }
    )
    action_space = spaces.Dict({"a": spaces.Discrete(5), "t": spaces.Text(4, charset="abc")})

    def observe(self) -> Any:
        return {
            "text": "ab\0"[: self.count % 4],
            "pair": (self.count - 3, np.full((2, 2), self.count / 8)),
            "bits": np.array([1, 0, self.count % 2], np.int8),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        info = {"told": action["t"]} if action["a"] else {}
        return self.observe(), float(action["a"]), self.count == 5, False, info


def nested(env_index: int) -> Nested:
    return Nested()


def brittle(env_index: int, path: str, **settings: Any) -> Course:
    """Env 1 can be made once: then a file lies at `path`."""
    if env_index == 1:
        try:
            with open(path, "x"):  # noqa: PTH123 - the settings are plain JSON
                pass
        except FileExistsError:
            raise OSError("its port is taken") from None
    return Course(env_index, **settings)


class Noted(Course):
    """Adds a line to the file at `path` when it is made, and when it is closed."""

    def __init__(self, env_index: int, path: str, **settings: Any) -> None:
        super().__init__(env_index, **settings)
        self.path = path
        self.note("made")

    def close(self) -> None:
        self.note("closed")

    def note(self, word: str) -> None:
        with open(self.path, "a") as file:  # noqa: PTH123 - the settings are plain JSON
            file.write(f"{word} {self.env_index}\n")


def noted(env_index: int, **settings: Any) -> Noted:
    return Noted(env_index, **settings)


class Served(Noted):
    """Its simulator runs beside it, and does not end when it is closed, which takes a while."""

    def __init__(self, env_index: int, path: str, **settings: Any) -> None:
        super().__init__(env_index, path, **settings)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])

    def close(self) -> None:
        time.sleep(0.2)
        super().close()


def served(env_index: int, **settings: Any) -> Served:
    return Served(env_index, **settings)


def stuck(env_index: int, path: str, **settings: Any) -> Course:
    """Env 1 can be made once: the next time that takes for ever."""
    try:
        return brittle(env_index, path, **settings)
    except OSError:
        time.sleep(1000)
        raise


class Marked(Course):
    """Leaves a file in a folder when it is closed."""

    folder: Path

    def close(self) -> None:
        (self.folder / str(self.env_index)).touch()


def incomplete(env_index: int, folder: str) -> Marked:
    """Env 3 cannot be made."""
    if env_index == 3:
        raise OSError("no room for a fourth")
    made = Marked(env_index)
    made.folder = Path(folder)
    return made


class Frozen(Course):
    """Draws itself for ever."""

    def render(self) -> Any:
        hang()


def frozen(env_index: int, **settings: Any) -> Frozen:
    return Frozen(env_index, **settings)


class Undrawn(Course):
    """Env 0 draws no array, env 1 ends its process instead, env 2 draws one of objects, and env 3 fails."""

    def render(self) -> Any:
        if self.env_index == 1:
            kill()
        if self.env_index == 3:
            raise RuntimeError("no screen")
        return np.array([None]) if self.env_index == 2 else [np.zeros((2, 3, 3), np.uint8)]


def undrawn(env_index: int) -> Undrawn:
    return Undrawn(env_index)


def unmapped(env_index: int) -> Course:
    env = Course(env_index)
    env.observation_space = spaces.Sequence(spaces.Discrete(2))
    return env


class Clingy(Course):
    """Closes for ever."""

    def close(self) -> None:
        hang()


def clingy(env_index: int, **settings: Any) -> Clingy:
    return Clingy(env_index, **settings)


class Novel(Course):
    """Observes a text that no socket holds, and may be sent one."""

    action_space = spaces.Text(1 << 20, charset="a")

    def __init__(self, env_index: int) -> None:
        super().__init__(env_index)
        self.observation_space = spaces.Text(1 << 20, charset="a")

    def reset(self, **asked: Any) -> Any:
        return "a", super().reset(**asked)[1]

    def step(self, action: Any) -> Any:
        return "a" * (1 << 20), *super().step(len(action))[1:]


def novel(env_index: int) -> Novel:
    return Novel(env_index)
