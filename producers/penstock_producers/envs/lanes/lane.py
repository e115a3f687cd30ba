"""A lane: a group of single envs, stepped one after the other into a block of arrays, each contained."""

from __future__ import annotations

from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np

from penstock_producers.contained import CONTAINED
from penstock_producers.envs.lanes.containment import RAISED, SPACES, Fault
from penstock_producers.envs.options import options_from_json
from penstock_producers.spaces import from_gymnasium, snapshot
from penstock_schemas.errors import EnvError, PenstockError
from penstock_schemas.spaces import leaves, unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_producers.envs.infos import LeftOut
    from penstock_producers.envs.lanes.buffers import Block, Spaces
    from penstock_producers.envs.seeds import Seeds

AnyEnv: TypeAlias = "gymnasium.Env[Any, Any]"
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Begin(NamedTuple):
    """An episode that is to begin: with which options, and in which env."""

    options: str | None = None
    """As JSON, as they are recorded."""
    rebuild: bool = False
    """Whether the env is made anew first."""
    changed: Mapping[str, Any] = _NOTHING
    """With which settings of its own it is made."""


class Order(NamedTuple):
    """What a lane does before it answers; envs are named by their place in the lane, and each is in one part only."""

    step: Sequence[int]
    """Who takes the action that lies in the block, ascending."""
    begin: Mapping[int, Begin] = _NOTHING
    hold: bool = False
    """Whether envs whose episodes end wait for an order to begin, instead of beginning at once."""


class Result(NamedTuple):
    """What lies in the block after an order, and what went wrong."""

    steps: int = 0
    resets: int = 0
    faults: tuple[tuple[int, str, str], ...] = ()
    """(place, kind, detail)"""
    unstorable: tuple[LeftOut, ...] = ()
    """Which values of infos were left out."""

    @property
    def only_steps(self) -> bool:
        """Whether nothing happened but steps."""
        return not (self.resets or self.faults or self.unstorable)


