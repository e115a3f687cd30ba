"""`penstock-store recompute`, over stores that real policies gave: what it finds right, what wrong, what it cannot."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from penstock_consumers.recompute import Report, check, recompute
from penstock_consumers.replay import Replay
from penstock_consumers.replay.versions import Versions
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store_cli import run
from penstock_producers.policy import make
from penstock_producers.policy.recompute import Recomputer
from penstock_schemas.chunks import Ends, Exploration
from tests.consumers.rolled import rolled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from penstock_consumers.replay import Episode

ON, OFF, RANDOM = Exploration.ON, Exploration.OFF, Exploration.RANDOM
OWN = "tests.schemas.connector_zoo"
CONNECTED: tuple[dict[str, Any], ...] = (
    {"name": "normalize"},
    {"name": "stack", "arguments": {"frames": 3, "axis": 0}},
    {"name": "previous_action"},
    {"name": "previous_reward"},
)
# All that can stand before a network that takes vectors.
EVERY: tuple[dict[str, Any], ...] = (
    {"name": "one_hot"},
    {"name": "stack", "arguments": {"frames": 3, "only": ["camera"]}},
    {"name": "scale", "arguments": {"only": ["camera"]}},
    {"name": "cast", "arguments": {"dtype": "float64", "only": ["rest.1"]}},
    {"name": "flatten"},
    {"name": "normalize", "arguments": {"clip": 5.0}},
    {"name": "previous_action"},
    {"name": "previous_reward"},
    {"name": f"{OWN}:Speed"},
)
IMAGES: tuple[dict[str, Any], ...] = (
    {"name": "stack", "arguments": {"frames": 4, "axis": -1}},
    {"name": "scale", "arguments": {"channel_first": True}},
    {"name": "normalize"},
    {"name": "cast", "arguments": {"dtype": "float32"}},
)
MASKED = {"mask": "mask", "final_value": True, "parameters": True}
CASES: dict[str, dict[str, Any]] = {
    "actor-critic": {
        "behaviour": MASKED,
        "connectors": CONNECTED,
        "settings": ({"temperature": 2.0}, {"epsilon": 0.2}),
    },
    "recurrent": {
        "policy": "recurrent",
        "action": "multi",
        "behaviour": MASKED,
        "connectors": CONNECTED,
        "exploration": (ON, OFF, RANDOM),
    },
    "q-network": {
        "policy": "q-network",
        "behaviour": {"mask": "mask", "final_value": True},
        "settings": ({"epsilon": 0.5}, {"epsilon": 0.05}),
        "exploration": (ON, ON, OFF),
    },
    "convolutional": {
        "policy": "convolutional",
        "observation": "image",
        "connectors": IMAGES,
        "arguments": {"channels": "first"},
        "fragments": 4,
    },
    "floats": {
        "action": "box",
        "behaviour": {"mapping": "squash", "noise": 0.1, "parameters": True, "final_value": True},
        "exploration": (ON, OFF, RANDOM),
        "cut_steps": None,
    },
    "nested": {
        "observation": "nested",
        "action": "nested",
        "connectors": EVERY,
    },
    "random": {"policy": "random", "behaviour": {"mask": "mask"}, "connectors": CONNECTED},
    "late": {
        "policy": "recurrent",
        "behaviour": {"final_value": True},
        "connectors": CONNECTED,
        "settings": ({},) * 4,
        "num_envs": 8,
        "longest": 8,
        "cut_steps": 5,
        "late": True,
    },
}


def recomputed(store: Path, episodes: Callable[[Replay], Iterable[Episode]] = Replay.episodes) -> Report:
    """The report on some episodes of a store."""
    bucket = open_bucket(store)
    replay = Replay.open(bucket)
    spec = replay.spec
    recomputer = Recomputer(spec.policy, spec.observation, spec.action, spec.infos)
    return recompute(episodes(replay), spec, recomputer, Versions(bucket), tolerance=1e-5)


def chunks_in(replay: Replay) -> int:
    """How many chunks have a step."""
    return sum(
        int((np.diff(np.append(episode.chunk_first_step, episode.length)) > 0).sum()) for episode in replay.episodes()
    )


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recurrent")
    rolled(folder, **CASES["recurrent"])
    return folder


@pytest.mark.parametrize("case", CASES)
def test_what_policies_recorded_is_what_their_weights_say(tmp_path: Path, case: str) -> None:
    """Over the borders of chunks, cuts and versions, whatever the policy and its connectors."""
    rolled(tmp_path, **CASES[case])
    replay = Replay.open(tmp_path)
    report = recomputed(tmp_path)
    assert report.lost == {}
    assert report.same, report
    assert (report.steps, report.chunks) == (replay.steps, chunks_in(replay))
    episodes = list(replay.episodes())
    for name in {extra.name for extra in replay.spec.extras} - {"action_sent", "action_sent_0", "action_sent_1"}:
        there = sum(
            int((~np.ma.getmaskarray(episode.extras[name])).reshape(episode.length, -1).all(axis=1).sum())
            for episode in episodes
        )
        assert report.columns[name].compared == there > 0
        assert not any(np.isnan(np.ma.filled(episode.extras[name], 0)).any() for episode in episodes)
    for state in replay.spec.states:
        # Every border has both its sides in the store, but for the cuts whose continuation was still open.
        assert report.columns[state.name].compared == report.chunks
    if case != "random":
        assert {int(version) for episode in episodes for version in episode.policy_version} >= {0, 1}
    assert any(episode.continues is not None for episode in episodes) == (case != "floats")


def test_an_end_by_a_version_that_came_later_has_no_value(tmp_path: Path) -> None:
    """What the version that chose the last action would have said of it nobody can tell any more."""
    rolled(tmp_path, **CASES["late"])
    absent = [
        bool(np.ma.getmaskarray(episode.extras["final_value"])[-1])
        for episode in Replay.open(tmp_path).episodes()
        if episode.ends in {Ends.TERMINATED, Ends.TRUNCATED}
    ]
    assert 0 < sum(absent) < len(absent) / 2


@pytest.mark.parametrize(
    ("name", "told"),
    [("log_prob", "log_prob"), ("value", "value"), ("final_value", "final_value"), ("state.hidden", "state")],
)
def test_a_number_that_is_off_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, told: str
) -> None:
    altered = 0

    def tamper(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal altered
        column = batch.column(name)
        rows = column.to_pylist()
        for row, values in enumerate(rows):
            # Once, in the middle of the store.
            episode = batch.column("episode")[row].as_py()
            if altered or episode != 3 or batch.column("env")[row].as_py() != 2 or values[-1] is None:
                continue
            values[-1] += 0.01
            altered += 1
        return batch.set_column(
            batch.schema.get_field_index(name), batch.schema.field(name), pa.array(rows, column.type)
        )

    behaviour = {"final_value": True}
    rolled(tmp_path, "recurrent", behaviour=behaviour, arguments={"units": 8}, fragments=7, longest=12, tamper=tamper)
    assert altered == 1
    assert run(["recompute", str(tmp_path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert report["worst"] == "a/pod-0/0/2/3"
    assert 0.001 < report["largest"] < 0.011
    wrong = {column for column, found in report["columns"].items() if found["largest"] > 1e-5}
    # A state that is off also changes what follows from it.
    assert wrong == {name} if name != "state.hidden" else name in wrong
    assert run(["recompute", str(tmp_path)]) == 1
    assert "WHAT WAS RECORDED DIFFERS BY MORE THAN 1e-05, most in episode a/pod-0/0/2/3" in capsys.readouterr().out
    assert run(["recompute", str(tmp_path), "--tolerance", "0.5"]) == 0


@pytest.mark.parametrize(("name", "exploration"), [("log_prob", ON), ("parameters", OFF)])
def test_a_number_that_is_gone_is_found(tmp_path: Path, name: str, exploration: Exploration) -> None:
    def tamper(batch: pa.RecordBatch) -> pa.RecordBatch:
        place = batch.schema.get_field_index(name)
        rows = [[None] * len(values) for values in batch.column(name).to_pylist()]
        return batch.set_column(place, batch.schema.field(name), pa.array(rows, batch.column(name).type))

    rolled(tmp_path, action="box", behaviour={"parameters": True}, exploration=[exploration], tamper=tamper)
    report = recomputed(tmp_path)
    assert (report.status, report.columns[name].largest) == (1, np.inf)
    assert report.columns[name].compared == report.steps


@pytest.mark.parametrize(("policy", "action"), [("actor-critic", "box"), ("recurrent", "nested")])
def test_an_action_that_was_not_the_best_is_found(tmp_path: Path, policy: str, action: str) -> None:
    """Where nothing was drawn; a density would not tell."""
    name = {"box": "action", "nested": "action.go"}[action]

    def tamper(batch: pa.RecordBatch) -> pa.RecordBatch:
        place = batch.schema.get_field_index(name)
        rows = batch.column(name).to_pylist()
        rows[0][0] = 1 - rows[0][0] if action == "nested" else [rows[0][0][0] + 0.01, *rows[0][0][1:]]
        return batch.set_column(place, batch.schema.field(name), pa.array(rows, batch.column(name).type))

    rolled(tmp_path / "whole", policy, action=action, exploration=[ON, OFF])
    report = recomputed(tmp_path / "whole")
    assert report.same
    assert 0 < report.columns[name].compared < report.steps
    rolled(tmp_path / "altered", policy, action=action, exploration=[OFF], tamper=tamper)
    report = recomputed(tmp_path / "altered")
    assert {name for name, column in report.columns.items() if column.largest > 1e-5} == {name}


def narrow(weights: dict[str, Any]) -> dict[str, Any]:
    return {name: np.full_like(value, -7) if name.endswith("log_std") else value for name, value in weights.items()}


def steep(weights: dict[str, Any]) -> dict[str, Any]:
    return {name: np.float32(300) * value if name.startswith("head.") else value for name, value in weights.items()}


@pytest.mark.parametrize(("alter", "action"), [(narrow, "box"), (steep, "discrete")])
def test_roundings_count_by_what_they_come_to(tmp_path: Path, alter: Any, action: str) -> None:
    """A narrow density multiplies them; and small numbers come of large ones. What is altered is found still."""
    rolled(tmp_path / "whole", action=action, num_envs=8, alter=alter)
    assert recomputed(tmp_path / "whole").same
    batches = 0

    def tamper(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal batches
        batches += 1
        if batches != 10:
            return batch
        place = batch.schema.get_field_index("action")
        rows = batch.column("action").to_pylist()
        rows[0][0] = 5 - rows[0][0] if action == "discrete" else [0.01 + drawn for drawn in rows[0][0]]
        return batch.set_column(place, batch.schema.field(place), pa.array(rows, batch.column("action").type))

    rolled(tmp_path / "altered", action=action, num_envs=8, alter=alter, tamper=tamper)
    report = recomputed(tmp_path / "altered")
    assert {name for name, column in report.columns.items() if column.largest > 1e-5} == {"log_prob"}


def test_the_command_tells_what_it_found(recurrent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replay = Replay.open(recurrent)
    assert run(["recompute", str(recurrent)]) == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"{replay.steps:,} steps in {chunks_in(replay):,} chunks computed again\n")
    assert told.out.endswith("all that was compared is within 1e-05\n")
    assert all(f"\n{name} " in told.out for name in ("final_value", "log_prob", "parameters", "state.hidden", "value"))
    # No progress bar where there is no terminal.
    assert not told.err
    assert run(["recompute", str(recurrent), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    assert report["steps"] == replay.steps
    assert report["lost"] == {}


def test_one_episode_with_all_that_it_continues(recurrent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episodes = {episode.id: episode for episode in Replay.open(recurrent).episodes()}
    last = next(episode for episode in episodes.values() if episode.continues is not None and episode.ends != Ends.CUT)
    steps, part = 0, last
    while True:
        steps += part.length
        if part.continues is None:
            break
        part = episodes[f"a/pod-0/0/{last.env}/{part.continues}"]
    assert run(["recompute", str(recurrent), "--episode", last.id]) == 0
    assert capsys.readouterr().out.startswith(f"{steps:,} steps in ")
    assert run(["recompute", str(recurrent), "--episode", "a/pod-0/0/0/999"]) == 1
    assert "no episode 'a/pod-0/0/0/999' in it" in capsys.readouterr().err


def test_parts_in_any_order_and_few_steps_at_a_time(recurrent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = recomputed(recurrent)
    for order in (lambda replay: list(replay.episodes())[::-1], _shuffled):
        other = recomputed(recurrent, order)
        assert (other.steps, other.chunks, other.same, other.lost) == (whole.steps, whole.chunks, True, {})
    monkeypatch.setattr(check, "_SPAN_BYTES", 1)
    monkeypatch.setattr(check, "_BATCH_BYTES", 3000)
    for order in (Replay.episodes, _shuffled):
        other = recomputed(recurrent, order)
        assert (other.steps, other.chunks, other.same, other.lost) == (whole.steps, whole.chunks, True, {})
        assert {name: column.compared for name, column in other.columns.items()} == {
            name: column.compared for name, column in whole.columns.items()
        }


def _shuffled(replay: Replay) -> list[Episode]:
    episodes = list(replay.episodes())
    return [episodes[at] for at in np.random.default_rng(0).permutation(len(episodes))]


def test_a_part_whose_beginning_is_missing_cannot_be_computed(recurrent: Path) -> None:
    begun = [episode for episode in Replay.open(recurrent).episodes() if episode.continues is None]
    cut = next(episode for episode in begun if episode.ends == Ends.CUT)

    def without(replay: Replay) -> list[Episode]:
        return [episode for episode in replay.episodes() if episode.id != cut.id]

    report = recomputed(recurrent, without)
    assert report.status == 2
    assert list(report.lost) == [f"they look back at the part {cut.id}, which is not in the store, or lost its end"]
    assert report.same


def test_weights_that_are_missing_cost_their_own_chunks_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rolled(tmp_path, policy="actor-critic")
    (weights,) = (tmp_path / "policies").glob("000000000001-*")
    content = weights.read_bytes()
    weights.unlink()
    replay = Replay.open(tmp_path)
    of_it = sum(int((episode.policy_version == 1).sum()) for episode in replay.episodes())
    assert run(["recompute", str(tmp_path), "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert report["steps"] == replay.steps - of_it
    assert [f"no policies/{weights.name} in it" in reason for reason in report["lost"]] == [True]
    assert report["largest"] <= 1e-5
    assert run(["recompute", str(tmp_path)]) == 2
    assert "CHUNKS COULD NOT BE COMPUTED AGAIN" in capsys.readouterr().out
    (other,) = (tmp_path / "policies").glob("000000000002-*")
    weights.write_bytes(other.read_bytes())
    assert run(["recompute", str(tmp_path)]) == 2
    assert "is not what its name says: restore it" in capsys.readouterr().out
    weights.write_bytes(content)
    assert run(["recompute", str(tmp_path)]) == 0


def test_chunks_that_look_back_with_missing_weights_are_lost_too(tmp_path: Path) -> None:
    rolled(tmp_path, connectors=CONNECTED, cut_steps=None)
    (weights,) = (tmp_path / "policies").glob("000000000001-*")
    weights.unlink()
    replay = Replay.open(tmp_path)
    lost = 0
    for episode in replay.episodes():
        bounds = np.append(episode.chunk_first_step, episode.length)
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            lost += bool((episode.policy_version[max(0, begin - 3) : end] == 1).any())
    report = recomputed(tmp_path)
    assert report.lost.total() == lost
    assert report.same
    assert report.status == 2


def test_other_first_weights_are_no_version_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rolled(tmp_path)
    monkeypatch.setattr(make, "_INITIAL_SEED", 1)
    assert run(["recompute", str(tmp_path)]) == 2
    assert "chunks could not be computed again: digest: policy version 0: its digest is" in capsys.readouterr().out


def test_what_the_command_cannot_do_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rolled(tmp_path, fragments=2)
    for word in ("-1", "nan", "x"):
        with pytest.raises(SystemExit) as ended:
            run(["recompute", str(tmp_path), "--tolerance", word])
        assert ended.value.code == 2
    assert run(["recompute", str(tmp_path), "--device", "abacus"]) == 1
    assert "abacus" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "penstock_producers.policy.recompute", None)
    assert run(["recompute", str(tmp_path)]) == 1
    assert "pip install 'penstock[producer]'" in capsys.readouterr().err


def test_differences_are_shares_of_what_is_large() -> None:
    report = Report(1e-5)
    ids, places = ["a", "b"], np.array([0, 0, 1, 1])
    recorded = np.array([1e5, -np.inf, np.nan, 0.5], np.float32)
    report.compare("x", recorded, np.array([1e5, -np.inf, np.nan, 0.0], np.float32), places, ids)
    assert (report.columns["x"].compared, report.columns["x"].episode, report.same) == (4, "b", True)
    # What stands for an infinity makes nothing else small, nor does a number that was recorded.
    for large in (np.float32(-1e9), np.float32(-np.inf)):
        beside = Report(1e-5)
        beside.compare("x", np.array([large, 0.5]), np.array([large, 0.0]), places[:2], ids)
        beside.compare("x", np.array([1e9, 0.5]), np.array([1e9, 0.0]), places[:2], ids)
        assert beside.largest == 0.5
    report.compare("x", recorded, np.array([1e5, -np.inf, 0.0, 0.5], np.float32), places, ids)
    assert (report.largest, report.worst, report.status) == (np.inf, "b", 1)
    assert report.to_json()["largest"] == "inf"
    masked = np.ma.MaskedArray(recorded, mask=[True, False, True, True])
    other = Report(1e-5)
    other.compare("x", masked, np.zeros(4, np.float32), places, ids)
    assert (other.columns["x"].compared, other.worst) == (1, "a")
    nothing = Report(1e-5)
    nothing.compare("x", recorded[:0], recorded[:0], places[:0], ids)
    assert (nothing.status, nothing.worst, nothing.largest) == (0, None, 0.0)


@pytest.mark.soak
@pytest.mark.parametrize("policy", ["actor-critic", "recurrent", "q-network", "convolutional", "random", "floats"])
def test_100_000_steps_of_every_policy_with_every_connector(tmp_path: Path, policy: str) -> None:
    image, floats, chance = policy == "convolutional", policy == "floats", policy == "random"
    masked: dict[str, Any] = {"mask": "mask"} | ({} if chance else {"final_value": True})
    rolled(
        tmp_path,
        "actor-critic" if floats else policy,
        observation="image" if image else "nested",
        action="box" if floats else "discrete",
        arguments={"channels": "first"} if image else None,
        behaviour={"mapping": "rescale", "noise": 0.1, "final_value": True} if floats else masked,
        connectors=IMAGES if image else EVERY,
        settings=[{"epsilon": 0.1}, {"epsilon": 0.2}] * 4 if policy == "q-network" else [{}, {"temperature": 1.5}] * 4,
        exploration=() if chance else (ON, ON, ON, OFF, RANDOM),
        num_envs=32,
        fragments=68,
        fragment_steps=52,
        cut_steps=100,
        longest=400,
    )
    report = recomputed(tmp_path)
    assert report.steps >= 100_000
    assert report.lost == {}
    assert report.columns["log_prob"].largest <= 1e-5
    assert report.same, report
