"""The panels of `emergo/schedule`."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot

from ... import theory
from ...core.plotting import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    WIDTH,
    key,
    outside,
    panel,
    plain_ticks,
)
from .._panels import colours_of
from ._repetition import RANDOM_SIGN, Repetition
from ._shared import DOT, HOLLOW, Look, entries

METHODS: dict[str, Look] = {
    "best constant": {"color": BLUE, "marker": "o"},
    "best switch": {"color": GREEN, "marker": "D"},
    "policy": {"color": RED, "marker": "s"},
}
KINDS = {"none": BLACK, "kept": BLUE, "switched": GREEN, "faded": GREEN, "policy": RED}
Colours = Mapping[float, Any]


def draw(
    table: pd.DataFrame, methods: pd.DataFrame, flow: pd.DataFrame, length: int, dim: int
) -> Plot:
    """Draw flows, trained runs of the base cell, recall, and the gains of each method."""
    plot = Plot(figsize=(WIDTH, 5.4), layout="constrained")
    grid = plot.add_gridspec(2, 1, height_ratios=(1, 1.15))
    every = [axes for i in range(2) for axes in plot.add_subfigure(grid[i]).subplots(1, 3)]
    colours = colours_of(flow["repeat"])
    base = f"T = {length}, d = {dim}"
    draw_flow(every[0], flow[~flow["bias"]], colours)
    draw_flow(every[1], flow[flow["bias"]], colours)
    draw_switches(every[2], table[table["cell"] == base], colours)
    draw_takeoffs(every[3], table[table["cell"].isin((base, base + RANDOM_SIGN))], length, dim)
    draw_recall(every[4], table[table["cell"].str.startswith("recall")])
    draw_methods(every[5], methods)
    titles = (
        *("flow", "flow with a bias", "Transformers"),
        *("take-off if $p$ is kept", "recall", "what it gives"),
    )
    for axes, letter, title in zip(every, "abcdef", titles, strict=True):
        panel(axes, letter, title)
    return plot


def draw_flow(axes: Axes, flow: pd.DataFrame, colours: Colours) -> None:
    """Draw the take-off against the end of repetition, in plateaus without repetition."""
    for p, colour in colours.items():
        rows = flow[flow["repeat"] == p]
        axes.plot(rows["at"], rows["derived"], color=colour, lw=1.2)
        axes.plot(rows["at"], rows["takeoff"], "o", color=colour, ms=2.2)
    axes.plot([0, 1.1], [0, 1.1], color=GREY, lw=0.7, ls=":")
    axes.set(xlim=(-0.03, 1.13), ylim=(0, 2.15), xlabel="repetition ends at")
    axes.set_ylabel("attention takes off at\n(plateaus without repetition)")
    dots = {"marker": "o", "ls": "", "ms": 2.2}
    key(axes, [("integrated", dots), ("closed form", {})], loc="upper left")


def draw_switches(axes: Axes, rows: pd.DataFrame, colours: Colours) -> None:
    """Draw the plateau against the step of the switch: one dot per run, a line for the means."""
    none = rows[rows["kind"] == "none"]["time"]
    switched = rows[rows["kind"] == "switched"]
    if len(none):
        middle = none.mean()
        spread = none.std(ddof=0)
        axes.axhspan(middle - spread, middle + spread, color=GREY, alpha=0.15, lw=0)
        axes.axhline(middle, color=GREY, ls=":", lw=0.8)
    last = switched["at"].max()
    kept = rows[rows["kind"] == "kept"].assign(at=1.25 * last)
    every = pd.concat([switched, kept])
    for p, colour in colours.items():
        means = switched[switched["amount"] == p].groupby("at")["time"].mean()
        axes.plot(means.index, means, color=colour, lw=1.2)
        for censored, look in ((False, DOT), (True, HOLLOW)):
            shown = every[(every["amount"] == p) & (every["censored"] == censored)]
            axes.plot(shown["at"], shown["time"], color=colour, ms=3.4, alpha=0.9, **look)
    if len(kept):
        axes.axvline(1.12 * last, color=GREY, lw=0.6)
        words: Look = {"ha": "center", "va": "bottom", "fontsize": 6.5, "color": GREY}
        axes.text(1.25 * last, 0.01, "kept", transform=axes.get_xaxis_transform(), **words)
    axes.set(ylim=(0, None), xlabel="repetition ends at step", ylabel="plateau (steps)")
    outside(axes, "$p$", [("none", {"ls": ":"}), *entries(colours)])


def draw_takeoffs(axes: Axes, rows: pd.DataFrame, length: int, dim: int) -> None:
    """Draw the gain of take-off if p is kept, trained (dots) and derived (lines)."""
    p = np.linspace(0, 1, 101)
    none = theory.takeoff_time(theory.cells(length, dim))
    base = rows[rows["kind"] == "none"]["takeoff"].dropna()
    for signed, colour in ((True, ORANGE), (False, BLUE)):
        derived = theory.takeoff_time(theory.cells(length, dim, 1, p), bias=not signed)
        axes.plot(p, none / derived, color=colour, lw=1.2)
        kept = rows[(rows["signed"] == signed) & (rows["kind"] == "kept")].dropna(subset="takeoff")
        if len(base):
            gain = base.mean() / kept["takeoff"]
            axes.plot(kept["amount"], gain, color=colour, ms=3.6, **DOT)
    colours = {"random sign, and flow": ORANGE, "one token, and with a bias": BLUE}
    key(axes, entries(colours, marker="o"), loc="upper left")
    axes.set(xlabel="$p$", ylabel="times sooner than $p = 0$", ylim=(-0.3, 1.8 * dim**0.5))


def recall_words(repetition: Repetition) -> str:
    """Describe the repetition of a run of recall."""
    kind, burst, at, end = repetition
    words = {
        "none": "once",
        "kept": f"{burst:g} kept",
        "switched": f"{burst:g} until {at:g}",
        "policy": f"{burst:g} by the policy",
    }
    return words.get(kind, f"{burst:g}, fades {at:g}-{end:g}")


def draw_recall(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw the steps to a test accuracy of one half: one dot per run, one row per repetition."""
    every = [Repetition(*row) for row in rows[[*Repetition._fields]].itertuples(index=False)]
    kinds = [*KINDS]
    ordered = sorted(set(every), key=lambda one: (kinds.index(one.kind), *one[1:]))
    runs = zip(every, rows["time"], rows["censored"], strict=True)
    for repetition, time, censored in runs:
        look = HOLLOW if censored else DOT
        height = ordered.index(repetition)
        axes.plot(time, height, color=KINDS[repetition.kind], ms=4.2, **look)
    axes.set_yticks(range(len(ordered)), [recall_words(one) for one in ordered], fontsize=6)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="steps to a test accuracy of 0.5")
    if every:
        plain_ticks(axes.xaxis, "{x:,.0f}")
        key(axes, [("at least", HOLLOW | {"ms": 4.2})], loc="lower right")


