"""The rollout: one vector env, one policy, a fragment at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_producers.fragment import ActingPolicy, ClosedFragment, Fragment

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_producers.envs import CanonicalEnv
    from penstock_producers.policy import Policy
    from penstock_schemas.stream import StreamSpec

# What a fragment may hold in memory, however large its observations.
_FRAGMENT_BYTES = 64 << 20


class Rollout:
    """Steps a vector env with a policy.

    Args:
        env: the env; it is reset here.
        policy: chooses the actions; its weights are replaced between fragments only.
        spec: the stream.
        fragment_steps: how many times the env is stepped in a fragment, at most.
        fragment_seconds: how long a fragment takes, at most, one step more or less.
        row_bytes: how many bytes one chunk may take.
        seed: of the env's first reset; None for one from the system.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        env: CanonicalEnv,
        policy: Policy,
        spec: StreamSpec,
        *,
        fragment_steps: int,
        fragment_seconds: float,
        row_bytes: int,
        seed: int | None,
        clock: Callable[[], float],
    ) -> None:
        self._env = env
        self._policy = policy
        step_bytes = env.num_envs * (spec.step_bytes + spec.row_bytes)
        self._fragment_steps = max(1, min(fragment_steps, _FRAGMENT_BYTES // step_bytes))
        self._fragment_seconds = fragment_seconds
        self._clock = clock
        self._fragment = Fragment(spec, env.num_envs, self._fragment_steps + 1, row_bytes, policy.recording)
        self._fragment.append(env.reset(seed), None)

    def fragment(self) -> ClosedFragment:
        """Step the env until the fragment is full or its time is over.

        Raises `EnvError` where the env breaks; `close` then gives what it had answered before.
        """
        env, policy, append = self._env, self._policy, self._fragment.append
        deadline = self._clock() + self._fragment_seconds
        for _ in range(self._fragment_steps):
            drawn, sent = policy.act(env.observation)
            steps, *resets = env.step(sent)
            append(steps, drawn)
            for rows in resets:
                append(rows, None)
            if self._clock() >= deadline:
                break
        return self.close()

    def close(self) -> ClosedFragment:
        """Close the fragment as it stands; the next one goes on from here."""
        return self._fragment.close(ActingPolicy(self._policy.version, self._policy.digest))
