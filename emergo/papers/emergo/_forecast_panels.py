"""The panels of `emergo/forecast`."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from ..._style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, WIDTH, key, plain_ticks, subtitle
from .._figure import Plot
from ._forecast_judge import BASELINES, factor, false_alarms, lead
from ._forecast_moments import CHAIN, LATER, RECALL, SIZES, TORCH

ORDER = (SIZES, LATER, TORCH, RECALL, CHAIN)
EDGES = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
"""Of shares of the plateau that had passed."""
FEWEST = 10
"""Moments of which a median is drawn."""
WIDTHS = (1.2, 1.4, 1.7, 2.2, 3.0, 5.0)
KINDS = {"attention": (BLUE, "attention"), "entropy": (ORANGE, "entropy"), "metric": (GREEN, "the loss itself")}
LINES: dict[str, dict[str, Any]] = {"step": {"color": BLUE, "lw": 2}, "again": {"color": GREY, "ls": "--"}}
LINES |= {"law": {"color": ORANGE, "ls": "-."}, "seeds": {"color": GREEN, "ls": ":"}}
LEVELS = {"metric": (GREEN, "^", "loss alone"), "1": (ORANGE, "s", "1: and entropy"), "2": (BLUE, "o", "2: and attention")}
COLOURS = (BLUE, SKY, ORANGE, RED, PINK, BLACK)


def draw(moments: pd.DataFrame, summary: pd.DataFrame) -> Plot:
    """Of the first group: single forecasts, errors and how often there is one, against how much was seen; then all groups."""
    plot = Plot(figsize=(WIDTH, 7.6), layout="constrained")
    panels = plot.subplots(3, 2).reshape(2, 3)
    first = moments[moments["group"] == moments["group"].iloc[0]]
    ended = first[~first["censored"]].assign(seen=lambda rows: rows["now"] / rows["plateau"])
    draw_forecasts(panels[0, 0], ended[ended["level"] == "2"])
    draw_errors(panels[0, 1], ended[ended["level"] == "2"])
    draw_told(panels[0, 2], ended)
    groups = sorted(set(summary["group"]), key=lambda group: (group not in ORDER, ORDER.index(group) if group in ORDER else 0))
    draw_groups(panels[1, 0], summary, groups)
    draw_coverage(panels[1, 1], summary, groups)
    draw_lead(panels[1, 2], moments[moments["level"] == "2"], groups)
    return plot


def _title(axes: Axes, words: str, small: str) -> None:
    axes.set_title(words, y=1.09)
    subtitle(axes, small)


def draw_forecasts(axes: Axes, ended: pd.DataFrame) -> None:
    """Every forecast over the truth."""
    entries = []
    for kind, (colour, words) in KINDS.items():
        rows = ended[ended["kind"] == kind]
        axes.plot(rows["seen"], rows["step"] / rows["plateau"], "o", color=colour, ms=2.4, alpha=0.45, mew=0)
        entries.append((words, {"color": colour, "marker": "o", "ls": ""}))
    axes.axhline(1.0, color=GREY, lw=0.8)
    axes.set(xlabel="share of the plateau seen", ylabel="step forecast / true step", yscale="log", xlim=(0, 1), ylim=(0.2, 5))
    plain_ticks(axes.yaxis)
    group = ended["group"].iloc[0] if len(ended) else ""
    _title(axes, "a  every forecast", f"{group}, level 2, by what it rests on")
    key(axes, entries, loc="lower right", labelspacing=0.2, handletextpad=0.1)


def by_seen(rows: pd.DataFrame) -> list[tuple[float, pd.DataFrame]]:
    """The moments by the share of the plateau that had passed, with the middle of each range."""
    ranges = pd.cut(rows["seen"], EDGES)
    return [(interval.mid, part) for interval, part in rows.groupby(ranges, observed=True)]


def draw_errors(axes: Axes, ended: pd.DataFrame) -> None:
    told = ended[ended["step"].notna()]
    parts = [(seen, part) for seen, part in by_seen(told) if len(part) >= FEWEST]
    for name, look in LINES.items():
        values = [factor(part[name], part["plateau"]) for _, part in parts]
        axes.plot([seen for seen, _ in parts], values, marker="o", ms=3, **look)
    axes.set(xlabel="share of the plateau seen", ylabel="median factor off", xlim=(0, 1), yscale="log", ylim=(0.95, 8))
    plain_ticks(axes.yaxis)
    _title(axes, "b  error", "where there is a forecast")
    names = {"step": "forecast"} | BASELINES
    key(axes, [(names[name], look) for name, look in LINES.items()], loc="upper center", labelspacing=0.2)


def draw_told(axes: Axes, ended: pd.DataFrame) -> None:
    for level, (colour, marker, _) in LEVELS.items():
        parts = by_seen(ended[ended["level"] == level])
        shares = [part["step"].notna().mean() for _, part in parts]
        axes.plot([seen for seen, _ in parts], shares, color=colour, marker=marker, ms=3.5)
    axes.set(xlabel="share of the plateau seen", ylabel="share with a forecast", xlim=(0, 1), ylim=(0, 1))
    _title(axes, "c  how often there is one", "otherwise: no signal")
    entries = [(words, {"color": colour, "marker": marker, "ms": 4}) for colour, marker, words in LEVELS.values()]
    key(axes, entries[::-1], loc="upper left", labelspacing=0.2)


def _rows(axes: Axes, groups: Sequence[str]) -> None:
    axes.set_yticks(range(len(groups)), groups)
    axes.set_ylim(len(groups) - 0.5, -0.5)


def draw_groups(axes: Axes, summary: pd.DataFrame, groups: Sequence[str]) -> None:
    for row in summary.to_dict("records"):
        height = groups.index(row["group"]) + 0.24 * (1 - list(LEVELS).index(row["level"]))
        colour, marker, _ = LEVELS[row["level"]]
        axes.plot([row["error"], row["error_again"]], [height] * 2, color="#cccccc", lw=1, zorder=1)
        axes.plot(row["error_again"], height, "|", color=GREY, ms=7, mew=1.6)
        axes.plot(row["error"], height, marker, color=colour, ms=5, mec="white", mew=0.5)
    axes.set(xscale="log", xlabel="median factor off", xlim=(1.0, 2.2))
    plain_ticks(axes.xaxis)
    axes.set_xticks([1.0, 1.2, 1.5, 2.0], ["1", "1.2", "1.5", "2"])
    axes.set_xlim(1.0, 2.2)
    _rows(axes, groups)
    _title(axes, "d  error by group", "bar: as long again, at the same moments")


def draw_coverage(axes: Axes, summary: pd.DataFrame, groups: Sequence[str]) -> None:
    shades = {50: SKY, 80: BLUE, 95: BLACK}
    axes.axvspan(0.75, 0.85, color=BLUE, alpha=0.1, lw=0)
    for row in summary[summary["level"] == "2"].to_dict("records"):
        for share, colour in shades.items():
            axes.plot(row[f"held{share}"], groups.index(row["group"]), "o", color=colour, ms=5, mec="white", mew=0.5)
        axes.plot(row["held80_by_cell"], groups.index(row["group"]), "D", mfc="none", mec=BLUE, ms=5)
    for share, colour in shades.items():
        axes.axvline(share / 100, color=colour, lw=0.8, ls=":")
    axes.set(xlabel="share of plateaus in the interval", xlim=(0, 1.02))
    _rows(axes, groups)
    _title(axes, "e  coverage, level 2", "dotted: as it should be; diamond: 80%, each cell once")
    entries = [(f"{share}%", {"color": colour, "marker": "o", "ls": ""}) for share, colour in shades.items()]
    key(axes, entries, loc="upper left", bbox_to_anchor=(0, 0.98), labelspacing=0.2, handletextpad=0.1)


def draw_lead(axes: Axes, moments: pd.DataFrame, groups: Sequence[str]) -> None:
    """One line per group with negatives, over how narrow an interval must be to count."""
    entries = []
    for group, colour in zip(groups, COLOURS, strict=False):
        rows = moments[moments["group"] == group]
        ended, open_ended = rows[~rows["censored"]], rows[rows["censored"]]
        if not len(open_ended) or not len(ended):
            continue
        points = [(false_alarms(open_ended, widest), lead(ended, widest)) for widest in WIDTHS]
        axes.plot(*zip(*points, strict=True), color=colour, marker="o", ms=3)
        axes.plot(*points[-1], "o", color=colour, ms=6)
        entries.append((group, {"color": colour, "marker": "o", "ms": 3}))
    axes.set(xlabel="negative runs with a false alarm", ylabel="plateau ahead at first forecast")
    axes.set_xlim(-0.02, 1)
    axes.set_ylim(-0.02, 1)
    _title(axes, "f  lead and false alarms", "80% interval within a factor of 1.2 to 5 (large dot)")
    key(axes, entries, loc="upper right", labelspacing=0.2)
