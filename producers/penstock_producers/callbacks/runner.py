"""Calling callbacks with what the envs answer."""

from __future__ import annotations

import json
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.callbacks.base import BegunEpisode, EndedEpisode
from penstock_producers.callbacks.compose import CallbackList, name_of
from penstock_producers.contained import CONTAINED, told
from penstock_producers.envs import Lanes
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import EnvError
from penstock_schemas.stream import INFO

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_producers.callbacks.base import Callbacks
    from penstock_producers.envs import Abort, Answer, Envs, Rows
    from penstock_producers.fragment import ClosedFragment

_NO_SEED = -1


def attach(callbacks: CallbackList, envs: Envs) -> CallbackRunner | None:
    """Tell callbacks of envs that were created, have them asked before resets, and answer what calls the rest.

    Call it before the envs are reset. None where nothing but that is overridden: then there is nothing to call. Those
    that were asked for these envs before are asked no more.

    Raises `EnvError` for callbacks that choose reset options where envs reset themselves, and for what one raises.
    """
    asked = callbacks.overriding("on_reset")
    if isinstance(envs, Lanes):
        envs.before_reset = _Asking(asked) if asked else None
    elif asked:
        raise EnvError(
            f"{name_of(asked[0])} overrides on_reset, but {type(envs).__name__} resets its envs by itself, and "
            "asks nobody; step them in lanes (vectorization lanes), or let on_reset be"
        )
    for callback in callbacks.overriding("on_envs_created"):
        _call(callback.on_envs_created, callback, envs)
    runner = CallbackRunner(callbacks, envs)
    return runner if runner.listens else None


class CallbackRunner:
    """Shows callbacks every answer of the envs; an `Observer` of a rollout.

    It calls only what is overridden. Whoever closes fragments hands them to `closed`, and takes what was measured, for
    otherwise that piles up.

    Args:
        callbacks: what is called.
        envs: those that answer.

    Attributes:
        listens: whether there is anything to call.
    """

    def __init__(self, callbacks: CallbackList, envs: Envs) -> None:
        n = envs.num_envs
        self._info_keys = tuple(column.name.removeprefix(INFO) for column in envs.infos)
        self._on_step = callbacks.overriding("on_step")
        self._on_start = callbacks.overriding("on_episode_start")
        self._on_end = callbacks.overriding("on_episode_end")
        self._on_fragment = callbacks.overriding("on_fragment_end")
        self.listens = bool(self._on_step or self._on_start or self._on_end or self._on_fragment)
        self._metrics = callbacks.metrics
        # The open episode of each env.
        self._open = np.zeros(n, np.bool_)
        self._return = np.zeros(n, np.float64)
        self._length = np.zeros(n, np.int64)
        self._seed = np.full(n, _NO_SEED, np.int64)
        self._options = np.full(n, None, object)
        self._measured: list[NDArray[np.float64]] = []

    def see(self, answer: Answer) -> Answer:
        """Call what is overridden; give the answer back, with the metrics of the episodes that end in it."""
        if answer.steps is not None:
            answer = answer._replace(steps=self._stepped(answer.steps))
        for abort in answer.aborts:
            self._aborted(abort)
        if answer.resets is not None:
            self._begun(answer.resets, np.arange(len(answer.resets.env)))
        return answer

    def abandon(self, reason: str) -> None:
        """Tell that all episodes which are open have ended aborted, for a reason that no answer tells."""
        for env in np.flatnonzero(self._open).tolist() if self._on_end else ():
            self._measure(env, Ends.ABORTED, reason, {})

    def closed(self, fragment: ClosedFragment) -> None:
        """Call what is overridden for the end of a fragment."""
        for callback in self._on_fragment:
            _call(callback.on_fragment_end, callback, fragment)

    def take(self) -> Mapping[str, NDArray[np.float64]]:
        """Take what was measured since the last call: for each metric an item an episode, NaN left out."""
        measured = np.concatenate([np.empty((0, len(self._metrics))), *self._measured])
        self._measured.clear()
        return {name: column[~np.isnan(column)] for name, column in zip(self._metrics, measured.T, strict=True)}

    def _stepped(self, rows: Rows) -> Rows:
        first = np.flatnonzero(rows.first)
        if self._on_step and len(first) < len(rows.env):
            steps = _chosen(rows, ~rows.first) if len(first) else rows
            for callback in self._on_step:
                _call(callback.on_step, callback, steps)
        if self._on_end:
            self._return[rows.env] += rows.reward
            self._length[rows.env] += 1
            ended = np.flatnonzero(rows.terminated | rows.truncated)
            if len(ended):
                rows = self._ended(rows, ended)
        if len(first):
            self._begun(rows, first)
        return rows

    def _ended(self, rows: Rows, ended: NDArray[np.intp]) -> Rows:
        """Tell of the episodes that end with these rows; give back all rows, with what was measured."""
        measured = np.full((len(rows.env), len(self._metrics)), np.nan)
        for row in ended.tolist():
            ends = Ends.TERMINATED * bool(rows.terminated[row]) | Ends.TRUNCATED * bool(rows.truncated[row])
            measured[row] = self._measure(int(rows.env[row]), Ends(ends), None, self._infos(rows, row))
        if not self._metrics:
            return rows
        self._measured.append(measured[ended])
        return rows._replace(metrics=measured)

    def _aborted(self, abort: Abort) -> None:
        if self._on_end and self._open[abort.env]:
            self._measure(abort.env, Ends.ABORTED, abort.reason, {})

    def _measure(self, env: int, ends: Ends, reason: str | None, infos: Mapping[str, Any]) -> list[float]:
        """Tell of an episode that has ended; answer what was measured of it, a number for each metric."""
        self._open[env] = False
        seed, options = _origin(self._seed[env], self._options[env])
        ended = EndedEpisode(env, float(self._return[env]), int(self._length[env]), ends, reason, seed, options, infos)
        numbers: dict[str, float] = {}
        for callback in self._on_end:
            given = _call(callback.on_episode_end, callback, ended)
            if given is not None:
                numbers |= _numbers(callback, given)
        return [numbers.get(name, np.nan) for name in self._metrics]

    def _begun(self, rows: Rows, which: NDArray[np.intp]) -> None:
        """Episodes begin with some of these rows."""
        env = rows.env[which]
        self._open[env], self._return[env], self._length[env] = True, 0.0, 0
        self._seed[env] = _NO_SEED if rows.seed is None else rows.seed[which]
        self._options[env] = None if rows.options is None else rows.options[which]
        if self._on_start:
            for row, index in zip(which.tolist(), env.tolist(), strict=True):
                begun = BegunEpisode(*_origin(self._seed[index], self._options[index]), self._infos(rows, row))
                for callback in self._on_start:
                    _call(callback.on_episode_start, callback, index, begun)

    def _infos(self, rows: Rows, row: int) -> dict[str, Any]:
        # Copies: a callback may keep them, and the arrays may be the envs' own.
        pairs = zip(self._info_keys, rows.infos, strict=True)
        return {key: np.copy(values[row])[()] for key, (values, valid) in pairs if valid[row]}


