"""The entry points where only the base is installed, and where a stop comes before they have imported all."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys

import pytest

# Imports as on an install that lacks some modules, then runs an entry point.
_WITHOUT = """
import sys

module, absent = sys.argv[1:]

class Absent:
    def find_spec(self, name, path=None, target=None):
        if f"{name}.".startswith(f"{absent}."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
main = __import__(module, fromlist=["main"]).main
sys.argv[1:] = ["--help"]
main()
"""
# Runs an entry point, which is asked to stop as it imports the first module that takes its time.
_STOPPED = """
import signal
import sys

module, *words = sys.argv[1:]

class Stopping:
    def find_spec(self, name, path=None, target=None):
        if name == "penstock_schemas.service":
            signal.raise_signal(signal.SIGTERM)

sys.meta_path.insert(0, Stopping())
main = __import__(module, fromlist=["main"]).main
sys.argv[1:] = words
main()
"""


# As the first process of a container runs, to which signals do nothing by default.
AS_PROCESS_1 = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child")


def can_be_process_1() -> bool:
    """Whether this machine has process namespaces, and lets this user make them."""
    if shutil.which(AS_PROCESS_1[0]) is None:
        return False
    return subprocess.run([*AS_PROCESS_1, "true"], capture_output=True, timeout=60, check=False).returncode == 0  # noqa: S603 - ours


def run(program: str, *words: str, within: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*within, sys.executable, "-c", program, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - ours


@pytest.mark.parametrize(
    ("component", "absent"),
    [("producer", "torch"), ("producer", "gymnasium"), ("consumer", "kafka"), ("consumer", "pydantic")],
)
def test_a_base_install_is_told_what_to_install(component: str, absent: str) -> None:
    ended = run(_WITHOUT, f"penstock_{component}s.__main__", absent)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"error: No module named '{absent}': a {component} needs more than the base: "
        f"pip install 'penstock[{component}]'\n"
    )


def test_a_module_of_our_own_that_is_absent_is_no_extra() -> None:
    ended = run(_WITHOUT, "penstock_producers.__main__", "penstock_schemas.service")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'penstock_schemas.service'"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["penstock_producers.__main__", "--stream=s", "--env=CartPole-v1"], 0),
        (["penstock_consumers.__main__", "--stream=s"], 0),
        # What these were to find out they have not found out.
        (["penstock_producers.__main__", "evaluate", "--stream=s", "--env=CartPole-v1"], 1),
        (["penstock_producers.__main__", "check", "--env=CartPole-v1"], -signal.SIGTERM),
    ],
)
def test_a_service_that_is_stopped_before_it_has_imported_all_ends_cleanly(words: list[str], status: int) -> None:
    ended = run(_STOPPED, *words)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "", "")


@pytest.mark.skipif(not can_be_process_1(), reason="needs process namespaces")
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["penstock_producers.__main__", "--stream=s", "--env=CartPole-v1"], 0),
        (["penstock_consumers.__main__", "--stream=s"], 0),
        (["penstock_producers.__main__", "evaluate", "--stream=s", "--env=CartPole-v1"], 1),
        (["penstock_producers.__main__", "check", "--env=CartPole-v1"], 128 + signal.SIGTERM),
        (["penstock_consumers.store_cli", "verify", "memory://"], 128 + signal.SIGTERM),
    ],
)
def test_what_is_stopped_while_it_imports_ends_as_process_1_too(words: list[str], status: int) -> None:
    ended = run(_STOPPED, *words, within=AS_PROCESS_1)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "", "")
