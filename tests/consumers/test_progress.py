from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stderr
from typing import TYPE_CHECKING

from penstock_consumers.progress import Progress, bar, watched
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.verify import quick, verify
from penstock_schemas.chunks import Ends
from penstock_schemas.log.memory import MemoryLog
from tests.consumers.messages import TOPIC, Clock, Row, ScriptedProducer, open_partition, store_messages, take_all
from tests.consumers.stores import Writer, episodes, stream

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

HOUR = 3_600.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def read_some(*, shown: bool | None = None, delay_seconds: float = 0.0) -> Progress:
    with bar("read", shown=shown, delay_seconds=delay_seconds) as progress:
        progress.expect(1_000)
        progress.advance(600)
        progress.expect(500)
        progress.advance(900)
    return progress


def test_a_long_read_shows_a_bar_on_a_terminal() -> None:
    with redirect_stderr(Terminal()) as terminal, bar("read", delay_seconds=0.0) as progress:
        progress.expect(2_000)
        progress.advance(1_500)
        # A bar is drawn again only now and then.
        progress._shown.refresh()  # type: ignore[attr-defined]  # what is shown is tqdm's
        drawn = terminal.getvalue()
    assert "read:  75%" in drawn
    assert "1.50k/2.00k" in drawn
    assert " steps" in drawn


def test_nothing_is_left_of_it() -> None:
    with redirect_stderr(Terminal()) as terminal:
        read_some()
    *_, last = terminal.getvalue().split("\r")
    assert last.strip() == ""


def test_a_short_read_shows_nothing() -> None:
    with redirect_stderr(Terminal()) as terminal:
        read_some(delay_seconds=HOUR)
    assert terminal.getvalue().strip() == ""


def test_where_stderr_is_no_terminal_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    read_some()
    assert capsys.readouterr().err == ""
    read_some(shown=True)
    assert "read:" in capsys.readouterr().err


def test_on_a_terminal_nothing_is_shown_where_that_is_not_wanted() -> None:
    with redirect_stderr(Terminal()) as terminal:
        read_some(shown=False)
    assert terminal.getvalue() == ""


def test_what_is_counted_is_the_same_whether_it_is_shown_or_not() -> None:
    for shown in (True, False):
        progress = read_some(shown=shown)
        assert (progress.total, progress.done) == (1_500, 1_500)


def test_items_are_watched_one_by_one() -> None:
    given = watched(["a", "bb", "ccc"], len, 6, "words", shown=False)
    assert next(given) == "a"
    assert list(given) == ["bb", "ccc"]


def test_a_look_at_the_store_alone_counts_its_steps() -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, stream())
    writer.commit(0, episodes(writer.spec, [3, 4]))
    writer.commit(1, episodes(writer.spec, [5], first=2))
    progress = Progress()
    quick(bucket, progress)
    assert (progress.total, progress.done) == (12, 12)


def test_verifying_counts_the_offsets_that_are_judged_again() -> None:
    log = MemoryLog(clock=Clock())
    log.create(TOPIC, partitions=2)
    bucket = open_bucket("memory://")
    for number in range(2):
        producer = ScriptedProducer(log, f"producer-{number}", number)
        producer.begin()
        partition = open_partition(log, bucket, partition=number)
        for episode in range(3):
            producer.send(Row(0, episode, 0, 0, 2, Ends.TERMINATED))
            take_all(partition, log)
            partition.commit()
    progress = Progress()
    assert verify(bucket, log, TOPIC, progress=progress).ok
    assert (progress.total, progress.done) == (8, 8)


COMMANDS = """
import io, sys
from penstock_consumers.store_cli import run

class Terminal(io.StringIO):
    def isatty(self):
        return True

sys.stderr = Terminal()
for words in sys.argv[2:]:
    assert run([*words.split(), sys.argv[1]]) == 0, words
    # Loaded by whoever sees a bar, and nobody else.
    print("WATCHED" if sys.modules.pop("tqdm.auto", None) else "UNWATCHED", words)
"""


def test_commands_are_watched_on_a_terminal_but_never_in_a_pipeline(tmp_path: Path) -> None:
    store_messages(open_bucket(tmp_path / "store"), [Row(0, 0, 0, 0, 3, Ends.TERMINATED)])
    quiet = ("info --json", "verify --quick --json")
    loud = ("info", "verify --quick", f"plot --output {tmp_path}/return.png")
    command = [sys.executable, "-c", COMMANDS, str(tmp_path / "store"), *quiet, *loud]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603  (our own)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if "WATCHED" in line]
    assert told == [*(f"UNWATCHED {words}" for words in quiet), *(f"WATCHED {words}" for words in loud)]