def draw_methods(axes: Axes, methods: pd.DataFrame) -> None:
    """Draw the gains over no repetition, one row per cell; upper bounds are hollow."""
    cells = list(dict.fromkeys(methods["cell"]))
    for i, (method, look) in enumerate(METHODS.items()):
        for row in methods[methods["method"] == method].to_dict("records"):
            y = cells.index(row["cell"]) + 0.22 * (i - 1)
            if not math.isnan(row["gain_low"]):
                axes.plot([row["gain_low"], row["gain_high"]], [y, y], color=look["color"], lw=1)
            fill: Look = {"mec": "white", "mew": 0.4}
            if row["gain_bound"] == "at most":
                fill = {"mfc": "white"}
            axes.plot(row["gain"], y, ls="", ms=5, **look, **fill)
    axes.axvline(1, color=GREY, lw=0.8, ls=":")
    axes.set_ylim(-0.6, len(cells) + 0.3)  # with space for the legend
    names = [name.replace(", random", "\nrandom").replace("l, ", "l,\n") for name in cells]
    axes.set_yticks(range(len(cells)), names, fontsize=6)
    axes.invert_yaxis()
    axes.set(xlabel="times sooner than without", xscale="log")
    plain_ticks(axes.xaxis)
    key(axes, [(method, look | {"ls": ""}) for method, look in METHODS.items()], loc="lower right")