class Lane:
    """Steps envs into a block.

    Args:
        envs: by place; None for one that is to be made first.
        indices: the envs' indices among all envs, by place.
        make: makes the env of an index, with changed settings; None where envs cannot be made anew.
        spaces: what all envs have.
        block: where actions are read and answers stored.
        seeds: of the episodes.
    """

    def __init__(
        self,
        envs: Sequence[AnyEnv | None],
        indices: Sequence[int],
        *,
        make: Callable[..., AnyEnv] | None,
        spaces: Spaces,
        block: Block,
        seeds: Seeds,
    ) -> None:
        self.block = block
        self._indices = indices
        self._make = make
        self._spaces = spaces
        self._seeds = seeds
        self._plain_action = leaves(spaces.action)[0].path == ()
        self.envs: list[AnyEnv | None] = [None] * len(envs)
        self._steps: list[Any] = [None] * len(envs)
        # How the spaces looked that were last found to be the stream's.
        self._same: tuple[Any, Any] | None = None
        for place, env in enumerate(envs):
            if env is not None:
                self._take(place, env)

    def run(self, order: Order) -> Result:
        """Do what is ordered; envs whose episodes end are reset at once, unless held, and those that fail are down.

        Steps and resets lie in the block ascending by place.
        """
        steps, resets = self.block.steps, self.block.resets
        steps.count = resets.count = 0
        faults: list[tuple[int, Fault]] = []
        begin: dict[int, str | None] = {}
        if order.step:
            faults += self._step(order.step)
            if not order.hold:
                begin = dict.fromkeys(steps.done())
        for place, ordered in order.begin.items():
            if ordered.rebuild:
                try:
                    self._rebuild(place, ordered.changed)
                except Fault as fault:
                    faults.append((place, fault))
                    continue
            begin[place] = ordered.options
        if begin:
            faults += self._reset(begin)
        for place, _ in faults:
            self._discard(place)
        told = tuple((place, fault.kind, fault.detail) for place, fault in faults) if faults else ()
        unstorable = steps.infos.take_left_out() + resets.infos.take_left_out()
        return Result(steps.count, resets.count, told, unstorable)

    def up(self) -> list[AnyEnv | None]:
        """The envs by place; None for one that is down."""
        return [None if step is None else env for env, step in zip(self.envs, self._steps, strict=True)]

    def render(self, place: int) -> NDArray[Any] | None:
        """Have an env draw itself; None where it is down, or draws no array. Raises what the env raises."""
        env = self.envs[place]
        frame = None if env is None or self._steps[place] is None else env.render()
        return frame if isinstance(frame, np.ndarray) else None

    def close(self) -> None:
        """Close all envs, whatever they raise."""
        for place in range(len(self.envs)):
            self._close(place)

    def _step(self, who: Sequence[int]) -> list[tuple[int, Fault]]:
        places = list(who)
        all_ = len(places) == len(self._steps)
        steps = self._steps if all_ else [self._steps[place] for place in places]
        answers: list[Any] = []
        answered = answers.append
        faults: list[tuple[int, Fault]] = []
        for step, action in zip(steps, self._actions(None if all_ else places), strict=True):
            try:
                answered(step(action))
            except CONTAINED as error:
                faults.append((places.pop(len(answers)), Fault.raised(error, "step()")))
        return faults + self.block.steps.store(places, answers) if answers else faults

    def _actions(self, who: list[int] | None) -> Sequence[Any]:
        # Copies: an env may keep its action, and the next one is written to the same place.
        values = [leaf.copy() if who is None else leaf[who] for leaf in self.block.action]
        if self._plain_action:
            return list(values[0])
        return [unflatten(self._spaces.action, parts) for parts in zip(*values, strict=True)]

    def _reset(self, begin: Mapping[int, str | None]) -> list[tuple[int, Fault]]:
        places: list[int] = []
        answers = []
        faults = []
        for place, options in sorted(begin.items()):
            episode = int(self.block.episode[place])
            # Counted first: whatever happens in the reset, the same seed does not come again.
            self.block.episode[place] = episode + 1
            seed = self._seeds.episode(self._indices[place], episode)
            env = self.envs[place]
            try:
                answer = env.reset(seed=seed, options=options_from_json(options))  # type: ignore[union-attr]  # only envs that are there
                self._compare_spaces(place)
            except Fault as fault:
                faults.append((place, fault))
            except CONTAINED as error:
                faults.append((place, Fault.raised(error, "reset()")))
            else:
                places.append(place)
                answers.append((seed, answer))
        return faults + self.block.resets.store(places, answers) if answers else faults

    def _rebuild(self, place: int, changed: Mapping[str, Any]) -> None:
        self._close(place)
        if self._make is None:
            raise Fault(RAISED, "it cannot be made anew")
        try:
            env = self._make(self._indices[place], **changed)
        except CONTAINED as error:
            # The source says at length what the settings were; what counts is what the env itself raised.
            cause = error.__cause__ if isinstance(error, EnvError) and error.__cause__ else error
            raise Fault.raised(cause, "making it anew") from error
        if not isinstance(env, gymnasium.Env):
            raise Fault(RAISED, f"making it anew gave a {type(env).__name__}, no gymnasium.Env")
        self._take(place, env)

    def _take(self, place: int, env: AnyEnv) -> None:
        self.envs[place] = env
        # Bound once: gymnasium's wrappers have no state that would change it.
        self._steps[place] = env.step

    def _compare_spaces(self, place: int) -> None:
        env = self.envs[place]
        observation, action = env.observation_space, env.action_space  # type: ignore[union-attr]  # only envs that are there
        now = snapshot(observation), snapshot(action)
        # Most look alike at each reset, in all envs; only others are described.
        if now == self._same:
            return
        for space, before, role in (
            (observation, self._spaces.observation, "observation"),
            (action, self._spaces.action, "action"),
        ):
            try:
                mapped = from_gymnasium(space, role)  # type: ignore[arg-type]  # one of its two literals
            except PenstockError as error:
                raise Fault(SPACES, str(error)) from error
            if mapped != before:
                raise Fault(SPACES, f"its {role} space is {space} now, no longer that of the stream: {before}")
        self._same = now

    def _discard(self, place: int) -> None:
        """Take an env that failed for down; one that cannot be made anew stays, for a reset may mend it.

        It is closed when it is made anew: that may hang, and what it did is to be told before.
        """
        if self._make is not None:
            self._steps[place] = None

    def _close(self, place: int) -> None:
        env, self.envs[place], self._steps[place] = self.envs[place], None, None
        close_envs([env])


def close_envs(envs: Sequence[AnyEnv | None]) -> None:
    """Close those that are there, whatever they raise."""
    for env in envs:
        if env is not None:
            with suppress(*CONTAINED):
                env.close()
