"""The panels of `emergo/forecast`."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot

from ...core.plotting import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    WIDTH,
    key,
    plain_ticks,
    subtitle,
)
from ._judge import BASELINES, factor, false_alarms, lead
from ._moments import CHAIN, LATER, RECALL, SIZES, TORCH

ORDER = (SIZES, LATER, TORCH, RECALL, CHAIN)
# Limits of the bins of the elapsed fraction of the plateau.
EDGES = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
# The smallest number of moments whose median is drawn.
FEWEST = 10
WIDTHS = (1.2, 1.4, 1.7, 2.2, 3.0, 5.0)
KINDS = {"attention": BLUE, "entropy": ORANGE, "the loss itself": GREEN}
LINES: dict[str, dict[str, Any]] = {
    "step": {"color": BLUE, "lw": 2},
    "again": {"color": GREY, "ls": "--"},
    "law": {"color": ORANGE, "ls": "-."},
    "seeds": {"color": GREEN, "ls": ":"},
}
LEVELS: dict[str, tuple[str, dict[str, Any]]] = {
    "metric": ("loss alone", {"color": GREEN, "marker": "^"}),
    "1": ("1: and entropy", {"color": ORANGE, "marker": "s"}),
    "2": ("2: and attention", {"color": BLUE, "marker": "o"}),
}
SHADES = {50: SKY, 80: BLUE, 95: BLACK}
COLOURS = (BLUE, SKY, ORANGE, RED, PINK, BLACK)
TIGHT: dict[str, Any] = {"labelspacing": 0.2}
EDGED: dict[str, Any] = {"ms": 5, "mec": "white", "mew": 0.5}


def draw(moments: pd.DataFrame, summary: pd.DataFrame) -> Plot:
    """Draw the first group by the elapsed fraction of the plateau, and a summary of all groups."""
    plot = Plot(figsize=(WIDTH, 7.6), layout="constrained")
    panels = plot.subplots(3, 2).reshape(2, 3)
    first = moments[moments["group"] == moments["group"].iloc[0]]
    ended = first[~first["censored"]].assign(seen=lambda rows: rows["now"] / rows["plateau"])
    draw_forecasts(panels[0, 0], ended[ended["level"] == "2"])
    draw_errors(panels[0, 1], ended[ended["level"] == "2"])
    draw_told(panels[0, 2], ended)
    for axes in panels[0]:
        axes.set(xlabel="share of the plateau seen", xlim=(0, 1))
    found = [group for group in ORDER if group in set(summary["group"])]
    groups = [*found, *sorted(set(summary["group"]) - set(ORDER))]
    draw_groups(panels[1, 0], summary, groups)
    draw_coverage(panels[1, 1], summary[summary["level"] == "2"], groups)
    draw_lead(panels[1, 2], moments[moments["level"] == "2"], groups)
    return plot


def _title(axes: Axes, words: str, small: str) -> None:
    axes.set_title(words, y=1.09)
    subtitle(axes, small)


def draw_forecasts(axes: Axes, ended: pd.DataFrame) -> None:
    """Draw the ratio of every forecast to the truth."""
    looks: dict[str, Any] = {"marker": "o", "ls": ""}
    for kind, colour in zip(("attention", "entropy", "metric"), KINDS.values(), strict=True):
        rows = ended[ended["kind"] == kind]
        ratio = rows["step"] / rows["plateau"]
        axes.plot(rows["seen"], ratio, color=colour, ms=2.4, alpha=0.45, mew=0, **looks)
    axes.axhline(1.0, color=GREY, lw=0.8)
    axes.set(ylabel="step forecast / true step", yscale="log", ylim=(0.2, 5))
    plain_ticks(axes.yaxis)
    group = ended["group"].iloc[0] if len(ended) else ""
    _title(axes, "a  every forecast", f"{group}, level 2, by what it rests on")
    entries = [(words, looks | {"color": colour}) for words, colour in KINDS.items()]
    key(axes, entries, loc="lower right", handletextpad=0.1, **TIGHT)


def by_seen(rows: pd.DataFrame) -> list[tuple[float, pd.DataFrame]]:
    """Bin the moments by the elapsed fraction of the plateau: the middle of each bin, its rows."""
    ranges = pd.cut(rows["seen"], EDGES)
    return [(interval.mid, part) for interval, part in rows.groupby(ranges, observed=True)]


def draw_errors(axes: Axes, ended: pd.DataFrame) -> None:
    """Draw the median error of forecasts and baselines."""
    told = ended[ended["step"].notna()]
    parts = [(seen, part) for seen, part in by_seen(told) if len(part) >= FEWEST]
    for name, look in LINES.items():
        values = [factor(part[name], part["plateau"]) for _, part in parts]
        axes.plot([seen for seen, _ in parts], values, marker="o", ms=3, **look)
    axes.set(ylabel="median factor off", yscale="log", ylim=(0.95, 8))
    plain_ticks(axes.yaxis)
    _title(axes, "b  error", "where there is a forecast")
    names = {"step": "forecast"} | BASELINES
    entries = [(names[name], look) for name, look in LINES.items()]
    key(axes, entries, loc="upper center", **TIGHT)


def draw_told(axes: Axes, ended: pd.DataFrame) -> None:
    """Draw the fraction of moments with a forecast, by level."""
    for level, (_, look) in LEVELS.items():
        parts = by_seen(ended[ended["level"] == level])
        told = [part["step"].notna().mean() for _, part in parts]
        axes.plot([seen for seen, _ in parts], told, ms=3.5, **look)
    axes.set(ylabel="share with a forecast", ylim=(0, 1))
    _title(axes, "c  how often there is one", "otherwise: no signal")
    entries = [(words, look | {"ms": 4}) for words, look in LEVELS.values()]
    key(axes, entries[::-1], loc="upper left", **TIGHT)


def _rows(axes: Axes, groups: Sequence[str]) -> None:
    axes.set_yticks(range(len(groups)), groups)
    axes.set_ylim(len(groups) - 0.5, -0.5)


def draw_groups(axes: Axes, summary: pd.DataFrame, groups: Sequence[str]) -> None:
    """Draw the median error by group and level, and the error of the baseline "as long again"."""
    for row in summary.to_dict("records"):
        height = groups.index(row["group"]) + 0.24 * (1 - list(LEVELS).index(row["level"]))
        ends = [row["error"], row["error_again"]]
        axes.plot(ends, [height] * 2, color="#cccccc", lw=1, zorder=1)
        axes.plot(ends[1], height, "|", color=GREY, ms=7, mew=1.6)
        axes.plot(ends[0], height, **LEVELS[row["level"]][1], **EDGED)
    axes.set(xscale="log", xlabel="median factor off")
    plain_ticks(axes.xaxis)
    axes.set_xticks([1.0, 1.2, 1.5, 2.0], ["1", "1.2", "1.5", "2"])
    axes.set_xlim(1.0, 2.2)
    _rows(axes, groups)
    _title(axes, "d  error by group", "bar: as long again, at the same moments")


def draw_coverage(axes: Axes, summary: pd.DataFrame, groups: Sequence[str]) -> None:
    """Draw the coverage of each interval by group."""
    axes.axvspan(0.75, 0.85, color=BLUE, alpha=0.1, lw=0)
    for percent, colour in SHADES.items():
        axes.axvline(percent / 100, color=colour, lw=0.8, ls=":")
    for row in summary.to_dict("records"):
        height = groups.index(row["group"])
        for percent, colour in SHADES.items():
            axes.plot(row[f"held{percent}"], height, "o", color=colour, **EDGED)
        axes.plot(row["held80_by_cell"], height, "D", mfc="none", mec=BLUE, ms=5)
    axes.set(xlabel="share of plateaus in the interval", xlim=(0, 1.02))
    _rows(axes, groups)
    _title(axes, "e  coverage, level 2", "dotted: as it should be; diamond: 80%, each cell once")
    entries = [(f"{n}%", {"color": c, "marker": "o", "ls": ""}) for n, c in SHADES.items()]
    where: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, 0.98)}
    key(axes, entries, handletextpad=0.1, **where, **TIGHT)


def draw_lead(axes: Axes, moments: pd.DataFrame, groups: Sequence[str]) -> None:
    """Draw the lead against false alarms, as the accepted width of the interval varies."""
    entries: list[tuple[str, dict[str, Any]]] = []
    for group, colour in zip(groups, COLOURS, strict=False):
        rows = moments[moments["group"] == group]
        ended = rows[~rows["censored"]]
        negative = rows[rows["censored"]]
        if not len(negative) or not len(ended):
            continue
        look: dict[str, Any] = {"color": colour, "marker": "o"}
        points = [(false_alarms(negative, widest), lead(ended, widest)) for widest in WIDTHS]
        axes.plot(*zip(*points, strict=True), ms=3, **look)
        axes.plot(*points[-1], ms=6, **look)
        entries.append((group, look | {"ms": 3}))
    axes.set(xlabel="negative runs with a false alarm", ylabel="plateau ahead at first forecast")
    axes.set(xlim=(-0.02, 1), ylim=(-0.02, 1))
    _title(axes, "f  lead and false alarms", "80% interval within a factor of 1.2 to 5 (large dot)")
    key(axes, entries, loc="upper right", **TIGHT)
