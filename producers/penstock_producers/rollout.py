"""The rollout: the envs, one policy, a fragment at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_producers.fragment import ActingPolicy, ClosedFragment, Fragment
from penstock_producers.fragment.split import longest_chunk

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_producers.envs import Envs
    from penstock_producers.policy import Policy
    from penstock_schemas.stream import StreamSpec

# What the steps of a fragment may take, however large the observations: as much as a processor's cache may hold.
_FRAGMENT_BYTES = 8 << 20


class Rollout:
    """Steps envs with a policy, all together or each as it is ready.

    Args:
        env: the envs; they are reset here.
        policy: chooses the actions; its weights are replaced between fragments only. An action that is on its way then
            stays that of the weights that chose it.
        spec: the stream.
        fragment_steps: how many rows each env gives to a fragment, at most.
        fragment_seconds: how long a fragment takes, at most, one answer more or less.
        message_bytes: how many bytes of chunk rows a message holds.
        cut_steps: after how many steps an episode is cut, so that one that never ends is stored all the same; None
            for never.
        clock: seconds that never go back.
        beat: called after each answer of the envs.
    """

    def __init__(
        self,
        env: Envs,
        policy: Policy,
        spec: StreamSpec,
        *,
        fragment_steps: int,
        fragment_seconds: float,
        message_bytes: int,
        cut_steps: int | None = None,
        clock: Callable[[], float],
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._env = env
        self._policy = policy
        capacity = _capacity(spec, env.num_envs, fragment_steps, message_bytes)
        self._fragment_seconds = fragment_seconds
        self._clock = clock
        self._beat = beat
        self._fragment = Fragment(spec, env.num_envs, capacity, message_bytes, policy.recording, cut_steps)
        self._acting: ActingPolicy | None = None
        self._answer = env.reset()
        self._fragment.append(self._answer)

    def fragment(self) -> ClosedFragment:
        """Step the envs until the fragment is full or its time is over.

        Raises `EnvError` where the envs cannot go on; `close` then gives what they had answered before.
        """
        env, policy, fragment, answer = self._env, self._policy, self._fragment, self._answer
        acting = ActingPolicy(policy.version, policy.digest, policy.exploration)
        if acting != self._acting:
            fragment.use(acting)
            self._acting = acting
        now = self._clock()
        deadline = now + self._fragment_seconds
        while now < deadline and not fragment.full:
            if len(answer.ready):
                drawn, action = policy.act(answer.observation)
                fragment.sent(answer.ready, drawn)
                env.send(answer.ready, action)
            answer = self._answer = env.recv(deadline - now)
            fragment.append(answer)
            self._beat()
            now = self._clock()
        return self.close()

    def close(self) -> ClosedFragment:
        """Close the fragment as it stands; the next one goes on from here."""
        return self._fragment.close()


def _capacity(spec: StreamSpec, num_envs: int, fragment_steps: int, message_bytes: int) -> int:
    """How many steps of each env a fragment takes: where they are large, so many that messages come full."""
    capacity = max(1, min(fragment_steps, _FRAGMENT_BYTES // (num_envs * spec.step_bytes)))
    longest = longest_chunk(spec, message_bytes)
    return capacity - capacity % longest if capacity > longest else capacity
