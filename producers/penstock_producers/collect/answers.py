"""Parts of what envs answered: some of its rows, or its first steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.envs import Answer, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray


def steps_in(answer: Answer) -> int:
    """Count the steps; reset rows are none."""
    rows = answer.steps
    return 0 if rows is None else len(rows.env) - int(np.count_nonzero(rows.first))


def part(answer: Answer, steps: int) -> tuple[Answer, Answer]:
    """Part an answer behind so many of its steps, fewer than it has; what comes later is copied.

    Aborts and resets stand behind all steps, so they are in the second part.
    """
    rows = answer.steps
    if rows is None:
        raise ValueError(f"an answer without steps cannot be parted behind {steps}")
    border = int(np.flatnonzero(~rows.first)[steps])
    count = len(rows.env)
    now, later = rows_at(rows, slice(0, border)), rows_at(rows, np.arange(border, count))
    resets = None if answer.resets is None else rows_at(answer.resets, np.arange(len(answer.resets.env)))
    return answer._replace(steps=now, aborts=(), resets=None), answer._replace(steps=later, resets=resets)


def only(answer: Answer, envs: NDArray[np.bool_]) -> Answer:
    """The rows and aborts of some envs, `envs` of shape (N,)."""
    steps, resets = (None if rows is None else rows_at(rows, envs[rows.env]) for rows in (answer.steps, answer.resets))
    return answer._replace(steps=steps, aborts=tuple(a for a in answer.aborts if envs[a.env]), resets=resets)


def rows_at(rows: Rows, at: Any) -> Rows:
    """Some rows: views where `at` is a slice, copies where it is an array of indices or a mask."""
    return Rows(
        rows.env[at],
        tuple(leaf[at] for leaf in rows.observation),
        rows.reward[at],
        rows.terminated[at],
        rows.truncated[at],
        rows.first[at],
        None if rows.seed is None else rows.seed[at],
        None if rows.options is None else rows.options[at],
        tuple((values[at], valid[at]) for values, valid in rows.infos),
        None if rows.final is None else rows.final[at],
        None if rows.metrics is None else rows.metrics[at],
    )
