"""Environments whose episodes last one step, and that break between two of them; and ones that never begin."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.producers.evaluation_zoo import Known

LEAVES_A_THREAD = f"{__name__}:leaves_a_thread"
ALWAYS_ENDS = f"{__name__}:AlwaysEnds"
NEVER_MADE = f"{__name__}:never_made"
NEVER_RESET = f"{__name__}:NeverReset"
TELLS_ITS_END = f"{__name__}:TellsItsEnd"
SEQUENCE_OBSERVATION = f"{__name__}:sequence_observation"
TEXT_ACTION = f"{__name__}:text_action"


class AlwaysEnds(gymnasium.Env[Any, Any]):
    """Every step ends its episode; every reset after the `resets`-th raises."""

    observation_space: spaces.Space[Any] = spaces.Box(0, 1, (1,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, resets: int = 2) -> None:
        self.resets = resets

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.resets == 0:
            raise RuntimeError("no more resets")
        self.resets -= 1
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(1, np.float32), 1.0, True, False, {}


class TellsItsEnd(AlwaysEnds):
    """Writes when it is made, and when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        print("made", flush=True)  # noqa: T201 - it is waited for

    def close(self) -> None:
        print("closed", flush=True)  # noqa: T201 - as above


class NeverReset(AlwaysEnds):
    """Waits for ever as it is reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        wait_for_ever()
        return super().reset(seed=seed, options=options)


def sequence_observation() -> AlwaysEnds:
    env = AlwaysEnds()
    env.observation_space = spaces.Dict({"a": spaces.Sequence(env.observation_space)})
    return env


def text_action() -> AlwaysEnds:
    env = AlwaysEnds()
    env.action_space = spaces.Text(3)
    return env


def never_made() -> AlwaysEnds:
    wait_for_ever()
    return AlwaysEnds()


def wait_for_ever() -> None:
    print("hangs", flush=True)  # noqa: T201 - it is waited for
    threading.Event().wait()


def leaves_a_thread() -> gymnasium.Env[Any, Any]:
    """Make an env whose process does not end by itself."""
    threading.Thread(target=threading.Event().wait).start()
    return Known()
