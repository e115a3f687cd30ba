"""Whether what policies recorded of their actions is what their weights say: computed again from a store alone."""

from __future__ import annotations

from penstock_consumers.recompute.check import Recomputer, recompute
from penstock_consumers.recompute.report import Report, format_report

__all__ = ["Recomputer", "Report", "format_report", "recompute"]
