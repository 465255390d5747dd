"""The figures that show where the heads of a trained chain look: the runs of a figure of stages, by head and lag."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure as Plot
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullFormatter

from ..._style import BLACK, GREY, WIDTH
from .._figure import Animation, Check, Figure, Outcome, Preset, Studies
from .._source import RunSource
from ._chains import ChainRuns
from ._stage_checks import owner_check
from ._stage_figure import COLOURS, Checks, draw_map, mark_groups, moments_of, read_runs

FRAMES, HOLD = 48, 8
"""Of an animation, and how often the last one is repeated."""


def map_figure(
    id: str,
    title: str,
    partner: Figure,
    more: Checks = lambda runs: [],
    part: Callable[[Studies], Studies] = lambda studies: studies,
    own_heads: bool = True,
) -> Figure:
    """A figure of the attention of the first seed at a few moments and over training, and an animation of it.

    **Arguments:**

    - `partner`: the figure of stages whose runs these are.
    - `more`: checks of this figure alone.
    - `part`: the studies among those of the partner.
    - `own_heads`: whether each group is to have a head of its own in the end.
    """

    def make(settings: Studies, source: RunSource) -> Outcome:
        runs, device = read_runs(source, part(settings))
        return Outcome(
            tables={"curves": runs.table},
            plot=draw(runs),
            checks=map_checks(runs, own_heads) + more(runs),
            precision="fp32",
            device=device,
            animation=animate(runs),
        )

    def share(studies: Studies) -> float:
        counts = [sum(study.count for study in some.values()) for some in (part(studies), studies)]
        return counts[0] / counts[1]

    seconds: dict[Preset, float] = {
        preset: partner.seconds[preset] * share(studies) for preset, studies in partner.presets.items()
    }
    return Figure(id, title, partner.presets, make, seconds, partner.caveat, studies=part, curves=True)


def map_checks(runs: ChainRuns, own_heads: bool) -> list[Check]:
    starts = [runs.attention(curve)[0] for curve in runs.curves]
    uneven = max(float((heads.max(-1) / heads.mean(-1)).max()) for heads in starts)
    inside = min(float(runs.attention(curve)[-1].sum(-1).min()) for curve in runs.curves)
    checks = [
        Check(
            "at step 0, the most that a head looks at one lag over its mean, largest over seeds",
            uneven,
            "at t = 0 the attention is uniform",
            uneven < 2,
        ),
        Check(
            "at the end, attention within the window of the chain, least over heads and seeds",
            inside,
            None,
            inside > 0.8,
            "above 0.8: positions that tell nothing are left out",
        ),
    ]
    if own_heads:
        words = "each head specializes in a different pattern"
        cooperation = [runs.division(curve).cooperation for curve in runs.curves]
        start, end = float(np.mean([c[0] for c in cooperation])), float(np.mean([c[-1] for c in cooperation]))
        name = "cooperation (0: all heads look alike, 1: each at a group of its own) at the start and the end, mean over seeds"
        checks += [owner_check(runs, words), Check(name, [start, end], words, end > start + 0.3)]
    return checks


def favourites(runs: ChainRuns) -> np.ndarray:
    """The group that each head of the first seed looks at most in the end."""
    return runs.group_attention(runs.curves[0])[-1].argmax(-1)


def head_order(runs: ChainRuns) -> list[int]:
    """The heads of the first seed by the group that each looks at most in the end."""
    return np.argsort(favourites(runs), kind="stable").tolist()


def head_colours(runs: ChainRuns) -> list[tuple[float, float, float]]:
    """One colour per head: that of the group it looks at most in the end; lighter for further heads of one group."""
    colours, groups = [], favourites(runs).tolist()
    for k, group in enumerate(groups):
        pale = 1 - 0.5 ** groups[:k].count(group)
        red, green, blue = (c + (1 - c) * pale for c in to_rgb(COLOURS[group % len(COLOURS)]))
        colours.append((red, green, blue))
    return colours


def shades_of(runs: ChainRuns) -> Normalize:
    return Normalize(0, max(0.3, float(runs.attention(runs.curves[0]).max())))


def draw(runs: ChainRuns) -> Plot:
    """Above: attention by lag at a few moments, summed and by head; below: over training, one map per head."""
    heads = len(head_order(runs))
    plot = Plot(figsize=(WIDTH, 4.1 + 0.16 * heads), layout="constrained")
    parts: Any = plot.subfigures(2, 1, height_ratios=(2.0 + 0.16 * heads, 1.9))
    _draw_moments(parts[0], runs)
    _draw_training(parts[1], runs)
    return plot


def _draw_moments(part: Any, runs: ChainRuns) -> None:
    order, moments = head_order(runs), moments_of(runs)
    heights = (1.2, 0.25 + 0.16 * len(order))
    grid = part.subplots(2, len(moments), sharex=True, sharey="row", height_ratios=heights, squeeze=False)
    for column, at in zip(grid.T, moments, strict=True):
        draw_summed(column[0], runs, at)
        draw_map(column[1], runs, order, at, norm=shades_of(runs))
        column[0].set_title(f"step {runs.steps[at]:.0f}", fontsize=7.5)
        column[1].set_xlabel("lag")
    grid[0, 0].set_ylabel("attention,\nheads summed")
    grid[1, 0].set_yticks(range(len(order)), [f"{k + 1}" for k in order])
    grid[1, 0].set_ylabel("head")
    _legend(part, runs)
    part.suptitle("a  where the heads look, first seed", x=0.01, ha="left", fontsize=8.5, fontweight="bold")


def _draw_training(part: Any, runs: ChainRuns) -> None:
    order = head_order(runs)
    panels, image = part.subplots(1, len(order), sharex=True, sharey=True, squeeze=False)[0], None
    for axes, k in zip(panels, order, strict=True):
        image = draw_course(axes, runs, k)
        axes.set_title(f"head {k + 1}", fontsize=7.5)
        axes.set(xlabel="step", ylim=(runs.groups.window - 0.5, -0.5))
    panels[0].set_ylabel("lag")
    panels[0].yaxis.set_major_locator(MaxNLocator(5, integer=True))
    part.suptitle("b  attention of each head over training", x=0.01, ha="left", fontsize=8.5, fontweight="bold")
    bar = part.colorbar(image, ax=list(panels), label="attention", pad=0.015, aspect=12)
    bar.outline.set_linewidth(0.5)


def _legend(part: Any, runs: ChainRuns) -> None:
    """Beside the title of a part: the colours of the heads and of the groups."""
    order, colours = head_order(runs), head_colours(runs)
    bars = [Line2D([], [], color=COLOURS[j % len(COLOURS)], lw=2.2, solid_capstyle="butt") for j in range(runs.groups.count)]
    handles: list[Any] = [*(Patch(color=colours[k], lw=0) for k in order), tuple(bars)]
    words = [*(f"head {k + 1}" for k in order), "lags of a group"]
    options: dict[str, Any] = {"columnspacing": 1.0, "handlelength": 2.0, "handletextpad": 0.4, "borderaxespad": 0.2}
    side_by_side = {tuple: HandlerTuple(ndivide=None, pad=0.15)}
    part.legend(handles, words, loc="upper right", ncols=len(words), handler_map=side_by_side, **options)


def draw_summed(axes: Axes, runs: ChainRuns, at: int) -> list[Any]:
    """The attention of all heads by lag, stacked, each head in the colour of the group it ends on; the bars, head by head."""
    maps, colours, bars = runs.attention(runs.curves[0])[at], head_colours(runs), []
    foot = np.zeros(maps.shape[-1])
    for k in head_order(runs):
        bars += axes.bar(np.arange(len(foot)), maps[k], 0.86, bottom=foot, color=colours[k], edgecolor="white", linewidth=0.4)
        foot = foot + maps[k]
    mark_groups(axes, runs.groups, "below")
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    return bars


def draw_course(axes: Axes, runs: ChainRuns, k: int) -> Any:
    """The attention of one head by lag, over training; dotted: the moments shown above."""
    step, lags = runs.steps[1:], runs.attention(runs.curves[0])[1:, k]
    edges = np.concatenate([[step[0]], np.sqrt(step[1:] * step[:-1]), [step[-1]]])
    image = axes.pcolormesh(
        edges, np.arange(lags.shape[1] + 1) - 0.5, lags.T, norm=shades_of(runs), cmap="Greys", rasterized=True
    )
    for moment in runs.steps[moments_of(runs)]:
        if step[0] < moment < step[-1]:
            axes.axvline(moment, color=BLACK, lw=0.7, ls=":")
    axes.set(xscale="log", xlim=(step[0], step[-1]))
    axes.grid(visible=False)
    axes.xaxis.set_minor_formatter(NullFormatter())
    mark_groups(axes, runs.groups, "left")
    axes.tick_params(axis="y", length=0, pad=6 if runs.groups.disjoint else 9)
    return image


def frames_of(step: np.ndarray) -> list[int]:
    """The evaluations that an animation shows: evenly in log step."""
    moments = np.concatenate([[0], np.geomspace(step[1], step[-1], FRAMES - 1)])
    return sorted({int(i) for i in np.searchsorted(step, moments - 1e-6)})


def animate(runs: ChainRuns) -> Animation:
    """The heads of the first seed over training, beside the KL from the teacher."""
    step, kl, order = runs.steps, runs.curves[0]["kl_teacher"], head_order(runs)
    attention, frames = runs.attention(runs.curves[0]), frames_of(step)
    plot = Plot(figsize=(5.6, 2.4), dpi=120, layout="constrained")
    panels: Any = plot.subplot_mosaic([["kl", "sum"], ["kl", "heads"]], width_ratios=(1, 1.2), height_ratios=(1.5, 1))
    left, above, below = panels["kl"], panels["sum"], panels["heads"]
    left.plot(step[1:], kl[1:], color=GREY, lw=1.2)
    (dot,) = left.plot([], [], "o", color=BLACK)
    left.set(xscale="log", xlabel="step", ylabel="KL(teacher ‖ student)", ylim=(0, 1.05 * kl.max()))
    bars, image = draw_summed(above, runs, 0), draw_map(below, runs, order, 0, norm=shades_of(runs))
    highest = float(attention.sum(1).max())
    above.set(ylim=(0, 1.05 * highest), xlim=(-0.5, runs.groups.window - 0.5), xticks=[], ylabel="attention")
    below.set(xlabel="lag", ylabel="head", yticks=range(len(order)), yticklabels=[f"{k + 1}" for k in order])
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
