"""A vector environment of any autoreset mode, in canonical rows."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from penstock_producers.envs.closing import close_vector_env
from penstock_producers.envs.rows import Rows
from penstock_producers.spaces import from_gymnasium
from penstock_schemas.errors import EnvError, SpaceError

if TYPE_CHECKING:
    from gymnasium import spaces
    from numpy.typing import NDArray

    from penstock_producers.envs.closing import AnyVectorEnv
    from penstock_producers.spaces import Role

_PROBE_SEED = 0
_BOOL = np.dtype(np.bool_)


class CanonicalEnv:
    """A gymnasium vector environment whose rows come in one canonical order.

    A reset row is never a step, and every episode's true last observation is kept:

    - NEXT_STEP: the row after a done row is that env's reset row, among the steps of the others;
    - SAME_STEP: the steps hold the last observations from `infos["final_obs"]`, reset rows follow in `Rows` of
      their own;
    - DISABLED: the done envs are reset at once, under a mask; their reset rows follow in `Rows` of their own.

    A reset that raises costs no step in DISABLED: the step is answered, and the next one raises. In the other modes
    the environment resets inside its own step, and what that had to answer for all envs is lost with it.

    A ready-made vector environment is reset and stepped once while this is constructed, with random actions of a
    fixed seed, because nothing but a step tells its reward's dtype; the `reset` that must come first of all
    starts it anew.

    Raises:
        EnvError: an environment without a known autoreset mode, that raises, or whose arrays are not of its own
            space's shape and dtype; later, from any method, one that breaks.
        SpaceError: an observation or action space that is not mapped to Arrow.

    Attributes:
        num_envs: N, the number of envs.
        observation_space: of one env.
        action_space: of one env.
        autoreset_mode: how the wrapped environment resets what is done.
        reward_dtype: the dtype of `Rows.reward`.
        observation: (N, *shape), what a policy acts on next; there after the first `reset`. It may be the
            environment's own buffer, and holds until the next `step` or `reset`.
    """

    observation: NDArray[Any]

    def __init__(self, env: AnyVectorEnv, name: str | None = None) -> None:
        self._env = env
        self._name = name or str(env)
        self.num_envs: int = env.num_envs
        self.observation_space = _mapped(env.single_observation_space, self._name, "observation")
        self.action_space = _mapped(env.single_action_space, self._name, "action")
        self.autoreset_mode = _autoreset_mode(env, self._name)
        self._observation_dtype = self.observation_space.dtype
        self._observation_shape = (self.num_envs, *(self.observation_space.shape or ()))
        self._column_shape = (self.num_envs,)

        self._envs: NDArray[np.int32] = _constant(np.arange(self.num_envs, dtype=np.int32))
        self._never: NDArray[np.bool_] = _constant(np.zeros(self.num_envs, dtype=np.bool_))
        self._always: NDArray[np.bool_] = _constant(np.ones(self.num_envs, dtype=np.bool_))
        self._done: NDArray[np.bool_] = np.zeros(self.num_envs, dtype=np.bool_)
        self._spare: NDArray[np.bool_] = np.zeros(self.num_envs, dtype=np.bool_)
        self._mask_is_known_to_hold = False
        self._reset_failure: EnvError | None = None

        # gymnasium's own vectorizers give float64 whatever the env gives, and their envs need not be disturbed.
        gymnasiums_own = isinstance(env, SyncVectorEnv | AsyncVectorEnv)
        self.reward_dtype: np.dtype[Any] = np.dtype(np.float64) if gymnasiums_own else self._probe()
        self._no_reward: NDArray[Any] = _constant(np.zeros(self.num_envs, dtype=self.reward_dtype))

    def reset(self, seed: int | None = None) -> Rows:
        """Begin a new episode in every env; whatever was open is left without an end.

        A `seed` is handed to the environment. gymnasium's sync and async vector environments seed env i with
        `seed + i`, and the rows say so; what any other makes of it is its own affair, and the rows' seed is None.
        """
        self._reset_failure = None
        self.observation = self._reset(seed=seed)
        self._done.fill(False)  # noqa: FBT003 - numpy takes it by position only
        seeds = None
        if seed is not None and isinstance(self._env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            seeds = seed + np.arange(self.num_envs, dtype=np.int64)
        return Rows(self._envs, self.observation, self._no_reward, self._never, self._never, self._always, seeds)

    def step(self, action: NDArray[Any]) -> tuple[Rows, ...]:
        """Step every env with its row of `action`, shape (N, *action shape); resets what is done.

        Returns one `Rows` with a row for each env; with SAME_STEP and DISABLED, where any env is done, a second
        with the reset rows of those. With DISABLED, where that reset failed, the second is not there, and the next
        call raises why.
        """
        if self._reset_failure is not None:
            raise self._reset_failure
        try:
            observation, reward, terminated, truncated, infos = self._env.step(action)
        except Exception as error:
            raise self._failure("step", error) from error
        self._check_observation(observation)
        self._check_column(reward, self.reward_dtype, "reward")
        self._check_column(terminated, _BOOL, "terminated")
        self._check_column(truncated, _BOOL, "truncated")
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            # The two buffers change places: what was done before is what is first now.
            first, done = self._done, np.logical_or(terminated, truncated, out=self._spare)
            if done.dot(first):  # some reset row claims to be done: the dot product of bools is "any in both"
                terminated, truncated = terminated > first, truncated > first
                np.logical_or(terminated, truncated, out=done)
            self._done, self._spare = done, first
            self.observation = observation
            return (Rows(self._envs, observation, reward, terminated, truncated, first, None),)

        done = np.logical_or(terminated, truncated, out=self._done)
        if not np.count_nonzero(done):
            self.observation = observation
            return (Rows(self._envs, observation, reward, terminated, truncated, self._never, None),)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            self.observation = observation
            observation = self._with_final(observation, done, infos)
        else:
            # The masked reset may write into the very buffers that hold the last step.
            observation, reward = observation.copy(), reward.copy()
            terminated, truncated = terminated.copy(), truncated.copy()
            try:
                self.observation = self._reset_masked(done, observation)
            except EnvError as error:
                self.observation = observation
                self._reset_failure = error
        steps = Rows(self._envs, observation, reward, terminated, truncated, self._never, None)
        return (steps,) if self._reset_failure is not None else (steps, self._begun(done))

    def close(self) -> None:
        """Close the environment, and end its processes where it has any, even those that no longer answer."""
        try:
            close_vector_env(self._env)
        except Exception as error:
            raise self._failure("close", error) from error

    def _reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> NDArray[Any]:
        try:
            observation, _ = self._env.reset(seed=seed, options=options)
        except Exception as error:
            raise self._failure("reset", error) from error
        self._check_observation(observation)
        return observation  # type: ignore[no-any-return]  # checked just above

    def _probe(self) -> np.dtype[Any]:
        actions = copy.deepcopy(self._env.action_space)
        actions.seed(_PROBE_SEED)
        # Unseeded: a generator seeded here would make every later unseeded reset the same in all processes.
        self._reset()
        try:
            _, reward, _, _, _ = self._env.step(actions.sample())
        except Exception as error:
            raise self._failure("step", error) from error
        dtype = getattr(reward, "dtype", None)
        if not isinstance(dtype, np.dtype) or dtype.kind not in "fiu":
            raise self._misfit("reward", reward, self._column_shape, "a float or integer")
        return dtype

    def _reset_masked(self, done: NDArray[np.bool_], before: NDArray[Any]) -> NDArray[Any]:
        # gymnasium takes the mask out of the dict that it is given, hence a new one each time.
        after = self._reset(options={"reset_mask": done.copy()})
        if not self._mask_is_known_to_hold and not done.all():
            others = ~done
            same = (before == after) | (before != before)  # noqa: PLR0124 - NaN is what differs from itself
            touched = others & ~same.reshape(self.num_envs, -1).all(axis=1)
            if touched.any():
                raise EnvError(
                    f"environment {self._name}: autoreset mode DISABLED, but its reset() ignores "
                    f"options['reset_mask']: envs {np.flatnonzero(touched).tolist()} changed though only "
                    f"{np.flatnonzero(done).tolist()} were to be reset; honour the mask, or declare the mode it has"
                )
            self._mask_is_known_to_hold = True
        return after

    def _with_final(self, observation: NDArray[Any], done: NDArray[np.bool_], infos: dict[str, Any]) -> NDArray[Any]:
        final = infos.get("final_obs")
        given = infos.get("_final_obs", self._always if final is not None else self._never)
        missing = done & ~np.asarray(given, dtype=np.bool_)
        if missing.any():
            raise EnvError(
                f"environment {self._name}: autoreset mode SAME_STEP, but envs {np.flatnonzero(missing).tolist()} "
                "are done without an infos['final_obs'], so their last observations are lost; "
                "give them, or use NEXT_STEP"
            )
        last = np.asarray(final)[done]
        if last.dtype == object:
            try:
                last = np.stack(last.tolist())
            except ValueError as error:
                raise self._failure("step", error) from error
        if last.shape[1:] != self._observation_shape[1:] or last.dtype == object:
            raise self._misfit("final_obs", last, (len(last), *self._observation_shape[1:]))
        whole = observation.copy()
        # An env's own array may be of a wider dtype than its space: cast, as gymnasium casts observations.
        whole[done] = last
        return whole

    def _begun(self, done: NDArray[np.bool_]) -> Rows:
        env = self._envs[done]
        n = len(env)
        never = self._never[:n]
        return Rows(env, self.observation[done], self._no_reward[:n], never, never, self._always[:n], None)

    def _check_observation(self, observation: Any) -> None:
        if (
            not isinstance(observation, np.ndarray)
            or observation.dtype != self._observation_dtype
            or observation.shape != self._observation_shape
        ):
            raise self._misfit("observation", observation, self._observation_shape)

    def _check_column(self, column: Any, dtype: np.dtype[Any], what: str) -> None:
        if not isinstance(column, np.ndarray) or column.dtype != dtype or column.shape != self._column_shape:
            raise self._misfit(what, column, self._column_shape, dtype)

    def _misfit(self, what: str, value: Any, shape: tuple[int, ...], dtype: object = None) -> EnvError:
        expected = f"an array of shape {shape} and dtype {dtype or self._observation_dtype}"
        if isinstance(value, np.ndarray):
            found = f"shape {value.shape} and dtype {value.dtype}"
        else:
            found = f"a {type(value).__name__}"
        return EnvError(
            f"environment {self._name}: {what} must be {expected}, but is {found}; mend the environment or its space"
        )

    def _failure(self, call: str, error: Exception) -> EnvError:
        return EnvError(
            f"environment {self._name}: {call}() raised {type(error).__name__}: {error}; mend the environment, "
            "its own traceback comes with this error"
        )


def _autoreset_mode(env: AnyVectorEnv, name: str) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode")
    if isinstance(mode, AutoresetMode):
        return mode
    declared = "none" if mode is None else repr(mode)
    raise EnvError(
        f"environment {name}: metadata['autoreset_mode'] must be a gymnasium.vector.AutoresetMode, but is {declared}: "
        "without it a reset cannot be told from a step; declare the mode that the environment has"
    )


def _mapped(space: spaces.Space[Any], name: str, role: Role) -> spaces.Space[Any]:
    try:
        from_gymnasium(space, role)
    except SpaceError as error:
        raise SpaceError(f"environment {name}: {error}") from error
    return space


def _constant(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
