"""A vector environment of any autoreset mode, in canonical rows."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from penstock_producers.contained import CONTAINED, told
from penstock_producers.envs.autoreset import autoreset_mode
from penstock_producers.envs.closing import close_vector_env
from penstock_producers.envs.infos import info_columns
from penstock_producers.envs.options import options_from_json, options_to_json
from penstock_producers.envs.rows import Answer, Rows
from penstock_producers.envs.vector_infos import VectorInfos, each_info, final_infos
from penstock_producers.envs.vector_observations import VectorObservations, misfit, same_rows
from penstock_producers.spaces import batch_writer, from_gymnasium
from penstock_schemas.errors import EnvError
from penstock_schemas.spaces import Text, leaves

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping, Sequence

    from gymnasium import spaces
    from numpy.typing import NDArray

    from penstock_producers.envs.closing import AnyVectorEnv
    from penstock_producers.envs.rows import Info
    from penstock_schemas.columns import Column
    from penstock_schemas.spaces import Leaves, Space

_PROBE_SEED = 0
# Some infos come with an episode's end only: how long to look out for those that are to be recorded.
_PROBE_STEPS = 1000
_BOOL = np.dtype(np.bool_)
_NO_ACTION = object()
_RESET_MASK = "reset_mask"


class CanonicalEnv:
    """A gymnasium vector environment whose rows come in one canonical order.

    A reset row is never a step, and every episode's true last observation and infos are kept:

    - NEXT_STEP: the row after a done row is that env's reset row, among the steps of the others;
    - SAME_STEP: the steps hold the last observations from `infos["final_obs"]` and the infos from
      `infos["final_info"]`; the reset rows follow in `Answer.resets`. gymnasium's own sync and async vector
      environments give the reset observation as `final_obs` where an env reuses its observation buffer;
    - DISABLED: the done envs are reset at once, under a mask; their reset rows follow in `Answer.resets`.

    All envs are stepped together: `send` takes the actions of all, in `recv` the environment steps, and `ready` is
    always all of them. The environment is contained as a whole only: whatever breaks in one env breaks the vector
    with an `EnvError`, `aborts` is always empty, and nothing ends a step that hangs.

    A reset that raises costs no step in DISABLED: the step is answered, and the next `recv` raises. In the other
    modes the environment resets inside its own step, and what that had to answer for all envs is lost with it.

    A ready-made vector environment is reset and stepped once while this is constructed, with random actions of a
    fixed seed, because nothing but a step tells its reward's dtype; where infos are recorded any is stepped until
    each was seen, at most 1,000 times. The `reset` that must come first of all starts it anew.

    Args:
        env: the environment.
        name: what errors call it; by default how it prints itself.
        seed: handed to the environment's first `reset`, later ones are unseeded. gymnasium's sync and async vector
            environments seed env i with `seed + i`, and the rows say so; what any other makes of it is its own
            affair, and the rows' seed is None.
        infos: the keys to record. Infos that are dicts are not recorded; an info that is not of its column's shape
            and dtype is left out, and counted.

    Raises:
        EnvError: an environment without a known autoreset mode, that raises, whose arrays are not of its own
            space's shape and dtype, or that gives no info of a key to record; later, from any method, one that
            breaks.
        SpaceError: an observation or action space that is not mapped to Arrow.

    Attributes:
        num_envs: N, the number of envs.
        observation_space: of one env.
        action_space: of one env.
        autoreset_mode: how the wrapped environment resets what is done.
        reward_dtype: the dtype of `Rows.reward`.
        infos: the columns of the recorded infos.
    """

    def __init__(
        self, env: AnyVectorEnv, name: str | None = None, *, seed: int | None = None, infos: Sequence[str] = ()
    ) -> None:
        self._env = env
        self._name = name or str(env)
        self._seed = seed
        self.num_envs: int = env.num_envs
        self.observation_space = from_gymnasium(env.single_observation_space, "observation", self._name)
        self.action_space = from_gymnasium(env.single_action_space, "action", self._name)
        self.autoreset_mode = autoreset_mode(env, self._name)
        if isinstance(env.unwrapped, AsyncVectorEnv):
            _check_async(env.unwrapped, self.autoreset_mode, self.observation_space, self._name)
        self._observations = VectorObservations(self.observation_space, self.num_envs, self._name)
        self._write_action = batch_writer(self.action_space)
        self._column_shape = (self.num_envs,)

        self._envs: NDArray[np.int32] = _constant(np.arange(self.num_envs, dtype=np.int32))
        self._never: NDArray[np.bool_] = _constant(np.zeros(self.num_envs, dtype=np.bool_))
        self._always: NDArray[np.bool_] = _constant(np.ones(self.num_envs, dtype=np.bool_))
        self._done: NDArray[np.bool_] = np.zeros(self.num_envs, dtype=np.bool_)
        self._spare: NDArray[np.bool_] = np.zeros(self.num_envs, dtype=np.bool_)
        # It goes on after none.
        self.faults: Mapping[str, int] = {}
        self.last_fault: Mapping[int, str] = {}
        self._looked_at = -1
        self._reset_failure: EnvError | None = None
        self._action: Any = _NO_ACTION
        nothing = tuple(np.empty((0, *leaf.space.shape), leaf.space.dtype) for leaf in leaves(self.observation_space))
        self._nothing = Answer(None, (), None, self._envs[:0], nothing)

        # gymnasium's own vectorizers give float64 whatever the env gives, and their envs need not be disturbed.
        gymnasiums_own = isinstance(env, SyncVectorEnv | AsyncVectorEnv)
        self.reward_dtype: np.dtype[Any] = np.dtype(np.float64) if gymnasiums_own else self._probe()
        self._no_reward: NDArray[Any] = _constant(np.zeros(self.num_envs, dtype=self.reward_dtype))
        self.infos: tuple[Column, ...] = ()
        self._infos = VectorInfos((), self.num_envs)
        if infos:
            self.infos = info_columns(infos, self._samples(infos), self._name)
            self._infos = VectorInfos(self.infos, self.num_envs)

    @property
    def unstorable(self) -> Counter[str]:
        """How many infos were left out because they are not of their column's shape and dtype, by key."""
        return self._infos.unstorable

    def reset(self, options: Mapping[str, Any] | None = None) -> Answer:
        """Begin a new episode in every env, with options for its reset; whatever was open is left without an end.

        The vector environment is given the options once: they are recorded with these episodes, and what it makes of
        them in later resets of its own is its own affair. Raises `EnvError` for options that are not plain JSON.
        """
        text = options_to_json(options, self._name)
        if options is not None and _RESET_MASK in options:
            raise EnvError(
                f"environment {self._name}: {_RESET_MASK!r} among the reset options is for vector environments "
                "themselves; all envs are reset, so leave it out"
            )
        self._reset_failure, self._action = None, _NO_ACTION
        seed, self._seed = self._seed, None
        observation, infos = self._reset(seed=seed, options=options_from_json(text))
        self._done.fill(False)  # noqa: FBT003 - numpy takes it by position only
        seeds = None
        if seed is not None and isinstance(self._env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            seeds = seed + np.arange(self.num_envs, dtype=np.int64)
        recorded = self._infos.read(infos, self.num_envs) if self.infos else ()
        never = self._never
        given = None if text is None else np.full(self.num_envs, text, object)
        first = Rows(self._envs, observation, self._no_reward, never, never, self._always, seeds, given, recorded)
        return Answer(None, (), first, self._envs, observation)

    def send(self, env: NDArray[np.int32], action: Leaves) -> None:
        """Take the actions of all envs, an array (N, *shape) for each leaf of the action space, of any dtype."""
        if len(env) != self.num_envs:
            raise ValueError(
                f"environment {self._name}: actions of {len(env)} envs, but all {self.num_envs} step together"
            )
        self._action = self._write_action(action)

    def recv(self, timeout: float = 1.0) -> Answer:  # noqa: ARG002 - the environment steps here, and is done then
        """Step every env with the action sent for it, and reset what is done; answer nothing where none was sent.

        With DISABLED, where that reset failed, `resets` is None, and the next call raises why.
        """
        if self._reset_failure is not None:
            raise self._reset_failure
        action, self._action = self._action, _NO_ACTION
        if action is _NO_ACTION:
            return self._nothing
        try:
            batch, reward, terminated, truncated, infos = self._env.step(action)
        except CONTAINED as error:
            raise self._failure("step", error) from error
        observation = self._observations.read(batch)
        self._check_columns(reward, terminated, truncated)
        if not isinstance(infos, dict):
            raise self._no_dict(infos)
        recorded = self._infos.read(infos, self.num_envs) if self.infos else ()
        envs, never = self._envs, self._never
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            # The two buffers change places: what was done before is what is first now.
            first, done = self._done, np.logical_or(terminated, truncated, out=self._spare)
            if done.dot(first):  # some reset row claims to be done: the dot product of bools is "any in both"
                terminated, truncated = terminated > first, truncated > first
                np.logical_or(terminated, truncated, out=done)
            self._done, self._spare = done, first
            steps = Rows(envs, observation, reward, terminated, truncated, first, None, None, recorded)
            return Answer(steps, (), None, envs, observation)

        done = np.logical_or(terminated, truncated, out=self._done)
        if not np.count_nonzero(done):
            steps = Rows(envs, observation, reward, terminated, truncated, never, None, None, recorded)
            return Answer(steps, (), None, envs, observation)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            last = self._observations.with_final(observation, done, infos)
            final = self._infos.with_final(recorded, done, final_infos(infos, self._name)) if self.infos else ()
            steps = Rows(envs, last, reward, terminated, truncated, never, None, None, final)
            return Answer(steps, (), self._begun(done, observation, recorded), envs, observation)

        # The masked reset may write into the very buffers that hold the last step.
        last, reward = tuple(leaf.copy() for leaf in observation), reward.copy()
        terminated, truncated = terminated.copy(), truncated.copy()
        recorded = tuple((values.copy(), valid.copy()) for values, valid in recorded)
        steps = Rows(envs, last, reward, terminated, truncated, never, None, None, recorded)
        try:
            observation, infos = self._reset_masked(done, last)
        except EnvError as error:
            self._reset_failure = error
            return Answer(steps, (), None, envs, last)
        recorded = self._infos.read(infos, self.num_envs) if self.infos else ()
        return Answer(steps, (), self._begun(done, observation, recorded), envs, observation)

    def close(self) -> None:
        """Close the environment, and end its processes where it has any, even those that no longer answer."""
        try:
            close_vector_env(self._env)
        except CONTAINED as error:
            raise self._failure("close", error) from error

    def _reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Leaves, dict[str, Any]]:
        try:
            batch, infos = self._env.reset(seed=seed, options=options)
        except CONTAINED as error:
            raise self._failure("reset", error) from error
        if not isinstance(infos, dict):
            raise self._no_dict(infos)
        return self._observations.read(batch), infos

    def _reset_masked(self, done: NDArray[np.bool_], before: Leaves) -> tuple[Leaves, dict[str, Any]]:
        # gymnasium takes the mask out of the dict that it is given, hence a new one each time.
        after, infos = self._reset(options={_RESET_MASK: done.copy()})
        others = np.flatnonzero(~done)
        if len(others):
            # Each time, for a reset of all may look like one of some where another stands at its beginning; of one of
            # them in turn, for all would be much to compare.
            self._looked_at += 1
            one = int(others[self._looked_at % len(others)])
            row = slice(one, one + 1)
            if not same_rows(tuple(leaf[row] for leaf in before), tuple(leaf[row] for leaf in after)).all():
                raise EnvError(
                    f"environment {self._name}: autoreset mode DISABLED, but its reset() ignores "
                    f"options['reset_mask']: env {one} changed though only {np.flatnonzero(done).tolist()} were to be "
                    "reset; honour the mask, or declare the mode it has"
                )
        return after, infos

    def _begun(self, done: NDArray[np.bool_], observation: Leaves, recorded: tuple[Info, ...]) -> Rows:
        env = self._envs[done]
        n = len(env)
        never = self._never[:n]
        begun = tuple(leaf[done] for leaf in observation)
        infos = tuple((values[done], valid[done]) for values, valid in recorded)
        return Rows(env, begun, self._no_reward[:n], never, never, self._always[:n], None, None, infos)

    def _probe(self) -> np.dtype[Any]:
        # Unseeded: a generator seeded here would make every later unseeded reset the same in all processes.
        self._reset()
        try:
            _, reward, _, _, _ = self._env.step(self._random_actions().sample())
        except CONTAINED as error:
            raise self._failure("step", error) from error
        dtype = getattr(reward, "dtype", None)
        if not isinstance(dtype, np.dtype) or dtype.kind not in "fiu":
            raise misfit(self._name, "reward", reward, self._column_shape, "a float or integer")
        return dtype

    def _samples(self, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The infos of single envs, until each of the keys was among them."""
        missing = set(keys)
        for infos in self._probe_infos():
            for mine in each_info(infos, self.num_envs):
                missing -= {key for key, value in mine.items() if value is not None}
                yield mine
            if not missing:
                return

    def _probe_infos(self) -> Iterator[Mapping[str, Any]]:
        yield self._reset()[1]
        actions = self._random_actions()
        for _ in range(_PROBE_STEPS):
            try:
                _, reward, terminated, truncated, infos = self._env.step(actions.sample())
            except CONTAINED as error:
                raise self._failure("step", error) from error
            self._check_columns(reward, terminated, truncated)
            if not isinstance(infos, dict):
                raise self._no_dict(infos)
            yield infos
            yield final_infos(infos, self._name)
            done = terminated | truncated
            if self.autoreset_mode is AutoresetMode.DISABLED and done.any():
                yield self._reset(options={_RESET_MASK: done})[1]

    def _random_actions(self) -> spaces.Space[Any]:
        actions = copy.deepcopy(self._env.action_space)
        actions.seed(_PROBE_SEED)
        return actions

    def _check_columns(self, reward: Any, terminated: Any, truncated: Any) -> None:
        array = np.ndarray
        # In one condition, since every step passes here.
        if not (
            (isinstance(reward, array) and isinstance(terminated, array) and isinstance(truncated, array))
            and reward.dtype == self.reward_dtype
            and terminated.dtype == truncated.dtype == _BOOL
            and reward.shape == terminated.shape == truncated.shape == self._column_shape
        ):
            columns = {"reward": reward, "terminated": terminated, "truncated": truncated}
            for what, column in columns.items():
                dtype = self.reward_dtype if what == "reward" else _BOOL
                if not isinstance(column, array) or (column.dtype, column.shape) != (dtype, self._column_shape):
                    raise misfit(self._name, what, column, self._column_shape, dtype)

    def _no_dict(self, infos: Any) -> EnvError:
        return EnvError(
            f"environment {self._name}: infos must be a dict, but is a {type(infos).__name__}; mend the environment"
        )

    def _failure(self, call: str, error: BaseException) -> EnvError:
        return EnvError(
            f"environment {self._name}: {call}() raised {told(error)}; mend the environment, "
            "its own traceback comes with this error"
        )


def _check_async(env: AsyncVectorEnv, mode: AutoresetMode, space: Space, name: str) -> None:
    """Refuse what gymnasium's async vector environment answers wrongly, without a word."""
    texts = [leaf.name("observation") for leaf in leaves(space) if isinstance(leaf.space, Text)]
    if env.shared_memory and texts:
        # It reads strings once, when it is made, and gives those ever after.
        raise EnvError(
            f"environment {name}: gymnasium's AsyncVectorEnv loses the strings of {', '.join(texts)} in its shared "
            "memory; make it with shared_memory=False and an autoreset mode other than NEXT_STEP, or use lanes"
        )
    if not env.shared_memory and mode is AutoresetMode.NEXT_STEP:
        # An env that was done when it was reset resets once more at its next step, which then is none.
        raise EnvError(
            f"environment {name}: gymnasium's AsyncVectorEnv with shared_memory=False in autoreset mode NEXT_STEP "
            "resets twice; make it with shared_memory=True or another mode, or use lanes"
        )


def _constant(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
