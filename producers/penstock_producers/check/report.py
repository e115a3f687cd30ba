"""What a conformance check found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock_producers.check.rules import EXPLANATIONS, Rule


@dataclass(frozen=True)
class Finding:
    """A rule that was broken in one mode.

    Attributes:
        rule: Which one.
        env: The env's index in its vector, where it was broken first.
        episode: The episode of that env, from 0.
        step: 0 is the episode's reset, t its t-th step.
        expected: What the rule asks for.
        found: What was there instead.
        count: How often the rule was broken in this mode.
    """

    rule: Rule
    env: int
    episode: int
    step: int
    expected: str
    found: str
    count: int = 1

    def __str__(self) -> str:
        times = f" ({self.count} times, first:)" if self.count > 1 else ""
        where = f"env {self.env}, episode {self.episode}, step {self.step}"
        return f"{self.rule}{times} {where}: expected {self.expected}; found {self.found}"


class Findings:
    """Collects findings: of each rule the first, and how often."""

    def __init__(self) -> None:
        self._first: dict[Rule, Finding] = {}

    def add(self, rule: Rule, env: int, episode: int, step: int, *, expected: str, found: str) -> None:
        """Note that a rule was broken; see `Finding`."""
        known = self._first.get(rule)
        if known is None:
            self._first[rule] = Finding(rule, env, episode, step, expected, found)
        else:
            self._first[rule] = replace(known, count=known.count + 1)

    def __contains__(self, rule: Rule) -> bool:
        return rule in self._first

    def all(self) -> tuple[Finding, ...]:
        """Give what was found, in the order in which it was."""
        return tuple(self._first.values())


@dataclass(frozen=True)
class ModeReport:
    """What was found in one mode.

    Attributes:
        mode: Its name: "single", or a vectorization and its autoreset mode.
        findings: The rules that are broken in it.
        unavailable: Why the env does not have this mode; None where it has.
        steps: How many steps were judged, of all envs together.
        episodes: How many episodes ended in them: without any, the rules about ends were not put to the test.
        twin: Whether each step was compared with a single env's, or why not.
    """

    mode: str
    findings: tuple[Finding, ...] = ()
    unavailable: str | None = None
    steps: int = 0
    episodes: int = 0
    twin: str = ""

    def __str__(self) -> str:
        if self.unavailable is not None:
            return f"{self.mode:24} not available: {self.unavailable}"
        verdict = "BROKEN" if self.findings else "ok"
        ends = f"{self.episodes} episodes ended" if self.episodes else "no episode ended, so no end was judged"
        return f"{self.mode:24} {verdict}: {self.steps} steps, {ends}; {self.twin}"


@dataclass(frozen=True)
class Report:
    """What was found in all modes."""

    env: str
    modes: tuple[ModeReport, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether no rule is broken in any mode."""
        return not any(mode.findings for mode in self.modes)

    @property
    def broken(self) -> dict[str, tuple[Rule, ...]]:
        """The rules that are broken, by mode; modes without any are left out."""
        return {mode.mode: tuple(finding.rule for finding in mode.findings) for mode in self.modes if mode.findings}

    def __str__(self) -> str:
        lines = [f"{self.env}: {'keeps every rule' if self.ok else 'BREAKS RULES'}"]
        for mode in self.modes:
            lines.append(f"  {mode}")
            lines += [f"    {finding}" for finding in mode.findings]
        rules = dict.fromkeys(finding.rule for mode in self.modes for finding in mode.findings)
        lines += [f"  {rule}: {EXPLANATIONS[rule]}" for rule in rules]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Describe the report as plain JSON."""
        return {"env": self.env, "ok": self.ok, "modes": [asdict(mode) for mode in self.modes]}
