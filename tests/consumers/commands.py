"""`penstock-store` in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock_consumers.store_cli import run

if TYPE_CHECKING:
    import pytest


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What a command that succeeds answers as JSON."""
    capsys.readouterr()
    assert run([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)
