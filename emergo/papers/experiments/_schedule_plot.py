"""The panels of `emergo/schedule`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.plotting import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    WIDTH,
    Picture,
    key,
    outside,
    plain_ticks,
)
from .._panels import colours_of
from ._repetition import RANDOM_SIGN, kept_flow
from ._shared import DOT, draw_cells, draw_interval, entries, name_rows

METHODS = {"best constant": BLUE, "best switch": GREEN, "policy": RED}
NAMES = {"policy": "the rule"}
KEPT = 1.25  # where kept repetition is drawn, in units of the last switch
Colours = Mapping[float, Any]


def draw(
    table: pd.DataFrame, methods: pd.DataFrame, flow: pd.DataFrame, length: int, dim: int
) -> Picture:
    """Draw flows, trained runs of the base cell, recall, and the gains of each method."""
    titles = (
        *("a  flow", "b  flow with a bias", "c  Transformers"),
        *("d  take-off if $p$ is kept", "e  recall", "f  what it gives"),
    )
    plot = Picture(figsize=(WIDTH, 5.4), layout="constrained")
    grid = plot.add_gridspec(2, 1)
    every = [axes for part in grid for axes in plot.add_subfigure(part).subplots(1, 3)]
    for axes, title in zip(every, titles, strict=True):
        axes.set_title(title)
    colours = colours_of(flow["repeat"], "repeat")
    base = f"T = {length}, d = {dim}"
    draw_flow(every[0], flow[~flow["bias"]], colours)
    draw_flow(every[1], flow[flow["bias"]], colours)
    looks = [("integrated", {"marker": ".", "ls": ""}), ("closed form", {})]
    key(every[0], looks, loc="upper left")
    key(every[0], entries(colours), title="$p$", loc="center right", labelspacing=0.2)
    draw_switches(every[2], table[table["cell"] == base], colours)
    draw_takeoffs(every[3], table[table["cell"].isin((base, base + RANDOM_SIGN))], length, dim)
    draw_recall(every[4], table[table["cell"].str.startswith("recall")])
    draw_methods(every[5], methods)
    return plot


def draw_flow(axes: Axes, flow: pd.DataFrame, colours: Colours) -> None:
    """Draw the take-off against the end of repetition, in plateaus without repetition."""
    for p, colour in colours.items():
        rows = flow[flow["repeat"] == p]
        axes.plot(rows["at"], rows["derived"], color=colour, lw=1.2)
        axes.plot(rows["at"], rows["takeoff"], ".", color=colour)
    axes.plot([0, 1.1], [0, 1.1], color=GREY, lw=0.7, ls=":")
    axes.set(ylim=(0, 2.15), xlabel="repetition ends at (plateaus)")
    axes.set_ylabel("attention takes off at\n(plateaus without repetition)")


def draw_switches(axes: Axes, rows: pd.DataFrame, colours: Colours) -> None:
    """Draw the plateau against the step of the switch; runs that keep p are furthest right."""
    last = rows["at"].max()
    axes.axhline(rows[rows["kind"] == "none"]["time"].mean(), color=GREY, ls=":", lw=0.8)
    ends = rows.assign(at=rows["at"].where(rows["kind"] == "switched", KEPT * last))
    ends = ends[ends["kind"].isin(("switched", "kept"))]
    for p, colour in colours.items():
        draw_cells(axes, ends[ends["amount"] == p], "at", "time", colour)
    axes.axvline((1 + KEPT) / 2 * last, color=GREY, lw=0.6)
    name_kept(axes, last)
    axes.set(ylim=(0, None), xlabel="repetition ends at step", ylabel="plateau (steps)")
    outside(axes, "$p$", [("none", {"ls": ":"}), *entries(colours)])


def draw_takeoffs(axes: Axes, rows: pd.DataFrame, length: int, dim: int) -> None:
    """Draw the gain of take-off if p is kept, trained (dots) and integrated (lines)."""
    p = np.linspace(0, 1, 41)
    base = rows[rows["kind"] == "none"]["early"].dropna()
    for signed, colour in ((True, ORANGE), (False, BLUE)):
        axes.plot(p, kept_flow(length, dim, p, not signed, "early"), color=colour, lw=1.2)
        kept = rows[(rows["signed"] == signed) & (rows["kind"] == "kept")].dropna(subset="early")
        axes.plot(kept["amount"], base.mean() / kept["early"], color=colour, **DOT)
    colours = {"random sign, and flow": ORANGE, "one token, and with a bias": BLUE}
    key(axes, entries(colours, marker="o"), loc="upper left")
    axes.set(xlabel="$p$", ylabel="times sooner than $p = 0$", ylim=(-0.3, 1.8 * dim**0.5))


def draw_recall(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw the steps to a test accuracy of 0.9 against the step of the switch, by burst."""
    rows = rows.assign(time=rows["whole"] / 1000, censored=rows["whole_censored"])
    kept = rows[rows["kind"] == "kept"]
    ends = rows[rows["kind"] == "switched"].assign(at=rows["at"] / 1000)
    axes.axhline(rows[rows["kind"] == "none"]["time"].mean(), color=GREY, ls=":", lw=0.8)
    last = ends["at"].max()
    ends = pd.concat([ends, kept.assign(at=KEPT * last)])
    colours = colours_of(ends["amount"], "burst")
    for burst, colour in colours.items():
        draw_cells(axes, ends[ends["amount"] == burst], "at", "time", colour)
    axes.axvline((1 + KEPT) / 2 * last, color=GREY, lw=0.6)
    axes.set(xlabel="repetition ends at (thousand steps)", yscale="log")
    axes.set_ylabel("thousand steps to accuracy 0.9")
    name_kept(axes, last)
    plain_ticks(axes.yaxis)
    outside(axes, "$B$", [("none", {"ls": ":"}), *entries(colours)])


def name_kept(axes: Axes, last: float) -> None:
    """Set ticks for switches until `last`, and for runs further right that keep repetition."""
    axes.set_xticks([0, last / 2, last, KEPT * last], ["0", f"{last / 2:g}", f"{last:g}", "kept"])


def draw_methods(axes: Axes, methods: pd.DataFrame) -> None:
    """Draw the gains over no repetition, one row per cell; upper bounds are hollow."""
    cells = list(dict.fromkeys(methods["cell"]))
    for i, (method, colour) in enumerate(METHODS.items()):
        for row in methods[methods["method"] == method].to_dict("records"):
            height = cells.index(row["cell"]) + 0.22 * (i - 1)
            ends = row["gain_low"], row["gain_high"]
            look = {"mfc": "white", "mec": colour} if row["gain_bound"] == "at most" else {}
            draw_interval(axes, row["gain"], ends, height, colour, **look)
    axes.axvline(1, color=GREY, lw=0.8, ls=":")
    name_rows(axes, [name.replace(", ", ",\n") for name in cells], fontsize=6)
    axes.set_ylim(len(cells) + 1.0, -0.5)  # the legend stands below the last row
    axes.set(xlabel="times sooner than without", xscale="log")
    plain_ticks(axes.xaxis)
    named = {NAMES.get(method, method): colour for method, colour in METHODS.items()}
    key(axes, entries(named, marker="o"), loc="lower right")
