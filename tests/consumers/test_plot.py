from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.image import imread

from penstock_consumers.plot import BY, curves
from penstock_consumers.plot.draw import draw, figure_of
from penstock_consumers.progress import Progress
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store_cli import run
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import StoreError
from tests.consumers.stores import Writer, episodes, stream

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from penstock_consumers.store.bucket import Bucket

PNG = b"\x89PNG\r\n\x1a\n"
SPEC = replace(stream("walkers"), env={"id": "Walker-v5"})
BEGAN = 1_790_000_000_000


def commit(writer: Writer, returns: ArrayLike, *, version: ArrayLike, closed_ms: ArrayLike, first: int = 0) -> None:
    """Commit episodes of one chunk of 4 steps, which ended at `closed_ms` after `BEGAN`."""
    returned = np.asarray(returns, np.float64)
    stored = episodes(writer.spec, np.full(len(returned), 4), first=first)
    columns = {name: stored.batch.column(name) for name in stored.batch.schema.names}
    versions = np.broadcast_to(version, len(returned))
    columns |= {
        "policy_version": pa.ListArray.from_arrays(
            columns["policy_version"].offsets, pa.array(versions), type=columns["policy_version"].type
        ),
        "return": pa.array(returned),
        "closed_ms": pa.array(BEGAN + np.broadcast_to(closed_ms, len(returned)).astype(np.int64)),
    }
    batch = pa.record_batch(list(columns.values()), schema=stored.batch.schema)
    writer.commit(0, replace(stored, batch=batch))


def a_store(bucket: Bucket) -> Bucket:
    writer = Writer(bucket, SPEC)
    commit(writer, [1, 3], version=1, closed_ms=[0, 1_000])
    commit(writer, [10, 20, 1_500], version=2, closed_ms=[2_000, 3_000, 3_999], first=2)
    commit(writer, [7], version=9, closed_ms=[9_000], first=5)
    return bucket


@pytest.fixture
def bucket() -> Bucket:
    return a_store(open_bucket("memory://"))


def panels(bucket: Bucket, *by: str) -> list[Axes]:
    """The axes of returns."""
    return [axes for axes in figure_of(curves(bucket, by), SPEC).axes if axes.get_ylabel() == "return"]


def test_returns_by_version(bucket: Bucket) -> None:
    progress = Progress()
    curve = curves(bucket, ["version"], progress)["version"]
    assert curve.at.tolist() == [1, 2, 9]
    assert curve.summary.episodes.tolist() == [2, 3, 1]
    assert curve.summary.mean.tolist() == [2, 510, 7]
    assert curve.summary.std.tolist() == pytest.approx([1, np.std([10, 20, 1_500]), 0])
    assert (progress.total, progress.done) == (24, 24)


def test_returns_over_time(bucket: Bucket) -> None:
    curve = curves(bucket, ["time"])["time"]
    # 9,001 ms in at most 200 groups.
    assert curve.width == 46
    ended = BEGAN + np.array([0, 1_000, 2_000, 3_000, 3_999, 9_000])
    assert (np.abs(curve.at - ended) <= 23).all()
    assert curve.summary.mean.tolist() == [1, 3, 10, 20, 1_500, 7]


def test_returns_over_steps(bucket: Bucket) -> None:
    curve = curves(bucket, ["steps"])["steps"]
    # 8, 12 and 4 steps, those of each segment spread over its time.
    assert (curve.width, curve.at.tolist()) == (1, [0, 7, 8, 14, 19, 20])
    assert curve.summary.mean.tolist() == [1, 3, 10, 20, 1_500, 7]


def test_the_parts_of_a_cut_episode_are_drawn_as_one() -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, SPEC)
    for number, ends in enumerate((Ends.CUT, Ends.TERMINATED)):
        stored = episodes(SPEC, [4], first=number, ends=ends, version=5 + number)
        columns = {name: stored.batch.column(name) for name in stored.batch.schema.names}
        columns |= {"producer": pa.array(["a"]), "env": pa.array([0], pa.int32()), "return": pa.array([10.0])}
        columns |= {"continues": pa.array([number - 1 if number else None], pa.int64())}
        writer.commit(0, replace(stored, batch=pa.record_batch(list(columns.values()), schema=stored.batch.schema)))
    found = curves(bucket)
    assert found["version"].at.tolist() == [6]
    assert [found[by].summary.mean.tolist() for by in BY] == [[20], [20], [20]]
    assert found["version"].summary.mean_length.tolist() == [8]


def test_many_versions_are_drawn_together() -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, SPEC)
    versions = np.arange(1, 1_001, 3)
    commit(writer, versions, version=versions, closed_ms=versions)
    curve = curves(bucket, ["version"])["version"]
    assert curve.width == 5
    assert len(curve.at) == 200
    assert curve.summary.episodes.sum() == 334
    # A version is drawn where it is, give or take half a group.
    assert np.abs(curve.at - curve.summary.mean).max() <= 2.5
    (panel,) = panels(bucket, "version")
    assert panel.get_xlabel() == "policy version that chose the last action, 5 together"


@pytest.mark.parametrize("ends", [None, Ends.ABORTED])
def test_where_nothing_ended_there_is_nothing_to_draw(ends: Ends | None) -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, SPEC)
    if ends is not None:
        writer.commit(0, episodes(SPEC, [3, 4], ends=ends))
    with pytest.raises(StoreError, match="memory://: no episode in it that its env ended"):
        curves(bucket)


