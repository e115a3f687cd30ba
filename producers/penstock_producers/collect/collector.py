"""Collecting experience in this process, without a log: by steps, by episodes, for ever."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from tqdm.auto import tqdm

from penstock_producers.callbacks import CallbackList, attach
from penstock_producers.collect.call import check_amount, exploration, exploring
from penstock_producers.collect.collection import Collection
from penstock_producers.collect.resuming import (
    COMPONENTS,
    Loaded,
    check_generators,
    check_policy,
    counters_of,
    counters_state,
    generators_state,
    known,
    load_generators,
    policy_state,
    version_of,
)
from penstock_producers.collect.run import Run
from penstock_producers.collect.setup import acted, stepped
from penstock_producers.collect.statistics import Lifetime, Window, statistics_of
from penstock_producers.collect.video import filming
from penstock_producers.collect.weights import record_of
from penstock_producers.envs import Containment, EnvSource, Lanes, Seeds, make_envs
from penstock_producers.envs.seeds import ListedSeeds
from penstock_producers.rollout import RESET
from penstock_producers.state import load_state, save_state
from penstock_schemas.errors import EnvError, SettingsError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gymnasium.vector import AutoresetMode
    from numpy.typing import NDArray

    from penstock_producers.callbacks import Callbacks
    from penstock_producers.collect.episode import Episode
    from penstock_producers.collect.resuming import Counters
    from penstock_producers.collect.run import Gathered
    from penstock_producers.collect.setup import Collectable
    from penstock_producers.collect.statistics import Statistics
    from penstock_producers.envs import Envs, Vectorization, Wrapper
    from penstock_producers.policy import Policy
    from penstock_producers.state import Generator, State
    from penstock_schemas.policies import PolicyRecord

_CONTAINED = Containment()
_ACTIONS = "actions"
# A fault would part the film, and what follows it is of another episode.
_NO_SECOND_TRY = Containment(max_rebuilds=0)


class Collector:
    """Steps envs with a policy, and gives what was recorded, as a pod would publish it.

    A context manager: it closes the envs that it made. Envs that were handed over stay open.

    Args:
        env: a gymnasium id or `module:factory`; an `EnvSource`; a gymnasium env, or a list of them; a gymnasium vector
            env; or what `make_envs` made.
        policy: a name that `make_policy` knows, or a policy.
        num_envs: how many envs are made.
        seed: the root of the seeds of the policy, and of the envs but for those that `make_envs` made, which have
            theirs; None draws one, which the attribute `seed` tells.
        policy_arguments: of a policy that is named.
        behaviour: of a policy that is named: see `Behaviour`.
        connectors: before a policy that is named: `{"name": …, "arguments": …}` each.
        infos: the keys of the env's infos to record; a policy's mask is one of them.
        workers: how many processes step the envs; 0 steps them in this one.
        lockstep: whether workers answer all together, so that equal seeds give equal collections.
        vectorization: as for `make_envs`, as are `autoreset` and `containment`.
        autoreset: of gymnasium's own vector envs.
        containment: what is done about envs that break.
        wrappers: around each env that is named.
        env_arguments: of an env that is named.
        device: where a policy that is named computes.
        lookback: how many of the steps that went before an episode has where it goes on in another call.
        cut_steps: after how many steps an episode is cut; what follows is an episode of its own, that `continues` it.
        callbacks: are called in their order.
        window: how many episodes and calls `window` is of.
        generators: what else draws, by name, to be saved with `state`; that of a policy that is named is there, as
            "actions".
        producer: the name that seeds are drawn for, beside the root.
        clock: seconds that never go back.

    Raises what `make_envs` and `make_policy` raise, and `SettingsError` for what does not go together.

    Attributes:
        seed: the root of the seeds that are drawn here.
        policy: the policy.
        spec: what is recorded of a step.
    """

    def __init__(
        self,
        env: Collectable,
        policy: str | Policy = "actor-critic",
        *,
        num_envs: int = 1,
        seed: int | None = None,
        policy_arguments: Mapping[str, Any] | None = None,
        behaviour: Mapping[str, Any] | None = None,
        connectors: Sequence[Mapping[str, Any]] = (),
        infos: Sequence[str] = (),
        workers: int = 0,
        lockstep: bool = True,
        vectorization: Vectorization = "auto",
        autoreset: AutoresetMode | None = None,
        containment: Containment = _CONTAINED,
        wrappers: Sequence[Wrapper | Mapping[str, Any]] = (),
        env_arguments: Mapping[str, Any] | None = None,
        device: str = "cpu",
        lookback: int = 0,
        cut_steps: int | None = None,
        callbacks: Sequence[Callbacks] | CallbackList | None = None,
        window: int = 100,
        generators: Mapping[str, Generator] | None = None,
        producer: str = "collector",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, value, least in (
            ("lookback", lookback, 0),
            ("cut_steps", 1 if cut_steps is None else cut_steps, 1),
            ("window", window, 1),
        ):
            if value < least:
                raise SettingsError(f"{name} {value}: use {least} or more")
        if isinstance(policy, str) and _ACTIONS in (generators or {}):
            raise SettingsError(f"generators {_ACTIONS!r}: that name is the policy's own; use another")
        seeds = Seeds(seed, producer)
        self.seed = seeds.root
        self._producer = producer
        self._infos = tuple(infos)
        self._lookback, self._cut_steps = lookback, cut_steps
        self._clock = clock
        self._stepped = stepped(
            env,
            num_envs,
            seeds=seeds,
            clock=clock,
            env_arguments=env_arguments,
            wrappers=wrappers,
            workers=workers,
            lockstep=lockstep,
            vectorization=vectorization,
            autoreset=autoreset,
            containment=containment,
            infos=self._infos,
        )
        try:
            called = callbacks if isinstance(callbacks, CallbackList) else CallbackList(callbacks or ())
            rng = seeds.actions()
            self.spec, self.policy = acted(
                self._envs,
                policy,
                self._stepped.origin,
                metrics=called.metrics,
                rng=rng,
                arguments=policy_arguments,
                behaviour=behaviour,
                connectors=connectors,
                device=device,
            )
            self._observer = attach(called, self._envs)
        except BaseException:
            self.close()
            raise
        self._generators = {**({_ACTIONS: rng} if isinstance(policy, str) else {}), **(generators or {})}
        # The version that acts, where it came in here.
        self._loaded: Loaded | None = None
        self._run: Run | None = None
        self._first_episode = np.zeros(self._envs.num_envs, np.int64)
        self._videos = 0
        self._window_size = window
        self._returned: float | None = None
        self.reset_statistics()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the envs, where they were made here."""
        if self._stepped.owned:
            self._envs.close()

    def collect(
        self,
        n_steps: int | None = None,
        n_episodes: int | None = None,
        *,
        random: bool = False,
        explore: bool = True,
        reset: bool = False,
        options: Mapping[str, Any] | None = None,
        progress: bool = False,
    ) -> Collection:
        """Collect steps or episodes.

        Args:
            n_steps: exactly so many steps, of all envs together. Episodes that are open then go on in the next call.
                Where the envs answered more, those wait for the next call.
            n_episodes: exactly so many whole episodes, as many of each env, the rest of the first ones; from a reset.
                What is collected next begins with a reset too. An episode that a fault ends is made up for by the
                env's next one.
            random: whether actions are drawn uniformly, without the policy.
            explore: whether the policy explores.
            reset: whether all envs are reset first. Episodes that are open end aborted, with the reason "reset".
            options: of that reset, plain JSON; they imply one.
            progress: whether a bar is shown.

        Raises:
            SettingsError: for other than one of `n_steps` and `n_episodes`, and for what cannot be had.
            EnvError: where the envs cannot go on. What this call had collected is lost, and the next one begins anew.
        """
        check_amount(n_steps, n_episodes, self._cut_steps)
        wanted = exploration(random=random, explore=explore)
        unit, total = ("step", n_steps) if n_steps is not None else ("episode", n_episodes)
        started = self._clock()
        pause = None if self._returned is None else started - self._returned
        with exploring(self.policy, wanted), tqdm(total=total, unit=unit, disable=not progress) as bar:
            gathered = self._gather(n_steps, n_episodes, reset=reset, options=options, told=bar.update)
        self._returned = self._clock()
        measured = gathered.measured(self._returned - started, pause)
        self._window.add(measured)
        self._lifetime.add(measured)
        return Collection(gathered.laid, gathered.gathering.times, self.spec, statistics_of(measured))

    def forever(self, n_steps: int, **settings: Any) -> Iterator[Collection]:
        """Collect so many steps again and again; `settings` are those of `collect`."""
        while True:
            yield self.collect(n_steps, **settings)

    def load(self, policy: PolicyRecord | Mapping[str, Any], *, settings: Mapping[str, Any] | None = None) -> None:
        """Act with other weights from the next call on.

        Args:
            policy: a version; or weights, arrays or tensors by name, which become the version after the one that acts.
            settings: beside such weights: epsilon, temperature, noise; those that act by default.

        Raises `PolicyRejectedError` where the policy refuses them, and nothing has changed then.
        """
        acting = {} if self._loaded is None else self._loaded.record.settings
        version = record_of(policy, self.policy, acting if settings is None else settings)
        self.policy.load(version)
        self._loaded = Loaded(version, self.policy.digest)

    @property
    def window(self) -> Statistics:
        """Figures of the last episodes, and of the last calls."""
        return self._window.statistics

    @property
    def lifetime(self) -> Statistics:
        """Figures of everything since the beginning, that of a state that was loaded."""
        return self._lifetime.statistics

    def reset_statistics(self) -> None:
        """Begin `window` and `lifetime` anew."""
        self._window, self._lifetime = Window(self._window_size), Lifetime()

    def render(self) -> list[NDArray[Any] | None]:
        """Have every env draw itself: a frame each, None for one that is down or draws no array.

        Raises `EnvError` for envs that are not stepped in lanes.
        """
        envs = self._envs
        if not isinstance(envs, Lanes):
            raise EnvError(f"{type(envs).__name__} does not draw single envs; step them in lanes: vectorization lanes")
        if self._run is None:
            self._run = self._begun(None)
        return [envs.render(env) for env in range(envs.num_envs)]

    def record_video(
        self,
        path: str | os.PathLike[str],
        *,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        steps: int | None = None,
        explore: bool = False,
        fps: float | None = None,
    ) -> Episode:
        """Film one episode of the policy; an episode that was collected is filmed by its seed and its options.

        An env that is named is made once more, with `render_mode="rgb_array"`, and what is being collected goes on
        untouched, but for what the policy draws. One that was handed over is filmed itself: what is collected next
        begins with a reset.

        Args:
            path: a file, .mp4 or .gif; imageio writes it, which comes with `penstock[video]`.
            seed: of the episode's reset; by default the next one of those that are kept for videos.
            options: of the reset.
            steps: after how many steps the film ends at the latest.
            explore: whether the policy explores.
            fps: frames a second; by default what the env's metadata say, else 30.

        Raises `SettingsError` for another kind of file and where imageio is missing, and `EnvError` for a seed that is
        none, for envs of which no single one can be had, and for one that draws no array.
        """
        source = self._stepped.source
        if source is None:
            raise EnvError(f"{type(self._envs).__name__} has no single env to be filmed; name the environment")
        seeds = ListedSeeds([self._video_seed() if seed is None else seed], 1)
        if not isinstance(source, EnvSource):
            self._begin_anew()
        with filming(source, path, steps=steps, fps=fps) as filmed:
            envs = make_envs(filmed, 1, seeds=seeds, clock=self._clock, infos=self._infos, containment=_NO_SECOND_TRY)
            collector = Collector(envs, self.policy, clock=self._clock)
            return collector.collect(n_episodes=1, explore=explore, options=options).episodes[0]

    def state(self) -> State:
        """Tell what to go on with: `counters`, `policy` and `generators`.

        Raises `PolicyError` for a policy whose version did not come in by `load`.
        """
        envs = self._envs
        first = self._first_episode if self._run is None else self._run.next_episode
        resets = envs.next_episode if isinstance(envs, Lanes) else None
        return {
            "counters": counters_state(self._lifetime, first, resets),
            "policy": policy_state(self.policy, self._loaded),
            "generators": generators_state(self._seeds, self._generators),
        }

    def save(self, path: str | os.PathLike[str], components: Iterable[str] = COMPONENTS) -> None:
        """Write the state, or some of its components, to a file."""
        state = self.state()
        save_state(path, {name: state[known(name)] for name in components})

    def load_state(self, state: str | os.PathLike[str] | State, components: Iterable[str] | None = None) -> None:
        """Go on with a state, that of a file or of another collector; by default with all of it that is there.

        What is collected next begins with a reset. In lanes it is then what the collector that was saved would have
        collected next with `reset=True`, or after a call by episodes: the same rows to the last bit and the same
        numbers of episodes, given the same settings, all components, and envs whose `reset(seed=…)` begins anew. A
        ready-made vector env is seeded once, and gives its state to nobody: its next episodes are others.

        Raises `SettingsError` for a state that is none of a collector like this one, `PolicyRejectedError` where the
        policy does not take its version, and `PolicyError` where it has none and the policy was made otherwise, or has
        loaded one since. Nothing has changed then.
        """
        loaded = state if isinstance(state, dict) else load_state(state, components)  # type: ignore[arg-type]  # a path
        chosen = {known(name): loaded[name] for name in (loaded if components is None else components)}
        counters, policy, generators = (chosen.get(name) for name in COMPONENTS)
        if generators is not None:
            check_generators(generators, self._seeds, self._generators)
        counted = None if counters is None else counters_of(counters, self._envs.num_envs)
        if policy is not None:
            check_policy(policy, self.policy)
            if (version := version_of(policy)) is not None:
                self.load(version)
        # Nothing is refused any more: only loading it tells whether a version can act.
        self._begin_anew()
        if generators is not None:
            load_generators(generators, self._generators)
        if counted is not None:
            self._load_counters(counted)

    @property
    def _seeds(self) -> dict[str, Any]:
        return {"seed": self.seed, "producer": self._producer}

    @property
    def _envs(self) -> Envs:
        return self._stepped.envs

    def _gather(
        self,
        n_steps: int | None,
        n_episodes: int | None,
        *,
        reset: bool,
        options: Mapping[str, Any] | None,
        told: Callable[[int], Any],
    ) -> Gathered:
        try:
            if self._run is None:
                self._run = self._begun(options)
                reset, options = False, None
            if n_steps is not None:
                return self._run.by_steps(n_steps, reset=reset or options is not None, options=options, told=told)
            return self._run.by_episodes(n_episodes or 0, reset=reset, options=options, told=told)
        except BaseException:
            # The rows of a call that did not come to its end are nobody's.
            self._begin_anew()
            raise

    def _begun(self, options: Mapping[str, Any] | None) -> Run:
        if self._observer is not None:
            # Those of a run that was given up: no answer tells of their end.
            self._observer.abandon(RESET)
        return Run(
            self._envs,
            self.policy,
            self.spec,
            options=options,
            first_episode=self._first_episode,
            lookback=self._lookback,
            cut_steps=self._cut_steps,
            observer=self._observer,
            clock=self._clock,
        )

    def _begin_anew(self) -> None:
        if self._run is not None:
            self._first_episode = self._run.next_episode
            self._run = None

    def _video_seed(self) -> int:
        seed = Seeds(self.seed, f"{self._producer}/video").episode(0, self._videos)
        self._videos += 1
        return seed

    def _load_counters(self, counted: Counters) -> None:
        self._lifetime, self._first_episode = counted.lifetime, counted.episodes
        if isinstance(self._envs, Lanes) and counted.resets is not None:
            self._envs.next_episode = counted.resets
