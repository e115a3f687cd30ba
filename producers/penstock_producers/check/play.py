"""Stepping several envs at random, whoever answers first, and recording each one's life."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock_producers.check.actions import Actions
from penstock_producers.check.episodes import Recorder
from penstock_producers.check.rules import Rule
from penstock_schemas.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_producers.check.episodes import Episode
    from penstock_producers.check.report import Findings
    from penstock_producers.envs.rows import Envs

_PATIENCE_S = 60.0


class Played(NamedTuple):
    """What envs did."""

    lives: list[list[Episode]]
    """The episodes of each."""
    ignored: bool
    """Whether there were actions that resets were to ignore."""


def play(
    envs: Envs, steps: int, seed: int, ignored_seed: int, findings: Findings, clock: Callable[[], float]
) -> Played:
    """Have each env answer so many actions, and tell what it did; what a reset ignores is recorded nowhere.

    The actions of an env depend on the seed and its index only; those that its resets are to ignore are drawn with
    `ignored_seed`. All envs go on until the last one has answered so many: out of lockstep a batch may have to fill
    before any answers. An env that breaks ends the play.
    """
    recorder = Recorder(envs.num_envs, findings)
    actions, others = (Actions(envs.action_space, envs.num_envs, root) for root in (seed, ignored_seed))
    answers = np.zeros(envs.num_envs, np.int64)
    some_ignored = False
    try:
        answer = envs.reset()
        since = np.full(envs.num_envs, clock())
        while True:
            recorder.add(answer)
            ready = answer.ready
            answers[ready] += 1
            if (answers > steps).all():  # the first one is the reset's
                break
            if len(ready):
                action, ignored = actions.draw(ready), recorder.ended(ready)
                some_ignored |= bool(ignored.any())
                for leaf, other in zip(action, others.draw(ready), strict=True):
                    leaf[ignored] = other[ignored]
                recorder.act(ready, action)
                since[ready] = clock()
                envs.send(ready, action)
            silent = np.flatnonzero(clock() - since > _PATIENCE_S)
            if len(silent):
                found = f"no answer from envs {silent.tolist()} for {_PATIENCE_S:.0f} s"
                _broke(recorder, findings, "every env to answer", found)
                break
            answer = envs.recv()
    except EnvError as error:
        _broke(recorder, findings, "step() and reset() to answer", str(error))
    return Played(recorder.lives, some_ignored)


def _broke(recorder: Recorder, findings: Findings, expected: str, found: str) -> None:
    lives = recorder.lives
    longest = max(range(len(lives)), key=lambda i: sum(episode.steps + 1 for episode in lives[i]))
    episode = lives[longest][-1] if lives[longest] else None
    at = 0 if episode is None else episode.steps + 1
    findings.add(Rule.API, longest, max(len(lives[longest]) - 1, 0), at, expected=expected, found=found)
