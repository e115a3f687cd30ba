"""The entry points where only the base is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Imports as on an install that lacks some modules, then runs an entry point.
_WITHOUT = """
import sys

module, absent = sys.argv[1:]

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
main = __import__(module, fromlist=["main"]).main
sys.argv[1:] = ["--help"]
main()
"""


def run(module: str, absent: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _WITHOUT, module, absent]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - ours


@pytest.mark.parametrize(
    ("component", "absent"),
    [("producer", "torch"), ("producer", "gymnasium"), ("consumer", "kafka"), ("consumer", "pydantic")],
)
def test_a_base_install_is_told_what_to_install(component: str, absent: str) -> None:
    ended = run(f"penstock_{component}s.__main__", absent)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"error: No module named '{absent}': a {component} needs more than the base: "
        f"pip install 'penstock[{component}]'\n"
    )


def test_a_module_of_our_own_that_is_absent_is_no_extra() -> None:
    ended = run("penstock_producers.__main__", "penstock_schemas")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'penstock_schemas'"
