"""The panels of `emergo/capacity`."""

import itertools
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot
from matplotlib.figure import SubFigure

from ...core.plotting import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    RED,
    WIDTH,
    doubling,
    key,
    plain_ticks,
    shades,
)
from ...theory import rank_floor
from ...training import Result
from .._panels import colours_of
from .._source import curve
from ._shared import Look, dots_and_means, entries, geometric_mean, whole_cells

Tables = Mapping[str, pd.DataFrame]
# The title, name and colour of each rule.
RULES = {
    "fixed": ("a  the same rate", "same rate", RED),
    "scaled": ("b  rate ∝ 1/width", "rate ∝ 1/width", ORANGE),
    "best": ("c  best rate of each width", "best rate", BLUE),
}
STEPS = "plateau (steps)"


def draw(tables: Tables, results: Iterable[Result]) -> Plot:
    """Draw three maps, and below them the panels of the tables that exist."""
    drawers: list[Callable[[Axes, Tables], None]] = []
    for name, some in (
        ("rules", (draw_cost, draw_rates)),
        ("starts", (draw_starts, draw_heads)),
        ("rank", (draw_floor, draw_near_rank)),
    ):
        drawers += some if name in tables else ()
    maps = int("rules" in tables)
    rows = -(-len(drawers) // 3)
    plot = Plot(figsize=(WIDTH, 2.3 * (rows + maps)), layout="constrained")
    grid = plot.add_gridspec(rows + maps, 1)
    parts = [plot.add_subfigure(grid[i, 0]) for i in range(rows + maps)]
    if maps:
        draw_maps(parts[0], tables["rules"], results)
    every = [axes for part in parts[maps:] for axes in part.subplots(1, 3)]
    for draw_panel, axes in itertools.zip_longest(drawers, every):
        axes.set_axis_off() if draw_panel is None else draw_panel(axes, tables)
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
    for axes, (rule, (title, _, _)) in zip(every, RULES.items(), strict=True):
        rows = rules[rules["rule"] == rule]
        grid = np.full((len(steps), len(widths)), np.nan)
        for column, width in enumerate(widths):
            ids = rows.loc[rows["width"] == width, "identity"]
            curves = [np.log(np.interp(steps, *losses[i])) for i in ids if i in losses]
            grid[:, column] = np.exp(np.mean(curves, axis=0)) if curves else np.nan
        look = {"cmap": "magma", "vmin": 0, "vmax": 0.5, "rasterized": True}
        image = axes.pcolormesh(places, edges, grid, **look)
        means = rows[rows["state"] == "reached"].groupby("width")["plateau"].mean().reindex(widths)
        axes.plot(range(len(widths)), means, "o-", color="white", ms=3, lw=1)
        axes.set_xticks(range(len(widths)), [str(width) for width in widths])
        axes.set(yscale="log", xlabel="width", title=title, ylim=(edges[0], edges[-1]))
        axes.grid(False)
    every[0].set_ylabel("step")
    if image is not None:
        plot.colorbar(image, ax=every, label="test loss", pad=0.01, aspect=22)


def draw_cost(axes: Axes, tables: Tables) -> None:
    """Draw the operations until the plateau ends, one dot per run."""
    reached = tables["rules"][tables["rules"]["state"] == "reached"]
    for rule, (_, _, colour) in RULES.items():
        dots_and_means(axes, reached[reached["rule"] == rule], "width", "operations", colour)
    doubling(axes)
    axes.set(yscale="log", xlabel="width", ylabel="operations", title="d  cost of the plateau")
    axes.margins(y=0.15)
    colours = {name: colour for _, name, colour in RULES.values()}
    key(axes, entries(colours), loc="lower right", labelspacing=0.2)


def draw_rates(axes: Axes, tables: Tables) -> None:
    """Draw plateau against learning rate, one line per width.

    Triangles mark rates at which some run did not emerge.
    """
    by = ["width", "learning_rate"]
    rates = tables["rates"]
    whole = whole_cells(rates, by)
    late = rates.drop(whole.index)
    for width, colour in colours_of(rates["width"]).items():
        means, bounds = (
            rows[rows["width"] == width].groupby("learning_rate")["plateau"].mean().dropna()
            for rows in (whole, late)
        )
        axes.plot(means.index, means, "o-", color=colour, ms=3, lw=1.1)
        axes.plot(bounds.index, bounds, "^", color=colour, mfc="none", ms=4)
        if len(means):
            at: Look = {"textcoords": "offset points", "ha": "right", "va": "center"}
            first = float(means.index[0]), float(means.iloc[0])
            axes.annotate(f"{width}", first, (-4, 0), color=colour, fontsize=6.5, **at)
    axes.set(xscale="log", yscale="log", xlabel="learning rate", ylabel=STEPS)
    axes.set_title("e  rates that were tried, by width")
    axes.margins(x=0.2)


def draw_starts(axes: Axes, tables: Tables) -> None:
    """Draw the plateau of each seed against its initial alignment, with a line for each model."""
    starts = tables["starts"]
    groups = starts[starts["state"] == "reached"].groupby(["layers", "heads"])
    colours = {}
    shown = zip(groups, (BLUE, ORANGE, RED, BLACK, GREY), strict=False)
    for ((layers, heads), rows), colour in shown:
        ratio = rows["plateau"] / geometric_mean(rows["plateau"])
        axes.plot(rows["alignment"], ratio, "o", color=colour, ms=2.5, alpha=0.6, mew=0)
        if len(rows) > 2:
            line = np.polyfit(rows["alignment"], np.log(ratio), 1)
            ends = np.array([rows["alignment"].min(), rows["alignment"].max()])
            axes.plot(ends, np.exp(np.polyval(line, ends)), color=colour, lw=1.2)
        colours[f"{layers}, {heads}"] = colour
    axes.set(xlabel="alignment at the start (cosine)", ylabel="plateau over\nits mean")
    axes.set_title("f  luck of the start")
    axes.margins(y=0.2)
    draw_key(axes, "layers, heads", colours, "upper right", ncols=2, columnspacing=0.8)


def draw_heads(axes: Axes, tables: Tables) -> None:
    """Draw plateaus by the number of heads and layers, with geometric means."""
    frames = [tables[name] for name in ("starts", "depth") if name in tables]
    both = pd.concat([frame[frame["state"] == "reached"] for frame in frames])
    both = both.drop_duplicates(["layers", "heads", "seed"])
    layers = sorted(set(both["layers"].tolist()))
    colours = dict(zip(layers, shades(len(layers)), strict=True))
    rng = np.random.default_rng(0)
    for depth, colour in colours.items():
        rows = both[both["layers"] == depth]
        heads = rows["heads"] * np.exp(rng.uniform(-0.12, 0.12, len(rows)))
        axes.plot(heads, rows["plateau"], "o", color=colour, ms=2.2, alpha=0.5, mew=0)
        means = rows.groupby("heads")["plateau"].agg(geometric_mean)
        axes.plot(means.index, means, "D-", color=colour, ms=4, mec="white", mew=0.4, lw=1.1)
    doubling(axes)
    axes.set_xticks(sorted(set(both["heads"].tolist())))
    axes.set(yscale="log", xlabel="heads of a layer", ylabel=STEPS, title="g  heads and layers")
    plain_ticks(axes.yaxis, "{x:,.0f}")
    draw_key(axes, "layers", colours, "upper left")


def draw_floor(axes: Axes, tables: Tables) -> None:
    """Draw the final loss against dim over width, and the floors."""
    rank = tables["rank"].assign(ratio=lambda rows: rows["dim"] / rows["width"])
    colours = colours_of(rank["width"])
    for width, colour in colours.items():
        rows = rank[rank["width"] == width]
        axes.plot(rows["ratio"], rows["last"], "o", color=colour, ms=3.5, alpha=0.7, mew=0)
    ratios = np.geomspace(0.1, 1.05 * float(rank["ratio"].max()), 200)
    for width, colour in ((1.0, GREY), (0.5, ORANGE)):
        axes.plot(ratios, rank_floor(width, ratios), color=colour, lw=1.2)
    axes.axhline(0.2, color=GREY, lw=0.8, ls=":")
    doubling(axes)
    axes.set(xlabel="$d$ / width", ylabel="last loss over the first", ylim=(-0.03, 1.1))
    axes.set_title("h  narrower than the tokens")
    floors = entries({"floor of half the width": ORANGE, "floor of the width": GREY})
    key(axes, [*floors, ("threshold", {"ls": ":"})], loc="upper left", labelspacing=0.2)
    draw_key(axes, "width", colours, "center left")


def draw_near_rank(axes: Axes, tables: Tables) -> None:
    """Draw plateau against dim by width; runs that never learn are hollow triangles."""
    rank = tables["rank"]
    colours = colours_of(rank["width"])
    for width, colour in colours.items():
        rows = rank[rank["width"] == width]
        late = rows[rows["state"] == "censored"]
        dots_and_means(axes, rows[rows["state"] == "reached"], "dim", "plateau", colour)
        axes.plot(late["dim"], late["plateau"], "^", color=colour, mfc="none", ms=4)
    doubling(axes)
    axes.set(yscale="log", xlabel="input dimension $d$", ylabel=STEPS)
    axes.set_title("i  plateau near the rank")
    draw_key(axes, "width", colours, "lower right")


def draw_key(axes: Axes, title: str, colours: Mapping, loc: str, **options: object) -> None:
    """Explain the colours inside a panel."""
    shown = entries(colours, marker="o", ms=3)
    key(axes, shown, title=title, loc=loc, labelspacing=0.2, **options)
