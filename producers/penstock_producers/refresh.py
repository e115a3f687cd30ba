"""When newer weights replace those that act, and what the pod does until they are there."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from penstock_producers.policy import PolicyWatcher
from penstock_schemas.chunks import Exploration

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from penstock_producers.policy import Policy
    from penstock_producers.policy.fetcher import Weights
    from penstock_schemas.errors import PolicyRejectedError
    from penstock_schemas.log import Log
    from penstock_schemas.service import Health

FirstPolicy: TypeAlias = Literal["act", "random", "wait"]
OnPolicyLag: TypeAlias = Literal["wait", "continue"]
FIRST_POLICY, POLICY_LAG = "first_policy", "policy_lag"
_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2


class RefreshObserver(Protocol):
    """Is told how the policy is refreshed."""

    def loaded(self, version: int, exploration: Exploration, now: float) -> None:
        """A version acts, and how it explores, from the time `now` in seconds since the epoch."""
        ...

    def rejected(self, error: PolicyRejectedError) -> None:
        """A version was refused; called from the thread that read it, or that was to load it."""
        ...

    def waited(self, reason: str, seconds: float) -> None:
        """The pod has stood still for so long, and why: `FIRST_POLICY` or `POLICY_LAG`."""
        ...


@dataclass(frozen=True, slots=True)
class RefreshRules:
    """How stale a policy may be.

    Attributes:
        first: what happens before the first version: the policy acts as it came, acts at random, or nothing does.
        max_lag: how far the version that acts may be behind the newest that was announced and not refused; None for
            any distance.
        on_lag: whether the pod waits where it is farther behind, and the newer one is not at hand.
    """

    first: FirstPolicy = "act"
    max_lag: int | None = None
    on_lag: OnPolicyLag = "wait"


class Refresh:
    """Replaces the weights of a policy between fragments; it never goes back to an older version.

    Args:
        policy: the policy; where random actions are to come first, it acts at random from here on.
        rules: how stale it may be.
        weights: where weights are that are larger than a message; without it such a version is refused.
        observer: is told what happens.
        health: is beaten while waiting; its condition "policy" says what is waited for.
        stop: ends a wait.
        clock: seconds that never go back.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        policy: Policy,
        rules: RefreshRules,
        *,
        weights: Weights | None,
        observer: RefreshObserver,
        health: Health,
        stop: threading.Event,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._rules = rules
        self._weights = weights
        self._observer = observer
        self._health = health
        self._stop = stop
        self._clock = clock
        self._wall = wall
        self._watcher: PolicyWatcher | None = None
        if rules.first == "random" and not policy.version:
            policy.exploration = Exploration.RANDOM
        self._tell()

    @property
    def lag(self) -> int:
        """How many versions the one that acts is behind the newest that was announced and not refused."""
        return 0 if self._watcher is None else self._watcher.announced - self._policy.version

    def watch(self, log: Log, topic: str) -> PolicyWatcher:
        """Make what follows the topic of policies, to be entered."""
        self._watcher = PolicyWatcher(
            log, topic, check=self._policy.check, rejected=self._reject, weights=self._weights
        )
        return self._watcher

    def due(self) -> bool:
        """Whether the fragment is to close early: at the stop, or where the policy lags too far and that can be helped.

        Cheap enough to be asked after each answer of the envs.
        """
        if self._stop.is_set():
            return True
        watcher = self._watcher
        return watcher is not None and self._lags() and (self._rules.on_lag == "wait" or watcher.at_hand)

    def renew(self) -> None:
        """Load the newest version at hand, and wait for one where none may act; until the stop, at most."""
        watcher = self._watcher
        if watcher is None:
            raise RuntimeError("nothing is watched: enter what `watch` answers first")
        self._load(watcher)
        while (reason := self._awaited(watcher)) is not None and not self._stop.is_set():
            before = self._clock()
            watcher.wait(_LOOK_SECONDS)
            self._health.beat()
            self._observer.waited(reason, self._clock() - before)
            self._load(watcher)

    def _load(self, watcher: PolicyWatcher) -> None:
        if not watcher.load(self._policy.load):
            return
        if self._policy.exploration == Exploration.RANDOM:
            self._policy.exploration = Exploration.ON
        self._tell()

    def _tell(self) -> None:
        self._observer.loaded(self._policy.version, self._policy.exploration, self._wall())

    def _awaited(self, watcher: PolicyWatcher) -> str | None:
        """Why nothing may act now; None where the policy may."""
        acting, announced = self._policy.version, watcher.announced
        if not acting and self._rules.first == "wait":
            told, reason = "waits for the first policy version; publish one", FIRST_POLICY
        elif self._lags() and self._rules.on_lag == "wait":
            told = f"version {acting} acted, more than {self._rules.max_lag} behind: waits for version {announced}"
            reason = POLICY_LAG
        else:
            self._health.ready("policy")
            return None
        self._health.unready("policy", told)
        return reason

    def _lags(self) -> bool:
        return self._rules.max_lag is not None and self.lag > self._rules.max_lag

    def _reject(self, error: PolicyRejectedError) -> None:
        _LOG.warning("not loaded, the last good policy acts on: %s", error)
        self._observer.rejected(error)
