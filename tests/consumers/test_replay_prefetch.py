from __future__ import annotations

import itertools
import subprocess
import sys
from threading import Event
from typing import TYPE_CHECKING

import pytest

from penstock_consumers.replay.prefetch import Prefetch
from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

LEFT_OPEN = """
import itertools
from penstock_consumers.replay.prefetch import Prefetch

batches = Prefetch(itertools.count())
print(next(batches))
"""


@pytest.mark.parametrize("depth", [1, 2, 50])
def test_batches_come_once_and_in_order(depth: int) -> None:
    with Prefetch(range(1_000), depth) as batches:
        assert list(batches) == list(range(1_000))
        assert list(batches) == []


@pytest.mark.parametrize("depth", [1, 3])
def test_as_many_are_ready_as_asked_for_and_no_more(depth: int) -> None:
    ahead, leads, taken = Event(), [], 0

    def drawn() -> Iterator[int]:
        for number in range(10_000):
            leads.append(number - taken)
            if number == depth:
                ahead.set()
            yield number

    with Prefetch(drawn(), depth) as batches:
        assert ahead.wait(60)  # before anything was asked for
        for _ in batches:
            taken += 1
    # One more is being drawn; and it may be drawn before the one that makes room for it is counted as taken.
    assert depth <= max(leads) <= depth + 1


def test_an_error_comes_in_its_turn_and_again() -> None:
    def failing() -> Iterator[int]:
        yield from range(3)
        raise ValueError("the store is gone")

    batches = Prefetch(failing(), depth=8)
    assert list(itertools.islice(batches, 3)) == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(ValueError, match="the store is gone"):
            next(batches)


def test_what_cannot_be_iterated_over_is_said_at_once() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        Prefetch(5)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(SettingsError, match="depth 0"):
        Prefetch([1], depth=0)


def test_the_thread_ends_when_it_is_closed_or_dropped() -> None:
    closed, left, dropped = (Prefetch(itertools.count()) for _ in range(3))
    threads = [batches._thread for batches in (closed, left, dropped)]
    assert all(thread.is_alive() for thread in threads)
    closed.close()
    closed.close()
    assert list(closed) == []
    with pytest.raises(KeyError), left:
        raise KeyError
    del dropped
    assert not any(thread.is_alive() for thread in threads)


def test_a_thread_that_draws_ends_behind_what_it_draws() -> None:
    drawing, go_on = Event(), Event()

    def slow() -> Iterator[int]:
        drawing.set()
        assert go_on.wait(60)
        yield 0
        pytest.fail("a closed one draws no more")

    batches = Prefetch(slow())
    assert drawing.wait(60)
    batches._ready.stop()
    go_on.set()
    batches.close()
    assert list(batches) == []


def test_one_that_is_left_open_does_not_keep_the_process() -> None:
    command = [sys.executable, "-c", LEFT_OPEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603  (our own)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
