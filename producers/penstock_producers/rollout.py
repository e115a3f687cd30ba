"""The rollout: the envs, one policy, a fragment at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from penstock_producers.actor import Actor
from penstock_producers.envs.rows import Abort
from penstock_producers.fragment import ActingPolicy, ClosedFragment, Fragment
from penstock_producers.fragment.split import longest_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from penstock_producers.envs import Answer, Envs
    from penstock_producers.policy import Policy
    from penstock_schemas.stream import StreamSpec

# What the steps of a fragment may take: as much as a processor's cache may hold. Where that is too little for chunks of
# this many steps it is more, up to a limit: each chunk has one observation more than steps.
_CACHED_BYTES, _LARGEST_BYTES = 8 << 20, 64 << 20
_LONG_CHUNK = 32
# Why an episode ends that a reset of all envs leaves open.
RESET = "reset"


class Observer(Protocol):
    """Is shown what the envs answer, before it is recorded."""

    def see(self, answer: Answer) -> Answer:
        """Look at an answer; give it back, with metrics in `steps.metrics` where it measured any."""
        ...


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
        observer: is shown every answer, and may add the metrics of episodes to it.
        interrupt: asked after each answer whether the fragment is to close before its time.
        options: of the envs' reset.
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
        observer: Observer | None = None,
        interrupt: Callable[[], bool] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._env = env
        self._policy = policy
        self._actor = Actor(policy, env)
        capacity = _capacity(spec, env.num_envs, fragment_steps, message_bytes)
        self._fragment_seconds = fragment_seconds
        self._clock = clock
        self._beat = beat
        self._observer = observer
        self._interrupt = interrupt
        # Which envs take no more actions, shape (N,); only envs that can wait while others are stepped.
        self.parked: NDArray[np.bool_] | None = None
        self._fragment = Fragment(spec, env.num_envs, capacity, message_bytes, policy.recording, cut_steps)
        self._acting: ActingPolicy | None = None
        self.answer = self._seen(env.reset(options))
        self.record(self.answer)

    @property
    def full(self) -> bool:
        """Whether the fragment is to close before another answer is recorded."""
        return self._fragment.full

    def fragment(self) -> ClosedFragment:
        """Step the envs until the fragment is full or its time is over.

        Raises `EnvError` where the envs cannot go on; `close` then gives what they had answered before.
        """
        self.begin()
        now = self._clock()
        deadline = now + self._fragment_seconds
        while now < deadline and not self._fragment.full:
            self.record(self.step(deadline - now))
            if self._interrupt is not None and self._interrupt():
                break
            now = self._clock()
        return self.close()

    def begin(self) -> None:
        """Bind the actions from here on to the policy as it is now."""
        policy = self._policy
        acting = ActingPolicy(policy.version, policy.digest, policy.exploration, policy.absent)
        if acting != self._acting:
            self._fragment.use(acting)
            self._acting = acting

    def step(self, timeout: float) -> Answer:
        """Have the policy act on the envs that are ready, and wait for an answer, at most so many seconds."""
        ready, observation = self.answer.ready, self.answer.observation
        if self.parked is not None:
            goes_on = ~self.parked[ready]
            ready, observation = ready[goes_on], tuple(leaf[goes_on] for leaf in observation)
        if len(ready):
            drawn, action = self._actor.act(ready, observation)
            self._fragment.sent(ready, drawn)
            self._env.send(ready, action)
        self.answer = self._seen(self._env.recv(timeout))
        self._beat()
        return self.answer

    def record(self, answer: Answer) -> None:
        """Take what the envs answered into the fragment."""
        self._fragment.append(answer)

    def close(self) -> ClosedFragment:
        """Close the fragment as it stands; the next one goes on from here."""
        return self._fragment.close()

    def reset(self, options: Mapping[str, Any] | None = None) -> Answer:
        """Begin a new episode in every env, with options for its reset; what is open ends aborted, as "reset".

        Answers that were not recorded need not be. An episode whose end is in one of them is open to the fragment, and
        not to the observer: so every env has an abort here, which says nothing where no episode is open.
        """
        aborts = tuple(Abort(env, RESET) for env in range(self._env.num_envs))
        self.answer = self._seen(self._env.reset(options)._replace(aborts=aborts))
        return self.answer

    def _seen(self, answer: Answer) -> Answer:
        answer = self._actor.see(answer)
        return answer if self._observer is None else self._observer.see(answer)


def _capacity(spec: StreamSpec, num_envs: int, fragment_steps: int, message_bytes: int) -> int:
    """How many steps of each env a fragment takes: where they are large, so many that messages come full."""
    step_bytes = num_envs * (spec.step_bytes + spec.chunk_bytes)
    fitting = max(_CACHED_BYTES // step_bytes, min(_LONG_CHUNK, _LARGEST_BYTES // step_bytes))
    capacity = max(1, min(fragment_steps, fitting))
    longest = longest_chunk(spec, message_bytes)
    return capacity - capacity % longest if capacity > longest else capacity
