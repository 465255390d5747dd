"""Figures of attention by head and lag in a trained chain."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullFormatter

from ...core.plotting import BLACK, GREY, WIDTH
from ...measure import division
from .._figure import Animation, Check, Figure, Outcome, Plot, Presets, RunSource, Seconds, Studies
from ._chains import ChainRun, ChainRuns, owner_check, part_of
from ._maps import Maps, draw_blended, kept_maps
from ._stage_figure import (
    COLOURS,
    Checks,
    draw_map,
    heading,
    mark_groups,
    moments_of,
    read_runs,
    shades_of,
)

FRAMES = 48
HOLD = 8
"""The number of repetitions of an animation's last frame."""


def map_figure(
    number: int,
    title: str,
    partner: Figure,
    more: Checks = lambda runs: [],
    which: int | None = None,
    own_heads: bool = True,
    steps: Sequence[int] = (),
) -> Figure:
    """Build a figure, with an animation, of the attention in the runs of another figure.

    The attention is that of the first seed. The paper's query-key maps are drawn as well if they
    were kept.

    **Arguments:**

    - `partner`: the figure whose runs are shown.
    - `more`: further checks of the runs on drawn teachers.
    - `which`: the number of the partner's part to show; None shows all.
    - `own_heads`: check that each group ends with a different head.
    - `steps`: the three steps of the paper's maps, at which the heads are compared with them.
    """

    def make(studies: Studies, source: RunSource) -> Outcome:
        runs = read_runs(source, studies)
        own = runs.on("drawn")
        mapped = mapped_run(runs)
        checks = (
            map_checks(own, own_heads)
            + more(own)
            + (moment_checks(runs.like_published, steps) if steps else [])
        )
        plot = draw(own[0], mapped, apart=not own_heads)
        maps = {} if mapped is None else {"maps": map_table(mapped)}
        return Outcome(
            {"curves": runs.table, **maps}, plot, checks=checks, animation=animate(own[0])
        )

    presets: Presets = partner.presets
    seconds: Seconds = partner.seconds
    if which is not None:
        parts = {
            preset: list(dict.fromkeys(part_of(name) for name in studies))
            for preset, studies in presets.items()
        }
        presets = {
            p: {n: s for n, s in studies.items() if part_of(n) == parts[p][which]}
            for p, studies in presets.items()
        }
        counts = {
            p: [sum(s.count for s in each[p].values()) for each in (presets, partner.presets)]
            for p in presets
        }
        seconds = {
            preset: each * counts[preset][0] / counts[preset][1] for preset, each in seconds.items()
        }
    return Figure(f"yuksel2026/fig{number}", title, presets, make, seconds, curves=True)


def map_checks(runs: ChainRuns, own_heads: bool) -> list[Check]:
    """Check the attention at the start and at the end."""
    uneven = max((run.attention[0].max(-1) / run.attention[0].mean(-1)).max() for run in runs)
    inside = min(run.attention[-1].sum(-1).min() for run in runs)
    name = "at step 0, the most that a head looks at one lag over its mean, largest over seeds"
    checks = [Check(name, uneven, "at t = 0 the attention is uniform", uneven < 2)]
    name = "at the end, attention within the window of the chain, least over heads and seeds"
    checks.append(
        Check(
            name, inside, None, inside > 0.8, "above 0.8: positions that tell nothing are left out"
        )
    )
    if own_heads:
        sizes = np.array(runs.groups.spans, float)
        start, end = np.mean(
            [division(run.group_attention[[0, -1]], sizes).cooperation for run in runs], 0
        )
        words = "each head specializes in a different pattern"
        name = (
            "cooperation (0: all heads look alike, 1: each at a group of its own) at the "
            "start and the end, mean over seeds"
        )
        checks += [owner_check(runs, words), Check(name, [start, end], words, end > start + 0.3)]
    return checks


MOMENTS = "1 1 1, 1 1 2, 1 2 3"
"""The groups that the heads attend to most in the paper's maps at three steps; 1 is the
strongest."""


def moment_checks(runs: ChainRuns, steps: Sequence[int]) -> list[Check]:
    """Compare the heads' groups at the steps of the paper's maps."""
    by_seed = []
    for run in runs:
        rows = [int(np.abs(run["step"] - step).argmin()) for step in steps]
        ranks = [
            [run.groups.ranking.index(group) + 1 for group in run.group_attention[row].argmax(-1)]
            for row in rows
        ]
        by_seed.append(", ".join(" ".join(map(str, sorted(each))) for each in ranks))
    when = ", ".join(map(str, steps))
    name = (
        f"published teacher: groups that heads look at most at steps {when}, 1 the strongest, "
        f"by seed"
    )
    name = name if runs[0].maps == "published" else name.removeprefix("published teacher: ")
    return [Check(name, by_seed, MOMENTS, all(each == MOMENTS for each in by_seed))]


