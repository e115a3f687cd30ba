"""Watching a run: what the pods' metrics say, as one row of numbers and as a live table."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from deploy.local.pod import Pod

_REFRESH_SECONDS = 0.5
_LINE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Reading:
    """What one pod says at one moment; what it does not have is 0."""

    running: bool = False
    steps: float = 0.0
    episodes: float = 0.0
    lag: float = 0.0
    version: float = 0.0
    mean_return: float | None = None
    """Of the episodes that `ended_version` has ended; None before the first one."""
    ended_version: int = 0
    """The newest version that has ended an episode."""


@dataclass(frozen=True, slots=True)
class Flow:
    """One pod's reading, and its speed in steps per second."""

    pod: str
    reading: Reading
    speed: float


class Watch:
    """Reads pods again and again, and tells how fast they are."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._before: dict[str, tuple[float, float]] = {}
        self._speed: dict[str, float] = {}

    def read(self, pods: Sequence[Pod]) -> list[Flow]:
        """Read every pod once."""
        return [self._flow(pod) for pod in pods]

    def show(
        self, console: Console, pods: Sequence[Pod], seconds: float, title: Callable[[float], str]
    ) -> Iterator[tuple[float, list[Flow]]]:
        """Give the seconds since the call and what flows, twice a second, and show it under a title.

        On a terminal it is a live table, else a line now and then.
        """
        started, next_line = self._clock(), 0.0
        with Live(console=console, auto_refresh=False, transient=False) as live:
            while (now := self._clock() - started) < seconds:
                flows = self.read(pods)
                if console.is_terminal:
                    live.update(table(flows, title(now)), refresh=True)
                elif now >= next_line:
                    next_line = now + _LINE_SECONDS
                    console.print(line(flows, title(now)), soft_wrap=True)
                yield now, flows
                time.sleep(_REFRESH_SECONDS)

    def _flow(self, pod: Pod) -> Flow:
        reading, now = _read(pod), self._clock()
        then, steps = self._before.get(pod.name, (now, reading.steps))
        # Counters jump when a fragment is closed or a commit is made: speeds are over a second or more.
        if now - then >= 1.0:
            self._speed[pod.name] = max(reading.steps - steps, 0.0) / (now - then)
            self._before[pod.name] = (now, reading.steps)
        elif pod.name not in self._before:
            self._before[pod.name] = (now, reading.steps)
        return Flow(pod.name, reading, self._speed.get(pod.name, 0.0) if reading.running else 0.0)


def table(flows: Sequence[Flow], title: str) -> Table:
    """Lay a moment out as a table."""
    made = Table(title=title, title_justify="left", title_style="bold")
    made.add_column("pod")
    for heading in ("steps/s", "steps", "episodes", "lag", "policy", "mean return"):
        made.add_column(heading, justify="right")
    for flow in flows:
        reading = flow.reading
        state = "" if reading.running else " [red](down)[/red]"
        made.add_row(f"{flow.pod}{state}", *_numbers(flow))
    return made


def line(flows: Sequence[Flow], title: str) -> str:
    """Lay a moment out as a line, for where there is no terminal."""
    return f"{title}: {', '.join(map(_told, flows))}"


def newest(flows: Sequence[Flow]) -> Reading | None:
    """The reading of the newest version that has ended an episode; None before the first one."""
    told = [flow.reading for flow in flows if flow.reading.mean_return is not None]
    return max(told, key=lambda reading: reading.ended_version, default=None)


def _told(flow: Flow) -> str:
    speed, _, _, _, version, mean_return = _numbers(flow)
    told = f"{flow.pod} {'up' if flow.reading.running else 'DOWN'} {speed} steps/s, policy {version}"
    return f"{told}, mean return {mean_return}" if mean_return else told


def _numbers(flow: Flow) -> tuple[str, ...]:
    reading = flow.reading
    return (
        f"{flow.speed:,.0f}",
        f"{reading.steps:,.0f}",
        f"{reading.episodes:,.0f}",
        f"{reading.lag:,.0f}",
        f"{reading.version:.0f}",
        "" if reading.mean_return is None else f"{reading.mean_return:.1f}",
    )


def _read(pod: Pod) -> Reading:
    sums: dict[str, float] = {}
    mean_return: dict[int, float] = {}
    for sample in pod.samples():
        name = sample.name.partition("_")[2].partition("_")[2]
        if name == "episode_return_mean":
            mean_return[int(sample.labels["policy_version"])] = sample.value
        elif sample.labels.get("outcome", "ended") in {"ended", "aborted"}:
            sums[name] = sums.get(name, 0.0) + sample.value
    return Reading(
        running=pod.running,
        steps=sums.get("steps_total", 0.0),
        episodes=sums.get("episodes_total", 0.0),
        lag=sums.get("lag_offsets", 0.0),
        version=sums.get("policy_version", 0.0),
        mean_return=mean_return[max(mean_return)] if mean_return else None,
        ended_version=max(mean_return, default=0),
    )
