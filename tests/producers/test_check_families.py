"""gymnasium's families and other projects' vector envs keep the rules, or it is known which they break and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock_producers.check import Rule, check_env
from penstock_producers.envs.source import EnvSource

if TYPE_CHECKING:
    from pathlib import Path

CLASSIC_CONTROL = ["CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1"]
TOY_TEXT = [
    *("Blackjack-v1", "FrozenLake-v1", "FrozenLake8x8-v1", "CliffWalking-v1", "CliffWalkingSlippery-v1", "Taxi-v4"),
]
BOX2D = [
    *("LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3", "BipedalWalkerHardcore-v3", "CarRacing-v3"),
]
MUJOCO = [
    *("Reacher-v5", "Pusher-v5", "InvertedPendulum-v5", "InvertedDoublePendulum-v5", "HalfCheetah-v5", "Hopper-v5"),
    *("Swimmer-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5", "HumanoidStandup-v5"),
]

STEPS = 16
# So that episodes end within the few steps.
LONGEST = 6

# BipedalWalker keeps its b2World over resets, and with it what Box2D remembers of contacts (LunarLander makes a new
# one, and says why): the same seed and actions give other digits in a used env than in a new one.
KNOWN: dict[str, set[Rule]] = {
    "BipedalWalker-v3": {Rule.SEEDING, Rule.TRANSITIONS},
    "BipedalWalkerHardcore-v3": {Rule.SEEDING, Rule.TRANSITIONS},
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo writes its warnings into a file where it runs."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("env", [*CLASSIC_CONTROL, *TOY_TEXT, *BOX2D, *MUJOCO])
def test_every_env_of_gymnasiums_families_keeps_the_rules_in_every_mode_that_it_has(env: str) -> None:
    report = check_env(EnvSource(env, {"max_episode_steps": LONGEST}), num_envs=2, steps=STEPS)

    assert {rule for rules in report.broken.values() for rule in rules} <= KNOWN.get(env, set()), str(report)
    unavailable = {mode.mode for mode in report.modes if mode.unavailable}
    assert unavailable == {"envpool"} | ({"vector_entry_point"} if env != "CartPole-v1" else set())
    assert all(mode.episodes >= 2 for mode in report.modes if not mode.unavailable)
    if not report.broken:
        without = {mode.mode for mode in report.modes if mode.twin.startswith("not compared")}
        # CartPole's own vector env has one generator for all envs.
        assert without == ({"vector_entry_point"} if env == "CartPole-v1" else set())


ATARI = {"game": "pong", "max_num_frames_per_episode": 24, "noop_max": 4}
# With life_loss_info a lost life is told as an end, but the step after it is the same game's next one.
LIVES = {"game": "breakout", "frameskip": 24, "noop_max": 4, "life_loss_info": True}
# numberlink's vector env declares NEXT_STEP, but the step after an end resets and takes its action at once: the
# reset's observation is never seen, and a step lies where the reset's row should be.
OTHER_PROJECTS: list[tuple[str, dict[str, Any], str, set[Rule]]] = [
    ("ale_py.vector_env:AtariVectorEnv", {**ATARI, "autoreset_mode": "NextStep"}, "vector_entry_point", set()),
    ("ale_py.vector_env:AtariVectorEnv", {**ATARI, "autoreset_mode": "SameStep"}, "vector_entry_point", set()),
    ("ale_py.vector_env:AtariVectorEnv", LIVES, "vector_entry_point", {Rule.RESET_ROW}),
    ("envpool:CartPole-v1", {"max_episode_steps": LONGEST}, "envpool", set()),
    ("envpool:CartPole-v1", {"max_episode_steps": LONGEST, "batch_size": 2, "num_threads": 1}, "envpool", set()),
    ("envpool:Pendulum-v1", {"max_episode_steps": LONGEST}, "envpool", set()),
    ("numberlink:NumberLinkRGB-v0", {"step_limit": LONGEST}, "vector_entry_point", {Rule.RESET_ROW}),
]


@pytest.mark.parametrize(("env", "arguments", "mode", "known"), OTHER_PROJECTS)
def test_vector_envs_of_other_projects_keep_the_rules_or_it_is_known_which_not(
    env: str, arguments: dict[str, Any], mode: str, known: set[Rule]
) -> None:
    report = check_env(EnvSource(env, arguments), modes=[mode], num_envs=3, steps=20)

    assert {rule for rules in report.broken.values() for rule in rules} == known, str(report)
    (judged,) = [found for found in report.modes if found.mode == mode]
    assert judged.episodes >= 3
