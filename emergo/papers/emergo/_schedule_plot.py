"""The plot of `emergo/schedule`: one function per panel."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot

from ... import theory
from ..._style import BLACK, BLUE, GREEN, GREY, ORANGE, RED, WIDTH, key, outside, panel, plain_ticks, shades
from ._repetition import RANDOM_SIGN, Repetition

METHODS: dict[str, dict[str, Any]] = {
    "best constant": {"color": BLUE, "marker": "o"},
    "best switch": {"color": GREEN, "marker": "D"},
    "policy": {"color": RED, "marker": "s"},
}
HOLLOW: dict[str, Any] = {"marker": "^", "mfc": "none"}
"""Censored: at least."""
Colours = Mapping[float, Any]


def draw(table: pd.DataFrame, methods: pd.DataFrame, flow: pd.DataFrame, length: int, dim: int) -> Plot:
    """Flows, trained runs of the base cell, recall, and what the ways to repeat give."""
    plot = Plot(figsize=(WIDTH, 5.4), layout="constrained")
    grid = plot.add_gridspec(2, 1, height_ratios=(1, 1.15))
    axes = [each for i in range(2) for each in plot.add_subfigure(grid[i]).subplots(1, 3)]
    repeats = sorted(set(flow["repeat"]))
    colours = dict(zip(repeats, shades(len(repeats)), strict=True))
    base = f"T = {length}, d = {dim}"
    draw_flow(axes[0], flow[~flow["bias"]], colours)
    draw_flow(axes[1], flow[flow["bias"]], colours)
    draw_switches(axes[2], table[table["cell"] == base], colours)
    draw_takeoffs(axes[3], table[table["cell"].isin((base, base + RANDOM_SIGN))], length, dim)
    draw_recall(axes[4], table[table["cell"].str.startswith("recall")])
    draw_methods(axes[5], methods)
    titles = ("flow", "flow with a bias", "Transformers", "take-off if $p$ is kept", "recall", "what it gives")
    for each, letter, title in zip(axes, "abcdef", titles, strict=True):
        panel(each, letter, title)
    return plot


def draw_flow(axes: Axes, flow: pd.DataFrame, colours: Colours) -> None:
    """Take-off against the time at which repetition ends, in plateaus without repetition."""
    for p, colour in colours.items():
        rows = flow[flow["repeat"] == p]
        axes.plot(rows["at"], rows["derived"], color=colour, lw=1.2)
        axes.plot(rows["at"], rows["takeoff"], "o", color=colour, ms=2.2)
    axes.plot([0, 1.1], [0, 1.1], color=GREY, lw=0.7, ls=":")
    axes.set(
        xlim=(-0.03, 1.13),
        ylim=(0, 2.15),
        xlabel="repetition ends at",
        ylabel="attention takes off at\n(plateaus without repetition)",
    )
    key(axes, [("integrated", {"marker": "o", "ls": "", "ms": 2.2}), ("closed form", {})], loc="upper left")


def draw_switches(axes: Axes, rows: pd.DataFrame, colours: Colours) -> None:
    """Trained runs: the plateau against the step of the switch, a line through the means and one dot per run."""
    none, switched = rows[rows["kind"] == "none"]["time"], rows[rows["kind"] == "switched"]
    if len(none):
        axes.axhspan(none.mean() - none.std(ddof=0), none.mean() + none.std(ddof=0), color=GREY, alpha=0.15, lw=0)
        axes.axhline(none.mean(), color=GREY, ls=":", lw=0.8)
    last, looks = (
        switched["at"].max(),
        {False: {"marker": "o", "mec": "white", "mew": 0.3}, True: {"marker": "^", "mfc": "none"}},
    )
    kept = rows[rows["kind"] == "kept"].assign(at=1.25 * last)
    for p, colour in colours.items():
        means = switched[switched["amount"] == p].groupby("at")["time"].mean()
        axes.plot(means.index, means, color=colour, lw=1.2)
        every = pd.concat([switched, kept])
        for censored, look in looks.items():
            shown = every[(every["amount"] == p) & (every["censored"] == censored)]
            axes.plot(shown["at"], shown["time"], ls="", color=colour, ms=3.4, alpha=0.9, **look)
    if len(kept):
        words = {"ha": "center", "va": "bottom", "fontsize": 6.5, "color": GREY}
        axes.axvline(1.12 * last, color=GREY, lw=0.6)
        axes.text(1.25 * last, 0.01, "kept", transform=axes.get_xaxis_transform(), **words)
    axes.set(ylim=(0, None), xlabel="repetition ends at step", ylabel="plateau (steps)")
    outside(axes, "$p$", [("none", {"ls": ":"}), *((f"{p:g}", {"color": colour}) for p, colour in colours.items())])


def draw_takeoffs(axes: Axes, rows: pd.DataFrame, length: int, dim: int) -> None:
    """How many times sooner attention takes off if p is kept, trained and derived."""
    p = np.linspace(0, 1, 101)
    none = theory.takeoff_time(theory.cells(length, dim))
    base = rows[rows["kind"] == "none"]["takeoff"].dropna()
    for signed, colour in ((True, ORANGE), (False, BLUE)):
        axes.plot(p, none / theory.takeoff_time(theory.cells(length, dim, 1, p), bias=not signed), color=colour, lw=1.2)
        kept = rows[(rows["signed"] == signed) & (rows["kind"] == "kept")].dropna(subset="takeoff")
        if len(base):
            axes.plot(kept["amount"], base.mean() / kept["takeoff"], "o", color=colour, mec="white", mew=0.3, ms=3.6)
    entries = [("random sign, and flow", ORANGE), ("one token, and with a bias", BLUE)]
    key(axes, [(words, {"color": colour, "marker": "o"}) for words, colour in entries], loc="upper left")
    axes.set(xlabel="$p$", ylabel="times sooner than $p = 0$", ylim=(-0.3, 1.8 * dim**0.5))


def recall_words(repetition: Repetition) -> str:
    kind, burst, at, end = repetition
    words = {
        "none": "once",
        "kept": f"{burst:g} kept",
        "switched": f"{burst:g} until {at:g}",
        "policy": f"{burst:g} by the policy",
    }
    return words.get(kind, f"{burst:g}, fades {at:g}-{end:g}")


def draw_recall(axes: Axes, rows: pd.DataFrame) -> None:
    """When the test accuracy came to one half, one dot per run, one line per way to repeat."""
    colours, fields = {"none": BLACK, "kept": BLUE, "switched": GREEN, "faded": GREEN, "policy": RED}, [*Repetition._fields]
    cells: dict[Repetition, list[dict[str, Any]]] = {}
    for run in rows.to_dict("records"):
        cells.setdefault(Repetition(*(run[name] for name in fields)), []).append({str(k): v for k, v in run.items()})
    ordered = sorted(cells, key=lambda repetition: ([*colours].index(repetition.kind), *repetition[1:]))
    for y, repetition in enumerate(ordered):
        for run in cells[repetition]:
            look = HOLLOW if run["censored"] else {"marker": "o", "mec": "white", "mew": 0.4}
            axes.plot(run["time"], y, ls="", color=colours[repetition.kind], ms=4.2, **look)
    axes.set_yticks(range(len(ordered)), [recall_words(repetition) for repetition in ordered], fontsize=6)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="steps to a test accuracy of 0.5")
    if len(cells):
        plain_ticks(axes.xaxis, "{x:,.0f}")
        key(axes, [("at least", HOLLOW | {"ls": "", "ms": 4.2})], loc="lower right")


def draw_methods(axes: Axes, methods: pd.DataFrame) -> None:
    """Gains over no repetition with their intervals, one row per cell; hollow where they are upper bounds."""
    cells = list(dict.fromkeys(methods["cell"]))
    for i, (method, look) in enumerate(METHODS.items()):
        for row in methods[methods["method"] == method].to_dict("records"):
            y = cells.index(row["cell"]) + 0.22 * (i - 1)
            if not math.isnan(row["gain_low"]):
                axes.plot([row["gain_low"], row["gain_high"]], [y, y], color=look["color"], lw=1)
            inside: dict[str, Any] = {"mfc": "white"} if row["gain_bound"] == "at most" else {"mec": "white", "mew": 0.4}
            axes.plot(row["gain"], y, ls="", ms=5, **look, **inside)
    axes.axvline(1, color=GREY, lw=0.8, ls=":")
    axes.set_ylim(-0.6, len(cells) + 0.3)  # with room for the key
    names = [cell.replace(", random", "\nrandom").replace("recall, ", "recall,\n") for cell in cells]
    axes.set_yticks(range(len(cells)), names, fontsize=6)
    axes.invert_yaxis()
    axes.set(xlabel="times sooner than without", xscale="log")
    plain_ticks(axes.xaxis)
    key(axes, [(method, look | {"ls": ""}) for method, look in METHODS.items()], loc="lower right")
