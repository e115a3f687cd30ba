"""Closing a vector environment, also one whose processes no longer answer."""

from __future__ import annotations

from typing import Any, TypeAlias

from gymnasium.vector import AsyncVectorEnv, VectorEnv

AnyVectorEnv: TypeAlias = VectorEnv[Any, Any, Any]

_ANSWER_TIMEOUT_S = 5.0


def close_vector_env(env: AnyVectorEnv) -> None:
    """Close `env`, and end its processes where gymnasium's async vector env runs any, even those that hang.

    Raises whatever an env in this process raises while it closes.
    """
    base = env.unwrapped
    if not isinstance(base, AsyncVectorEnv):
        env.close()
        return
    try:
        # After a worker has died some siblings' answers were taken and some not: without a limit gymnasium waits
        # for all of them again.
        env.close(timeout=_ANSWER_TIMEOUT_S)
    except Exception:  # noqa: BLE001 - a dead worker shows as any error of a pipe, and its siblings must end too
        for process in base.processes:
            process.kill()
            process.join()
        base.closed = True
