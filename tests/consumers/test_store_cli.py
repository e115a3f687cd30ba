from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock_consumers.store import layout
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store_cli import format_report, run
from penstock_consumers.verify import Report
from penstock_schemas.chunks import Ends
from penstock_schemas.log.memory import MemoryLog
from tests.consumers.messages import TOPIC, Clock, Row, ScriptedProducer, store_all

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> str:
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    producer = ScriptedProducer(log)
    producer.begin()
    producer.send(Row(0, 0, 0, 0, 3, Ends.TERMINATED), Row(1, 0, 0, 0, 5))
    producer.end("preempted")
    store_all(log, open_bucket(tmp_path / "store"))
    return str(tmp_path / "store")


def test_info_shows_what_a_store_holds(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", store]) == 0
    shown = capsys.readouterr().out
    assert "episodes     2 (1 terminated, 1 aborted)" in shown
    assert "steps        8" in shown


def test_info_as_json(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", "--json", store]) == 0
    read = json.loads(capsys.readouterr().out)
    assert (read["stream"], read["episodes"], read["steps"]) == ("test", 2, 8)
    assert read["counters"]["rows_read"] == 2


@pytest.mark.parametrize("command", ["info", "verify"])
def test_a_store_that_is_missing(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "nowhere"
    assert run([command, str(missing)]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert str(missing) in told
    assert "store.json" in told
    assert not missing.exists()


@pytest.mark.parametrize("command", ["info", "verify"])
def test_a_store_of_another_format(command: str, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    open_bucket(store).put(layout.MANIFEST, b'{"format": 4}')
    assert run([command, store]) == 1
    assert f"error: store {store}: format version 4, this Penstock reads 3" in capsys.readouterr().err


def test_verify_without_kafka_is_an_error_that_names_it(
    store: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["verify", store, "--config", str(tmp_path / "missing.toml")]) == 1
    assert "missing.toml" in capsys.readouterr().err


def test_verify_quick_needs_no_log(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", store, "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["stored", "2", "8"]
    assert lines[-1] == "the store has all that it names, as it was written"
    assert run(["verify", store, "--quick", "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert (read["ok"], read["episodes_stored"], read["steps_stored"]) == (True, 2, 8)


def test_verify_quick_names_what_is_damaged(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    bucket = open_bucket(store)
    (name,) = bucket.list("segments/")
    data = bytearray(bucket.read(name).to_pybytes())
    data[len(data) // 2] ^= 1
    bucket.put(name, bytes(data))
    assert run(["verify", store, "--quick"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "1 segments and 0 named snapshots damaged" in lines[-3]
    assert name in lines[-2]
    assert lines[-1] == "THE STORE IS DAMAGED"


def test_verify_quick_of_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(tmp_path / "nowhere"), "--quick"]) == 1
    assert "no store.json there" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["nonsense"], ["info"], ["verify", "a", "b"]])
def test_wrong_words(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(words)
    assert ended.value.code == 2
    assert "usage: penstock-store" in capsys.readouterr().err


def test_what_needs_no_log_needs_no_client_of_kafka(store: str) -> None:
    """Reading a store is a learner's business."""
    script = """
import sys
from penstock_consumers.store_cli import run
for words in ("info", "ls", "verify --quick", "compact", "gc", "snapshot ls"):
    assert run([*words.split(), sys.argv[1]]) == 0, words
loaded = {"kafka", "pydantic", "prometheus_client", "torch", "gymnasium"} & set(sys.modules)
sys.exit(f"loaded {loaded}" if loaded else 0)
"""
    done = subprocess.run(  # noqa: S603  (our own interpreter and script)
        [sys.executable, "-c", script, store],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_report_that_is_well() -> None:
    report = Report(
        episodes_expected=1_234, episodes_stored=1_234, steps_expected=5_000, steps_stored=5_000, messages=9
    )
    lines = format_report(report).splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["episodes", "steps"],
        ["expected", "1,234", "5,000"],
        ["stored", "1,234", "5,000"],
    ]
    assert "9 messages judged again, 0 wait for a commit" in lines
    assert lines[-1] == "the store holds exactly what the log says"


@pytest.mark.parametrize(
    "report",
    [
        Report(episodes_missing=1),
        Report(episodes_duplicated=1),
        Report(episodes_unexpected=1),
        Report(episodes_wrong=1),
        Report(segments_damaged=1),
        Report(commits_wrong=1),
        Report(open_rows_wrong=1),
        Report(snapshots_damaged=1),
    ],
    ids=["missing", "duplicated", "unexpected", "wrong", "damaged", "commits", "open", "snapshots"],
)
def test_a_report_that_is_not_well(report: Report) -> None:
    assert not report.ok
    assert format_report(report).splitlines()[-1] == "THE STORE IS NOT WHAT THE LOG SAYS"


def test_a_loss_is_loud() -> None:
    report = Report(offsets_lost=1_200)
    assert not report.ok
    lines = format_report(report).splitlines()
    assert "1,200 offsets were deleted from the log before they were judged" in lines
    assert lines[-1] == "1,200 OFFSETS OF THE LOG WERE LOST"
    report.episodes_missing = 1
    verdict = "THE STORE IS NOT WHAT THE LOG SAYS, AND 1,200 OFFSETS OF THE LOG WERE LOST"
    assert format_report(report).splitlines()[-1] == verdict


def test_a_report_says_from_where_a_partition_was_judged_again() -> None:
    lines = format_report(Report(from_offsets={0: 0, 1: 1_500})).splitlines()
    told = [line for line in lines if line.startswith("partition")]
    assert told == ["partition 1: judged again from offset 1,500 on; what ended before is taken as it is"]


def test_a_report_says_of_how_many_episodes_the_values_are_not_known() -> None:
    lines = format_report(Report(episodes_opened_before=1_200)).splitlines()
    assert "1,200 expected were open there: compared by name, length and end alone" in lines


def test_a_report_tells_of_open_episodes() -> None:
    lines = format_report(Report(rows_open=3, steps_open=2_000, open_rows_wrong=1)).splitlines()
    assert "3 open rows with 2,000 steps, 1 rows wrong" in lines


def test_a_report_names_the_first_few() -> None:
    report = Report()
    for number in range(20):
        report.found(f"finding {number}")
    assert report.findings == [f"finding {number}" for number in range(5)]
    assert format_report(report).splitlines()[-2] == "  finding 4"
