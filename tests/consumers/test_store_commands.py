"""`penstock-store ls` and `show`, and what all commands have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock_consumers.store import commits
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store_cli import run
from penstock_schemas.chunks import Ends
from tests.consumers import varied
from tests.consumers.commands import answered
from tests.consumers.messages import NESTED, Row, WrappedBucket, store_messages
from tests.consumers.stores import Writer, episodes, stream

if TYPE_CHECKING:
    from pathlib import Path


def ids(capsys: pytest.CaptureFixture[str], *words: str) -> list[int]:
    """The numbers of the episodes that `ls` lists."""
    return [int(one["id"].rpartition("/")[2]) for one in answered(capsys, "ls", *words)]


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Ten episodes in three segments of two partitions; they end in the order of their numbers."""
    writer = Writer(open_bucket(tmp_path / "store"), stream())
    ends = [Ends.TERMINATED, Ends.TRUNCATED, Ends.TERMINATED | Ends.TRUNCATED, Ends.ABORTED, Ends.CUT]
    writer.commit(0, episodes(writer.spec, [3, 5, 7, 9, 4], ends=ends, closed_offset=30))
    writer.commit(1, episodes(writer.spec, [2, 2], first=5, closed_offset=9))
    writer.commit(0, episodes(writer.spec, [6, 6, 6], first=7, closed_offset=50, version=4))
    return str(tmp_path / "store")


def test_ls_lists_the_newest_first_over_all_partitions(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ids(capsys, store) == list(range(9, -1, -1))
    assert ids(capsys, store, "--limit", "4") == [9, 8, 7, 6]
    assert ids(capsys, store, "--limit", "2") == [9, 8]


def test_ls_takes_turns_where_partitions_end_episodes_at_the_same_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Writer(open_bucket(tmp_path), stream())
    writer.commit(0, episodes(writer.spec, [2] * 8))
    writer.commit(1, episodes(writer.spec, [2] * 3, first=3))
    assert ids(capsys, str(tmp_path)) == [7, 6, 5, 5, 4, 4, 3, 3, 2, 1, 0]
    assert ids(capsys, str(tmp_path), "--limit", "5") == [7, 6, 5, 5, 4]


def test_ls_tells_what_an_episode_is(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, "ls", store)
    assert found[0] == {
        "id": "producer-1/7/4/9",
        "length": 6,
        "return": 9000.0 * 6 + 15,
        "end": "terminated",
        "abort_reason": None,
        "first_version": 4,
        "last_version": 5,
        "closed_offset": 50,
        "closed_ms": 1009,
    }
    assert (found[6]["end"], found[6]["abort_reason"]) == ("aborted", "gap")
    assert run(["ls", store]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:4] == ["id", "length", "return", "end"]
    assert lines[1][:4] == ["producer-1/7/4/9", "6", "54,015.00", "terminated"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--producer", "producer-1"], [9, 7, 5, 3, 1]),
        (["--producer", "producer"], []),
        (["--end", "aborted"], [3]),
        (["--end", "cut", "--end", "terminated_and_truncated"], [4, 2]),
        (["--min-return", "14001"], [9, 8, 7, 4, 3, 2]),
        (["--max-return", "9999"], [1, 0]),
        (["--min-return", "3", "--max-return", "5010"], [1, 0]),
        (["--producer", "producer-0", "--limit", "2"], [8, 6]),
        (["--end", "terminated", "--min-return", "1e9"], []),
    ],
)
def test_ls_filters(store: str, capsys: pytest.CaptureFixture[str], words: list[str], expected: list[int]) -> None:
    assert ids(capsys, store, *words) == expected


def test_ls_names_no_version_of_a_chunk_without_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = [varied.Told(length, (1, 2), ends=Ends.ABORTED, stepless=9) for length in (5, 3, 0)]
    varied.store(open_bucket(tmp_path), [(0, told)])
    found = answered(capsys, "ls", str(tmp_path))
    versions = {one["length"]: (one["first_version"], one["last_version"]) for one in found}
    assert versions == {5: (1, 2), 3: (1, 1), 0: (None, None)}


