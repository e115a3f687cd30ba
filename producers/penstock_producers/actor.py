"""A policy in front of N envs: what the next action of each depends on, beside its observation, is kept here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_producers.policy.base import Inputs
from penstock_schemas.connectors import Context
from penstock_schemas.spaces import leaves

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_producers.envs import Answer, Envs, Rows
    from penstock_producers.policy import Policy
    from penstock_schemas.spaces import Leaves


class Acted(NamedTuple):
    """What was chosen for the envs that were ready."""

    drawn: tuple[NDArray[Any], ...]
    """What is recorded: the columns of the policy's recording, then its recurrent state as it was before."""
    sent: Leaves


class Actor:
    """Hands a policy what it acts on: observations through its connectors, infos, recurrent state.

    It is shown every answer of the envs (`see`), and asked once for actions for each env that one says is ready.

    Where an env resets with its next action, whatever that is, it is ready with an episode's last observation. The
    infos that came with that count as absent then: a mask of what no longer matters may well allow nothing.
    """

    def __init__(self, policy: Policy, env: Envs) -> None:
        self._num_envs = n = env.num_envs
        self._policy = policy
        self._pipeline = policy.pipeline.acting(n)
        self._final = policy.recording.final is not None
        # Most policies look at the observation alone: nothing is kept for them.
        self._blind = not (policy.pipeline or policy.states or env.infos or self._final)
        self._age = np.zeros(n, np.int64)
        self._reward = np.zeros(n, env.reward_dtype)
        self._action = [np.zeros((n, *leaf.space.shape), leaf.space.dtype) for leaf in leaves(env.action_space)]
        self._infos = [(np.zeros((n, *column.shape), column.dtype), np.zeros(n, np.bool_)) for column in env.infos]
        self._state = tuple(np.zeros((n, *column.shape), column.dtype) for column in policy.states)
        # Which weights act, how often there were others before, and which chose each env's last action.
        self._weights = policy.version, policy.digest
        self._refreshed = 0
        self._chosen_by = np.zeros(n, np.int64)

    def see(self, answer: Answer) -> Answer:
        """Keep what an answer tells; give it back, with the values of last observations where the policy gives them.

        An episode whose last action other weights chose than those that act now has none.
        """
        if self._blind:
            return answer
        steps = answer.steps
        if steps is not None:
            self._keep(steps)
            if self._final or self._infos:
                answer = self._end(answer, steps)
        if answer.resets is not None:
            self._keep(answer.resets)
        return answer

    def act(self, ready: NDArray[np.int32], observation: Leaves) -> Acted:
        """Choose actions for envs that are ready, whose observations these are."""
        if self._blind:
            drawn, sent, _ = self._policy.act(Inputs(observation))
            return Acted(drawn, sent)
        inputs = self._inputs(ready, observation, keep=True)
        drawn, sent, state = self._policy.act(inputs)
        at = self._at(ready)
        if self._final:
            self._chosen_by[at] = self._acting()
        if self._policy.pipeline:
            for kept, values in zip(self._action, drawn, strict=False):
                kept[at] = values
        if len(ready) == self._num_envs:
            # What the policy was given is recorded as it is: what comes after it is kept elsewhere.
            self._state = tuple(np.empty_like(kept) for kept in self._state)
        for kept, values in zip(self._state, state, strict=True):
            kept[at] = values
        return Acted((*drawn, *inputs.state), sent)

    def _at(self, env: NDArray[np.int32]) -> NDArray[np.int32] | slice:
        """Where the values of these envs are: in lockstep everywhere, which is faster than one by one."""
        return slice(None) if len(env) == self._num_envs else env

    def _inputs(self, env: NDArray[np.int32], observation: Leaves, *, keep: bool) -> Inputs:
        if self._policy.pipeline:
            context = Context(self._age[env], tuple(leaf[env] for leaf in self._action), self._reward[env])
            observation = self._pipeline(env, observation, context, keep=keep)
        infos = tuple((values[env], valid[env]) for values, valid in self._infos)
        at = self._at(env)
        return Inputs(observation, infos, tuple(state[at] for state in self._state))

    def _keep(self, rows: Rows) -> None:
        env, at = rows.env, self._at(rows.env)
        if self._policy.pipeline:
            self._age[at] += 1
            self._reward[at] = rows.reward
        for (values, valid), (given, there) in zip(self._infos, rows.infos, strict=True):
            values[at], valid[at] = given, there
        # Counted, which is faster than `any`.
        if np.count_nonzero(rows.first):
            begun = env[rows.first]
            seen_by_connectors = (self._age, self._reward, *self._action) if self._policy.pipeline else ()
            for kept in (*seen_by_connectors, *self._state):
                kept[begun] = 0

    def _end(self, answer: Answer, steps: Rows) -> Answer:
        """Value the last observations of episodes that end with these steps; their infos count as absent from here."""
        ended = np.flatnonzero(steps.terminated | steps.truncated)
        if self._final and len(ended):
            answer = answer._replace(steps=self._valued(steps, ended))
        for _, valid in self._infos:
            valid[steps.env[ended]] = False
        return answer

    def _acting(self) -> int:
        """How often other weights acted before those that act now."""
        weights = self._policy.version, self._policy.digest
        if weights != self._weights:
            self._weights = weights
            self._refreshed += 1
        return self._refreshed

    def _valued(self, steps: Rows, ended: NDArray[np.intp]) -> Rows:
        """Value the observations with which episodes ended of themselves, by the weights that led to them."""
        env = steps.env[ended]
        inputs = self._inputs(env, tuple(leaf[ended] for leaf in steps.observation), keep=False)
        final = np.full(len(steps.env), np.nan, np.float32)
        final[ended] = np.where(self._chosen_by[env] == self._acting(), self._policy.value(inputs), np.nan)
        return steps._replace(final=final)
