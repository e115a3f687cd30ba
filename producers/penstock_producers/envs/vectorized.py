"""Ready-made vector environments: an environment's own, or gymnasium's sync and async around single envs."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from penstock_producers.contained import CONTAINED, told
from penstock_producers.envs.canonical import CanonicalEnv
from penstock_producers.envs.closing import close_vector_env
from penstock_schemas.errors import EnvError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock_producers.envs.closing import AnyVectorEnv
    from penstock_producers.envs.seeds import Seeds
    from penstock_producers.envs.source import EnvSource
    from penstock_producers.envs.wrapper import AnyEnv

# gymnasium's vectorizers seed env i with the seed + i: wide enough that no two producers' ranges meet, and that none
# overflows.
_GYMNASIUMS_SEED_BITS = 62


def make_vector(
    source: EnvSource,
    num_envs: int,
    kind: Literal["vector_entry_point", "sync", "async"],
    *,
    autoreset: AutoresetMode | None,
    seeds: Seeds,
    infos: Sequence[str],
) -> CanonicalEnv:
    """Make a ready-made vector environment; see `make_envs`."""
    made = source.vector(num_envs) if kind == "vector_entry_point" else _vectorized(source, num_envs, kind, autoreset)
    try:
        if made.num_envs != num_envs:
            raise EnvError(f"environment {source.env!r}: {num_envs} envs were asked for, but it has {made.num_envs}")
        canonical = CanonicalEnv(made, repr(source.env), seed=vector_seed(made, seeds), infos=infos)
        if autoreset is not None and canonical.autoreset_mode is not autoreset:
            raise EnvError(
                f"environment {source.env!r}: its own vector environment resets in mode "
                f"{canonical.autoreset_mode.name}, so {autoreset.name} cannot be had; leave the mode out, or use "
                "vectorization sync or async"
            )
    except PenstockError:
        with suppress(Exception):  # what is wrong with it is told already
            close_vector_env(made)
        raise
    return canonical


def vector_seed(env: AnyVectorEnv, seeds: Seeds) -> int:
    """Give the seed of a ready-made vector environment's one reset."""
    gymnasiums_own = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
    return seeds.vector(_GYMNASIUMS_SEED_BITS) if gymnasiums_own else seeds.vector()


def _vectorized(
    source: EnvSource, num_envs: int, kind: Literal["sync", "async"], autoreset: AutoresetMode | None
) -> AnyVectorEnv:
    # In SAME_STEP gymnasium keeps a reference to the last observation while it resets: an env that writes its
    # observations into one buffer then gives the reset observation as `final_obs`.
    mode = autoreset or AutoresetMode.NEXT_STEP
    # The rows are copied before the next step anyway: gymnasium need not copy them too.
    given: dict[str, Any] = {"copy": False, "autoreset_mode": mode}
    try:
        if kind == "async":
            pid = os.getpid()
            return AsyncVectorEnv([partial(_make_in_worker, source, i, pid) for i in range(num_envs)], **given)
        return SyncVectorEnv([partial(source.single, i) for i in range(num_envs)], **given)
    except PenstockError:
        raise
    except CONTAINED as error:
        raise EnvError(
            f"environment {source.env!r} cannot be vectorized by {kind}: {told(error)}; use lanes"
        ) from error


def _make_in_worker(source: EnvSource, index: int, parent: int) -> AnyEnv:
    # gymnasium makes one env in the parent too, to see its spaces.
    if os.getpid() != parent:
        # Ctrl-C reaches the whole process group, and only the parent knows how to stop in order; a handler for
        # SIGTERM that a fork took over from the parent would keep the worker from being terminated.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return source.single(index)
