"""The panels of `emergo/capacity`."""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from ...core.plotting import BLUE, GREY, ORANGE, RED, WIDTH, Picture, doubling, key, plain_ticks
from ...theory import rank_floor
from ...training import Result
from .._panels import Colours, colours_of, legend
from .._source import curve
from ._shared import DOT, draw_cells, entries, geometric_mean

Tables = Mapping[str, pd.DataFrame]
# The words and the colour of each rule.
RULES = {
    "fixed": ("the same rate", RED),
    "scaled": ("rate ∝ 1/width", ORANGE),
    "best": ("best rate", BLUE),
}
STEPS = "plateau (steps)"


def draw(tables: Tables, results: Iterable[Result]) -> Picture:
    """Draw three maps, and below them the panels of the tables that exist."""
    plot = Picture(figsize=(WIDTH, 6.9), layout="constrained")
    grid = plot.add_gridspec(2, 1, height_ratios=(1, 2))
    top, bottom = (plot.add_subfigure(part) for part in grid)
    if "rules" in tables:
        draw_maps(top, tables["rules"], results)
    drawers = (
        *(("rules", draw_cost), ("rules", draw_rates), ("starts", draw_starts)),
        *(("starts", draw_heads), ("rank", draw_floor), ("rank", draw_near_rank)),
    )
    for (name, draw_panel), axes in zip(drawers, bottom.subplots(2, 3).flat, strict=True):
        if name in tables:
            draw_panel(axes, tables)
        else:
            axes.set_axis_off()
    return plot


def draw_maps(plot: SubFigure, rules: pd.DataFrame, results: Iterable[Result]) -> None:
    """Draw the test loss by width and step, as a geometric mean over seeds.

    A run that has learned keeps its last loss.
    """
    losses = {r.run.identity: (curve(r, "step"), curve(r, "loss")) for r in results}
    widths = sorted(set(rules["width"].tolist()))
    last = 1.5 * float(rules["plateau"].max())
    edges = np.geomspace(max(20.0, last / 500), last, 81)
    steps = np.sqrt(edges[1:] * edges[:-1])
    places = np.arange(len(widths) + 1) - 0.5
    every = plot.subplots(1, 3, sharey=True)
    image = None
    for axes, letter, (rule, (words, _)) in zip(every, "abc", RULES.items(), strict=True):
        rows = rules[rules["rule"] == rule]
        grid = np.full((len(steps), len(widths)), np.nan)
        for column, width in enumerate(widths):
            ids = rows.loc[rows["width"] == width, "identity"]
            curves = [np.log(np.interp(steps, *losses[i])) for i in ids]
            grid[:, column] = np.exp(np.mean(curves, axis=0)) if curves else np.nan
        image = axes.pcolormesh(
            places, edges, grid, cmap="magma", vmin=0, vmax=0.5, rasterized=True
        )
        means = rows[rows["state"] == "reached"].groupby("width")["plateau"].mean().reindex(widths)
        axes.plot(range(len(widths)), means, "o-", color="white", ms=3, lw=1)
        axes.set_xticks(range(len(widths)), widths)
        axes.set(yscale="log", xlabel="width", title=f"{letter}  {words}")
        axes.grid(False)
    every[0].set_ylabel("step")
    assert image is not None
    plot.colorbar(image, ax=every, label="test loss", pad=0.01, aspect=22)


def draw_cost(axes: Axes, tables: Tables) -> None:
    """Draw the operations until the plateau ends."""
    rules = tables["rules"]
    for rule, (_, colour) in RULES.items():
        draw_cells(axes, rules[rules["rule"] == rule], "width", "operations", colour)
    doubling(axes)
    axes.set(yscale="log", xlabel="width", ylabel="operations", title="d  cost of the plateau")
    key(axes, entries(dict(RULES.values())), loc="upper left")


