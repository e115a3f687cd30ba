"""From what lanes answer, to answers: which envs take actions, which ones failed, which ones wait again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from penstock_producers.envs.infos import Unstorable
from penstock_producers.envs.lanes.agenda import Agenda, Wish
from penstock_producers.envs.lanes.answers import Constants, reset_rows, rows_at, step_rows, succeed
from penstock_producers.envs.lanes.containment import DIED, Fault
from penstock_producers.envs.lanes.lane import Begin
from penstock_producers.envs.lanes.local import LocalLane
from penstock_producers.envs.lanes.recovery import Recovery
from penstock_producers.envs.lanes.remote import RemoteLane, State
from penstock_producers.envs.lanes.workers import Workers
from penstock_producers.envs.options import options_to_json
from penstock_producers.envs.rows import Abort, Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_producers.envs.lanes.buffers import Block, Spaces
    from penstock_producers.envs.lanes.containment import Containment
    from penstock_producers.envs.lanes.lane import Result
    from penstock_producers.envs.rows import Rows
    from penstock_schemas.spaces import Leaves

    AnyLane: TypeAlias = LocalLane | RemoteLane

_FLOAT64 = np.dtype(np.float64)


class Engine:
    """Steps N envs in lanes; attributes and faults are as `Lanes`, which is made of it, tells.

    Args:
        lanes: ascending by their envs; workers have been greeted.
        block: where all envs read and write.
        spaces: what all envs have.
        name: of the environment, for errors.
        containment: what is contained, and how often.
        clock: seconds that never go back.
        lockstep: whether `recv` waits for all envs but those that are down.
        can_rebuild: whether envs can be made anew.
    """

    reward_dtype = _FLOAT64

    def __init__(
        self,
        lanes: Sequence[AnyLane],
        block: Block,
        spaces: Spaces,
        *,
        name: str,
        containment: Containment,
        clock: Callable[[], float],
        lockstep: bool = True,
        can_rebuild: bool = True,
    ) -> None:
        self.num_envs = lanes[-1].stop
        self.observation_space, self.action_space, self.infos = spaces.observation, spaces.action, spaces.infos
        self.faults: Counter[str] = Counter()
        self.unstorable = Unstorable()
        self.last_fault: dict[int, str] = {}
        self._name = name
        self._containment = containment
        self._lockstep = lockstep
        self._can_rebuild = can_rebuild
        self._lanes = lanes
        self._block = block
        self._workers = Workers([lane for lane in lanes if isinstance(lane, RemoteLane)], clock, self._worker_lost)
        self._constants = Constants.of(self.num_envs)
        self._agenda = Agenda([lane.start for lane in lanes], self.num_envs)
        self._recovery = Recovery(
            self.num_envs, name=name, containment=containment, clock=clock, can_rebuild=can_rebuild
        )
        self.before_reset: Callable[[int, int], Mapping[str, Any] | None] | None = None
        # Whether envs whose episodes end wait until that has been asked.
        self._hold = False
        # Where each env stands: whether it waits for an action, and whether its episode is open.
        self._waiting = np.zeros(self.num_envs, np.bool_)
        self._open = np.zeros(self.num_envs, np.bool_)
        # What is to be handed over: aborts, and workers that were lost after they had answered.
        self._aborts: list[Abort] = []
        self._lost: list[tuple[RemoteLane, Fault]] = []

    @property
    def parked(self) -> frozenset[int]:
        """The envs that are left out for good: no reset mended those that exist, or `park` was called."""
        return frozenset(self._recovery.parked)

    @property
    def next_episode(self) -> NDArray[np.int64]:
        """The number of each env's next episode, shape (N,), from which its seed follows; it may be set.

        Waits for what is in flight.
        """
        self._settle()
        return self._block.episode.copy()

    @next_episode.setter
    def next_episode(self, numbers: NDArray[np.int64]) -> None:
        self._settle()
        self._block.episode[:] = numbers

    def reset(self, options: Mapping[str, Any] | None = None) -> Answer:
        """Begin a new episode in every env, with options for its reset; whatever was open is left without an end.

        Waits for what is in flight. An env that fails here is not in the answer: its reset row comes later, without the
        options; that of an env that was down comes later, with them. Raises `EnvError` for options that are not plain
        JSON, and where an env has used up its budget.
        """
        given = options_to_json(options, self._name)
        self._hold = self.before_reset is not None
        self._settle()
        if any(lane.result is not None for lane in self._lanes):
            self._answer()  # what it says belongs to what was left
        if self._recovery.failure is not None:
            raise self._recovery.failure
        self._aborts.clear()
        self._agenda.clear()
        self._waiting[:] = False
        self._open[:] = False
        for env in range(self.num_envs):
            if env in self._recovery:
                self._agenda.wish(env, Wish("reset", Begin(given)))
            elif env not in self._recovery.parked:
                self._agenda.begin(env, given)
        self._dispatch()
        self._settle()
        return self._answer()

    def send(self, env: NDArray[np.int32], action: Leaves) -> None:
        """Have envs that wait take their actions: an array (m, *shape) for each leaf of the action space.

        An action for an env whose episode has been aborted since it was ready is dropped. Raises `ValueError` for an
        env that has not answered to its last action yet.
        """
        waiting = self._waiting[env]
        if not waiting.all():
            busy = env[~waiting & self._open[env]]
            if len(busy):
                raise ValueError(
                    f"environment {self._name}: envs {busy.tolist()} have not answered to their last action"
                )
            env, action = env[waiting], tuple(leaf[waiting] for leaf in action)
        # In ascending order each at most once: so many are all.
        everyone = len(env) == self.num_envs
        at = slice(None) if everyone else env
        for room, leaf in zip(self._block.action, action, strict=True):
            room[at] = leaf
        self._waiting[at] = False
        self._agenda.act(None if everyone else env)
        if self._workers.lanes:
            self._dispatch()

    def recv(self, timeout: float = 1.0) -> Answer:
        """Wait until some env has answered (in lockstep, all that are up), at most `timeout` seconds.

        Envs in this process are stepped here. Where all are left out, nothing is waited for. Raises `EnvError` where an
        env has used up its budget.
        """
        left = timeout
        while True:
            if self._workers.lanes:
                self._workers.take_in(0.0)
            self._dispatch()
            if self._has_answer():
                return self._answer()
            if self._recovery.failure is not None:
                raise self._recovery.failure
            if left <= 0.0 or len(self._recovery.parked) == self.num_envs:
                return self._nothing()
            left -= self._workers.wait(left, self._recovery.next_due())

    def close(self) -> None:
        """Close the envs, and end the processes that step them, even those that no longer answer."""
        self._workers.close()
        for lane in self._lanes:
            if isinstance(lane, LocalLane):
                lane.close()

    # To the lanes.

    def _dispatch(self) -> None:
        """Tell idle lanes what there is to do: actions that were given, and episodes that are to begin."""
        if self._recovery.failure is not None:
            return
        if self._recovery:
            self._revive()
        for number in sorted(self._agenda.lanes):
            lane = self._lanes[number]
            if lane.is_idle:
                if self._hold:
                    self._ask(number)
                order = self._agenda.order(number, hold=self._hold)
                if order is not None:
                    lane.submit(order)

    def _ask(self, lane: int) -> None:
        """Ask with which options a lane's envs begin; whoever collects has seen by now how they ended."""
        if self.before_reset is None:
            return
        for env in self._agenda.without_options(lane):
            options = self.before_reset(env, int(self._block.episode[env]))
            if env not in self._recovery.parked:
                self._agenda.give(env, options_to_json(options, self._name))

    def _revive(self) -> None:
        """Have the envs whose time has come made anew, and their workers started where those are gone."""
        for env in self._recovery.due():
            lane = self._lanes[self._agenda.lane_of[env]]
            if isinstance(lane, RemoteLane) and lane.state is State.LOST:
                self._launch(lane)
            if isinstance(lane, RemoteLane) and lane.state is not State.IDLE:
                continue
            self._recovery.begin(env)
            self._agenda.begin_after_fault(env, rebuild=self._can_rebuild)

    def _launch(self, lane: RemoteLane) -> None:
        try:
            self._workers.launch(lane)
        except OSError as error:
            self._fail_all(lane, Fault(DIED, f"its worker process does not start: {error}"))

    def _grant(self, env: int) -> None:
        """Have what was wished for an env that waits, so that its episode is open, done next."""
        self._aborts.append(Abort(env, self._agenda.grant(env)))
        self._open[env] = self._waiting[env] = False

    # What goes wrong.

    def _worker_lost(self, lane: RemoteLane, fault: Fault) -> None:
        if lane.result is None:
            self._fail_all(lane, fault)
        else:
            self._lost.append((lane, fault))

    def _fail_all(self, lane: RemoteLane, fault: Fault) -> None:
        """A worker is lost, and with it the episodes of all its envs."""
        for env in range(lane.start, lane.stop):
            # One that backs off still has lost nothing by this, nor has one that is left out.
            if not (self._recovery.backs_off(env) or env in self._recovery.parked):
                self._fail(env, fault.kind, fault.detail)

    def _fail_lost(self) -> None:
        """Take workers that were lost after they had answered as lost: what they answered is on its way."""
        for lane, fault in self._lost:
            self._fail_all(lane, fault)
        self._lost.clear()

    def _fail(self, env: int, kind: str, detail: str) -> None:
        """An env did something wrong: abort its episode, and have it made anew later."""
        reason = f"{kind}: {detail}"
        self.faults[kind] += 1
        self.last_fault.pop(env, None)
        self.last_fault[env] = reason
        if self._open[env]:
            self._aborts.append(Abort(env, reason))
        self._open[env] = self._waiting[env] = False
        self._agenda.drop(env)
        self._recovery.failed(env, reason)

    # From the lanes.

    def _settle(self) -> None:
        """Wait for all workers that run an order; none runs longer than its deadline."""
        while self._workers.busy:
            self._workers.wait(self._containment.step_timeout)

    def _has_answer(self) -> bool:
        if self._lockstep and self._workers.busy:
            return False
        return bool(self._aborts) or any(lane.result is not None for lane in self._lanes)

    def _nothing(self) -> Answer:
        steps = self._block.steps
        return Answer(None, (), None, steps.who[:0], tuple(leaf[:0] for leaf in steps.observation.leaves))

    def _answer(self) -> Answer:
        """Hand over what lies in the lanes."""
        taken = []
        for lane in self._lanes:
            if lane.result is not None:
                taken.append((lane, lane.result))
                lane.result = None
        at: NDArray[np.intp] | slice | None
        if self._workers.lanes:
            at = rows_at((lane.start, result.steps) for lane, result in taken)
        else:  # the lane does nothing before it is called again: its rows are handed on as they lie
            at = slice(taken[0][1].steps) if taken and taken[0][1].steps else None
        steps = None
        if at is not None:
            steps = step_rows(self._block, at, self._constants)
            self._recovery.stepped(steps.env)
            if not (self._aborts or self._agenda.wishes or self._lost) and all(done.only_steps for _, done in taken):
                held = self._hold and (steps.terminated | steps.truncated).any()
                if not held:
                    self._waiting[steps.env] = True
                    return Answer(steps, (), None, steps.env, steps.observation)
        return self._merge(taken, steps)

    def _merge(self, taken: Sequence[tuple[AnyLane, Result]], steps: Rows | None) -> Answer:
        done = self._constants.never[:0]
        if steps is not None:
            done = steps.terminated | steps.truncated
            ended = steps.env[done]
            self._open[ended] = False
            self._recovery.ended(ended)
            if self._hold:
                for env in ended.tolist():
                    self._agenda.begin(env)
        for lane, result in taken:
            self.unstorable.add(result.unstorable)
            for place, kind, detail in result.faults:
                self._fail(lane.start + place, kind, detail)
        aborts, self._aborts = tuple(self._aborts), []
        at = rows_at((lane.start, result.resets) for lane, result in taken)
        resets = None
        if at is not None:
            resets = reset_rows(self._block, at, self._agenda.options, self._constants)
            self._open[resets.env] = True
            self._agenda.begun(resets.env)
            self._recovery.begun(resets.env)
        if steps is None and resets is None:
            self._fail_lost()
            return self._nothing()._replace(aborts=aborts)
        ready, observation = succeed(steps, done, resets)
        self._waiting[ready] = True
        if self._agenda.wishes or self._lost:
            ready, observation = self._still_waiting(ready, observation)
        return Answer(steps, aborts, resets, ready, observation)

    def _still_waiting(self, ready: NDArray[np.int32], observation: Leaves) -> tuple[NDArray[np.int32], Leaves]:
        """Begin anew what was wished for or lost meanwhile; leave those envs out.

        Their rows are on the way to the caller, so that their episodes end here is told in the next answer.
        """
        for env in ready.tolist():
            if env in self._agenda.wishes:
                self._grant(env)
        self._fail_lost()
        waiting = self._waiting[ready]
        return ready[waiting], tuple(leaf[waiting] for leaf in observation)
