"""The figures that show where the heads of a trained chain look: the runs of a figure of stages, seen by head and lag."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure as Plot
from matplotlib.image import AxesImage
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullFormatter

from ..._style import BLACK, GREY, WIDTH
from ...engine import Run
from ...studies import provenance_of
from .._figure import Animation, Check, Figure, Outcome, Preset
from .._work import Work
from ._chains import Seen, table, watch
from ._stage_figure import COLOURS, Settings, brackets, moments_of

FRAMES, HOLD = 48, 8
"""Of an animation, and how often the last one is repeated."""
MAP = "Greys"


def map_figure(
    id: str,
    shows: str,
    partner: Figure,
    more: Callable[[Seen], list[Check]] = lambda seen: [],
    part: Callable[[Any], Settings] = lambda settings: settings,
    own: bool = True,
) -> Figure:
    """A figure of the attention of the first seed at a few moments and over training, and an animation of it.

    **Arguments:**

    - `partner`: the figure of stages whose runs these are.
    - `more`: checks of this figure alone.
    - `part`: the setting among those of the partner.
    - `own`: whether each group is to have a head of its own in the end.
    """

    def make(settings: Any, work: Work) -> Outcome:
        seen = watch(work.results(runs(settings), curves=True))
        return Outcome(
            tables={"curves": table(seen.results)},
            plot=draw(seen),
            checks=checks_of(seen, own) + more(seen),
            precision="fp32",
            device=provenance_of({"all": seen.results}),
            animation=animate(seen),
        )

    def runs(settings: Any) -> list[Run]:
        one = part(settings)
        return one.training.runs(one.model)

    def seconds(preset: Preset) -> float:
        assert partner.runs is not None
        settings = partner.presets[preset]
        return partner.seconds[preset] * len(runs(settings)) / len(partner.runs(settings))

    costs: dict[Preset, float] = {preset: seconds(preset) for preset in partner.presets}
    return Figure(id, shows, partner.presets, make, costs, partner.shrunk, runs)


def checks_of(seen: Seen, own: bool) -> list[Check]:
    seeds = len(seen.results)
    uneven = max(float((heads.max(-1) / heads.mean(-1)).max()) for heads in (seen.heads(c)[0] for c in seen.curves))
    inside = min(float(seen.covered(curve).min()) for curve in seen.curves)
    found = [
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
    if own:
        words = "each head specializes in a different pattern"
        name = "seeds at whose end each group has a head of its own, the one that looks at it most"
        found.append(Check(name, seen.owners, words, seen.owners == seeds))
        rise = [seen.division(c).cooperation for c in seen.curves]
        start, end = float(np.mean([r[0] for r in rise])), float(np.mean([r[-1] for r in rise]))
        name = "cooperation (0: all heads look alike, 1: each at a group of its own) at the start and the end, mean over seeds"
        found.append(Check(name, [start, end], words, end > start + 0.3))
    return found


def order_of(seen: Seen) -> np.ndarray:
    """The heads of the first seed by the group that each looks at most in the end, per position."""
    return np.argsort(favourites(seen), kind="stable")


def favourites(seen: Seen) -> np.ndarray:
    return seen.mass(seen.curves[0])[-1].argmax(-1)


def tints(seen: Seen) -> list[tuple[float, float, float]]:
    """A colour a head: that of the group it looks at most in the end; lighter for further heads of one group."""
    used: dict[int, int] = {}
    found = []
    for group in favourites(seen).tolist():
        pale = 1 - 0.5 ** used.get(group, 0)
        used[group] = used.get(group, 0) + 1
        found.append(tuple(c + (1 - c) * pale for c in to_rgb(COLOURS[group % len(COLOURS)])))
    return found


def draw(seen: Seen) -> Plot:
    """Above: attention by lag at a few moments, summed and by head; below: over training, a map a head."""
    order, moments = order_of(seen), moments_of(seen)
    heads, window = len(order), seen.groups.window
    plot = Plot(figsize=(WIDTH, 4.1 + 0.16 * heads), layout="constrained")
    parts: Any = plot.subfigures(2, 1, height_ratios=(2.0 + 0.16 * heads, 1.9))
    above, below = parts
    grid = above.subplots(2, len(moments), sharex=True, sharey="row", height_ratios=(1.2, 0.25 + 0.16 * heads), squeeze=False)
    shade = Normalize(0, max(0.3, float(seen.heads(seen.curves[0]).max())))
    image = None
    for column, (at, title) in zip(grid.T, moments, strict=True):
        summed(column[0], seen, order, at)
        image = strip(column[1], seen, order, at, shade)
        column[0].set_title(title, fontsize=7.5)
        column[1].set_xlabel("lag")
    grid[0, 0].set_ylabel("attention,\nheads summed")
    grid[1, 0].set_yticks(range(heads), [f"{k + 1}" for k in order])
    grid[1, 0].set_ylabel("head")
    keyed(above, seen, order)
    above.suptitle("a  where the heads look, first seed", x=0.01, ha="left", fontsize=8.5, fontweight="bold")
    panels = below.subplots(1, heads, sharex=True, sharey=True, squeeze=False)[0]
    for axes, k in zip(panels, order, strict=True):
        image = course(axes, seen, int(k), [int(seen.steps[at]) for at, _ in moments], shade)
        axes.set_title(f"head {k + 1}", fontsize=7.5)
        axes.set(xlabel="step", ylim=(window - 0.5, -0.5))
    panels[0].set_ylabel("lag")
    panels[0].yaxis.set_major_locator(MaxNLocator(5, integer=True))
    below.suptitle("b  attention of each head over training", x=0.01, ha="left", fontsize=8.5, fontweight="bold")
    assert image is not None
    bar = below.colorbar(image, ax=list(panels), label="attention", pad=0.015, aspect=12)
    bar.outline.set_linewidth(0.5)
    return plot


def keyed(part: Any, seen: Seen, order: np.ndarray) -> None:
    """Beside the title of a part: the colours of the heads and of the groups."""
    bar: dict[str, Any] = {"lw": 2.2, "solid_capstyle": "butt"}
    lines: list[Any] = [Patch(color=tints(seen)[k], lw=0) for k in order]
    words = [f"head {k + 1}" for k in order]
    lines.append(tuple(Line2D([], [], color=COLOURS[j % len(COLOURS)], **bar) for j in range(seen.groups.count)))
    words.append("lags of a group")
    options: dict[str, Any] = {"columnspacing": 1.0, "handlelength": 2.0, "handletextpad": 0.4, "borderaxespad": 0.2}
    side_by_side = {tuple: HandlerTuple(ndivide=None, pad=0.15)}
    part.legend(lines, words, loc="upper right", ncols=len(lines), handler_map=side_by_side, **options)


def summed(axes: Axes, seen: Seen, order: np.ndarray, at: int) -> list[Any]:
    """The attention of all heads by lag, stacked, each head in the colour of the group it ends on; the bars, head by head."""
    maps, colours = seen.heads(seen.curves[0])[at], tints(seen)
    foot, bars = np.zeros(maps.shape[-1]), []
    for k in order:
        bars += axes.bar(np.arange(len(foot)), maps[k], 0.86, bottom=foot, color=colours[k], edgecolor="white", linewidth=0.4)
        foot = foot + maps[k]
    brackets(axes, seen.groups, "below")
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    return bars


def strip(axes: Axes, seen: Seen, order: np.ndarray, at: int, shade: Normalize) -> AxesImage:
    maps = seen.heads(seen.curves[0])[at][order]
    image = axes.imshow(maps, norm=shade, cmap=MAP, aspect="auto", interpolation="nearest")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    for spine in axes.spines.values():
        spine.set(color=GREY, visible=True)
    return image


def course(axes: Axes, seen: Seen, k: int, moments: list[int], shade: Normalize) -> Any:
    """The attention of one head by lag, over training."""
    curve = seen.curves[0]
    step, lags = curve["step"][1:], seen.heads(curve)[1:, k]
    edges = np.concatenate([[step[0]], np.sqrt(step[1:] * step[:-1]), [step[-1]]])
    image = axes.pcolormesh(edges, np.arange(lags.shape[1] + 1) - 0.5, lags.T, norm=shade, cmap=MAP, rasterized=True)
    for moment in moments:
        if step[0] < moment < step[-1]:
            axes.axvline(moment, color=BLACK, lw=0.7, ls=":")
    axes.set(xscale="log", xlim=(step[0], step[-1]))
    axes.grid(visible=False)
    axes.xaxis.set_minor_formatter(NullFormatter())
    brackets(axes, seen.groups, "left")
    axes.tick_params(axis="y", length=0, pad=6 if seen.groups.disjoint else 9)
    return image


def animate(seen: Seen) -> Animation:
    """The heads of the first seed over training, evenly in log step, beside the KL from the teacher."""
    curve, order = seen.curves[0], order_of(seen)
    step = curve["step"]
    wanted = np.concatenate([[0], np.geomspace(step[1], step[-1], FRAMES - 1)])
    frames = sorted({int(i) for i in np.searchsorted(step, wanted - 1e-6)})
    shade = Normalize(0, max(0.3, float(seen.heads(curve).max())))
    most = float(seen.heads(curve).sum(1).max())
    plot = Plot(figsize=(5.6, 2.4), dpi=120, layout="constrained")
    placed: Any = plot.subplot_mosaic([["kl", "sum"], ["kl", "heads"]], width_ratios=(1, 1.2), height_ratios=(1.5, 1))
    left, above, below = placed["kl"], placed["sum"], placed["heads"]
    left.plot(step[1:], curve["excess"][1:], color=GREY, lw=1.2)
    (dot,) = left.plot([], [], "o", color=BLACK)
    left.set(xscale="log", xlabel="step", ylabel="KL(teacher ‖ student)", ylim=(0, 1.05 * curve["excess"].max()))
    bars, image = summed(above, seen, order, 0), strip(below, seen, order, 0, shade)
    above.set(ylim=(0, 1.05 * most), xlim=(-0.5, seen.groups.window - 0.5), xticks=[], ylabel="attention")
    below.set(xlabel="lag", ylabel="head", yticks=range(len(order)), yticklabels=[f"{k + 1}" for k in order])
    title = above.set_title("step 0", fontsize=8)

    def show(i: int) -> list[Artist]:
        at = frames[min(i, len(frames) - 1)]
        maps = seen.heads(curve)[at][order]
        dot.set_data([max(step[at], step[1])], [curve["excess"][at]])
        feet = np.cumsum(maps, 0) - maps
        for bar, foot, height in zip(bars, feet.ravel(), maps.ravel(), strict=True):
            bar.set(y=foot, height=height)
        image.set_data(maps)
        title.set_text(f"step {step[at]:.0f}")
        return [dot, *bars, image, title]

    return Animation(plot, len(frames) + HOLD, show)
