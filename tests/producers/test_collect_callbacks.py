"""Callbacks of a collector: they are told of what is collected, and of how every episode ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from penstock_producers.collect import Collector
from penstock_producers.envs import Lanes, Seeds
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import EnvError
from tests.producers.callback_zoo import Climber, Ladder, Witness
from tests.producers.collect_zoo import Drawn, Fixed
from tests.producers.collecting import SEED

if TYPE_CHECKING:
    from pathlib import Path

    from penstock_producers.envs import Rows


class Failing(Witness):
    """Fails at the next step when it is told to."""

    fails = False

    def on_step(self, steps: Rows) -> None:
        if self.fails:
            self.fails = False
            raise RuntimeError("out of paper")
        super().on_step(steps)


def turns(witness: Witness) -> list[Any]:
    """The starts, and how each episode ended after how many steps."""
    return [
        ("start", env) if what == "start" else ("end", env, told.length, told.abort_reason)
        for what, env, told in witness.calls
        if what != "step"
    ]


ANEW = [("end", 0, 2, "reset"), ("end", 1, 2, "reset"), ("start", 0), ("start", 1)]


def test_episodes_that_an_exception_left_open_are_told_to_have_ended_before_others_begin() -> None:
    witness = Failing()
    collector = Collector([Fixed(20), Fixed(20)], "random", seed=SEED, callbacks=[witness])
    collector.collect(4)
    witness.fails = True
    with pytest.raises(EnvError, match="out of paper"):
        collector.collect(4)
    collector.collect(4)
    assert turns(witness) == [("start", 0), ("start", 1), *ANEW]
    assert {end.ends for _, end in witness.of("end")} == {Ends.ABORTED}


@pytest.mark.parametrize("components", [["counters"], ["policy"], ["generators"], None])
def test_so_are_those_that_a_state_left_open(components: list[str] | None) -> None:
    witness = Witness()
    collector = Collector([Fixed(20), Fixed(20)], "random", seed=SEED, callbacks=[witness])
    collector.collect(4)
    collector.load_state(collector.state(), components)
    begun = collector.collect(4).episodes
    assert turns(witness) == [("start", 0), ("start", 1), *ANEW]
    assert [(e.first_step, e.length) for e in begun] == [(0, 2), (0, 2)]


def test_so_is_that_of_an_env_which_was_filmed(tmp_path: Path) -> None:
    witness = Witness()
    collector = Collector(Drawn("rgb_array"), "random", seed=SEED, callbacks=[witness])
    collector.collect(1)
    before = len(turns(witness))
    collector.record_video(tmp_path / "film.gif", explore=True)
    collector.collect(1)
    assert turns(witness)[before : before + 2] == [("end", 0, turns(witness)[before][2], "reset"), ("start", 0)]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_by_episodes_they_see_what_is_collected_and_no_more(mode: AutoresetMode) -> None:
    """Env 0 has given its share long before env 1, and is stepped on."""
    witness = Witness()
    envs = SyncVectorEnv([lambda: Fixed(2), lambda: Fixed(9)], autoreset_mode=mode)
    collector = Collector(envs, "random", seed=SEED, callbacks=[witness])
    collection = collector.collect(n_episodes=3)
    assert [(env, end.length) for env, end in witness.of("end")] == [(0, 2), (0, 2), (1, 9)]
    assert len(witness.of("step")) == collection.steps == 13
    assert collection.statistics.metrics["score"].count == 3
    # By steps all of them are collected again.
    witness.calls.clear()
    collector.collect(12)
    assert len(witness.of("step")) == 12


def test_a_collector_s_choice_of_reset_options_does_not_outlive_it_on_lanes_that_were_handed_over() -> None:
    lanes = Lanes.existing([Ladder(0), Ladder(1)], seeds=Seeds(SEED, "pod-0"), infos=["level"])
    climber = Climber()
    Collector(lanes, "random", callbacks=[climber]).collect(6)
    asked = len(climber.asked)
    collection = Collector(lanes, "random").collect(6)
    assert (len(climber.asked), {episode.options for episode in collection.episodes}) == (asked, {None})
