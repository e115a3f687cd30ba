"""What an audit tells."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

# Of a thousand faults of one kind the first few tell the cause.
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: where, of which kind, and what is known of it."""

    partition: int
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"partition {self.partition}: {self.kind}: {self.detail}"


@dataclass
class Audit:
    """What was counted, over all partitions, and what was found wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def kinds(self) -> set[str]:
        """The kinds of all findings."""
        return {finding.kind for finding in self.findings}

    @property
    def text(self) -> str:
        """All of it, to be read."""
        counted = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(self.counts.items()))
        by_kind: dict[str, list[Finding]] = {}
        for finding in self.findings:
            by_kind.setdefault(finding.kind, []).append(finding)
        lines = [f"audit: {counted or 'nothing'}", "ok" if self.ok else f"{len(self.findings)} FAULTS"]
        for kind, found in by_kind.items():
            lines += [str(finding) for finding in found[:_SHOWN]]
            if len(found) > _SHOWN:
                lines.append(f"  and {len(found) - _SHOWN} more: {kind}")
        return "\n".join(lines)
