"""The panels of `emergo/forecast`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.plotting import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    WIDTH,
    Picture,
    hues,
    key,
    plain_ticks,
    subtitle,
)
from ._judge import BASELINES, factor, false_alarms, lead

# Limits of the bins of the elapsed fraction of the plateau.
EDGES = [*np.linspace(0.05, 0.95, 10)]
# The smallest number of moments whose median is drawn.
FEWEST = 10
WIDTHS = (1.2, 1.4, 1.7, 2.2, 3.0, 5.0)
KINDS = {"attention": BLUE, "entropy": ORANGE, "metric": GREEN}
LINES = {"step": BLUE, "again": GREY, "law": ORANGE, "seeds": GREEN}
LEVELS = {"2": ("2: and attention", BLUE), "1": ("1: and entropy", ORANGE)}
LEVELS |= {"metric": ("loss alone", GREEN)}
SHADES = {50: SKY, 80: BLUE, 95: BLACK}
DOT: dict[str, Any] = {"marker": "o", "ls": ""}


def draw(moments: pd.DataFrame, summary: pd.DataFrame) -> Picture:
    """Draw the first group by the elapsed fraction of the plateau, and a summary of all groups."""
    plot = Picture(figsize=(WIDTH, 7.6), layout="constrained")
    a, b, c, d, e, f = plot.subplots(3, 2).flat
    first = moments[moments["group"] == moments["group"].iloc[0]]
    ended = first[~first["censored"]].assign(seen=lambda rows: rows["now"] / rows["plateau"])
    last = ended[ended["level"] == "2"]
    draw_forecasts(a, last)
    draw_errors(b, last)
    draw_told(c, ended)
    for axes in (a, b, c):
        axes.set(xlabel="share of the plateau seen", xlim=(0, 1))
    groups = list(dict.fromkeys(summary["group"]))
    draw_groups(d, summary, groups)
    draw_coverage(e, summary[summary["level"] == "2"], groups)
    draw_lead(f, moments[moments["level"] == "2"], groups)
    return plot


def _title(axes: Axes, words: str, small: str) -> None:
    axes.set_title(words, y=1.09)
    subtitle(axes, small)


def draw_forecasts(axes: Axes, ended: pd.DataFrame) -> None:
    """Draw the ratio of every forecast to the truth."""
    for kind, colour in KINDS.items():
        rows = ended[ended["kind"] == kind]
        ratio = rows["step"] / rows["plateau"]
        axes.plot(rows["seen"], ratio, ".", color=colour, alpha=0.45, mew=0)
    axes.axhline(1.0, color=GREY, lw=0.8)
    axes.set(ylabel="step forecast / true step", yscale="log", ylim=(0.2, 5))
    plain_ticks(axes.yaxis)
    _title(axes, "a  every forecast", "level 2, by what it rests on")
    key(axes, [(kind, DOT | {"color": c}) for kind, c in KINDS.items()], loc="lower right")


def by_seen(rows: pd.DataFrame) -> list[tuple[float, pd.DataFrame]]:
    """Bin the moments by the elapsed fraction of the plateau: the middle of each bin, its rows."""
    ranges = pd.cut(rows["seen"], EDGES)
    return [(interval.mid, part) for interval, part in rows.groupby(ranges, observed=True)]


def draw_errors(axes: Axes, ended: pd.DataFrame) -> None:
    """Draw the median error of forecasts and baselines."""
    told = ended[ended["step"].notna()]
    parts = [(seen, part) for seen, part in by_seen(told) if len(part) >= FEWEST]
    names = {"step": "forecast"} | BASELINES
    for name, colour in LINES.items():
        values = [factor(part[name], part["plateau"]) for _, part in parts]
        axes.plot([seen for seen, _ in parts], values, "o-", color=colour, label=names[name])
    axes.set(ylabel="median factor off", yscale="log", ylim=(0.95, 8))
    plain_ticks(axes.yaxis)
    _title(axes, "b  error", "where there is a forecast")
    axes.legend(loc="upper center")


def draw_told(axes: Axes, ended: pd.DataFrame) -> None:
    """Draw the fraction of moments with a forecast, by level."""
    for level, (words, colour) in LEVELS.items():
        parts = by_seen(ended[ended["level"] == level])
        told = [part["step"].notna().mean() for _, part in parts]
        axes.plot([seen for seen, _ in parts], told, "o-", color=colour, label=words)
    axes.set(ylabel="share with a forecast", ylim=(0, 1))
    _title(axes, "c  how often there is one", "otherwise: no signal")
    axes.legend(loc="upper left")


def _rows(axes: Axes, groups: Sequence[str]) -> None:
    axes.set_yticks(range(len(groups)), groups)
    axes.set_ylim(len(groups) - 0.5, -0.5)


def draw_groups(axes: Axes, summary: pd.DataFrame, groups: Sequence[str]) -> None:
    """Draw the median error by group and level, and the error of the baseline "as long again"."""
    for shift, (level, (_, colour)) in enumerate(LEVELS.items()):
        rows = summary[summary["level"] == level]
        heights = rows["group"].map(groups.index) + 0.24 * (shift - 1)
        axes.hlines(heights, rows["error"], rows["error_again"], color="#cccccc", lw=1)
        axes.plot(rows["error_again"], heights, "|", color=GREY, ms=7)
        axes.plot(rows["error"], heights, color=colour, **DOT)
    axes.set(xscale="log", xlabel="median factor off")
    plain_ticks(axes.xaxis)
    _rows(axes, groups)
    _title(axes, "d  error by group", "bar: as long again, at the same moments")


def draw_coverage(axes: Axes, summary: pd.DataFrame, groups: Sequence[str]) -> None:
    """Draw the coverage of each interval by group."""
    heights = summary["group"].map(groups.index)
    for percent, colour in SHADES.items():
        axes.axvline(percent / 100, color=colour, lw=0.8, ls=":")
        held = summary[f"held{percent}"]
        axes.plot(held, heights, color=colour, label=f"{percent}%", **DOT)
    cells = summary["held80_by_cell"]
    axes.plot(cells, heights, "D", mfc="none", color=BLUE, label="80%, by cell")
    axes.set(xlabel="share of plateaus in the interval", xlim=(0, 1.02))
    _rows(axes, groups)
    _title(axes, "e  coverage, level 2", "dotted: as it should be")
    axes.legend(loc="upper left")


def draw_lead(axes: Axes, moments: pd.DataFrame, groups: Sequence[str]) -> None:
    """Draw the lead against false alarms, as the accepted width of the interval varies."""
    drawn = []
    for group, colour in zip(groups, hues(len(groups)), strict=True):
        rows = moments[moments["group"] == group]
        ended = rows[~rows["censored"]]
        negative = rows[rows["censored"]]
        points = [(false_alarms(negative, widest), lead(ended, widest)) for widest in WIDTHS]
        if np.isfinite(points).all():
            axes.plot(*zip(*points, strict=True), "o-", color=colour)
            drawn.append((group, DOT | {"color": colour}))
    axes.set(xlabel="negative runs with a false alarm", ylabel="plateau ahead at first forecast")
    axes.set(xlim=(-0.02, 1), ylim=(-0.02, 1))
    _title(axes, "f  lead and false alarms", "80% interval within a factor of 1.2 to 5")
    key(axes, drawn, loc="upper right")
