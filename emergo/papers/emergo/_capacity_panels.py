"""The panels of `emergo/capacity`."""

import itertools
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot
from matplotlib.figure import SubFigure

from ..._style import BLACK, BLUE, GREY, ORANGE, RED, WIDTH, doubling, key, plain_ticks, shades
from ...engine import Result
from ...theory import rank_floor
from .._panels import Colours, colours_of
from .._source import curve

Tables = Mapping[str, pd.DataFrame]
COLOURS = {"fixed": RED, "scaled": ORANGE, "best": BLUE}
TITLES = {"fixed": "a  the same rate", "scaled": "b  rate ∝ 1/width", "best": "c  best rate of each width"}
SHORT = {"fixed": "same rate", "scaled": "rate ∝ 1/width", "best": "best rate"}


def draw(tables: Tables, results: Iterable[Result]) -> Plot:
    """Three maps, and below them the panels whose tables are there."""
    losses = {r.run.identity: (curve(r, "step"), curve(r, "loss")) for r in results}
    drawers: list[Callable[[Axes], None]] = []
    maps = int("rules" in tables)
    if "rules" in tables:
        drawers += [lambda axes: draw_cost(axes, tables["rules"]), lambda axes: draw_rates(axes, tables["rates"])]
    if "starts" in tables:
        drawers += [lambda axes: draw_starts(axes, tables["starts"]), lambda axes: draw_heads(axes, tables)]
    if "rank" in tables:
        drawers += [lambda axes: draw_floor(axes, tables["rank"]), lambda axes: draw_near_rank(axes, tables["rank"])]
    rows = -(-len(drawers) // 3)
    plot = Plot(figsize=(WIDTH, 2.3 * (rows + maps)), layout="constrained")
    grid = plot.add_gridspec(rows + maps, 1)
    parts = (plot.add_subfigure(grid[i, 0]) for i in range(rows + maps))
    if maps:
        draw_maps(next(parts), tables["rules"], losses)
    for i, part in enumerate(parts):
        every = part.subplots(1, 3)
        for draw_panel, axes in itertools.zip_longest(drawers[3 * i : 3 * i + 3], every):
            axes.set_axis_off() if draw_panel is None else draw_panel(axes)
    return plot


def draw_maps(plot: SubFigure, rules: pd.DataFrame, losses: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """The test loss, a geometric mean over seeds, by width and step; a run that has learned keeps its last loss."""
    widths = sorted(set(rules["width"].tolist()))
    last = 1.5 * float(rules["plateau"].max())
    edges = np.geomspace(max(20.0, last / 500), last, 81)
    steps = np.sqrt(edges[1:] * edges[:-1])
    every, image = plot.subplots(1, 3, sharey=True), None
    for axes, (rule, title) in zip(every, TITLES.items(), strict=True):
        rows, grid = rules[rules["rule"] == rule], np.full((len(steps), len(widths)), np.nan)
        for column, width in enumerate(widths):
            curves = [np.log(np.interp(steps, *losses[i])) for i in rows.loc[rows["width"] == width, "identity"] if i in losses]
            grid[:, column] = np.exp(np.mean(curves, axis=0)) if curves else np.nan
        image = axes.pcolormesh(np.arange(len(widths) + 1) - 0.5, edges, grid, cmap="magma", vmin=0, vmax=0.5, rasterized=True)
        means = rows[rows["state"] == "reached"].groupby("width")["plateau"].mean().reindex(widths)
        axes.plot(range(len(widths)), means, "o-", color="white", ms=3, lw=1)
        axes.set_xticks(range(len(widths)), [str(width) for width in widths])
        axes.set(yscale="log", xlabel="width", title=title, ylim=(edges[0], edges[-1]))
        axes.grid(False)
    every[0].set_ylabel("step")
    if image is not None:
        plot.colorbar(image, ax=every, label="test loss", pad=0.01, aspect=22)


def draw_cost(axes: Axes, rules: pd.DataFrame) -> None:
    """Operations until the plateau ends, one dot per run."""
    for rule, colour in COLOURS.items():
        rows = rules[(rules["rule"] == rule) & (rules["state"] == "reached")]
        axes.plot(rows["width"], rows["operations"], "o", color=colour, ms=3, alpha=0.5, mew=0)
        means = rows.groupby("width")["operations"].mean()
        axes.plot(means.index, means, color=colour, lw=1.3)
    doubling(axes)
    axes.set(yscale="log", xlabel="width", ylabel="operations", title="d  cost of the plateau")
    axes.margins(y=0.15)
    key(axes, [(SHORT[rule], {"color": colour}) for rule, colour in COLOURS.items()], loc="lower right", labelspacing=0.2)


def draw_rates(axes: Axes, rates: pd.DataFrame) -> None:
    """Plateau against learning rate, one line per width; those where some run did not get there end in a triangle."""
    colours = colours_of(rates["width"])
    for width, colour in colours.items():
        rows = rates[rates["width"] == width].groupby("learning_rate")
        cells = rows.agg(plateau=("plateau", "mean"), reached=("state", lambda states: bool((states == "reached").all())))
        whole = cells[cells["reached"]]
        axes.plot(whole.index, whole["plateau"], "o-", color=colour, ms=3, lw=1.1)
        if len(whole):
            first = (float(whole.index[0]), float(whole["plateau"].iloc[0]))
            axes.annotate(
                f"{width}", first, (-4, 0), textcoords="offset points", ha="right", va="center", color=colour, fontsize=6.5
            )
        late = cells[~cells["reached"]]["plateau"].dropna()
        axes.plot(late.index, late, "^", color=colour, mfc="none", ms=4)
    axes.set(
        xscale="log", yscale="log", xlabel="learning rate", ylabel="plateau (steps)", title="e  rates that were tried, by width"
    )
    axes.margins(x=0.2)


def draw_starts(axes: Axes, starts: pd.DataFrame) -> None:
    """Plateau against the alignment at the start, one dot per seed, with a straight line through each model's."""
    reached = starts[starts["state"] == "reached"]
    groups = list(reached.groupby(["layers", "heads"]))
    entries = []
    for ((layers, heads), rows), colour in zip(groups, (BLUE, ORANGE, RED, BLACK, GREY), strict=False):
        ratio = rows["plateau"] / np.exp(np.log(rows["plateau"]).mean())
        axes.plot(rows["alignment"], ratio, "o", color=colour, ms=2.5, alpha=0.6, mew=0)
        slope, offset = np.polyfit(rows["alignment"], np.log(ratio), 1) if len(rows) > 2 else (0.0, 0.0)
        ends = np.array([rows["alignment"].min(), rows["alignment"].max()])
        axes.plot(ends, np.exp(offset + slope * ends), color=colour, lw=1.2)
        entries.append((f"{layers}, {heads}", {"color": colour, "marker": "o", "ms": 3}))
    axes.set(xlabel="alignment at the start (cosine)", ylabel="plateau over\nits mean", title="f  luck of the start")
    axes.margins(y=0.2)
    key(axes, entries, title="layers, heads", loc="upper right", ncols=2, columnspacing=0.8, labelspacing=0.2)


def draw_heads(axes: Axes, tables: Tables) -> None:
    """Plateaus by the number of heads and layers."""
    frames = [tables[name] for name in ("starts", "depth") if name in tables]
    both = pd.concat([frame[frame["state"] == "reached"] for frame in frames]).drop_duplicates(["layers", "heads", "seed"])
    layers = sorted(set(both["layers"].tolist()))
    rng = np.random.default_rng(0)
    for depth, colour in zip(layers, shades(len(layers)), strict=True):
        rows = both[both["layers"] == depth]
        jitter = np.exp(rng.uniform(-0.12, 0.12, len(rows)))
        axes.plot(rows["heads"] * jitter, rows["plateau"], "o", color=colour, ms=2.2, alpha=0.5, mew=0)
        means = rows.groupby("heads")["plateau"].apply(lambda p: float(np.exp(np.log(p).mean())))
        axes.plot(means.index, means, "D-", color=colour, ms=4, mec="white", mew=0.4, lw=1.1)
    doubling(axes)
    axes.set_xticks(sorted(set(both["heads"].tolist())))
    axes.set(yscale="log", xlabel="heads of a layer", ylabel="plateau (steps)", title="g  heads and layers")
    plain_ticks(axes.yaxis, "{x:,.0f}")
    inside(axes, "layers", dict(zip(layers, shades(len(layers)), strict=True)), loc="upper left")


def draw_floor(axes: Axes, rank: pd.DataFrame) -> None:
    """Loss at the end against dim over width, and the floor."""
    colours = colours_of(rank["width"])
    for width, colour in colours.items():
        rows = rank[rank["width"] == width]
        axes.plot(rows["dim"] / rows["width"], rows["last"], "o", color=colour, ms=3.5, alpha=0.7, mew=0)
    ratios = np.geomspace(0.1, 1.05 * float((rank["dim"] / rank["width"]).max()), 200)
    axes.plot(ratios, rank_floor(1.0, ratios), color=GREY, lw=1.2)
    axes.plot(ratios, rank_floor(0.5, ratios), color=ORANGE, lw=1.2)
    axes.axhline(0.2, color=GREY, lw=0.8, ls=":")
    doubling(axes)
    axes.set(xlabel="$d$ / width", ylabel="last loss over the first", title="h  narrower than the tokens", ylim=(-0.03, 1.1))
    floors = [("floor of half the width", {"color": ORANGE}), ("floor of the width", {}), ("threshold", {"ls": ":"})]
    key(axes, floors, loc="upper left", labelspacing=0.2)
    inside(axes, "width", colours, loc="center left")


def draw_near_rank(axes: Axes, rank: pd.DataFrame) -> None:
    """Plateau against dim, one line per width; runs that never learn are hollow triangles."""
    colours = colours_of(rank["width"])
    for width, colour in colours.items():
        rows = rank[rank["width"] == width]
        got, late = rows[rows["state"] == "reached"], rows[rows["state"] == "censored"]
        axes.plot(got["dim"], got["plateau"], "o", color=colour, ms=3, alpha=0.6, mew=0)
        means = got.groupby("dim")["plateau"].mean()
        axes.plot(means.index, means, color=colour, lw=1.2)
        axes.plot(late["dim"], late["plateau"], "^", color=colour, mfc="none", ms=4)
    doubling(axes)
    axes.set(yscale="log", xlabel="input dimension $d$", ylabel="plateau (steps)", title="i  plateau near the rank")
    inside(axes, "width", colours, loc="lower right")


def inside(axes: Axes, title: str, colours: Colours, loc: str) -> None:
    """What the colours are, where nothing is drawn."""
    entries = [(f"{value:g}", {"color": colour, "marker": "o", "ms": 3}) for value, colour in colours.items()]
    key(axes, entries, title=title, loc=loc, labelspacing=0.2)