def mapped_run(runs: ChainRuns) -> ChainRun | None:
    """Return the first run whose maps were kept, preferably on the published teacher."""
    return next(
        (run for run in (*runs.like_published, *runs) if "attention_map" in run.curves), None
    )


def map_table(run: ChainRun) -> pd.DataFrame:
    """Return the maps that were kept, one row per step, head and query."""
    rows = []
    for step, maps in kept_maps(run["step"], run["attention_map"]).items():
        for (head, query), keys in zip(
            np.ndindex(maps.shape[:2]), maps.reshape(-1, maps.shape[-1]), strict=True
        ):
            rows.append(
                {"step": step, "head": head, "query": query}
                | {f"key_{k}": float(w) for k, w in enumerate(keys)}
            )
    return pd.DataFrame(rows)


def head_order(run: ChainRun) -> list[int]:
    """Sort the heads by the group that each attends to most at the end."""
    return np.argsort(run.favourites, kind="stable").tolist()


def head_colours(run: ChainRun) -> list[Any]:
    """Return one colour per head: that of its final group, lighter for further heads of that
    group."""
    groups = run.favourites
    pale = [1 - 0.5 ** groups[:k].count(group) for k, group in enumerate(groups)]
    return [
        tuple(c + (1 - c) * white for c in to_rgb(COLOURS[g]))
        for g, white in zip(groups, pale, strict=True)
    ]


def draw(run: ChainRun, mapped: ChainRun | None = None, apart: bool = False) -> Plot:
    """Draw attention by lag at a few moments, over training, and as query-key maps.

    The first part shows the heads stacked and separately, the second one map per head, the third
    the maps of the run that kept them, with all heads in one picture or `apart`.
    """
    heads = run.attention.shape[1]
    heights = [2.0 + 0.16 * heads, 1.9]
    if mapped is not None:
        kept = kept_maps(mapped["step"], mapped["attention_map"])
        heights.append(0.45 + (1.25 * len(kept) if apart else 2.0))
    plot = Plot(figsize=(WIDTH, 0.2 + sum(heights)), layout="constrained")
    parts: Any = plot.subfigures(len(heights), 1, height_ratios=heights)
    _draw_moments(parts[0], run)
    _draw_training(parts[1], run)
    if mapped is not None:
        _draw_maps(parts[2], mapped, kept_maps(mapped["step"], mapped["attention_map"]), apart)
    return plot


def _draw_maps(part: Any, run: ChainRun, kept: Mapping[int, Maps], apart: bool) -> None:
    """Draw query against key at the steps that were kept."""
    colours = head_colours(run)
    order = head_order(run)
    full = (1 if apart else 1.5) * max(0.3, *(float(maps.max()) for maps in kept.values()))
    if apart:
        grid = part.subplots(len(kept), len(order), sharex=True, sharey=True, squeeze=False)
        for row, (step, maps) in zip(grid, kept.items(), strict=True):
            for axes, k in zip(row, order, strict=True):
                draw_blended(axes, maps[[k]], [colours[k]], run.groups, full)
            row[0].set_ylabel(f"step {step}\nquery")
        for axes, k in zip(grid[0], order, strict=True):
            axes.set_title(f"head {k + 1}", fontsize=7.5)
    else:
        grid = part.subplots(1, len(kept), sharex=True, sharey=True, squeeze=False)
        for axes, (step, maps) in zip(grid[0], kept.items(), strict=True):
            draw_blended(axes, maps, colours, run.groups, full)
            axes.set_title(f"step {step}", fontsize=7.5)
        grid[0, 0].set_ylabel("query")
    for axes in grid[-1]:
        axes.set_xlabel("key")
    where = "the published teacher" if run.maps == "published" else "the first seed"
    heading(part, f"c  query against key, heads as colours, as the paper draws it: {where}")


def _draw_moments(part: Any, run: ChainRun) -> None:
    """Draw the attention by lag at a few moments, stacked and by head."""
    order = head_order(run)
    moments = moments_of(run)
    heights = (1.2, 0.25 + 0.16 * len(order))
    grid = part.subplots(
        2, len(moments), sharex=True, sharey="row", height_ratios=heights, squeeze=False
    )
    for column, at in zip(grid.T, moments, strict=True):
        draw_summed(column[0], run, at)
        draw_map(column[1], run, order, at)
        column[0].set_title(f"step {run['step'][at]:.0f}", fontsize=7.5)
        column[1].set_xlabel("lag")
    grid[0, 0].set_ylabel("attention,\nheads summed")
    grid[1, 0].set(ylabel="head", yticks=range(len(order)), yticklabels=[f"{k + 1}" for k in order])
    bars = tuple(
        Line2D([], [], color=COLOURS[j], lw=2.2, solid_capstyle="butt")
        for j in range(run.groups.count)
    )
    handles: list[Any] = [*(Patch(color=head_colours(run)[k], lw=0) for k in order), bars]
    words = [*(f"head {k + 1}" for k in order), "lags of a group"]
    spaces = {"columnspacing": 1.0, "handlelength": 2.0, "handletextpad": 0.4, "borderaxespad": 0.2}
    side_by_side = {tuple: HandlerTuple(ndivide=None, pad=0.15)}
    part.legend(
        handles, words, loc="upper right", ncols=len(words), handler_map=side_by_side, **spaces
    )
    heading(part, "a  where the heads look, first seed")


