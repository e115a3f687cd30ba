from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from penstock_producers.envs.lanes import Containment, Lanes
from penstock_producers.envs.seeds import Seeds
from tests.producers.lanes_driving import BAD, QUICK, Driver, check_siblings, local, workers
from tests.producers.lanes_zoo import FAULT_OF, IN_RESET, KINDS, course

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 40
IN_STEP = tuple(kind for kind in KINDS if kind not in IN_RESET)


def existing(n: int, **settings: Any) -> Lanes:
    return Lanes.existing([course(index, **settings) for index in range(n)], seeds=Seeds(7, "pod-0"), containment=QUICK)


def two_workers(n: int, **settings: Any) -> Lanes:
    return workers(n, 2, containment=Containment(backoff=0.0, max_rebuilds=1000), **settings)


def worker_each(n: int, **settings: Any) -> Lanes:
    # Long enough that a machine with much else to do starves no sibling for as long.
    return workers(n, n, containment=Containment(step_timeout=3.0, backoff=0.0, max_rebuilds=1000), **settings)


# What costs a process comes less often than what costs an env.
EVERYTHING = (*3 * KINDS, "hang", "kill", "kill")


@pytest.mark.parametrize(
    ("make", "n", "kinds", "one_in", "steps"),
    [
        pytest.param(local, 16, KINDS, 4, 10_000, id="in the process"),
        pytest.param(existing, 16, IN_STEP, 4, 10_000, id="existing"),
        pytest.param(two_workers, 16, KINDS, 20, 10_000, id="in workers"),
        pytest.param(worker_each, 4, EVERYTHING, 50, 4_000, id="in a worker each"),
        pytest.param(local, 16, KINDS, 4, 100_000, id="in the process, long", marks=pytest.mark.soak),
        pytest.param(existing, 16, IN_STEP, 4, 100_000, id="existing, long", marks=pytest.mark.soak),
        pytest.param(two_workers, 16, KINDS, 20, 100_000, id="in workers, long", marks=pytest.mark.soak),
        # Every step is a message each way, so this takes a minute.
        pytest.param(worker_each, 4, EVERYTHING, 400, 100_000, id="in a worker each, long", marks=pytest.mark.soak),
    ],
)
def test_beside_an_env_that_goes_wrong_at_random_no_step_is_lost(
    make: Callable[..., Lanes], n: int, kinds: tuple[str, ...], one_in: int, steps: int
) -> None:
    expected = {FAULT_OF[kind] for kind in kinds}
    with closing(make(n, wrong=" ".join(kinds), bad=BAD, one_in=one_in, longest=LONGEST)) as lanes:
        driver = Driver(lanes, n)

        def enough() -> bool:
            return driver.answers.total() >= steps and expected <= set(lanes.faults) and lanes.faults.total() >= 20

        driver.run(enough, most=1_000_000)
        assert set(lanes.faults) == expected
    for env, episodes in enumerate(driver.episodes):
        # Also those that a fault ended: each row up to the fault is there, once.
        for episode in episodes:
            numbers = range(len(episode.rewards) + 1)
            assert episode.observations == [([env, episode.seed % 1000, number],) for number in numbers]
        # Each step's action and answer belong together: an action is the number of the env's steps before it.
        taken = [reward for episode in episodes for reward in episode.rewards]
        assert taken == list(range(len(taken)))
        assert len({episode.seed for episode in episodes}) == len(episodes)
    check_siblings(driver, local(n, longest=LONGEST), n)
