"""EnvPool's environments, in lockstep or answering as they are ready, in canonical rows."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.contained import told
from penstock_producers.envs.infos import info_columns
from penstock_producers.envs.rows import Answer, Rows
from penstock_producers.envs.vector_infos import VectorInfos
from penstock_producers.envs.vector_observations import misfit
from penstock_producers.spaces import batch_reader, from_gymnasium
from penstock_schemas.errors import EnvError
from penstock_schemas.spaces import bounded, leaves

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_schemas.columns import Column
    from penstock_schemas.spaces import Leaves

_OWN = ("num_envs", "batch_size", "seed")
_ELAPSED = "elapsed_step"
_INFO = "info:"


def make_envpool(
    task: str,
    num_envs: int,
    *,
    kwargs: Mapping[str, Any],
    seed: int,
    infos: Sequence[str],
    batch_size: int | None = None,
) -> EnvPoolEnvs:
    """Make `num_envs` environments of an EnvPool task.

    Args:
        task: its name, such as `Pong-v5`.
        num_envs: how many, at least 1.
        kwargs: what the task is made with besides, such as `num_threads` or `episodic_life`.
        seed: of the pool, 31 bits; EnvPool makes each env's own of it, and seeds no episode.
        infos: the keys to record.
        batch_size: how many envs answer at a time; None for all, in lockstep.

    Raises:
        EnvError: a task that cannot be made, that has several players, or that gives no info of a key to record.
        SpaceError: an observation or action space that is not mapped to Arrow.
    """
    name = repr(f"envpool:{task}")
    if batch_size is not None and not 1 <= batch_size <= num_envs:
        raise EnvError(f"environment {name}: batch_size is {batch_size}, but must be 1 to num_envs, {num_envs}")
    taken = sorted(kwargs.keys() & set(_OWN))
    if taken:
        raise EnvError(f"environment {name}: kwargs {taken} have settings of their own; leave them out of kwargs")
    try:
        envpool = importlib.import_module("envpool")
    except ImportError as error:
        raise EnvError(f"environment {name}: envpool cannot be imported: {error}; pip install envpool") from error
    try:
        pool = envpool.make_gymnasium(task, num_envs=num_envs, batch_size=batch_size or num_envs, seed=seed, **kwargs)
    except Exception as error:
        raise EnvError(f"environment {name} cannot be made with kwargs {dict(kwargs)}: {told(error)}") from error
    return EnvPoolEnvs(pool, name, infos=infos)


class EnvPoolEnvs:
    """An EnvPool in canonical rows.

    EnvPool answers an action after the last one of an episode with a reset row, which stands among the steps; the last
    observation is the true one. In lockstep `recv` answers all the envs that were sent actions, else `batch_size` of
    them, those that were ready first; the others stay in flight, and `reset` too answers the first batch only. Where
    fewer are in flight, `recv` answers nothing.

    The pool is contained as a whole only: its `recv` waits for as long as its envs take, whatever the `timeout`.
    Episodes have no seeds of their own: rows carry none.

    Args:
        pool: made by `envpool.make_gymnasium`.
        name: what errors call it.
        infos: the keys to record, `elapsed_step` among those that every task has.

    Raises:
        EnvError: a task with several players, or that gives no info of a key to record; later, one that breaks.
        SpaceError: an observation or action space that is not mapped to Arrow.

    Attributes:
        num_envs: N, the number of envs.
        batch_size: how many answer at a time.
        observation_space: of one env.
        action_space: of one env.
        reward_dtype: the dtype of `Rows.reward`.
        infos: the columns of the recorded infos.
    """

    def __init__(self, pool: Any, name: str, *, infos: Sequence[str] = ()) -> None:
        players = pool.config["max_num_players"]
        if players != 1:
            raise EnvError(f"environment {name}: it has {players} players, but a policy acts for one; use another task")
        self._pool = pool
        self._name = name
        self.num_envs: int = pool.config["num_envs"]
        self.batch_size: int = pool.config["batch_size"]
        self.observation_space = from_gymnasium(pool.observation_space, "observation", name)
        self.action_space = from_gymnasium(pool.action_space, "action", name)
        self.reward_dtype: np.dtype[Any] = np.dtype(pool.spec.state_array_spec["reward"].dtype)
        self.infos: tuple[Column, ...] = info_columns(infos, [_info_sample(pool)], name) if infos else ()
        self._infos = VectorInfos(self.infos, self.num_envs)
        self._read_observation = batch_reader(self.observation_space)
        self._leaves = tuple(
            (leaf.name("observation"), leaf.space.dtype, leaf.space.shape) for leaf in leaves(self.observation_space)
        )
        found = leaves(self.observation_space)
        self._bounded = tuple((i, found[i].space) for i in bounded(self.observation_space))
        # It goes on after none.
        self.faults: Mapping[str, int] = {}
        self.last_fault: Mapping[int, str] = {}
        self._in_flight = np.zeros(self.num_envs, np.bool_)
        self._first = np.zeros(self.num_envs, np.bool_)
        self._stale = np.zeros(self.num_envs, np.bool_)

    @property
    def unstorable(self) -> Counter[str]:
        """How many infos were left out because they are not of their column's shape and dtype, by key."""
        return self._infos.unstorable

    def reset(self, options: Mapping[str, Any] | None = None) -> Answer:
        """Begin a new episode in every env; whatever was open is left without an end.

        What is in flight comes back first, is dropped, and only then does that env begin.

        Raises `EnvError` for options, which EnvPool does not have.
        """
        if options is not None:
            raise EnvError(
                f"environment {self._name}: EnvPool resets take no options, so {options!r} cannot be had; make "
                "the task with other kwargs, or step a gymnasium environment in lanes"
            )
        self._stale |= self._in_flight
        self._begin(np.flatnonzero(~self._in_flight))
        while True:
            answer = self.recv()
            if answer.steps is not None:
                return Answer(None, (), answer.steps, answer.ready, answer.observation)

    def send(self, env: NDArray[np.int32], action: Leaves) -> None:
        """Have envs that wait take their actions, an array (m, *shape), of any dtype; EnvPool copies them."""
        try:
            self._pool.send(action[0], env)
        except Exception as error:
            raise self._failure("send", error) from error
        self._in_flight[env] = True

    def recv(self, timeout: float = 1.0) -> Answer:  # noqa: ARG002 - EnvPool has no way to stop waiting
        """Wait until a batch of envs has answered; answer nothing where fewer are in flight."""
        if np.count_nonzero(self._in_flight) < (1 if self.batch_size == self.num_envs else self.batch_size):
            return self._nothing()
        try:
            batch, reward, terminated, truncated, infos = self._pool.recv()
        except Exception as error:
            raise self._failure("recv", error) from error
        env = infos["env_id"]
        recorded = self._infos.read(infos, len(env)) if self.infos else ()
        observation = self._observation(batch, len(env))
        self._in_flight[env] = False

        stale = self._stale[env]
        if stale.any():
            self._stale[env] = False
            self._begin(env[stale])
        if stale.any() or (len(env) > 1 and not (env[1:] > env[:-1]).all()):
            chosen = np.flatnonzero(~stale)
            chosen = chosen[np.argsort(env[chosen])]
            env, reward, terminated, truncated = env[chosen], reward[chosen], terminated[chosen], truncated[chosen]
            observation = tuple(leaf[chosen] for leaf in observation)
            recorded = tuple((values[chosen], valid[chosen]) for values, valid in recorded)
            if not len(env):
                return self._nothing()
        first = self._first[env]
        # A reset row has no flags, whatever the task says.
        terminated, truncated = terminated > first, truncated > first
        self._first[env] = terminated | truncated
        rows = Rows(env, observation, reward, terminated, truncated, first, None, None, recorded)
        return Answer(rows, (), None, env, observation)

    def close(self) -> None:
        """Let go of the pool, which ends its threads."""
        self._pool.close()
        self._pool = None

    def _begin(self, env: NDArray[Any]) -> None:
        if len(env):
            self._pool._reset(env.astype(np.int32))  # noqa: SLF001 - the public reset waits for the answer too
            self._in_flight[env] = True
            self._first[env] = True

    def _observation(self, batch: Any, n: int) -> Leaves:
        observation = []
        for (name, dtype, shape), leaf in zip(self._leaves, self._read_observation(batch), strict=True):
            if leaf.shape != (n, *shape):
                raise misfit(self._name, name, leaf, (n, *shape), dtype)
            # A Discrete comes as int32 though its space says int64, a MultiBinary as bool.
            observation.append(leaf.astype(dtype, copy=False))
        for i, space in self._bounded:
            if outside := space.outside(observation[i]):
                raise EnvError(f"environment {self._name}: {self._leaves[i][0]} has {outside}; use another task")
        return tuple(observation)

    def _nothing(self) -> Answer:
        observation = tuple(np.empty((0, *shape), dtype) for _, dtype, shape in self._leaves)
        return Answer(None, (), None, np.empty(0, np.int32), observation)

    def _failure(self, call: str, error: Exception) -> EnvError:
        return EnvError(f"environment {self._name}: {call}() raised {told(error)}; mend its kwargs")


def _info_sample(pool: Any) -> dict[str, Any]:
    """Zeros of what one env's infos are, as the pool declares them; a dict stands for what is nested."""
    sample: dict[str, Any] = {}
    for name, spec in pool.spec.state_array_spec.items():
        if name == _ELAPSED or name.startswith(_INFO):
            key, dot, _ = name.removeprefix(_INFO).partition(".")
            # A leading -1 is one item for each player, of which there is one.
            shape = tuple(extent for extent in spec.shape if extent != -1)
            sample[key] = {} if dot else np.zeros(shape, spec.dtype)[()]
    return sample
