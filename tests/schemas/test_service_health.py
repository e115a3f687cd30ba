from __future__ import annotations

import pytest

from penstock_schemas.service import Health


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_condition_fails_until_it_is_reported_and_whenever_it_is_reported_to() -> None:
    health = Health("kafka", "policy", clock=Clock(), beat_limit=60)
    assert health.failing() == {"kafka": "not reported yet", "policy": "not reported yet"}

    health.ready("kafka")
    health.unready("policy", "no version yet")
    assert health.failing() == {"policy": "no version yet"}

    health.ready("policy")
    assert health.failing() == {}

    health.unready("kafka", "no broker answers")
    assert health.failing() == {"kafka": "no broker answers"}


def test_a_condition_that_was_not_named_is_refused() -> None:
    health = Health("kafka", clock=Clock(), beat_limit=60)
    with pytest.raises(KeyError, match="no condition 'kafak', there are kafka"):
        health.ready("kafak")
    with pytest.raises(KeyError, match="no condition 'store'"):
        health.unready("store", "away")


def test_a_silence_beyond_the_limit_is_told_until_the_next_beat() -> None:
    clock = Clock()
    health = Health(clock=clock, beat_limit=60)
    clock.now += 60
    assert health.stalled() is None
    clock.now += 0.5
    assert health.stalled() == "no beat of the main loop for 60.5 s, the limit is 60 s"
    health.beat()
    assert health.stalled() is None
