"""Playing an episode for each seed of a list, in any number of lanes, with the same result."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import gymnasium

from penstock_producers.envs import Containment, EnvSource, Lanes, Wrapper, make_envs
from penstock_producers.envs.seeds import ListedSeeds
from penstock_producers.evaluate.placed import Placed
from penstock_producers.evaluate.report import EvaluatedEpisode, Evaluation
from penstock_producers.evaluate.tally import Tally
from penstock_producers.making import describe, spec_of
from penstock_producers.rollout import Rollout
from penstock_schemas.chunks import Ends, Exploration
from penstock_schemas.errors import EnvError, PolicyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock_producers.envs.wrapper import AnyEnv
    from penstock_producers.evaluate.tally import Played
    from penstock_producers.fragment import ClosedFragment
    from penstock_producers.policy import Policy
    from penstock_schemas.policies import PolicyRecord
    from penstock_schemas.stream import StreamSpec

Sink: TypeAlias = "Callable[[ClosedFragment], None]"

# How many rows each forward has. As many lanes as can be had without a forward more, if the seeds follow one another.
BATCH = 64
# How often a seed is played whose episode a fault aborts.
ATTEMPTS = 3
_STREAM = "evaluation"
_FRAGMENT_STEPS = 256
_FRAGMENT_SECONDS = 1.0
_MESSAGE_BYTES = 1 << 20
_ENVPOOL = "envpool:"
_CONTAINED = Containment()


class StoppedError(Exception):
    """An evaluation is to end before its seeds are played."""


def evaluate(
    env: str | EnvSource | AnyEnv | Sequence[AnyEnv],
    policy: str | Policy,
    seeds: Iterable[int],
    *,
    num_envs: int | None = None,
    workers: int = 0,
    infos: Sequence[str] = (),
    containment: Containment = _CONTAINED,
    env_arguments: Mapping[str, Any] | None = None,
    wrappers: Sequence[Wrapper | Mapping[str, Any]] = (),
    policy_arguments: Mapping[str, Any] | None = None,
    behaviour: Mapping[str, Any] | None = None,
    connectors: Sequence[Mapping[str, Any]] = (),
    device: str = "cpu",
    weights: PolicyRecord | None = None,
    max_steps: int | None = None,
    attempts: int = ATTEMPTS,
    batch: int = BATCH,
    clock: Callable[[], float] = time.monotonic,
) -> Evaluation:
    """Play one episode for each seed, without exploration.

    What a seed gives depends on the env, the policy, the seed and `batch` only: neither on the number of lanes or
    workers nor on the other seeds. That holds to the last bit on one machine and one device with the same number of
    threads, for envs whose `reset(seed=…)` begins anew.

    Args:
        env: a name or a source, or envs that exist, which are stepped in this process and left open.
        policy: what `make_policy` knows it as; or one that exists, which explores no more until this returns.
        seeds: all different, 0 … 2**63 - 1, an episode each.
        num_envs: how many lanes; no more than there are seeds, nor than `batch` where it is left out.
        workers: how many processes step them; 0 steps them in this process.
        infos: the keys of the infos that the policy is given, masks for one.
        containment: what is contained. An env that uses up its budget ends the evaluation: what was not played until
            then has failed.
        env_arguments: of an env that is named.
        wrappers: around each env that is named, the first one innermost.
        policy_arguments: of a policy that is named, as are `behaviour`, `connectors` and `device`.
        behaviour: see `make_policy`.
        connectors: see `make_policy`.
        device: see `make_policy`.
        weights: the version that is loaded first; without one the policy plays as it is.
        max_steps: after how many steps an episode is cut, and told to be; None for never.
        attempts: how often a seed is played whose episode a fault aborts.
        batch: how many rows each forward is filled up to.
        clock: seconds that never go back.

    Raises:
        EnvError: an env that cannot be made or cannot be seeded episode by episode, or seeds that are none.
        SpaceError: a space that is not mapped.
        PolicyError: a policy that cannot be made, or cannot choose without exploring.
        PolicyRejectedError: weights that the policy does not take.
    """
    if isinstance(env, str):
        around = tuple(one if isinstance(one, Wrapper) else Wrapper.from_json(one) for one in wrappers)
        env = EnvSource(env, dict(env_arguments or {}), around)
    elif env_arguments or wrappers:
        raise EnvError(
            f"env_arguments {env_arguments} and wrappers {list(wrappers)} are for an environment that is named, not "
            f"for a {type(env).__name__}: give them to it yourself"
        )
    evaluator = Evaluator(
        env,
        seeds,
        num_envs=num_envs,
        workers=workers,
        infos=infos,
        containment=containment,
        max_steps=max_steps,
        attempts=attempts,
        batch=batch,
        clock=clock,
    )
    if isinstance(policy, str):
        policy = evaluator.describe(
            _STREAM, policy, arguments=policy_arguments, behaviour=behaviour, connectors=connectors, device=device
        )[1]
    elif policy_arguments or behaviour or connectors or device != "cpu":
        raise PolicyError(
            f"policy_arguments, behaviour, connectors and device are for a policy that is named, not for a "
            f"{type(policy).__name__}: give them to it yourself"
        )
    if weights is not None:
        policy.load(weights)
    return evaluator.run(policy)


class Evaluator:
    """Plays the same seeds with one version of a policy after the other; see `evaluate` for what it is made with."""

    def __init__(
        self,
        env: str | EnvSource | AnyEnv | Sequence[AnyEnv],
        seeds: Iterable[int],
        *,
        num_envs: int | None = None,
        workers: int = 0,
        infos: Sequence[str] = (),
        containment: Containment = _CONTAINED,
        max_steps: int | None = None,
        attempts: int = ATTEMPTS,
        batch: int = BATCH,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        numbers = {"num_envs": num_envs, "max_steps": max_steps, "attempts": attempts, "batch": batch}
        for name, number in numbers.items():
            if number is not None and number < 1:
                raise EnvError(f"evaluation: {name} is {number}, but must be at least 1")
        self._source = _source(env)
        self.seeds = tuple(seeds)
        ListedSeeds(self.seeds, 1)  # what is none is refused before anything is made
        most = len(self._source) if isinstance(self._source, tuple) else num_envs or batch
        if isinstance(self._source, tuple) and num_envs not in {None, most}:
            raise EnvError(f"evaluation: num_envs is {num_envs}, but {most} existing envs were given; leave it out")
        self._num_envs = most
        self._workers = workers
        self._infos = infos
        self._containment = containment
        self._max_steps = max_steps
        self._attempts = attempts
        self._batch = batch
        self._clock = clock

    def describe(self, stream: str, policy: str, **settings: Any) -> tuple[StreamSpec, Policy]:
        """Make a policy for the envs, and describe the stream that the two give; `settings` are as in `describe`."""
        source, origin = self._source, {}
        if isinstance(source, EnvSource):
            wrappers = [wrapper.to_json() for wrapper in source.wrappers]
            origin = {"id": source.env, "arguments": dict(source.kwargs), "wrappers": wrappers}
        with self._lanes(self.seeds, 1) as lanes:
            rng = ListedSeeds(self.seeds, 1).actions()
            return describe(stream, lanes, origin, policy=policy, rng=rng, **settings)

    def run(
        self,
        policy: Policy,
        *,
        spec: StreamSpec | None = None,
        sink: Callable[[], AbstractContextManager[Sink]] = lambda: nullcontext(_nowhere),
        message_bytes: int = _MESSAGE_BYTES,
        beat: Callable[[], None] = lambda: None,
    ) -> Evaluation:
        """Play all seeds with the policy as it is, but for its exploration, which is off until this returns.

        Args:
            policy: made for these envs.
            spec: of the stream that the episodes are recorded for.
            sink: entered once for every set of lanes that is made, each an incarnation of its own; it gives what takes
                the fragments.
            message_bytes: how many bytes of chunk rows a message holds.
            beat: called after each answer of the envs; it may raise to give up. After a `StoppedError` the sink
                is still given what was recorded.
        """
        exploration = policy.exploration
        policy.exploration = Exploration.OFF
        if policy.exploration is not Exploration.OFF:
            raise PolicyError(f"policy {type(policy).__name__} cannot choose without exploring: it has nothing to show")
        try:
            episodes = self._play(policy, spec, sink, message_bytes, beat)
        finally:
            policy.exploration = exploration
        ordered = tuple(episodes[seed] for seed in self.seeds)
        return Evaluation(self._name, policy.version, policy.digest, self._batch, ordered)

    def _play(
        self,
        policy: Policy,
        spec: StreamSpec | None,
        sink: Callable[[], AbstractContextManager[Sink]],
        message_bytes: int,
        beat: Callable[[], None],
    ) -> dict[int, EvaluatedEpisode]:
        """Play seeds until each has its end, or its last attempt; answer their episodes, by seed."""
        episodes: dict[int, EvaluatedEpisode] = {}
        left = self.seeds
        for attempt in range(1, self._attempts + 1):
            broken = None
            # Played again, each env has a process of its own: one that ends takes no other's episode with it.
            most = self._num_envs if attempt == 1 else self._workers or self._num_envs
            with self._lanes(left, most) as lanes:
                placed = Placed(policy, self._batch)
                tally = Tally(lanes, left, placed, self._max_steps)
                try:
                    with sink() as take:
                        rollout = Rollout(
                            lanes,
                            cast("Policy", placed),  # it is one, by what it hands on
                            spec or spec_of(_STREAM, lanes, policy, {}, {}),
                            fragment_steps=_FRAGMENT_STEPS,
                            fragment_seconds=_FRAGMENT_SECONDS,
                            message_bytes=message_bytes,
                            clock=self._clock,
                            beat=beat,
                            observer=tally,
                            interrupt=tally.is_done,
                        )
                        _until_done(rollout, tally, take)
                except EnvError as error:
                    broken = str(error)
                    tally.broke(broken)
            episodes |= _episodes(left, tally.played, attempt, broken)
            left = tuple(seed for seed in left if episodes[seed].ends is Ends.ABORTED)
            if broken is not None or not left:
                break
        return episodes

    @property
    def _name(self) -> str:
        return self._source.env if isinstance(self._source, EnvSource) else ", ".join(map(str, self._source))

    @contextmanager
    def _lanes(self, seeds: Sequence[int], most: int) -> Iterator[Lanes]:
        """Make lanes that play seeds, one each at least, and so many at most."""
        n, source = min(self._num_envs, most, len(seeds)), self._source
        exists = not isinstance(source, EnvSource)
        lanes = make_envs(
            source if isinstance(source, EnvSource) else source[:n],
            n,
            seeds=ListedSeeds(seeds, n),
            clock=self._clock,
            vectorization="lanes",
            infos=self._infos,
            workers=min(self._workers, n),
            containment=self._containment,
        )
        if not isinstance(lanes, Lanes):
            raise TypeError("lanes were asked for")
        try:
            yield lanes
        finally:
            if not exists:
                lanes.close()


def _source(env: Any) -> EnvSource | tuple[AnyEnv, ...]:
    """Refuse what cannot begin a single episode with a seed."""
    if isinstance(env, str):
        env = EnvSource(env)
    if isinstance(env, EnvSource):
        if env.env.startswith(_ENVPOOL) or not env.has_single:
            kind = "an EnvPool task" if env.env.startswith(_ENVPOOL) else "made as a ready-made vector environment only"
            raise EnvError(
                f"environment {env.env!r} is {kind}: it takes one seed for all its episodes, and an evaluation begins "
                "each with its own; name an environment that is made one at a time"
            )
        return env
    envs = (env,) if isinstance(env, gymnasium.Env) else tuple(env) if isinstance(env, list | tuple) else None
    if not envs:
        raise EnvError(
            f"evaluation of a {type(env).__name__}: an evaluation begins each episode with a seed of its own, in "
            "single envs; name the environment, or give a gymnasium.Env or a list of them"
        )
    return envs


def _until_done(rollout: Rollout, tally: Tally, take: Sink) -> None:
    """Step until nothing is left to be played, or the lanes cannot go on."""
    try:
        while not tally.is_done():
            take(rollout.fragment())
    except (EnvError, StoppedError):
        take(rollout.close())
        raise


def _nowhere(_: ClosedFragment) -> None:
    pass


def _episodes(seeds: Sequence[int], played: Played, attempt: int, broken: str | None) -> dict[int, EvaluatedEpisode]:
    """Tell what became of seeds in one attempt."""
    episodes = {}
    for place, seed in enumerate(seeds):
        ends = Ends(int(played.ends[place]))
        if ends:
            length = int(played.length[place])
            episodes[seed] = EvaluatedEpisode(seed, ends, float(played.returns[place]), length, attempt)
        elif place in played.reasons:
            episodes[seed] = EvaluatedEpisode(seed, Ends.ABORTED, None, None, attempt, played.reasons[place])
        else:
            reason = broken or "its env was out of order before it came to it"
            episodes[seed] = EvaluatedEpisode(seed, Ends.ABORTED, None, None, attempt - 1, reason)
    return episodes
