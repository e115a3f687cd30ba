"""A conformance check: does an environment keep the rules by which its experience is recorded?"""

from __future__ import annotations

from penstock_producers.check.report import Finding, ModeReport, Report
from penstock_producers.check.rules import EXPLANATIONS, Rule
from penstock_producers.check.run import MODES, check_env

__all__ = ["EXPLANATIONS", "MODES", "Finding", "ModeReport", "Report", "Rule", "check_env"]