def test_a_panel_shows_means_spread_and_numbers(bucket: Bucket) -> None:
    (panel,) = panels(bucket, "version")
    (line,) = panel.lines
    assert np.column_stack(line.get_data()).tolist() == [[1, 2], [2, 510], [9, 7]]
    (band,) = panel.collections
    low, high = band.get_paths()[0].get_extents().intervaly
    # One standard deviation beyond the mean, and no further than the least: 510 - 700 would be below every return.
    assert (low, high) == (1, pytest.approx(510 + np.std([10, 20, 1_500])))
    assert panel.yaxis.get_major_formatter()(1_500, None) == "1,500"
    assert panel.yaxis.get_major_formatter()(0.1 + 0.2, None) == "0.3"
    (counted,) = [axes for axes in panel.figure.axes if axes.get_ylabel() == "episodes"]
    assert [bar.get_height() for bar in counted.patches] == [2, 3, 1]


def test_the_title_says_what_it_is_of(bucket: Bucket) -> None:
    assert figure_of(curves(bucket), SPEC).get_suptitle() == "walkers: Walker-v5, 6 whole episodes"


def test_each_axis_has_its_panel_and_its_words(bucket: Bucket) -> None:
    assert [panel.get_xlabel() for panel in panels(bucket, *BY)] == [
        "policy version that chose the last action",
        "end of the episode, the log's time (UTC)",
        "steps in the store by the end of the episode",
    ]


def test_no_line_is_drawn_over_a_pause() -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, SPEC)
    commit(writer, np.arange(50), version=1, closed_ms=np.arange(50) * 1_000)
    commit(writer, np.arange(50), version=50, closed_ms=500_000 + np.arange(50) * 1_000, first=50)
    (by_version, over_time) = panels(bucket, "version", "time")
    x, y = over_time.lines[0].get_data()
    (gap,) = np.flatnonzero(np.isnan(np.asarray(x, np.float64)))
    assert 0 < gap < len(np.asarray(x)) - 1
    assert np.isnan(np.asarray(y, np.float64)[gap])
    assert not np.isnan(np.asarray(by_version.lines[0].get_xdata(), np.float64)).any()


def test_a_return_that_is_no_number_leaves_a_gap(tmp_path: Path) -> None:
    bucket = open_bucket("memory://")
    writer = Writer(bucket, SPEC)
    for version, returned in enumerate((1.0, np.nan, 3.0, np.inf, 5.0)):
        commit(writer, [returned], version=version, closed_ms=[version], first=version)
    draw(curves(bucket), SPEC, tmp_path / "return.png")
    (panel, *_) = panels(bucket, "version")
    assert panel.get_ylim()[1] < 10


def test_equal_stores_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        a_store(open_bucket(tmp_path / name))
        assert run(["plot", str(tmp_path / name), "--output", str(tmp_path / f"{name}.png")]) == 0
    one, other = ((tmp_path / f"{name}.png").read_bytes() for name in ("one", "other"))
    assert one.startswith(PNG)
    assert one == other


def test_what_is_drawn_can_be_seen(tmp_path: Path) -> None:
    a_store(open_bucket(tmp_path / "store"))
    path = tmp_path / "return.png"
    assert run(["plot", str(tmp_path / "store"), "--by", "version", "--output", str(path)]) == 0
    pixels = imread(path)[:, :, :3]
    assert pixels.shape[1] == 1_500
    line = np.abs(pixels - np.array([0x1F, 0x5F, 0xA8]) / 255).max(axis=2) < 0.02
    rows, columns = np.nonzero(line)
    assert len(rows) > 1_000
    assert np.ptp(columns) > 1_000
    assert np.ptp(rows) > 200


def test_where_the_output_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_store(open_bucket(tmp_path / "store"))
    path = tmp_path / "nowhere" / "return.png"
    assert run(["plot", str(tmp_path / "store"), "--output", str(path)]) == 1
    assert f"error: --output {path}: cannot be written" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        run(["plot", str(tmp_path / "store"), "--output", "return.pdf"])
    assert ended.value.code == 2
    assert "return.pdf: what is drawn is a PNG" in capsys.readouterr().err


def test_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plot", str(tmp_path / "nowhere"), "--output", str(tmp_path / "return.png")]) == 1
    assert "no store.json there" in capsys.readouterr().err
    assert not (tmp_path / "return.png").exists()


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

from penstock_consumers.store_cli import run

sys.meta_path.insert(0, Missing())
assert run(["info", sys.argv[1]]) == 0
sys.exit(run(["plot", sys.argv[1]]))
"""
HEADLESS = """
import sys
from penstock_consumers.store_cli import run

assert "matplotlib" not in sys.modules
assert run(["plot", *sys.argv[1:]]) == 0
sys.exit("pyplot was loaded" if "matplotlib.pyplot" in sys.modules else 0)
"""


def child(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603  (our own)


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path) -> None:
    a_store(open_bucket(tmp_path))
    done = child(WITHOUT, str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == (
        "error: No module named 'matplotlib': drawing needs more than the base: pip install 'penstock[plot]'\n"
    )


def test_drawing_leaves_pyplot_alone(tmp_path: Path) -> None:
    a_store(open_bucket(tmp_path / "store"))
    done = child(HEADLESS, str(tmp_path / "store"), "--output", str(tmp_path / "return.png"))
    assert (done.returncode, done.stderr) == (0, "")
