"""From what lanes answer, to answers: which envs take actions, which ones failed, which ones wait again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from penstock_producers.envs.lanes.agenda import Agenda
from penstock_producers.envs.lanes.answers import Constants, join, reset_rows, step_rows, succeed
from penstock_producers.envs.lanes.containment import DIED, Fault
from penstock_producers.envs.lanes.local import LocalLane
from penstock_producers.envs.lanes.recovery import Recovery
from penstock_producers.envs.lanes.remote import RemoteLane, State
from penstock_producers.envs.lanes.workers import Workers
from penstock_producers.envs.rows import Abort, Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from penstock_producers.envs.lanes.buffers import Spaces
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
        self.unstorable: Counter[str] = Counter()
        self._name = name
        self._containment = containment
        self._lockstep = lockstep
        self._can_rebuild = can_rebuild
        self._lanes = lanes
        self._lane_of = np.repeat(np.arange(len(lanes)), [lane.stop - lane.start for lane in lanes])
        self._workers = Workers([lane for lane in lanes if isinstance(lane, RemoteLane)], clock, self._worker_lost)
        self._constants = Constants.of(self.num_envs)
        self._agenda = Agenda(self.num_envs)
        self._recovery = Recovery(
            self.num_envs, name=name, containment=containment, clock=clock, can_rebuild=can_rebuild
        )
        # Where each env stands: whether it waits for an action, and whether its episode is open.
        self._waiting = np.zeros(self.num_envs, np.bool_)
        self._open = np.zeros(self.num_envs, np.bool_)
        # What is to be handed over: aborts, and workers that were lost after they had answered.
        self._aborts: list[Abort] = []
        self._lost: list[tuple[RemoteLane, Fault]] = []

    def reset(self) -> Answer:
        """Begin a new episode in every env; whatever was open is left without an end.

        Waits for what is in flight. An env that fails here is not in the answer: its reset row comes later.
        """
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
            if env not in self._recovery and env not in self._recovery.parked:
                self._agenda.begin(env)
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
        if len(env) == self.num_envs and len(self._lanes) == 1:
            # In ascending order each at most once: these are all.
            for room, leaf in zip(self._lanes[0].block.action, action, strict=True):
                room[...] = leaf
            self._waiting[:] = False
            self._agenda.given[:] = True
        else:
            self._write(env, action)
            self._waiting[env] = False
            self._agenda.given[env] = True
        if self._workers.lanes:
            self._dispatch()

    def recv(self, timeout: float = 1.0) -> Answer:
        """Wait until some env has answered (in lockstep, all that are up), at most `timeout` seconds.

        Envs in this process are stepped here. Raises `EnvError` where an env has used up its budget.
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
            if left <= 0.0:
                return self._nothing()
            left -= self._wait(left)

    def close(self) -> None:
        """Close the envs, and end the processes that step them, even those that no longer answer."""
        self._workers.close()
        for lane in self._lanes:
            if isinstance(lane, LocalLane):
                lane.close()

    # To the lanes.

    def _write(self, env: NDArray[np.int32], action: Leaves) -> None:
        """Put actions where the lanes of their envs read them."""
        lanes = self._lane_of[env]
        for number in np.unique(lanes).tolist():
            lane, mine = self._lanes[number], lanes == number
            for room, leaf in zip(lane.block.action, action, strict=True):
                room[env[mine] - lane.start] = leaf[mine]

    def _dispatch(self) -> None:
        """Tell idle lanes what there is to do: actions that were given, and episodes that are to begin."""
        if self._recovery.failure is not None:
            return
        if self._recovery:
            self._revive()
        for lane in self._lanes:
            if lane.is_idle:
                order = self._agenda.order(lane.start, lane.stop)
                if order is not None:
                    lane.submit(order)

    def _revive(self) -> None:
        """Have the envs whose time has come made anew, and their workers started where those are gone."""
        for env in self._recovery.due():
            lane = self._lanes[self._lane_of[env]]
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
        """Have what was wished for an env that waits done next."""
        reason = self._agenda.grant(env)
        if self._open[env]:
            self._aborts.append(Abort(env, reason))
        self._open[env] = self._waiting[env] = False

    # What goes wrong.

    def _worker_lost(self, lane: RemoteLane, fault: Fault) -> None:
        if lane.result is None:
            self._fail_all(lane, fault)
        else:
            self._lost.append((lane, fault))

    def _fail_all(self, lane: RemoteLane, fault: Fault) -> None:
        """A worker is lost, and with it the episodes of all its envs."""
        due = self._recovery.due()
        for env in range(lane.start, lane.stop):
            # One that backs off still has lost nothing by this.
            if env not in self._recovery or env in due:
                self._fail(env, fault.kind, fault.detail)

    def _fail(self, env: int, kind: str, detail: str) -> None:
        """An env did something wrong: abort its episode, and have it made anew later."""
        reason = f"{kind}: {detail}"
        self.faults[kind] += 1
        if self._open[env]:
            self._aborts.append(Abort(env, reason))
        self._open[env] = self._waiting[env] = False
        self._agenda.drop(env)
        self._recovery.failed(env, reason)

    # From the lanes.

    def _wait(self, longest: float) -> float:
        """Wait until a worker sends something or is late, or an env is due; answer for how long."""
        return self._workers.wait(longest, self._recovery.next_due())

    def _settle(self) -> None:
        """Wait for all workers that run an order; none runs longer than its deadline."""
        while self._workers.busy:
            self._wait(self._containment.step_timeout)

    def _has_answer(self) -> bool:
        if self._lockstep and self._workers.busy:
            return False
        return bool(self._aborts) or any(lane.result is not None for lane in self._lanes)

    def _nothing(self) -> Answer:
        nobody = self._constants.env[:0]
        return Answer(None, (), None, nobody, tuple(leaf[:0] for leaf in self._lanes[0].block.steps.observation.leaves))

    def _answer(self) -> Answer:
        """Hand over what lies in the lanes."""
        taken = []
        for lane in self._lanes:
            if lane.result is not None:
                taken.append((lane, lane.result))
                lane.result = None
        if not taken and not self._aborts:
            return self._nothing()
        steps = join(
            [step_rows(lane.block, result.steps, lane.start, lane.stop, self._constants) for lane, result in taken]
        )
        if steps is not None:
            self._recovery.stepped(steps.env)
            if len(taken) == 1 and not (self._aborts or self._agenda.wishes or self._lost):
                result = taken[0][1]
                if not (result.resets or result.faults or result.unstorable):
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
        for lane, result in taken:
            if result.unstorable:
                self.unstorable.update(result.unstorable)
            for place, kind, detail in result.faults:
                self._fail(lane.start + place, kind, detail)
        aborts, self._aborts = tuple(self._aborts), []
        blocks = [(lane.block, result.resets, lane.start) for lane, result in taken]
        resets = reset_rows(blocks, self._agenda.options, self._constants)
        if resets is not None:
            self._open[resets.env] = True
            self._agenda.begun(resets.env)
            self._recovery.begun(resets.env)
        if steps is None and resets is None:
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
        for lane, fault in self._lost:
            self._fail_all(lane, fault)
        self._lost.clear()
        waiting = self._waiting[ready]
        return ready[waiting], tuple(leaf[waiting] for leaf in observation)
