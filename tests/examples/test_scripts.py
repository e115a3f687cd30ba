"""The scripts of `examples/` as a user runs them, over a store of real CartPole episodes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock_consumers.policies import PolicyPublisher
from penstock_consumers.replay import Replay
from penstock_consumers.store import snapshots
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.upkeep import compact
from penstock_producers.envs import EnvSource, Seeds, make_envs
from penstock_producers.making import describe
from penstock_producers.policy.torch_policy import TorchPolicy
from penstock_producers.rollout import Rollout
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import StoreError
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import encode_begin, encode_chunks
from tests.consumers.messages import STREAM, TOPIC, Clock, append, open_partition, take_all
from tests.consumers.rolled import changed
from tests.consumers.stores import Writer, episodes, stream

if TYPE_CHECKING:
    from penstock_consumers.replay import Episode

EXAMPLES = Path(__file__).parents[2] / "examples"
PRODUCER = "pod-0"
COMMITS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store where the examples look for one, of 8 commits of which one segment was made."""
    root = tmp_path_factory.mktemp("examples")
    rng = np.random.default_rng(0)
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    bucket = open_bucket(root / "build" / "run" / "store")
    env = make_envs(EnvSource("CartPole-v1"), 8, seeds=Seeds(0, PRODUCER), clock=Clock())
    spec, acting = describe(STREAM, env, {"id": "CartPole-v1"}, policy="actor-critic", rng=rng)
    assert isinstance(acting, TorchPolicy)
    publisher = PolicyPublisher(STREAM, store=bucket, log=log)
    incarnation = append(log, encode_begin(spec, PRODUCER, "start"), PRODUCER).offset
    rollout = Rollout(env, acting, spec, fragment_steps=64, fragment_seconds=60.0, message_bytes=1 << 20, clock=Clock())
    partition = open_partition(log, bucket)
    for sequence in range(COMMITS):
        acting.load(publisher.publish(changed(acting._weights(), rng)))
        (batch,) = rollout.fragment().batches
        message = encode_chunks(spec, batch, producer=PRODUCER, incarnation=incarnation, sequence=sequence)
        append(log, message, PRODUCER)
        take_all(partition, log)
        partition.commit()
    env.close()
    assert compact(bucket, 1 << 27, set()) == 1
    return root


@pytest.fixture(scope="module")
def whole(folder: Path) -> list[Episode]:
    """The episodes that ended by themselves."""
    stored = Replay.open(folder / "build" / "run" / "store").episodes()
    return [episode for episode in stored if episode.ends in {Ends.TERMINATED, Ends.TRUNCATED}]


def run(example: str, *words: str, folder: Path) -> str:
    command = [sys.executable, str(EXAMPLES / example), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603  (ours)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(line: str) -> list[float]:
    return [float(word.replace(",", "")) for word in re.findall(r"-?\d[\d,]*(?:\.\d+)?", line)]


def has_row(shown: str, *row: float) -> bool:
    """Whether a line of what is shown has these numbers and no others."""
    rows = (numbers(line) for line in shown.splitlines())
    return any(len(found) == len(row) and np.allclose(found, row, rtol=0, atol=0.006) for found in rows)


def test_only_the_files_that_live_are_named(folder: Path) -> None:
    store = folder / "build" / "run" / "store"
    (name,) = Replay.open(store).files()
    assert Path(name).is_file()
    assert len(list((store / "segments").rglob("*.arrow"))) == COMMITS + 1


def test_the_files_of_a_named_snapshot_are_its_own(tmp_path: Path) -> None:
    bucket = open_bucket(tmp_path)
    writer = Writer(bucket, stream())
    before = writer.commit(0, episodes(writer.spec, [3])).segments_added[0].name
    snapshots.create(bucket, "paper")
    after = writer.commit(0, episodes(writer.spec, [4]), removed=(before,)).segments_added[0].name
    assert Replay.open(tmp_path, snapshot="paper").files() == [str(tmp_path / before)]
    assert Replay.open(str(tmp_path)).files() == [str(tmp_path / after)]


def test_of_no_store_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no store\.json there"):
        Replay.open(tmp_path)


def test_a_learner(folder: Path, whole: list[Episode]) -> None:
    shown = run("learner.py", folder=folder).splitlines()
    assert re.fullmatch(r"[\d,]+ steps in [\d,]+ episodes of CartPole-v1", shown[0])
    assert shown[1].startswith(f"best: {max(episode.return_ for episode in whole):.0f} by policy version ")
    assert shown[-1].startswith("target.shape=(256,), drawn from policy versions ")


@pytest.mark.parametrize(
    ("example", "words", "place"),
    [
        ("read_arrow.py", [], "."),
        ("read_polars.py", ["run/store"], "build"),
        ("read_duckdb.py", ["../build/run/store"], "build"),
    ],
)
def test_other_tools_read_the_segments(
    example: str, words: list[str], place: str, folder: Path, whole: list[Episode]
) -> None:
    shown = run(example, *words, folder=folder / place)
    versions = {int(episode.policy_version[-1]) for episode in whole}
    assert len(versions) > 3
    for version in versions:
        of = [episode for episode in whole if episode.policy_version[-1] == version]
        means = (np.mean([getattr(episode, name) for episode in of]) for name in ("return_", "length"))
        assert has_row(shown, version, len(of), *means), f"{version} is not in\n{shown}"
    returns = sorted((episode.return_ for episode in whole), reverse=True)
    listed = [numbers(line)[-2:] for line in shown.splitlines() if PRODUCER in line]
    assert sorted(listed, reverse=True) == [[most, most] for most in returns[:10]]
    best = int(returns[0])
    if example == "read_arrow.py":
        assert "copied: 0" in shown
        assert f"observations.shape=({best + 1}, 4), rewards.shape=({best},)" in shown
    else:
        # At the step of number n are the episodes of more than n steps.
        for step in range(10):
            assert has_row(shown, step, 1.0, sum(length > step for length in returns))
    if example == "read_polars.py":
        assert f"shape: ({best}, 4)" in shown


@pytest.mark.soak
def test_a_notebook_collects(tmp_path: Path) -> None:
    shown = run("collect.py", folder=tmp_path).splitlines()
    assert shown[0].startswith("Collection(steps=512")
    assert re.fullmatch(r"[\d,]+ steps, [\d,]+ a second", shown[-1])
