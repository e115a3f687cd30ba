"""`penstock-producer evaluate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from penstock_producers.evaluate.service import serve
from penstock_producers.evaluate.settings import EvaluationSettings
from penstock_schemas.service import run_service

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate a policy from the command line.

    Returns 0 where every seed was played to an end (or, with --watch, after a clean stop), 1 where one was not or
    something broke, 2 where a setting is wrong.
    """
    all_played = False

    def evaluate(settings: EvaluationSettings, stop: threading.Event) -> None:
        nonlocal all_played
        all_played = serve(settings, stop, _write)

    status = run_service("evaluation", EvaluationSettings, evaluate, argv)
    return status or int(not all_played)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
