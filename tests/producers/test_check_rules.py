"""Each rule of the conformance check is broken by an environment that breaks no other, and is caught where it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from check_zoo import AT, LENGTH

from penstock_producers.check import EXPLANATIONS, MODES, Report, Rule, check_env
from penstock_producers.check.cli import main
from penstock_producers.envs.source import EnvSource
from penstock_producers.envs.wrapper import Wrapper
from penstock_schemas.errors import EnvError

LANES = "lanes"
VECTOR = "vector_entry_point"

# The env, the rule, and where it is broken first: episode and step.
SINGLE_BREAKERS: list[tuple[str, Rule, int, int]] = [
    ("RaisingEnv", Rule.API, 0, AT),
    ("OldApiEnv", Rule.API, 0, 1),
    ("NumberFlagEnv", Rule.API, 0, 1),
    ("ManyFlagsEnv", Rule.API, 0, 1),
    ("LeavingEnv", Rule.API, 0, AT),
    ("SpacelessEnv", Rule.API, 0, 0),
    ("GraphEnv", Rule.RECORDABLE_SPACES, 0, 0),
    ("GrowingEnv", Rule.SPACES_FIXED, 1, 0),
    ("StretchingEnv", Rule.SPACES_FIXED, 1, 0),
    ("WideEnv", Rule.OBSERVATION_SPACE, 0, AT),
    ("LongEnv", Rule.OBSERVATION_SPACE, 0, AT),
    ("ExtraKeyEnv", Rule.OBSERVATION_SPACE, 0, 0),
    ("OutsideEnv", Rule.OBSERVATION_BOUNDS, 0, AT),
    ("NanEnv", Rule.OBSERVATION_BOUNDS, 0, AT),
    ("InfiniteRewardEnv", Rule.FINITE_REWARD, 0, AT),
    ("HugeRewardEnv", Rule.FINITE_REWARD, 0, AT),
    ("TextRewardEnv", Rule.FINITE_REWARD, 0, AT),
    ("NoInfoEnv", Rule.INFO_DICT, 0, AT),
    ("GreedyEnv", Rule.ACTION_MUTATED, 0, AT),
    ("OneBufferEnv", Rule.BUFFER_REUSE, 0, 1),
    ("UnseededEnv", Rule.SEEDING, 0, AT),
    ("RememberingEnv", Rule.SEEDING, 0, 0),
    ("DriftingEnv", Rule.SEEDING, 0, 1),
    ("LateSeedEnv", Rule.SEEDING, 1, 0),
]


def check(env: str, *modes: str, **given: Any) -> Report:
    return check_env(EnvSource(f"check_zoo:{env}"), modes=modes, num_envs=2, **{"steps": 40, **given})


@pytest.mark.parametrize(("env", "rule", "episode", "step"), SINGLE_BREAKERS, ids=[case[0] for case in SINGLE_BREAKERS])
def test_a_single_env_that_breaks_one_rule_is_caught_where_it_does(
    env: str, rule: Rule, episode: int, step: int
) -> None:
    report = check(env, "single")

    assert report.broken == {"single": (rule,)}
    (finding,) = report.modes[0].findings
    assert (finding.env, finding.episode, finding.step) == (0, episode, step)
    assert finding.expected != finding.found
    assert str(finding) in str(report)
    assert EXPLANATIONS[rule] in str(report)


def test_an_observation_that_is_indexed_as_a_dict_is_taken_for_one() -> None:
    assert check("RecordEnv", "single").ok


def test_envs_that_run_out_are_told_with_what_was_found() -> None:
    report = check("ExpensiveEnv", "single")

    assert report.broken == {"single": (Rule.API,)}
    assert all("only two licences" in finding.found for finding in report.modes[0].findings)


def test_an_env_that_ends_the_interpreter_where_it_is_checked_is_told() -> None:
    assert check("OptionsExitEnv", "single").broken == {"single": (Rule.RESET_OPTIONS, Rule.API)}


def test_an_env_whose_reset_takes_no_options_is_caught() -> None:
    assert check("OptionlessEnv", "single").broken == {"single": (Rule.RESET_OPTIONS,)}


def test_an_env_that_does_not_close_is_caught() -> None:
    report = check("UncloseableEnv", "single")

    assert report.broken == {"single": (Rule.API,)}
    assert "the window is gone" in report.modes[0].findings[0].found


@pytest.mark.parametrize(("env", "lacks"), [("WalkEnv", set()), ("DictEnv", {"async/NEXT_STEP"})])
def test_a_good_env_keeps_every_rule_in_every_mode_that_it_has(env: str, lacks: set[str]) -> None:
    report = check(env, *MODES)

    assert report.ok, str(report)
    assert [mode.mode for mode in report.modes] == list(MODES)
    assert {mode.mode for mode in report.modes if mode.unavailable} == {VECTOR, "envpool"} | lacks
    judged = [mode for mode in report.modes if not mode.unavailable]
    assert all(mode.steps >= 2 * 30 or mode.mode == "single" for mode in judged)
    assert all(mode.episodes >= 5 for mode in judged)
    assert all(mode.twin.startswith("compared") for mode in judged)


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_a_good_vector_env_keeps_every_rule_compared_with_twins(mode: str) -> None:
    report = check_env(EnvSource("check_zoo:WalkWalk-v0", {"mode": mode}), modes=[VECTOR], num_envs=2, steps=40)

    assert report.ok, str(report)
    assert report.modes[1].twin == "compared with twins"
    assert report.modes[1].episodes >= 5


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_a_good_vector_env_that_has_no_single_one_keeps_every_rule(mode: str) -> None:
    report = check_env(EnvSource("check_zoo:WalkVectorEnv", {"mode": mode}), modes=[VECTOR], num_envs=2, steps=40)

    assert report.ok, str(report)
    assert report.modes[0].unavailable == "it makes vector environments only"
    assert report.modes[1].twin == "not compared with twins: it makes vector environments only"
    assert report.modes[1].episodes >= 5


# The env, the rules, and where the first of them is broken first: episode and step.
VECTOR_BREAKERS: list[tuple[str, tuple[Rule, ...], int, int]] = [
    ("Losing", (Rule.FINAL_OBSERVATION,), 0, LENGTH),
    ("ResetCounting", (Rule.RESET_ROW,), 1, 0),
    ("Acting", (Rule.RESET_ROW,), 1, 0),
    ("Early", (Rule.OBSERVATION_COUNT,), 0, LENGTH - 1),
    ("Slow", (Rule.TRANSITIONS,), 0, AT),
    ("InfoList", (Rule.INFO_DICT,), 0, 1),
    ("Optionless", (Rule.RESET_OPTIONS,), 5, 0),
    ("Greedy", (Rule.ACTION_MUTATED,), 0, 1),
]


@pytest.mark.parametrize(
    ("env", "rules", "episode", "step"), VECTOR_BREAKERS, ids=[case[0] for case in VECTOR_BREAKERS]
)
def test_a_vector_env_that_breaks_one_rule_is_caught_where_it_does(
    env: str, rules: tuple[Rule, ...], episode: int, step: int
) -> None:
    report = check(f"{env}Walk-v0", VECTOR)

    assert report.broken == {VECTOR: rules}, str(report)
    finding = report.modes[1].findings[0]
    assert (finding.episode, finding.step) == (episode, step)


def test_a_vector_env_that_declares_another_mode_than_it_has_is_caught() -> None:
    report = check("MisdeclaredWalk-v0", VECTOR)

    assert set(report.broken[VECTOR]) == {Rule.FINAL_OBSERVATION, Rule.RESET_ROW}
    assert check("MisdeclaredVectorEnv", VECTOR).broken == {VECTOR: (Rule.RESET_ROW,)}


def test_a_vector_env_whose_reset_takes_an_action_is_caught_without_a_twin() -> None:
    assert check("ActingVectorEnv", VECTOR).broken == {VECTOR: (Rule.RESET_ROW,)}

    report = check("SparseVectorEnv", VECTOR)
    assert report.broken == {VECTOR: (Rule.RESET_ROW,)}
    (finding,) = report.modes[1].findings
    assert (finding.episode, finding.step) == (1, 0)


@pytest.mark.parametrize(
    ("env", "twin"),
    [
        ("LevelWalk-v0", "not compared with twins: what it makes of its seed for each env is its own affair"),
        ("RailWalk-v0", "compared with twins"),
    ],
)
def test_a_start_that_is_always_the_same_tells_nothing_of_seeds_unless_nothing_heeds_them(env: str, twin: str) -> None:
    report = check(env, VECTOR)

    assert report.ok, str(report)
    assert report.modes[1].twin == twin


def test_a_vector_entry_point_that_is_gymnasiums_own_is_compared_with_twins() -> None:
    report = check("SyncWalk-v0", VECTOR)

    assert report.ok, str(report)
    assert report.modes[1].twin == "compared with twins"


def test_a_single_env_that_raises_at_a_vector_envs_seed_is_no_twin() -> None:
    report = check("ShortSeedWalk-v0", VECTOR)

    assert report.ok, str(report)
    why = "the single env raises ValueError: a seed of 16 bits, please"
    assert report.modes[1].twin == f"not compared with twins: {why}"


def test_lanes_end_no_episode_for_bounds_that_an_env_breaks() -> None:
    report = check("OutsideEnv", LANES)

    assert report.broken[LANES] == (Rule.OBSERVATION_BOUNDS,)
    assert report.modes[1].episodes == 10


def test_a_vector_env_without_a_twin_that_no_seed_reaches_is_caught_by_repetition() -> None:
    assert check("OtherDrawVectorEnv", VECTOR).broken == {VECTOR: (Rule.SEEDING,)}


def test_a_reward_that_is_nan_in_both_runs_is_no_matter_of_seeds() -> None:
    assert check("NanRewardVectorEnv", VECTOR).broken == {VECTOR: (Rule.FINITE_REWARD,)}


def test_a_vector_env_without_a_twin_that_loses_every_last_observation_is_caught() -> None:
    report = check("LosingVectorEnv", VECTOR)

    assert report.broken == {VECTOR: (Rule.FINAL_OBSERVATION,)}
    assert report.modes[1].findings[0].step == LENGTH


@pytest.mark.parametrize(
    ("env", "expected", "found"),
    [
        ("ModelessVectorEnv", "metadata['autoreset_mode'] to be an AutoresetMode", "None"),
        ("CountlessVectorEnv", "its number of envs, metadata and spaces", "no attribute 'num_envs'"),
        ("ActionlessVectorEnv", "its number of envs, metadata and spaces", "no attribute 'action_space'"),
        ("SpareVectorEnv", "num_envs 2, as was asked for", "3"),
        ("OneRewardVectorEnv", "rewards as an array of shape (2,) of floats or integers", "a float"),
        ("FloatFlagVectorEnv", "terminated as an array of shape (2,) of bools", "of shape (2,) and dtype float64"),
        ("ColumnFlagVectorEnv", "truncated as an array of shape (2,) of bools", "of shape (2, 1) and dtype bool"),
    ],
)
def test_a_vector_env_whose_answers_are_no_vector_envs_is_caught(env: str, expected: str, found: str) -> None:
    report = check(env, VECTOR)

    assert report.broken == {VECTOR: (Rule.API,)}
    (finding,) = report.modes[1].findings
    assert finding.expected == expected
    assert found in finding.found


def test_same_step_loses_the_last_observation_of_an_env_with_one_buffer() -> None:
    report = check("OneBufferEnv", "sync/SAME_STEP", "sync/NEXT_STEP", LANES)

    assert report.broken == {"single": (Rule.BUFFER_REUSE,), "sync/SAME_STEP": (Rule.FINAL_OBSERVATION,)}
    (same_step,) = [mode for mode in report.modes if mode.mode == "sync/SAME_STEP"]
    (finding,) = same_step.findings
    assert (finding.episode, finding.step) == (0, LENGTH)
    assert f"observation[0] = {LENGTH}" in finding.expected
    assert "observation[0] = 0" in finding.found


def test_lanes_name_the_rule_for_which_they_abort() -> None:
    report = check("InfiniteRewardEnv", LANES)

    assert report.broken[LANES] == (Rule.FINITE_REWARD,)
    finding = report.modes[1].findings[0]
    assert finding.step == AT
    assert finding.count > 1


def test_an_env_that_is_not_there_is_an_error_and_a_mode_that_is_unknown_too() -> None:
    with pytest.raises(EnvError, match="NoSuchEnv"):
        check("NoSuchEnv")
    with pytest.raises(EnvError, match="'lockstep' is unknown; use some of single, "):
        check("WalkEnv", "lockstep")


def test_wrappers_are_checked_with_the_env_and_leave_the_vector_entry_point_out() -> None:
    short = Wrapper("TimeLimit", {"max_episode_steps": 3})
    source = EnvSource("check_zoo:WalkWalk-v0", wrappers=(short,))

    report = check_env(source, modes=[VECTOR, "sync/NEXT_STEP"], num_envs=2, steps=20)

    assert report.ok, str(report)
    assert report.modes[0].episodes == 6
    assert report.modes[1].unavailable == "a vector entry point takes no wrappers"


def test_the_command_tells_by_its_exit_code_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--steps", "20", "--num-envs", "2", "--modes", "single", LANES]

    assert main(["--env", "check_zoo:WalkEnv", *few]) == 0
    assert "check_zoo:WalkEnv: keeps every rule" in capsys.readouterr().out
    assert main(["--env", "check_zoo:NanEnv", *few, "--json"]) == 1
    described = json.loads(capsys.readouterr().out)
    assert described["modes"][0]["findings"][0]["rule"] == "observation_bounds"
    assert main(["--env", "check_zoo:NoSuchEnv", *few]) == 2
    assert "error: " in capsys.readouterr().err


def test_the_command_passes_arguments_and_wrappers_on(capsys: pytest.CaptureFixture[str]) -> None:
    wrappers = '[{"name": "TimeLimit", "arguments": {"max_episode_steps": 3}}]'
    given = ["--env", "CartPole-v1", "--env-arguments", '{"sutton_barto_reward": true}', "--wrappers", wrappers]

    assert main([*given, "--steps", "9", "--modes", "single", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["modes"][0]["episodes"] == 3
    with pytest.raises(SystemExit) as exit_code:
        main(["--env", "CartPole-v1", "--wrappers", '{"name": "TimeLimit"}'])
    assert exit_code.value.code == 2
    assert "no JSON list of objects" in capsys.readouterr().err
