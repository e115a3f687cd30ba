"""`penstock-store snapshot`, `compact`, `retain` and `gc`, over a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock_consumers.replay import Replay
from penstock_consumers.store import commits
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store_cli import run
from penstock_schemas.chunks import Ends
from penstock_schemas.log.memory import MemoryLog
from tests.consumers.commands import answered
from tests.consumers.messages import TOPIC, Clock, Row, ScriptedProducer, open_partition, stored_episodes, take_all

COMMITS = 12


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store of twelve commits, each with an episode of ten steps, a second apart."""
    clock = Clock()
    log = MemoryLog(clock=clock)
    log.create(TOPIC)
    producer = ScriptedProducer(log)
    producer.begin()
    partition = open_partition(log, open_bucket(tmp_path / "store"))
    for episode in range(COMMITS):
        producer.send(Row(0, episode, 0, 0, 10, Ends.TERMINATED))
        clock.advance(1)
        take_all(partition, log)
        partition.commit()
    return str(tmp_path / "store")


def segments(store: str) -> list[str]:
    return sorted(open_bucket(store).list("segments/"))


def test_compact_joins_what_is_small_and_nothing_is_lost(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = stored_episodes(open_bucket(store))
    assert answered(capsys, "compact", store) == {"commits": 1, "damaged": []}
    assert stored_episodes(open_bucket(store)) == before
    newest = commits.newest(open_bucket(store), 0)
    assert newest is not None
    assert len(commits.live_at(open_bucket(store), newest).segments) < COMMITS
    assert run(["compact", store, "--compact-bytes", "1"]) == 0
    assert capsys.readouterr().out == "0 commits joined small segments\n"


def test_one_commit_is_told_as_one(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compact", store]) == 0
    assert capsys.readouterr().out == "1 commit joined small segments\n"


@pytest.mark.parametrize("how", ["text", "json"])
def test_compact_names_what_is_damaged(store: str, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = segments(store)[5]
    bucket = open_bucket(store)
    altered = bytearray(bucket.read(name).to_pybytes())
    altered[len(altered) // 2] ^= 1
    bucket.delete(name)
    bucket.put(name, bytes(altered))
    assert run(["compact", store, *(["--json"] if how == "json" else [])]) == 1
    told = capsys.readouterr().out
    if how == "json":
        assert json.loads(told)["damaged"] == [name]
    else:
        assert told.splitlines()[1:] == [f"segment {name}: not as it was written, so not joined; restore it"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["compact", "--compact-bytes", str(1 << 31)], "2147483648: bytes, at most 1073741824"),
        (["retain"], "name at least one --retain-…"),
        (["quarantine", "retry"], "nothing to retry: name places as partition:offset, a --reason, or --all"),
        (["snapshot", "create", "bad name"], "'bad name': up to 100 letters"),
        (["snapshot", "create", "../up"], "'../up': up to 100 letters"),
        (["snapshot", "rm", "bad name"], "'bad name': up to 100 letters"),
    ],
)
def test_wrong_words_are_refused(store: str, words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    at = 2 if words[0] in {"snapshot", "quarantine"} else 1
    with pytest.raises(SystemExit) as refused:
        run([*words[:at], store, *words[at:]])
    assert refused.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("command", "default"), [("compact", "134217728"), ("gc", "3600.0")])
def test_help_tells_the_default(command: str, default: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run([command, "--help"])
    assert default in capsys.readouterr().out


def test_gc_deletes_what_nobody_needs_once_it_is_told(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compact", store]) == 0
    before = segments(store)
    named = answered(capsys, "gc", store, "--collect-seconds", "0", "--dry-run")
    assert named["dry_run"]
    assert segments(store) == before
    done = answered(capsys, "gc", store, "--collect-seconds", "0")
    assert (done["deleted"], done["dry_run"]) == (named["deleted"], False)
    assert done["deleted"]
    assert segments(store) == sorted(set(before) - set(done["deleted"]))
    assert len(Replay.open(store).episode("producer-0/0/0/3").reward) == 10


def test_gc_leaves_what_somebody_may_still_read(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compact", store]) == 0
    assert answered(capsys, "gc", store)["deleted"] == []
    assert run(["gc", store, "--dry-run"]) == 0
    assert capsys.readouterr().out == "0 objects would be deleted\n"


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--retain-steps", "30"], [9, 10, 11]),
        (["--retain-versions", "2"], [10, 11]),
        (["--retain-seconds", "3.5"], [8, 9, 10, 11]),
        (["--retain-bytes", "1"], []),
        (["--retain-steps", "1000"], list(range(COMMITS))),
    ],
)
def test_retain_lets_the_oldest_go(
    store: str, words: list[str], kept: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    gone = COMMITS - len(kept)
    assert answered(capsys, "retain", store, *words) == {"episodes": gone, "steps": 10 * gone}
    assert [one["episode"] for one in stored_episodes(open_bucket(store))] == kept
    info = answered(capsys, "info", store)
    assert (info["retired"], info["episodes"]) == ({"episodes": gone, "steps": 10 * gone}, len(kept))
    assert run(["info", store]) == 0
    assert (f"retired      {gone} episodes" in capsys.readouterr().out) == (gone > 0)


def test_a_named_snapshot_holds_what_it_names(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = answered(capsys, "snapshot", "create", store, "paper")
    assert (made["name"], made["episodes"], made["steps"], made["commits"]) == ("paper", 12, 120, {"0": 11})
    assert run(["retain", store, "--retain-steps", "10"]) == 0
    assert run(["gc", store, "--collect-seconds", "0"]) == 0
    assert Replay.open(store).episodes_stored == 1
    assert Replay.open(store, snapshot="paper").episodes_stored == 12
    assert answered(capsys, "snapshot", "ls", store) == [made]
    assert run(["snapshot", "ls", store]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["paper", "12", "120"]
    assert run(["snapshot", "rm", store, "paper"]) == 0
    assert capsys.readouterr().out == "snapshot paper is removed\n"
    assert run(["snapshot", "ls", store]) == 0
    assert capsys.readouterr().out == "no named snapshot\n"
    assert len(answered(capsys, "gc", store, "--collect-seconds", "0")["deleted"]) >= 11


@pytest.mark.parametrize("written", ["", '{"format": 3}'])
def test_a_snapshot_that_does_not_read_is_listed_and_removed(
    store: str, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = answered(capsys, "snapshot", "create", store, "paper")
    (Path(store) / "snapshots/bad.json").write_text(written)
    assert run(["snapshot", "ls", store, "--json"]) == 1
    listed = capsys.readouterr()
    bad = {"name": "bad", "episodes": None, "steps": None, "bytes": None, "commits": None}
    assert json.loads(listed.out) == [bad, made]
    assert listed.err.startswith("error: snapshot snapshots/bad.json: ")
    assert run(["snapshot", "ls", store]) == 1
    assert capsys.readouterr().out.splitlines()[1].split() == ["bad", "-", "-", "-"]
    assert run(["gc", store, "--collect-seconds", "0"]) == 1
    assert "snapshot snapshots/bad.json: " in capsys.readouterr().err
    assert run(["snapshot", "rm", store, "bad"]) == 0
    assert answered(capsys, "snapshot", "ls", store) == [made]
    assert run(["gc", store, "--collect-seconds", "0"]) == 0


def test_a_snapshot_that_is_not_there_cannot_be_removed(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["snapshot", "rm", store, "nothing"]) == 1
    assert "no snapshot 'nothing' in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["compact"], ["gc"], ["retain", "--retain-steps", "1"], ["snapshot", "ls"], ["snapshot", "create", "name"]],
)
def test_where_there_is_no_store_none_is_made(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = 2 if words[0] == "snapshot" else 1
    assert run([*words[:at], str(tmp_path / "nowhere"), *words[at:]]) == 1
    assert "no store.json there" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()
