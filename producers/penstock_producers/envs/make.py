"""Environments of every kind behind one interface: from a source, or from envs that exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import gymnasium

from penstock_producers.envs.envpool import make_envpool
from penstock_producers.envs.lanes import Containment, Lanes
from penstock_producers.envs.vectorized import make_vector
from penstock_schemas.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gymnasium.vector import AutoresetMode

    from penstock_producers.envs.rows import Envs
    from penstock_producers.envs.seeds import Seeds
    from penstock_producers.envs.source import EnvSource
    from penstock_producers.envs.wrapper import AnyEnv

_Kind: TypeAlias = Literal["vector_entry_point", "lanes", "sync", "async", "envpool"]
Vectorization: TypeAlias = Literal["auto", _Kind]

_ENVPOOL = "envpool:"
_CONTAINED = Containment()


def make_envs(
    source: EnvSource | AnyEnv | Sequence[AnyEnv],
    num_envs: int | None = None,
    *,
    seeds: Seeds,
    clock: Callable[[], float],
    vectorization: Vectorization = "auto",
    autoreset: AutoresetMode | None = None,
    infos: Sequence[str] = (),
    workers: int = 0,
    lockstep: bool = False,
    containment: Containment = _CONTAINED,
) -> Envs:
    """Make `num_envs` environments of one kind, or take those that exist.

    Args:
        source: How they are made; or an env that exists, or several, each its own. Those are stepped in lanes in this
            process and cannot be made anew: after a fault one is reset, and parked where that does not help.
        num_envs: How many, at least 1; may be left out for envs that exist.
        seeds: Of every episode in lanes; a ready-made vector environment takes one for its one reset.
        clock: In seconds, monotonic.
        vectorization: `vector_entry_point` is the environment's own vector environment (or the factory's); `lanes`
            steps single envs, each contained; `sync` and `async` are gymnasium's; `envpool` is an EnvPool task. `auto`
            takes `envpool` for a name that begins with `envpool:`, else the environment's own where it has one and
            neither wrappers nor workers are asked for, else lanes.
        autoreset: The autoreset mode of `sync` and `async`, by default NEXT_STEP. An environment's own vector
            environment has a mode of its own: another one is refused. Lanes and EnvPool take none.
        infos: The keys of the infos to record.
        workers: How many processes step the lanes; 0 steps them in this process.
        lockstep: Whether workers answer all envs together, so that a run repeats itself, or each group when it is
            ready. All else is in lockstep anyway, but for EnvPool with a `batch_size` among its arguments.
        containment: What lanes do about envs that break.

    Raises:
        EnvError: what cannot be made or does not go together, with the reason.
        SpaceError: an observation or action space that is not mapped to Arrow.
    """
    if vectorization not in get_args(Vectorization):
        raise EnvError(
            f"{_named(source)}: vectorization {vectorization!r} is unknown; use one of "
            f"{', '.join(get_args(Vectorization))}"
        )
    in_lanes: dict[str, Any] = {"seeds": seeds, "infos": infos, "containment": containment, "clock": clock}
    if isinstance(source, gymnasium.Env | Sequence):
        envs = source if isinstance(source, Sequence) else (source,)
        _check_existing(envs, num_envs, vectorization, autoreset, workers)
        return Lanes.existing(envs, **in_lanes)
    if num_envs is None or num_envs < 1:
        raise EnvError(f"environment {source.env!r}: num_envs is {num_envs}, but must be at least 1")
    match _chosen(source, num_envs, vectorization, autoreset, workers):
        case "lanes" if workers:
            return Lanes.workers(source, num_envs, workers, lockstep=lockstep, **in_lanes)
        case "lanes":
            return Lanes.local(source.single, num_envs, name=repr(source.env), **in_lanes)
        case "envpool":
            return _envpool(source, num_envs, seeds, infos, lockstep=lockstep)
        case kind:
            return make_vector(source, num_envs, kind, autoreset=autoreset, seeds=seeds, infos=infos)


def _chosen(
    source: EnvSource, num_envs: int, vectorization: Vectorization, autoreset: AutoresetMode | None, workers: int
) -> _Kind:
    """Choose what `auto` stands for, and refuse what does not go together."""
    env = f"environment {source.env!r}"
    kind = _of_auto(source, workers) if vectorization == "auto" else vectorization
    if source.env.startswith(_ENVPOOL) and kind != "envpool":
        raise EnvError(f"{env}: an EnvPool task is no gymnasium environment; use vectorization auto or envpool")
    if kind in {"lanes", "sync", "async"} and not source.has_single:
        raise EnvError(
            f"{env} makes vector environments only, so vectorization {kind!r} is not for it; use vector_entry_point"
        )
    if kind == "vector_entry_point" and not source.has_vector:
        raise EnvError(f"{env} has no vector entry point; use vectorization lanes, sync or async")
    if workers and kind != "lanes":
        raise EnvError(f"{env}: only lanes have workers, so {workers} cannot be had with vectorization {kind!r}; use 0")
    if not 0 <= workers <= num_envs:
        raise EnvError(f"{env}: {workers} workers for {num_envs} envs; use 0 for none, or one per env at most")
    if autoreset is not None and kind in {"lanes", "envpool"}:
        owner = "lanes reset each env by themselves" if kind == "lanes" else "EnvPool has a mode of its own"
        raise EnvError(
            f"{env}: {owner}, so {autoreset.name} cannot be had; leave the mode out, or use vectorization sync or async"
        )
    return kind


def _of_auto(source: EnvSource, workers: int) -> _Kind:
    if source.env.startswith(_ENVPOOL):
        return "envpool"
    if not source.has_vector:
        return "lanes"
    # One that makes vectors only is taken for what it is, so that the error says why the rest cannot be had.
    asks_for_lanes = bool(source.wrappers or workers)
    return "lanes" if asks_for_lanes and source.has_single else "vector_entry_point"


def _check_existing(
    envs: Sequence[AnyEnv], num_envs: int | None, vectorization: Vectorization, autoreset: object, workers: int
) -> None:
    if not envs or num_envs not in {None, len(envs)}:
        raise EnvError(f"num_envs is {num_envs}, but {len(envs)} existing envs were given; leave it out")
    if vectorization not in {"auto", "lanes"} or autoreset is not None or workers:
        raise EnvError(
            f"{_named(envs)}: envs that exist are stepped in lanes in this process, so there is no vectorization "
            f"{vectorization!r} with autoreset {autoreset} and {workers} workers; name the environment instead"
        )
    for i, env in enumerate(envs):
        if not isinstance(env, gymnasium.Env):
            raise EnvError(f"env {i} is a {type(env).__name__}, no gymnasium.Env; name an environment by an EnvSource")
        if any(env is other for other in envs[:i]):
            raise EnvError(f"{_named(envs)}: env {i} is given twice; make one for each place")


def _envpool(source: EnvSource, num_envs: int, seeds: Seeds, infos: Sequence[str], *, lockstep: bool) -> Envs:
    if source.wrappers:
        names = ", ".join(repr(wrapper.name) for wrapper in source.wrappers)
        raise EnvError(f"environment {source.env!r}: EnvPool takes no wrappers, so {names} cannot be had; use lanes")
    kwargs = dict(source.kwargs)
    batch_size = kwargs.pop("batch_size", None)
    if lockstep and batch_size not in {None, num_envs}:
        raise EnvError(
            f"environment {source.env!r}: batch_size is {batch_size} of {num_envs} envs, but lockstep answers all "
            "together; leave one of them out"
        )
    task = source.env.removeprefix(_ENVPOOL)
    return make_envpool(task, num_envs, kwargs=kwargs, seed=seeds.vector(), infos=infos, batch_size=batch_size)


def _named(source: EnvSource | AnyEnv | Sequence[AnyEnv]) -> str:
    if isinstance(source, Sequence):
        return "environments [" + ", ".join(map(str, source)) + "]"
    return f"environment {source if isinstance(source, gymnasium.Env) else source.env!r}"
