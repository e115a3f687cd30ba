"""Envs that come one by one, stepped in lanes: what one of them does wrong costs one episode of that env."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.contained import CONTAINED, told
from penstock_producers.envs.lanes.agenda import Wish
from penstock_producers.envs.lanes.buffers import Block, share
from penstock_producers.envs.lanes.containment import DEFAULT, Containment, Fault
from penstock_producers.envs.lanes.engine import Engine
from penstock_producers.envs.lanes.lane import Begin, Lane, close_envs
from penstock_producers.envs.lanes.local import LocalLane
from penstock_producers.envs.lanes.probe import probe
from penstock_producers.envs.lanes.remote import RemoteLane, State
from penstock_producers.envs.lanes.workers import close, greet
from penstock_producers.envs.options import options_to_json
from penstock_schemas.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_producers.envs.lanes.lane import AnyEnv
    from penstock_producers.envs.seeds import Seeds
    from penstock_producers.envs.source import EnvSource


class Lanes(Engine):
    """N environments of one kind, each contained; made by `local`, `existing` or `workers`.

    An episode whose env fails ends with an `Abort` whose reason is "kind: detail", the kinds being env_raised,
    env_hung, env_died, env_reward, env_observation, env_spaces and env_info. After a back-off the env is closed, made
    anew and reset, while its siblings go on. What went wrong between two episodes costs none, so it is counted and
    logged only. `recv` raises `EnvError` once an env has used up its budget, when everything that had been answered
    has been handed over.

    Attributes:
        num_envs: N.
        observation_space: of one env.
        action_space: of one env.
        reward_dtype: float64.
        infos: the columns of the recorded infos, named "info.<key>".
        faults: how many faults there were, by kind; a worker process that is lost counts for each of its envs.
        last_fault: why each env failed last, "kind: detail", by env, the latest one last; those that never did
            are not in it.
        unstorable: how many values of infos were left out since their column cannot hold them, by key.
        before_reset: asked for the options of every reset that is to come and for which none were given, with the
            env's index and the number of that reset, failed ones counted; None where nobody is to be asked. It is set
            before `reset`. An env whose episode ends then waits until that has been answered to whoever collects, and
            begins with the next call: one more answer an episode in which it takes no action. It may `park` that env
            instead. What it raises passes through, and it is asked again with the next call.
    """

    @classmethod
    def local(
        cls,
        make: Callable[..., AnyEnv],
        num_envs: int,
        *,
        seeds: Seeds,
        infos: Sequence[str] = (),
        containment: Containment = DEFAULT,
        clock: Callable[[], float] = time.monotonic,
        name: str = "in lanes",
    ) -> Lanes:
        """Make envs that are stepped in this process, in lockstep.

        Args:
            make: makes the env of an index, 0 … `num_envs` - 1; `rebuild` hands it changed settings.
            num_envs: N, at least 1.
            seeds: of the episodes.
            infos: the keys of the infos that are recorded. To learn their types, the first env is reset and stepped
                once before its first episode, a few times where it fails.
            containment: what is contained, and how often.
            clock: seconds that never go back.
            name: of the environment, for errors.

        Raises:
            EnvError: an env that cannot be made, or an info that is not there.
            SpaceError: a space that is not mapped.
        """
        envs: list[AnyEnv] = []
        try:
            for index in range(num_envs):
                envs.append(make(index))  # noqa: PERF401 - those made so far are closed where one cannot be
            return cls._in_process(envs, make, seeds, infos, containment, clock, name)
        except BaseException:
            close_envs(envs)
            raise

    @classmethod
    def existing(
        cls,
        envs: Sequence[AnyEnv],
        *,
        seeds: Seeds,
        infos: Sequence[str] = (),
        containment: Containment = DEFAULT,
        clock: Callable[[], float] = time.monotonic,
        name: str = "in lanes",
    ) -> Lanes:
        """Take envs as they are: they cannot be made anew.

        After a fault an env is reset; where that fails too, or its budget is used up, it is parked for good. `recv`
        raises `EnvError` when all are. The arguments are those of `local`.
        """
        return cls._in_process(envs, None, seeds, infos, containment, clock, name)

    @classmethod
    def workers(
        cls,
        source: EnvSource,
        num_envs: int,
        workers: int,
        *,
        seeds: Seeds,
        lockstep: bool = False,
        infos: Sequence[str] = (),
        containment: Containment = DEFAULT,
        clock: Callable[[], float] = time.monotonic,
    ) -> Lanes:
        """Make envs in worker processes, as evenly as can be, each stepping its own as soon as they are sent actions.

        A worker that does not answer in time, or that ends, costs an episode of each of its envs: with as many
        workers as envs, of that env alone.

        Args:
            source: makes the envs, in the workers.
            num_envs: N, at least 1.
            workers: the number of processes; no more than there are envs.
            seeds: of the episodes: the same as without workers.
            lockstep: whether `recv` waits for all envs but those that are down.
            infos: as in `local`.
            containment: what is contained, and how often.
            clock: seconds that never go back.

        Raises:
            EnvError: envs that cannot be made, that differ, or an info that is not there.
            SpaceError: a space that is not mapped.
        """
        parts = np.array_split(np.arange(num_envs), min(workers, num_envs))
        name = repr(source.env)
        settings: dict[str, Any] = {"containment": containment, "clock": clock}
        lanes: list[RemoteLane] = []
        memory = os.memfd_create("penstock-envs")
        try:
            for part in parts:
                chosen = infos if part[0] == 0 else ()
                start, stop = int(part[0]), int(part[-1]) + 1
                lanes.append(RemoteLane(source, start, stop, memory, seeds=seeds, infos=chosen, **settings))
                lanes[-1].launch()
            spaces = greet(lanes, name, clock)
            block = share(spaces, num_envs, memory, check_bounds=containment.check_bounds)
            for lane in lanes:
                lane.attach(block, num_envs, spaces)
            return cls(lanes, block, spaces, name=name, lockstep=lockstep, **settings)
        except BaseException:
            close(lanes)
            raise
        finally:
            os.close(memory)

    @classmethod
    def _in_process(
        cls,
        envs: Sequence[AnyEnv],
        make: Callable[..., AnyEnv] | None,
        seeds: Seeds,
        infos: Sequence[str],
        containment: Containment,
        clock: Callable[[], float],
        name: str,
    ) -> Lanes:
        spaces = probe(envs[0], infos, seeds=seeds, index=0, name=name)
        block = Block(spaces, len(envs), check_bounds=containment.check_bounds)
        lane = Lane(envs, range(len(envs)), make=make, spaces=spaces, block=block, seeds=seeds)
        local = LocalLane(lane, 0, len(envs))
        settings: dict[str, Any] = {"containment": containment, "clock": clock}
        return cls([local], block, spaces, name=name, can_rebuild=make is not None, **settings)

    @property
    def envs(self) -> tuple[AnyEnv | None, ...]:
        """The envs, where they are in this process; None for one that is down."""
        if self._workers.lanes:
            raise EnvError(
                f"environment {self._name}: its envs are in worker processes, so they cannot be had here; use "
                "reset_env, rebuild and render, or no workers"
            )
        return tuple(env for lane in self._lanes if isinstance(lane, LocalLane) for env in lane.lane.up())

    def reset_env(self, env: int, options: Mapping[str, Any] | None = None) -> None:
        """Begin a new episode in one env; the open one is aborted with the reason "reset".

        Its reset row comes with the next answer, or, where the env is busy or down, when it is ready. One whose worker
        is lost amid this reset begins without the options.

        Args:
            env: its index.
            options: for its `reset`; recorded as JSON, so they must be plain JSON.
        """
        self._wish(env, Wish("reset", Begin(options_to_json(options, self._name))))

    def park(self, env: int) -> None:
        """Leave an env out for good, one that `before_reset` is asked for: it begins no more, and has no more faults.

        Args:
            env: its index.
        """
        self._agenda.drop(env)
        self._recovery.park(env)

    def rebuild(self, env: int, **changed: Any) -> None:
        """Make one env anew, with other settings from now on; its open episode is aborted with the reason "rebuilt".

        Its reset row comes as in `reset_env`. Raises `EnvError` for existing envs, and for settings that are not
        plain JSON where they go to a worker.
        """
        if not self._can_rebuild:
            raise EnvError(f"environment {self._name}: env {env} was handed over ready-made, so it cannot be rebuilt")
        if self._workers.lanes:
            try:
                changed = json.loads(json.dumps(changed))
            except (TypeError, ValueError) as error:
                raise EnvError(
                    f"environment {self._name}: settings {changed!r} are not plain JSON, so no worker can be given "
                    f"them: {error}"
                ) from error
        self._wish(env, Wish("rebuilt", Begin(rebuild=True, changed=self._agenda.change(env, changed))))

    def render(self, env: int) -> NDArray[Any] | None:
        """Have one env draw itself; None where it is down, or draws no array. Waits for its lane where that is busy.

        Raises `EnvError` where drawing fails.
        """
        lane = self._lanes[self._agenda.lane_of[env]]
        if isinstance(lane, LocalLane):
            try:
                frame: NDArray[Any] | None = lane.render(env - lane.start)
            except CONTAINED as error:
                raise EnvError(f"environment {self._name}: env {env}: render() raised {told(error)}") from error
            return frame
        while lane.state is State.BUSY:
            self._workers.wait(self._containment.step_timeout)
        if lane.state is not State.IDLE:
            return None
        try:
            drawn: NDArray[Any] | None = lane.render(env - lane.start)
        except Fault as fault:
            self._workers.lose(lane, fault)
            raise EnvError(f"environment {self._name}: env {env}: it could not be drawn: {fault.detail}") from fault
        return drawn

    def _wish(self, env: int, wish: Wish) -> None:
        if env in self._recovery.parked:
            raise EnvError(f"environment {self._name}: env {env} is parked for good")
        self._agenda.wish(env, wish)
        if self._waiting[env]:
            self._grant(env)
