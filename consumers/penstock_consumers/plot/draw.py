"""Curves as a PNG. Loads matplotlib, which only the extra `plot` brings; opens no window, and leaves pyplot alone."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from penstock_consumers.plot.curves import Curve
    from penstock_schemas.stream import StreamSpec

_LINE, _BARS, _GRID, _TEXT = "#1f5fa8", "#dcdfe5", "#e9ebef", "#5b6470"
_WIDTH, _HEIGHT, _HEAD = 10.0, 3.6, 0.7  # inches: of the figure, of each panel, of the title
_DPI = 150
# So few points are marked.
_MOST_MARKED = 40
# How much of a panel's height the bars take.
_BARS_SHARE = 0.2
# A line over so many groups without an episode would tell of what is not there.
_PAUSE = 10
_MS_PER_DAY = 86_400_000
_LABELS = {
    "version": "policy version that chose the last action",
    "time": "end of the episode, the log's time (UTC)",
    "steps": "steps in the store by the end of the episode",
}


def draw(drawn: Mapping[str, Curve], spec: StreamSpec, path: Path) -> None:
    """Draw curves as a PNG; equal curves give equal bytes. Raises `OSError` where it cannot be written."""
    # Which version of matplotlib drew it would otherwise stand in the file.
    figure_of(drawn, spec).savefig(path, format="png", metadata={"Software": None})


def figure_of(drawn: Mapping[str, Curve], spec: StreamSpec) -> Figure:
    """Lay out curves, at least one, as panels of one figure."""
    figure = Figure(figsize=(_WIDTH, _HEAD + _HEIGHT * len(drawn)), dpi=_DPI, layout="constrained")
    figure.suptitle(_title(drawn, spec), fontsize=13, fontweight="bold", x=0.01, ha="left")
    panels = figure.subplots(len(drawn), squeeze=False)[:, 0]
    for panel, (by, curve) in zip(panels, drawn.items(), strict=True):
        _draw(panel, by, curve)
    return figure


def _title(drawn: Mapping[str, Curve], spec: StreamSpec) -> str:
    episodes = max(int(curve.summary.episodes.sum()) for curve in drawn.values())
    env = spec.env.get("id")
    named = [f"{spec.stream}: {env}" if env else spec.stream]
    return ", ".join([*named, f"{episodes:,} whole episode{'' if episodes == 1 else 's'}"])


def _draw(panel: Axes, by: str, curve: Curve) -> None:
    summary = curve.summary
    at, width = _placed(by, curve)
    counted = panel.twinx()
    bars = counted.bar(at, summary.episodes, width=width, color=_BARS, linewidth=0)
    most = int(summary.episodes.max())
    counted.set_ylim(0, most / _BARS_SHARE)
    counted.set_yticks([0, most])
    counted.set_ylabel("episodes", color=_TEXT, loc="bottom")
    counted.yaxis.set_major_formatter(_thousands())
    counted.tick_params(colors=_TEXT, length=0)
    # The curve lies over the bars.
    panel.set_zorder(counted.get_zorder() + 1)
    panel.patch.set_visible(False)
    x, mean, low, high = _line(by, at, width, curve)
    band = panel.fill_between(x, low, high, color=_LINE, alpha=0.18, linewidth=0)
    marker = "o" if len(at) <= _MOST_MARKED else None
    (line,) = panel.plot(x, mean, color=_LINE, linewidth=1.8, marker=marker, markersize=4)
    panel.set_xlabel(_LABELS[by] + _together(by, curve.width))
    panel.set_ylabel("return")
    panel.yaxis.set_major_formatter(_thousands())
    _lay_out_x(panel, by)
    panel.grid(color=_GRID, linewidth=0.8)
    for axes in (panel, counted):
        axes.set_axisbelow(True)
        axes.spines[["top", "left", "right", "bottom"]].set_visible(False)
    panel.spines["bottom"].set(visible=True, color=_TEXT)
    panel.legend(
        [line, band, bars],
        ["mean", "± one standard deviation, cut off at the least and the most", "episodes"],
        loc="upper left",
        frameon=False,
        ncols=3,
        fontsize=9,
        bbox_to_anchor=(0.0, 1.12),
    )


def _placed(by: str, curve: Curve) -> tuple[NDArray[np.float64], float]:
    """Where groups lie on the axis, and how wide they are there."""
    # matplotlib counts days since 1970.
    unit = _MS_PER_DAY if by == "time" else 1
    return curve.at / unit, curve.width / unit


def _line(by: str, at: NDArray[np.float64], width: float, curve: Curve) -> tuple[NDArray[np.float64], ...]:
    """Places, means and the ends of the band: interrupted where time passed and nothing ended.

    The band is one standard deviation about the mean, but never beyond what was returned.
    """
    mean, std = curve.summary.mean, curve.summary.std
    low, high = np.maximum(mean - std, curve.summary.least), np.minimum(mean + std, curve.summary.most)
    pauses = np.flatnonzero(np.diff(at) > _PAUSE * width) + 1
    if by != "time":
        pauses = pauses[:0]
    return tuple(np.insert(values, pauses, np.nan) for values in (at, mean, low, high))


def _together(by: str, width: int) -> str:
    return f", {width:,} together" if by == "version" and width > 1 else ""


def _lay_out_x(panel: Axes, by: str) -> None:
    if by == "time":
        locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]  # matplotlib's dates have no types
        panel.xaxis.set_major_locator(locator)
        panel.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]  # the same
        return
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.xaxis.set_major_formatter(_thousands())


def _thousands() -> FuncFormatter:
    return FuncFormatter(lambda value, _: f"{value:,.10g}")