def _draw_training(part: Any, run: ChainRun) -> None:
    """Draw one map of lag against step per head; dotted lines mark the moments shown above."""
    order = head_order(run)
    groups = run.groups
    step = run["step"][1:]
    edges = np.concatenate([step[:1], np.sqrt(step[1:] * step[:-1]), step[-1:]])
    panels = part.subplots(1, len(order), sharex=True, sharey=True, squeeze=False)[0]
    image = None
    for axes, k in zip(panels, order, strict=True):
        lags = run.attention[1:, k].T
        image = axes.pcolormesh(
            edges,
            np.arange(len(lags) + 1) - 0.5,
            lags,
            norm=shades_of(run),
            cmap="Greys",
            rasterized=True,
        )
        for moment in run["step"][moments_of(run)[1:-1]]:
            axes.axvline(moment, color=BLACK, lw=0.7, ls=":")
        axes.set(
            xscale="log", xlim=(step[0], step[-1]), xlabel="step", ylim=(groups.window - 0.5, -0.5)
        )
        axes.grid(visible=False)
        axes.xaxis.set_minor_formatter(NullFormatter())
        mark_groups(axes, groups, "left")
        axes.tick_params(axis="y", length=0, pad=6 if groups.disjoint else 9)
        axes.set_title(f"head {k + 1}", fontsize=7.5)
    panels[0].set_ylabel("lag")
    panels[0].yaxis.set_major_locator(MaxNLocator(5, integer=True))
    heading(part, "b  attention of each head over training")
    part.colorbar(
        image, ax=list(panels), label="attention", pad=0.015, aspect=12
    ).outline.set_linewidth(0.5)


def draw_summed(axes: Axes, run: ChainRun, at: int) -> list[Any]:
    """Stack the attention of all heads by lag, in the heads' colours; return the bars by head."""
    maps = run.attention[at]
    colours = head_colours(run)
    bars = []
    foot = np.zeros(maps.shape[-1])
    for k in head_order(run):
        bars += axes.bar(
            np.arange(len(foot)),
            maps[k],
            0.86,
            bottom=foot,
            color=colours[k],
            edgecolor="white",
            linewidth=0.4,
        )
        foot = foot + maps[k]
    mark_groups(axes, run.groups, "below")
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    return bars


def frames_of(step: np.ndarray) -> list[int]:
    """Return the evaluations that an animation shows, evenly spaced in log step."""
    moments = np.concatenate([[0], np.geomspace(step[1], step[-1], FRAMES - 1)])
    return sorted({int(i) for i in np.searchsorted(step, moments - 1e-6)})


def animate(run: ChainRun) -> Animation:
    """Animate the heads over training, next to the KL divergence from the teacher."""
    step = run["step"]
    kl = run["kl_teacher"]
    order = head_order(run)
    attention = run.attention
    frames = frames_of(step)
    plot = Plot(figsize=(5.6, 2.4), dpi=120, layout="constrained")
    panels: Any = plot.subplot_mosaic(
        [["kl", "sum"], ["kl", "heads"]], width_ratios=(1, 1.2), height_ratios=(1.5, 1)
    )
    left = panels["kl"]
    above = panels["sum"]
    below = panels["heads"]
    left.plot(step[1:], kl[1:], color=GREY, lw=1.2)
    (dot,) = left.plot([], [], "o", color=BLACK)
    left.set(xscale="log", xlabel="step", ylabel="KL(teacher ‖ student)", ylim=(0, 1.05 * kl.max()))
    bars = draw_summed(above, run, 0)
    image = draw_map(below, run, order, 0)
    highest = float(attention.sum(1).max())
    above.set(
        ylim=(0, 1.05 * highest),
        xlim=(-0.5, run.groups.window - 0.5),
        xticks=[],
        ylabel="attention",
    )
    below.set(
        xlabel="lag",
        ylabel="head",
        yticks=range(len(order)),
        yticklabels=[f"{k + 1}" for k in order],
    )
    title = above.set_title("step 0", fontsize=8)

    def show(i: int) -> list[Artist]:
        at = frames[min(i, len(frames) - 1)]
        maps = attention[at][order]
        dot.set_data([max(step[at], step[1])], [kl[at]])
        feet = np.cumsum(maps, 0) - maps
        for bar, foot, height in zip(bars, feet.ravel(), maps.ravel(), strict=True):
            bar.set(y=foot, height=height)
        image.set_data(maps)
        title.set_text(f"step {step[at]:.0f}")
        return [dot, *bars, image, title]

    return Animation(plot, len(frames) + HOLD, show)
