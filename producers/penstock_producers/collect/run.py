"""Envs that are being stepped with a policy, from call to call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_producers.collect.answers import part, steps_in
from penstock_producers.collect.chunks import Chunks
from penstock_producers.collect.clock import EpisodeClock
from penstock_producers.collect.episodes import Laid
from penstock_producers.collect.gathering import Gathering
from penstock_producers.collect.origins import Origins
from penstock_producers.collect.share import Share
from penstock_producers.envs import Lanes
from penstock_producers.rollout import Rollout
from penstock_schemas.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from penstock_producers.callbacks import CallbackRunner
    from penstock_producers.collect.clock import Ended
    from penstock_producers.collect.statistics import Measured
    from penstock_producers.envs import Answer, Envs
    from penstock_producers.policy import Policy
    from penstock_schemas.stream import StreamSpec

# In memory nothing bounds a message, and a fragment is bounded by its bytes.
_MESSAGE_BYTES = 1 << 40
_FRAGMENT_STEPS = 1 << 16
_WAIT_SECONDS = 1.0


class Gathered(NamedTuple):
    """What a call gathered."""

    laid: Laid
    chunks: Chunks
    gathering: Gathering

    def measured(self, seconds: float, pause: float | None) -> Measured:
        """Its numbers, if it took so long and came so long after the one before."""
        return self.gathering.measured(self.chunks, seconds, pause)


class Run:
    """Steps envs from a first reset on.

    Args:
        envs: they are reset here.
        policy: chooses the actions.
        spec: what is recorded.
        options: of the first reset.
        first_episode: the number of each env's first episode, shape (N,).
        lookback: how many steps of what went before an episode has where it goes on.
        cut_steps: as for a rollout, as are `observer` and `clock`.
        observer: is shown every answer, and told of fragments that are closed.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        envs: Envs,
        policy: Policy,
        spec: StreamSpec,
        *,
        options: Mapping[str, Any] | None,
        first_episode: NDArray[np.int64],
        lookback: int,
        cut_steps: int | None,
        observer: CallbackRunner | None,
        clock: Callable[[], float],
    ) -> None:
        self._envs = envs
        self._spec = spec
        self._lookback = lookback
        self._observer = observer
        self._share = Share(observer)
        self._now = clock
        self._rollout = Rollout(
            envs,
            policy,
            spec,
            fragment_steps=_FRAGMENT_STEPS,
            fragment_seconds=np.inf,
            message_bytes=_MESSAGE_BYTES,
            cut_steps=cut_steps,
            clock=clock,
            observer=self._share,
            options=options,
        )
        self._origins = Origins(envs.num_envs, first_episode)
        self._tail = Chunks.of([], spec)
        self._clock = EpisodeClock(envs.num_envs)
        self._clock.see(self._rollout.answer, clock())
        # Whether nothing was stepped since the reset; whether a reset must come before anything is.
        self._fresh, self._stale = True, False
        # Steps that were taken and belong to the next call, and when they came; which envs acted last.
        self._held: tuple[Answer, float] | None = None
        self._acted = self._rollout.answer.ready
        # From which envs something is collected, shape (N,); None for all.
        self._goes_on: NDArray[np.bool_] | None = None

    @property
    def next_episode(self) -> NDArray[np.int64]:
        """The number of each env's next episode, shape (N,), should the open one end here."""
        return self._origins.next_episode

    def by_steps(
        self, n: int, *, reset: bool, options: Mapping[str, Any] | None, told: Callable[[int], Any]
    ) -> Gathered:
        """Gather exactly n steps; `told` is told how many there are more."""
        gathering = self._begin(reset=reset or self._stale, options=options)
        left = n
        while left:
            answer, came = self._held or self._step(gathering)
            self._held = None
            count = steps_in(answer)
            if count > left:
                answer, later = part(answer, left)
                count, self._held = left, (later, came)
            self._record(gathering, answer, came)
            left -= count
            told(count)
        return self._finish(gathering)

    def by_episodes(
        self, n: int, *, reset: bool, options: Mapping[str, Any] | None, told: Callable[[int], Any]
    ) -> Gathered:
        """Gather exactly n whole episodes, as many of each env, from a reset; `told` is told how many there are more.

        How many each env gives is fixed before the first step, so that those that take long are as many as they are.
        """
        reset = reset or not self._fresh or options is not None
        gathering = self._begin(reset=reset, options=options, counts_resets=False)
        envs = self._envs.num_envs
        left = np.full(envs, n // envs)
        left[: n % envs] += 1
        self._stale = True
        try:
            while left.any():
                self._go_on(left > 0)
                ended = self._record(gathering, *self._step(gathering)).env
                left[ended] -= 1
                told(len(ended))
                self._check_all_go_on(left)
        finally:
            self._go_on(None)
        return self._finish(gathering, leave_out_aborted=True)

    def _begin(self, *, reset: bool, options: Mapping[str, Any] | None, counts_resets: bool = True) -> Gathering:
        self._rollout.begin()
        gathering = Gathering(
            self._rollout, self._spec, self._envs.num_envs, self._observer, counts_resets=counts_resets
        )
        if reset:
            # What is held goes with the episodes that it is of: they end where the last call ended them.
            self._held = None
            answer = self._rollout.reset(options)
            self._clock.see(answer, self._now())
            gathering.record(answer)
        self._fresh = self._stale = False
        return gathering

    def _go_on(self, envs: NDArray[np.bool_] | None) -> None:
        """Collect from some envs only, shape (N,); None for all. The others wait, or what they do is nobody's."""
        self._goes_on = None if envs is None or envs.all() else envs
        if isinstance(self._envs, Lanes):
            self._rollout.parked = None if self._goes_on is None else ~self._goes_on
        else:
            self._share.envs = self._goes_on

    def _step(self, gathering: Gathering) -> tuple[Answer, float]:
        """Step the envs; give what they answered, and when it came."""
        ready, goes_on = self._rollout.answer.ready, self._goes_on
        if len(ready):
            self._acted = ready if goes_on is None else ready[goes_on[ready]]
        answer = self._rollout.step(_WAIT_SECONDS)
        if answer.steps is not None and not answer.aborts and not np.array_equal(answer.steps.env, self._acted):
            gathering.times.lockstep = False
        return answer, self._now()

    def _record(self, gathering: Gathering, answer: Answer, came: float) -> Ended:
        """Keep an answer that came then; tell which episodes the envs ended with it."""
        ended = self._clock.see(answer, came)
        gathering.durations.append(ended.seconds)
        gathering.record(answer)
        return ended

    def _finish(self, gathering: Gathering, *, leave_out_aborted: bool = False) -> Gathered:
        chunks = gathering.finish()
        self._origins.number(chunks)
        # An env that took no step keeps for the next call what it has.
        goes_on = np.isin(self._tail.rows["env"], chunks.rows["env"])
        joined = Chunks.join([self._tail.where(goes_on), chunks]) if goes_on.any() else chunks
        laid = Laid.of(joined, leave_out_aborted=leave_out_aborted)
        self._origins.complete(laid)
        if self._lookback:
            self._tail = Chunks.join([self._tail.where(~goes_on), laid.tail(self._lookback)])
        return Gathered(laid, chunks, gathering)

    def _check_all_go_on(self, left: NDArray[np.int64]) -> None:
        if not isinstance(self._envs, Lanes):
            return
        lost = [env for env in self._envs.parked if left[env]]
        if lost:
            raise EnvError(
                f"envs {lost} owe {[int(left[env]) for env in lost]} more episodes, but are parked for good after "
                "faults; mend them, or name the environment, so that it can be made anew"
            )
