"""What verifying found."""

from __future__ import annotations

from dataclasses import dataclass, field

_NAMED = 5


@dataclass(slots=True)
class Report:
    """What verifying found; `findings` names the first few things that are wrong.

    Of the log's records, `messages` were judged again, beginning at `from_offsets` by partition, and `messages_behind`
    have no commit yet; `offsets_lost` were deleted from the log before they were judged, and none can say what was in
    them. Of the episodes expected, `episodes_opened_before` were open where that begins, and what they held there was
    collected: their names, lengths and ends alone are compared. What retention removed is `retired`, and not missing.
    `rows_open` are the chunk rows, `steps_open` the steps that are stored of episodes that have not ended.
    """

    episodes_expected: int = 0
    episodes_stored: int = 0
    episodes_missing: int = 0
    episodes_duplicated: int = 0
    episodes_unexpected: int = 0
    episodes_wrong: int = 0
    steps_expected: int = 0
    steps_stored: int = 0
    steps_missing: int = 0
    steps_duplicated: int = 0
    steps_wrong: int = 0
    episodes_opened_before: int = 0
    episodes_retired: int = 0
    steps_retired: int = 0
    rows_open: int = 0
    steps_open: int = 0
    open_rows_wrong: int = 0
    segments_damaged: int = 0
    commits_wrong: int = 0
    snapshots_damaged: int = 0
    offsets_lost: int = 0
    messages: int = 0
    messages_behind: int = 0
    policy_versions: list[int] = field(default_factory=list)
    from_offsets: dict[int, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether the store holds exactly what the log says, as far as the log could be read."""
        wrong = (
            *(self.episodes_missing, self.episodes_duplicated, self.episodes_unexpected, self.episodes_wrong),
            *(self.open_rows_wrong, self.segments_damaged, self.commits_wrong, self.snapshots_damaged),
        )
        return not any(wrong)

    @property
    def ok(self) -> bool:
        """Whether the store holds exactly what the log says, and nothing of the log was lost."""
        return self.exact and not self.offsets_lost

    def found(self, what: str) -> None:
        """Name something wrong, unless enough is named."""
        if len(self.findings) < _NAMED:
            self.findings.append(what)