class _Asking:
    """Asks callbacks for the options of a reset."""

    def __init__(self, callbacks: Sequence[Callbacks]) -> None:
        self._callbacks = callbacks

    def __call__(self, env: int, episode: int) -> Mapping[str, Any] | None:
        chosen: Mapping[str, Any] | None = None
        chooser: Callbacks | None = None
        for callback in self._callbacks:
            options = _call(callback.on_reset, callback, env, episode)
            if options is None:
                continue
            if chooser is not None:
                raise EnvError(
                    f"env {env}: both {name_of(chooser)} and {name_of(callback)} choose the options of its reset, "
                    f"{chosen!r} and {options!r}; let one of them answer None"
                )
            chosen, chooser = options, callback
        return chosen


def _call(method: Callable[..., Any], callback: Callbacks, *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except CONTAINED as error:
        raise EnvError(
            f"{name_of(callback)}: {method.__name__}() raised {told(error)}; mend the callback, its "
            "own traceback comes with this error"
        ) from error


def _numbers(callback: Callbacks, given: Any) -> dict[str, float]:
    try:
        numbers = dict(given)
    except (TypeError, ValueError) as error:
        raise EnvError(
            f"{name_of(callback)}: on_episode_end() returned {given!r}; return numbers by name, or None"
        ) from error
    unknown = sorted(map(str, numbers.keys() - set(callback.metrics)))
    if unknown:
        raise EnvError(
            f"{name_of(callback)}: on_episode_end() measured {unknown}, but its metrics are {list(callback.metrics)}; "
            "name them there, for they are columns of the stream"
        )
    for name, value in numbers.items():
        if not isinstance(value, Real | np.bool_):
            raise EnvError(
                f"{name_of(callback)}: on_episode_end() measured {value!r} as {name!r}, a {type(value).__name__}; "
                "give a number"
            )
    return {name: _float(callback, name, value) for name, value in numbers.items()}


def _float(callback: Callbacks, name: str, value: Any) -> float:
    try:
        return float(value)
    except CONTAINED as error:
        raise EnvError(
            f"{name_of(callback)}: on_episode_end() measured as {name!r} what float() does not take: {error}; give a "
            "number that it takes"
        ) from error


def _origin(seed: np.int64, options: str | None) -> tuple[int | None, Mapping[str, Any] | None]:
    """With which seed and options an episode began."""
    return None if seed == _NO_SEED else int(seed), None if options is None else json.loads(options)


def _chosen(rows: Rows, which: NDArray[np.bool_]) -> Rows:
    """Some of the rows."""
    return rows._replace(
        env=rows.env[which],
        observation=tuple(leaf[which] for leaf in rows.observation),
        reward=rows.reward[which],
        terminated=rows.terminated[which],
        truncated=rows.truncated[which],
        first=rows.first[which],
        seed=None if rows.seed is None else rows.seed[which],
        options=None if rows.options is None else rows.options[which],
        infos=tuple((values[which], valid[which]) for values, valid in rows.infos),
        final=None if rows.final is None else rows.final[which],
    )
