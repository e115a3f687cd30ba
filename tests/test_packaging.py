from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from penstock_consumers.store.bucket import open_bucket
from tests.consumers.stores import Writer, episodes, stream

ROOT = Path(__file__).parents[1]

READ = """
import sys

for name in ("torch", "gymnasium", "kafka"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    sys.exit(f"{name} is installed")

import penstock_consumers
from penstock_consumers.replay import Replay

replay = Replay.open(sys.argv[1])
batch = next(replay.transitions(32))
episode = next(replay.episodes())
print(penstock_consumers.__file__)
print(batch["observation"].shape, batch["next_observation"].shape, episode.length, episode.observation.shape)
"""


def run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603 - made here
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # What builds is what is installed beside the tests: nothing is fetched.
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder)
    (built,) = folder.iterdir()
    return built


def test_the_wheel_holds_the_three_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packages = {"penstock_schemas", "penstock_producers", "penstock_consumers"}
    version = wheel.name.split("-")[1]
    assert {name.partition("/")[0] for name in names} == packages | {f"penstock-{version}.dist-info"}
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    sources = {
        str(source.relative_to(component))
        for component in (ROOT / "schemas", ROOT / "producers", ROOT / "consumers")
        for source in component.rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == sources


def test_the_wheel_declares_its_extras_and_commands(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        (info,) = {name.partition("/")[0] for name in opened.namelist() if ".dist-info/" in name}
        metadata = Parser().parsestr(opened.read(f"{info}/METADATA").decode())
        commands = configparser.ConfigParser()
        commands.read_string(opened.read(f"{info}/entry_points.txt").decode())
        assert f"{info}/licenses/LICENSE" in opened.namelist()
    assert {"producer", "consumer", "local", "dev"} <= set(metadata.get_all("Provides-Extra", []))
    base = [word for word in metadata.get_all("Requires-Dist", []) if "extra ==" not in word]
    assert sorted(word.partition(">")[0] for word in base) == [
        "crc32c",
        "numpy",
        "obstore",
        "pyarrow",
        "safetensors",
        "tqdm",
    ]
    assert dict(commands["console_scripts"]) == {
        "penstock-producer": "penstock_producers.__main__:main",
        "penstock-consumer": "penstock_consumers.__main__:main",
        "penstock-store": "penstock_consumers.store_cli:main",
    }


@pytest.fixture(scope="module")
def learner(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a virtual environment that holds the wheel and what it depends on, no extras."""
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    assert uv is not None, "uv is neither beside this Python nor on the PATH: `make test` installs it"
    folder = tmp_path_factory.mktemp("learner") / "venv"
    run(uv, "venv", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    constraints = ["-c", str(ROOT / "constraints.txt")]
    install = [uv, "pip", "install", "--system-certs", "--python", str(python), *constraints, str(wheel)]
    # The cache has it all after `make test` installed the same versions; where it has not, the index does.
    cached = subprocess.run([*install, "--offline"], capture_output=True, timeout=60, check=False)  # noqa: S603 - made here
    if cached.returncode:
        run(*install)
    return folder / "bin"


def test_a_learner_reads_a_store_with_neither_torch_nor_gymnasium_installed(learner: Path, tmp_path: Path) -> None:
    writer = Writer(open_bucket(tmp_path), stream())
    writer.commit(0, episodes(writer.spec, [3, 4]))
    where, shapes = run(learner / "python", "-I", "-c", READ, tmp_path).splitlines()
    assert Path(where).is_relative_to(learner.parent)
    assert shapes == "(32, 4) (32, 4) 3 (4, 4)"


def test_a_learner_sees_what_a_store_holds(learner: Path, tmp_path: Path) -> None:
    writer = Writer(open_bucket(tmp_path), stream("of-a-learner"))
    writer.commit(0, episodes(writer.spec, [3, 4]))
    assert "of-a-learner" in run(learner / "penstock-store", "info", tmp_path)