def test_ls_of_nothing_says_so(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", store, "--producer", "nobody"]) == 0
    assert capsys.readouterr().out == "no such episode\n"


def test_ls_opens_no_segment_whose_returns_are_others(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noted(WrappedBucket):
        """A bucket that notes what is opened."""

        def open(self, name: str) -> Any:
            opened.append(name)
            return self.inner.open(name)

    opened: list[str] = []
    monkeypatch.setattr("penstock_consumers.cli.ls.open_bucket", lambda url: Noted(open_bucket(url)))
    assert ids(capsys, store, "--min-return", "40000") == [9, 8, 7]
    assert len(opened) == 1
    newest = commits.newest(open_bucket(store), 0)
    assert newest is not None
    assert opened[0] == newest.segments_added[0].name


@pytest.mark.parametrize("words", [["--limit", "0"], ["--limit", "x"], ["--end", "somehow"], ["--min-return", "much"]])
def test_ls_refuses_wrong_words(store: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["ls", store, *words])
    assert ended.value.code == 2


def test_a_return_that_is_no_number_is_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer(open_bucket(tmp_path), stream())
    made = episodes(writer.spec, [2, 3])
    batch = made.batch.set_column(
        made.batch.schema.get_field_index("return"),
        made.batch.schema.field("return"),
        [float("nan"), float("inf")],
    )
    writer.commit(0, episodes(writer.spec, [2, 3]).__class__(made.spec, batch, made.lengths, made.ends, 0))
    assert [one["return"] for one in answered(capsys, "ls", str(tmp_path))] == [None, None]
    assert len(ids(capsys, str(tmp_path), "--min-return", "5")) == 1


def test_show_tells_all_of_an_episode(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, "show", store, "producer-0/7/2/2", "--steps", "1")
    assert {name: found[name] for name in ("id", "end", "length", "return", "seed", "closed_offset")} == {
        "id": "producer-0/7/2/2",
        "end": "terminated_and_truncated",
        "length": 7,
        "return": 14_021.0,
        "seed": 2,
        "closed_offset": 30,
    }
    assert [(one["first_step"], one["steps"], one["policy_version"]) for one in found["chunks"]] == [
        (0, 4, 1),
        (4, 3, 2),
    ]
    assert found["chunks"][0]["policy_digest"] == "01" * 8
    first, last = found["steps"]
    assert first == {
        "step": 0,
        "observation": [2.0, 0.0, 0.0, 0.0],
        "action": 0,
        "reward": 2000.0,
        "log_prob": 0.0,
        "logits": [2.0, 0.0, 0.0],
    }
    assert (last["step"], last["reward"]) == (6, 2006.0)
    assert found["last_observation"] == [2.0, 7.0, 0.0, 0.0]


def test_show_as_text(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", store, "producer-1/7/3/3"]) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    assert ["end", "aborted"] in lines
    assert ["abort", "reason", "gap"] in lines
    assert [line for line in lines if line[:1] in (["step"], ["…"])] == [
        *(["step", str(step)] for step in range(3)),
        ["…", "step", "6"],
        *(["step", str(step)] for step in (7, 8)),
    ]


@pytest.mark.parametrize("steps", ["1", "3", "50"])
def test_show_of_a_short_episode_shows_each_step_once(
    store: str, steps: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answered(capsys, "show", store, "producer-1/7/0/5", "--steps", steps)
    assert [one["step"] for one in found["steps"]] == [0, 1]


def nested_store(folder: Path) -> str:
    begun = Row(0, 0, 0, 0, 3), Row(1, 0, 0, 0, 2, Ends.TERMINATED), Row(2, 0, 0, 0, 6)
    store_messages(open_bucket(folder), begun, [Row(0, 0, 1, 3, 0, Ends.ABORTED, "broke")], spec=NESTED)
    return str(folder)


def test_show_of_every_kind_of_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, "show", nested_store(tmp_path), "producer-0/0/1/0")
    assert found["metrics"] == {"score": 0.5, "laps": None}
    assert found["steps"][0]["observation"] == {"place": [0.0, 0.0, 1.0, 0.0, 0.0], "said": "é1 0 0"}
    assert found["steps"][0]["action"] == [1, [0, 1]]
    assert [step["info.note"] for step in found["steps"]] == [None, "漢1"]
    assert [step["info.place"] for step in found["steps"]] == [None, [1, 0, 1]]


def test_show_of_an_episode_whose_last_chunk_has_no_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, "show", nested_store(tmp_path), "producer-0/0/0/0")
    assert [(one["steps"], one["policy_version"]) for one in found["chunks"]] == [(3, 0), (0, None)]
    assert found["abort_reason"] == "broke"


def test_show_of_an_open_episode_says_that_it_is_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", nested_store(tmp_path), "producer-0/0/2/0"]) == 1
    assert "'producer-0/0/2/0' is open, with 6 steps so far" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("producer-0/7/2/1", "no episode 'producer-0/7/2/1' in it"),
        ("producer-9/7/2/2", "no episode 'producer-9/7/2/2' in it"),
        ("nonsense", "an id is producer/incarnation/env/episode"),
        ("producer-0/7/2/x", "an id is producer/incarnation/env/episode"),
        (f"producer-0/7/2/{5_000 * '9'}", "an id is producer/incarnation/env/episode"),
    ],
)
def test_show_of_what_is_not_there(store: str, name: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", store, name]) == 1
    assert told in capsys.readouterr().err


def test_show_cuts_what_no_person_reads(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    from penstock_consumers.cli.show import _short  # noqa: PLC0415 - how a value is shown, not what

    assert _short(np.zeros(500).tolist()).endswith("… (2,500 characters)")


@pytest.mark.parametrize("command", ["info", "ls", "show", "verify", "replay", "recompute"])
def test_a_store_that_is_missing(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"show": ["p/0/0/0"], "replay": ["--episode", "p/0/0/0"]}.get(command, [])
    assert run([command, str(tmp_path / "nowhere"), *more]) == 1
    assert "store.json" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_help_tells_every_command_and_every_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["--help"])
    told = capsys.readouterr().out
    for name in ("info", "ls", "show", "verify", "replay", "recompute", "quarantine"):
        assert f"\n    {name}" in told
    assert "exit status:" in told
