"""Checking an environment in every mode that it has."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock_producers.check.judge import judge_by_itself, judge_by_twin, judge_repetition, judge_values
from penstock_producers.check.modes import VECTOR_MODES, Mode, why_no_single, why_unavailable
from penstock_producers.check.play import Played, play
from penstock_producers.check.report import Findings, ModeReport, Report
from penstock_producers.check.rules import Rule
from penstock_producers.check.single import SINGLE, check_single
from penstock_producers.check.twin import ROUNDING, Twins
from penstock_producers.check.vector import check_vector
from penstock_producers.contained import CONTAINED, told
from penstock_producers.envs.lanes import Containment
from penstock_producers.envs.make import make_envs
from penstock_producers.envs.seeds import Seeds
from penstock_schemas.errors import EnvError, PenstockError, SpaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from penstock_producers.check.episodes import Episode
    from penstock_producers.envs.source import EnvSource
    from penstock_schemas.spaces import Space

MODES = (SINGLE, *(mode.name for mode in VECTOR_MODES))
# With one of these a single env's life is no measure for others.
_BASIC = {
    Rule.API,
    Rule.RECORDABLE_SPACES,
    Rule.SPACES_FIXED,
    Rule.OBSERVATION_SPACE,
    Rule.SEEDING,
    Rule.ACTION_MUTATED,
}
# With one of these a vector env is refused.
_UNTAKEN = {Rule.API, Rule.RECORDABLE_SPACES, Rule.INFO_DICT}


def check_env(
    source: EnvSource,
    *,
    modes: Collection[str] | None = None,
    num_envs: int = 3,
    steps: int = 200,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Check an environment's conformance, by itself and through each way in which several are stepped.

    Args:
        source: How the environment is made.
        modes: Of `MODES`, by default all; `single` is always among them, as it is the measure for the others.
        num_envs: How many are stepped together.
        steps: How many each env takes in each mode; some take more where they answer out of lockstep.
        seed: Of all seeds and actions.
        clock: In seconds, monotonic; tells when an env no longer answers.

    Raises:
        EnvError: an environment that is not there, or a mode that is unknown. One that cannot be made is a finding.
    """
    for name in modes or ():
        if name not in MODES:
            raise EnvError(f"mode {name!r} is unknown; use some of {', '.join(MODES)}")
    reason = why_no_single(source)
    single = ModeReport(SINGLE, unavailable=reason) if reason else check_single(source, steps=steps, seed=seed)
    basic = sorted({finding.rule for finding in single.findings} & _BASIC)
    distrust = reason or (f"the single env breaks {', '.join(basic)}" if basic else None)
    reports = [single]
    check = _Check(source, num_envs, steps, seed, clock, distrust)
    for mode in VECTOR_MODES:
        if modes is None or mode.name in modes:
            unavailable = why_unavailable(source, mode)
            reports.append(check.mode(mode) if unavailable is None else ModeReport(mode.name, unavailable=unavailable))
    return Report(source.env, tuple(reports))


class _Check:
    """What all modes of one check share."""

    def __init__(
        self,
        source: EnvSource,
        num_envs: int,
        steps: int,
        seed: int,
        clock: Callable[[], float],
        distrust: str | None,
    ) -> None:
        self._source = source
        self._num_envs = num_envs
        self._steps = steps
        self._seed = seed
        self._clock = clock
        self._distrust = distrust

    def mode(self, mode: Mode) -> ModeReport:
        """Check one mode."""
        findings = Findings()
        if mode.vectorization == "vector_entry_point":
            check_vector(self._source, self._num_envs, steps=self._steps, seed=self._seed, findings=findings)
            if not _UNTAKEN.isdisjoint(finding.rule for finding in findings.all()):
                return ModeReport(mode.name, findings.all(), twin="its answers cannot be taken as rows")
        played, spaces = self._play(mode, findings, self._seed)
        lives = played.lives
        if spaces is None:
            if self._distrust is None and mode.vectorization in {"sync", "async"}:
                # The env itself can be made: it is gymnasium that cannot have it so.
                return ModeReport(mode.name, unavailable=findings.all()[0].found)
            return ModeReport(mode.name, findings.all(), twin="nothing was recorded")
        for i, life in enumerate(lives):
            judge_values(i, life, spaces[0], findings)
        # New ones each time: a used env may not be as good as new, and that is told where it is checked by itself.
        with Twins(self._source) as twins:
            no_twin = self._why_no_twin(mode, lives, spaces, twins)
            if no_twin is None:
                # All others step the very same env, to the same bits.
                tolerance = ROUNDING if mode.vectorization == "vector_entry_point" else 0.0
                for i, life in enumerate(lives):
                    judge_by_twin(i, life, twins[i], spaces, findings, tolerance=tolerance)
            else:
                self._judge_without_twins(mode, played, spaces[0], findings)
        twin = "compared with twins" if no_twin is None else f"not compared with twins: {no_twin}"
        episodes = [episode for life in lives for episode in life]
        steps, ended = sum(episode.steps for episode in episodes), sum(episode.ended for episode in episodes)
        return ModeReport(mode.name, findings.all(), steps=steps, episodes=ended, twin=twin)

    def _judge_without_twins(self, mode: Mode, played: Played, space: Space, findings: Findings) -> None:
        for i, life in enumerate(played.lives):
            judge_by_itself(i, life, space, findings)
        if Rule.API in findings:
            return
        runs = [(Rule.SEEDING, self._seed, "a second run")]
        if played.ignored:
            runs.append((Rule.RESET_ROW, self._seed + self._num_envs, "a run that sends other actions to resets"))
        for rule, ignored_seed, run in runs:
            again, _ = self._play(mode, Findings(), ignored_seed)
            for i, (life, other) in enumerate(zip(played.lives, again.lives, strict=False)):
                judge_repetition(i, life, other, space, findings, rule=rule, run=run)
            if rule in findings:
                return

    def _play(self, mode: Mode, findings: Findings, ignored_seed: int) -> tuple[Played, tuple[Space, Space] | None]:
        try:
            envs = make_envs(
                self._source,
                self._num_envs,
                seeds=Seeds(self._seed, self._source.producer),
                clock=self._clock,
                vectorization=mode.vectorization,
                autoreset=mode.autoreset,
                workers=mode.workers,
                # Bounds are judged here, and end no episode; an env that breaks is made anew at once, each time.
                containment=Containment(max_rebuilds=self._steps, backoff=0.0, check_bounds=False),
            )
        except PenstockError as error:
            rule = Rule.RECORDABLE_SPACES if isinstance(error, SpaceError) else Rule.API
            findings.add(rule, 0, 0, 0, expected="a vector of envs", found=str(error))
            return Played([], ignored=False), None
        try:
            played = play(envs, self._steps, self._seed, ignored_seed, findings, self._clock)
            return played, (envs.observation_space, envs.action_space)
        finally:
            with suppress(*CONTAINED):  # what its close() raises is judged by itself
                envs.close()

    def _why_no_twin(
        self, mode: Mode, lives: list[list[Episode]], spaces: tuple[Space, Space], twins: Twins
    ) -> str | None:
        if self._distrust is not None:
            return self._distrust
        try:
            if twins.spaces != spaces:
                return "the single env has other spaces"
            # gymnasium's own say with which seed each env began.
            said = all(life and life[0].seed is not None for life in lives)
            if mode.vectorization == "vector_entry_point" and not said:
                seed = Seeds(self._seed, self._source.producer).vector()
                if not twins.seeded(lives, seed):
                    return "what it makes of its seed for each env is its own affair"
        except CONTAINED as error:
            return f"the single env raises {told(error)}"
        return None