def draw_rates(axes: Axes, tables: Tables) -> None:
    """Draw plateau against learning rate, one line per width."""
    rates = tables["rates"]
    colours = draw_by(axes, rates, "width", "learning_rate", "plateau")
    axes.set(xscale="log", yscale="log", xlabel="learning rate", ylabel=STEPS)
    axes.set_title("e  rates that were tried")
    legend(axes, "width", colours, marker="o")


def draw_by(axes: Axes, table: pd.DataFrame, by: str, x: str, y: str) -> Colours:
    """Draw the cells of each value of a column; return the colours of the values."""
    colours = colours_of(table[by])
    for value, rows in table.groupby(by):
        draw_cells(axes, rows, x, y, colours[value])
    return colours


def draw_starts(axes: Axes, tables: Tables) -> None:
    """Draw the plateau of each seed against its initial alignment, with a line for each model."""
    reached = tables["starts"].query("state == 'reached'")
    models = reached["layers"].astype(str) + ", " + reached["heads"].astype(str)
    colours = colours_of(models, apart=True)
    for model, rows in reached.groupby(models):
        x = rows["alignment"]
        ratio = rows["plateau"] / geometric_mean(rows["plateau"])
        axes.plot(x, ratio, color=colours[model], **DOT)
        ends = np.array([x.min(), x.max()])
        line = np.polyval(np.polyfit(x, np.log(ratio), 1), ends)
        axes.plot(ends, np.exp(line), color=colours[model])
    axes.set(xlabel="alignment at the start (cosine)", ylabel="plateau over\nits mean")
    axes.set_title("f  luck of the start")
    axes.margins(y=0.3)
    draw_key(axes, "layers, heads", colours, "upper right")


def draw_heads(axes: Axes, tables: Tables) -> None:
    """Draw plateaus by the number of heads and layers."""
    both = pd.concat([tables[name] for name in ("starts", "depth") if name in tables])
    both = both.drop_duplicates(["layers", "heads", "seed"])
    colours = draw_by(axes, both, "layers", "heads", "plateau")
    doubling(axes)
    axes.set(yscale="log", xlabel="heads of a layer", ylabel=STEPS, title="g  heads and layers")
    plain_ticks(axes.yaxis, "{x:,.0f}")
    draw_key(axes, "layers", colours, "upper left")


def draw_floor(axes: Axes, tables: Tables) -> None:
    """Draw the final loss against dim over width, and the floors."""
    rank = tables["rank"]
    ratio = rank["dim"] / rank["width"]
    colours = colours_of(rank["width"])
    for width, rows in rank.groupby("width"):
        axes.plot(ratio[rows.index], rows["last"], color=colours[width], **DOT)
    ratios = np.geomspace(0.1, 1.05 * ratio.max(), 200)
    for width, colour in ((1.0, GREY), (0.5, ORANGE)):
        axes.plot(ratios, rank_floor(width, ratios), color=colour)
    axes.axhline(0.2, color=GREY, lw=0.8, ls=":")
    doubling(axes)
    axes.set(xlabel="$d$ / width", ylabel="last loss over the first", ylim=(-0.03, 1.1))
    axes.set_title("h  narrower than the tokens")
    floors = entries({"floor of half the width": ORANGE, "floor of the width": GREY})
    key(axes, [*floors, ("threshold", {"ls": ":"})], loc="upper left")
    draw_key(axes, "width", colours, "center left")


def draw_near_rank(axes: Axes, tables: Tables) -> None:
    """Draw plateau against dim by width; runs that never learn are hollow triangles."""
    colours = draw_by(axes, tables["rank"], "width", "dim", "plateau")
    doubling(axes)
    axes.set(yscale="log", xlabel="input dimension $d$", ylabel=STEPS)
    axes.set_title("i  plateau near the rank")
    draw_key(axes, "width", colours, "lower right")


def draw_key(axes: Axes, title: str, colours: Colours, loc: str) -> None:
    """Explain the colours inside a panel."""
    key(axes, entries(colours, marker="o"), title=title, loc=loc, labelspacing=0.2)
