"""What the conformance check makes of rows: episodes, differences from a twin, and rules broken."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from check_zoo import LENGTH, WalkEnv

from penstock_producers.check.actions import Actions, to_gymnasium
from penstock_producers.check.episodes import Episode, Recorder
from penstock_producers.check.play import play
from penstock_producers.check.report import Findings
from penstock_producers.check.rules import Rule
from penstock_producers.check.twin import Part, replay
from penstock_producers.check.values import arrays, difference, misfit
from penstock_producers.envs.rows import Abort, Answer, Rows
from penstock_producers.spaces import from_gymnasium
from penstock_schemas.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_schemas.spaces import Leaves

PLACE = Box((), np.dtype(np.float32))
NOBODY = np.zeros(0, np.int32)


def rows(place: float, *, first: bool = False, terminated: bool = False, seed: int | None = None) -> Answer:
    observation = (np.array([place], np.float32),)
    seeds = None if seed is None else np.array([seed])
    flags = [np.array([flag]) for flag in (terminated, False, first)]
    steps = Rows(np.zeros(1, np.int32), observation, np.array([place]), *flags, seeds)
    return Answer(steps, (), None, np.zeros(1, np.int32), observation)


def record(*answers: Answer) -> tuple[list[Episode], Findings]:
    findings = Findings()
    recorder = Recorder(1, findings)
    for answer in answers:
        recorder.add(answer)
        recorder.act(answer.ready, (np.array([1], np.int64),))
    return recorder.lives[0], findings


def test_episodes_have_one_observation_more_than_steps() -> None:
    life, findings = record(
        rows(0, first=True, seed=7), rows(1), rows(2, terminated=True), rows(3, first=True), rows(4), rows(5)
    )

    assert not findings.all()
    assert [(episode.seed, episode.steps, episode.ended) for episode in life] == [(7, 2, True), (None, 2, False)]
    assert [float(leaf) for (leaf,) in life[0].observations] == [0, 1, 2]
    assert [float(leaf) for (leaf,) in life[1].observations] == [3, 4, 5]
    assert life[0].rewards == [1, 2]


def test_a_step_after_an_end_breaks_the_rule_of_resets() -> None:
    _, findings = record(rows(0, first=True), rows(1, terminated=True), rows(2))

    (finding,) = findings.all()
    assert (finding.rule, finding.episode, finding.found) == (Rule.RESET_ROW, 0, "a step of no open episode")


def test_a_reset_amid_an_episode_breaks_the_rule_of_resets() -> None:
    life, findings = record(rows(0, first=True), rows(1), rows(2, first=True))

    (finding,) = findings.all()
    assert (finding.rule, finding.episode, finding.step) == (Rule.RESET_ROW, 0, 1)
    assert len(life) == 2


@pytest.mark.parametrize(
    ("reason", "rule"),
    [
        ("env_reward: nan", Rule.FINITE_REWARD),
        ("env_observation: float64", Rule.OBSERVATION_SPACE),
        ("env_spaces: wider", Rule.SPACES_FIXED),
        ("env_info: a list", Rule.INFO_DICT),
        ("env_raised: RuntimeError", Rule.API),
    ],
)
def test_an_abort_breaks_the_rule_that_its_fault_names(reason: str, rule: Rule) -> None:
    aborted = Answer(None, (Abort(0, reason),), None, NOBODY, (np.zeros(0, np.float32),))

    life, findings = record(rows(0, first=True), rows(1), aborted, rows(0, first=True))

    (finding,) = findings.all()
    assert (finding.rule, finding.episode, finding.step, finding.found) == (rule, 0, 2, reason)
    assert [episode.aborted for episode in life] == [reason, None]


class MuteEnvs:
    """Never answers a step."""

    num_envs = 1
    observation_space = PLACE
    action_space = Discrete(2)
    reward_dtype = np.dtype(np.float64)
    infos = ()

    def reset(self) -> Answer:
        return rows(0, first=True)

    def send(self, env: NDArray[np.int32], action: Leaves) -> None:
        pass

    def recv(self, timeout: float = 1.0) -> Answer:
        return Answer(None, (), None, NOBODY, (np.zeros(0, np.float32),))

    def close(self) -> None:
        pass


def test_envs_that_never_answer_end_the_play() -> None:
    findings = Findings()
    seconds = count()

    (life,), _ = play(MuteEnvs(), 5, 0, 0, findings, lambda: float(next(seconds)))

    (finding,) = findings.all()
    assert (finding.rule, finding.step) == (Rule.API, 1)
    assert finding.found == "no answer from envs [0] for 60 s"
    assert life[0].steps == 0


class HalfMuteEnvs(MuteEnvs):
    """One of them answers always, the other never."""

    num_envs = 2

    def recv(self, timeout: float = 1.0) -> Answer:
        return rows(1)


def test_an_env_that_never_answers_ends_the_play_though_others_go_on() -> None:
    findings = Findings()
    seconds = count()

    (life, silent), _ = play(HalfMuteEnvs(), 5, 0, 0, findings, lambda: float(next(seconds)))

    (finding,) = findings.all()
    assert finding.found == "no answer from envs [1] for 60 s"
    assert life[0].steps > 5
    assert silent == []


def lived(env: WalkEnv, steps: int) -> list[Episode]:
    """What a recorder would have of an env that is seeded once."""
    space, actions = walk_spaces()
    drawn = Actions(actions, 1, 0)
    life: list[Episode] = []
    for _ in range(steps):
        if not life or life[-1].ended:
            seed = None if life else 3
            life.append(Episode(seed, [arrays(space, env.reset(seed=seed)[0])]))
        action = tuple(leaf[0] for leaf in drawn.draw(np.zeros(1, np.int32)))
        observation, reward, terminated, truncated, _ = env.step(action[0])
        life[-1].observations.append(arrays(space, observation))
        life[-1].actions.append(action)
        life[-1].rewards.append(np.float64(reward))
        life[-1].terminated, life[-1].truncated = terminated, truncated
    return life


def walk_spaces() -> tuple[Space, Space]:
    env = WalkEnv()
    return from_gymnasium(env.observation_space, "observation"), from_gymnasium(env.action_space, "action")


def differences(life: list[Episode]) -> list[tuple[Part, int, int]]:
    return [(part, episode, step) for part, episode, step, *_ in replay(WalkEnv(), life, *walk_spaces())]


def test_a_twin_lives_the_same_life_through_seeded_and_unseeded_episodes() -> None:
    assert differences(lived(WalkEnv(), 3 * LENGTH)) == []


def test_a_twin_goes_on_after_a_wrong_last_observation_only() -> None:
    life = lived(WalkEnv(), 3 * LENGTH)
    life[0].observations[-1] = life[1].observations[0]
    life[1].rewards[2] += 1e-9
    life[2].observations[1] = life[2].observations[0]

    assert differences(life) == [(Part.LAST_OBSERVATION, 0, LENGTH), (Part.REWARD, 1, 3)]


def test_a_twin_tells_an_end_that_is_not_there() -> None:
    life = lived(WalkEnv(), LENGTH + 2)
    life[0].terminated = False
    assert differences(life) == [(Part.END, 0, LENGTH)]

    life = lived(WalkEnv(), 2)
    life[0].truncated = True
    assert differences(life) == [(Part.END, 0, 2)]


def test_nan_is_nan_and_rounding_is_tolerated_only_where_it_is_said() -> None:
    box = Box((2,), np.dtype(np.float32))
    one, near = (np.array([np.nan, 1], np.float32),), (np.array([np.nan, 1.000001], np.float32),)

    assert difference(box, one, one) is None
    assert difference(box, one, near) == ("observation[1] = 1.0", "observation[1] = 1.0000009536743164")
    assert difference(box, one, near, tolerance=1e-5) is None
    infinite = (np.array([np.inf, 1], np.float32),)
    assert difference(box, infinite, one, tolerance=1e-5) == ("observation[0] = inf", "observation[0] = nan")


NESTED = Dict(
    (
        ("wide", Box((2,), np.dtype(np.int64), (-(2.0**63),), (2.0**63,))),
        ("pair", Tuple((Discrete(3, start=-1), MultiDiscrete((2,), (2, 3), (0, 5))))),
        ("bits", MultiBinary((2, 2))),
        ("half", Box((), np.dtype(np.float16), (0.0,), (np.inf,))),
        ("word", Text(4, 1, "ab")),
    )
)


def test_actions_lie_in_their_space_and_depend_on_seed_and_env_only() -> None:
    one, other, third = Actions(NESTED, 2, 5), Actions(NESTED, 2, 5), Actions(NESTED, 2, 6)
    both, first, second = np.array([0, 1], np.int32), np.array([0], np.int32), np.array([1], np.int32)

    together = one.draw(both)
    apart = [other.draw(second), other.draw(first)]

    for leaf, late, early in zip(together, *apart, strict=True):
        assert leaf.tolist() == [*early.tolist(), *late.tolist()]
    assert to_gymnasium(NESTED).contains(
        {
            "wide": together[0][0],
            "pair": (together[1][0], together[2][0]),
            "bits": together[3][0],
            "half": together[4][0],
            "word": str(together[5][0]),
        }
    )
    assert any(a.tolist() != b.tolist() for a, b in zip(together, third.draw(both), strict=True))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({}, None),
        ({"wide": np.zeros(2, np.float64)}, Rule.OBSERVATION_SPACE),
        ({"wide": [0, 0]}, Rule.OBSERVATION_SPACE),
        ({"wide": [[0], [0, 1]]}, Rule.OBSERVATION_SPACE),
        ({"pair": (0,)}, Rule.OBSERVATION_SPACE),
        ({"pair": None}, Rule.OBSERVATION_SPACE),
        ({"pair": (2, np.array([0, 5]))}, Rule.OBSERVATION_BOUNDS),
        ({"bits": np.full((2, 2), 2, np.int8)}, Rule.OBSERVATION_BOUNDS),
        ({"half": np.float16(-1)}, Rule.OBSERVATION_BOUNDS),
        ({"word": "abc d"}, Rule.OBSERVATION_BOUNDS),
        ({"word": 3}, Rule.OBSERVATION_SPACE),
    ],
)
def test_a_value_that_is_none_of_its_space_is_told_from_one_out_of_bounds(
    change: dict[str, Any], rule: Rule | None
) -> None:
    value = {
        "wide": np.zeros(2, np.int64),
        "pair": (-1, np.array([1, 7])),
        "bits": np.ones((2, 2), np.int8),
        "half": np.float16(3),
        "word": "ab",
    }

    found = misfit(NESTED, {**value, **change})

    assert (None if found is None else found.rule) == rule
