"""Closing a vector environment, also one whose processes no longer answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeAlias

from gymnasium.vector import AsyncVectorEnv, VectorEnv

if TYPE_CHECKING:
    from collections.abc import Iterable
    from multiprocessing.process import BaseProcess

AnyVectorEnv: TypeAlias = VectorEnv[Any, Any, Any]

_ANSWER_TIMEOUT_S = 5.0
_END_TIMEOUT_S = 10.0


def close_vector_env(env: AnyVectorEnv) -> None:
    """Close `env`, and end its processes where gymnasium's async vector env runs any, even those that hang.

    Raises whatever an env in this process raises while it closes.
    """
    base = env.unwrapped
    if not isinstance(base, AsyncVectorEnv):
        env.close()
        return
    # gymnasium waits without a limit for the ends of processes, which an env that left a thread behind prevents.
    late = threading.Timer(_END_TIMEOUT_S, _kill, (base.processes,))
    late.start()
    try:
        # After a worker has died some siblings' answers were taken and some not: without a limit gymnasium waits
        # for all of them again.
        env.close(timeout=_ANSWER_TIMEOUT_S)
    except Exception:  # noqa: BLE001 - a dead worker shows as any error of a pipe, and its siblings must end too
        _kill(base.processes)
        for process in base.processes:
            process.join()
        base.closed = True
    finally:
        late.cancel()


def _kill(processes: Iterable[BaseProcess]) -> None:
    for process in processes:
        process.kill()
