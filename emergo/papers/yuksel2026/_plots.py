"""Plots of trained chains: KL divergences from references; attention by head, group and lag."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_rgb
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from ...core.plotting import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    QUANTITIES,
    SKY,
    WIDTH,
    outside,
    over,
)
from ...tasks import Groups
from .._figure import Animation, Plot
from ._chains import ChainRun, ChainRuns, draw_seeds, step_label
from ._maps import draw_blended, kept_maps

COLOURS = (BLUE, ORANGE, GREEN, PINK)
"""The colours of groups, and of references that add a group."""
HEADS = (SKY, PINK, "#d9b400", GREY)
"""The colours of heads: near to cyan, magenta and yellow, whose overlap is dark."""
ELSEWHERE = "#dddddd"
"""The colour of attention outside all groups."""
FRAMES = 48
HOLD = 8
"""The number of repetitions of an animation's last frame."""


def heading(part: Any, words: str) -> None:
    """Write a heading above a part of a plot."""
    part.suptitle(words, x=0.01, ha="left", fontsize=8.5, fontweight="bold")


def stage_plot(parts: Mapping[str, ChainRuns], task: bool = False) -> Plot:
    """Draw the stages of one or several settings, one below the other.

    With `task`, draw the task above, and query against key below.
    """
    first = next(iter(parts.values()))[0]
    heights = [3.4 + 0.25 * len(head_names(runs[0])) for runs in parts.values()]
    every = [1.25, *heights, 2.5] if task else heights
    plot = Plot(figsize=(WIDTH, sum(every)), layout="constrained")
    rows = iter(np.ravel(plot.subfigures(len(every), 1, squeeze=False, height_ratios=every)))
    letters = iter("abcdefghij")
    if task:
        draw_task(next(rows), first.groups)
    for name, runs in parts.items():
        row = next(rows)
        if len(parts) > 1:
            heading(row, name)
        _draw_stages(row, runs, letters)
    if task:
        draw_lag_maps(next(rows), first, next(letters))
    return plot


def _draw_stages(part: Any, runs: ChainRuns, letters: Iterator[str]) -> None:
    """Draw KL divergences over training and attention by group; below, attention at four
    moments."""
    first = runs[0]
    groups = first.groups
    contexts = runs.contexts
    names = head_names(first)
    above, below = part.subfigures(2, 1, height_ratios=(2.6, 0.9 + 0.12 * len(names)))
    left, right = above.subfigures(1, 2, width_ratios=(1.5, 1))
    panels = left.subplots(1, 2, sharey=bool(contexts))
    if not contexts:
        loss, *panels = panels
        draw_seeds(loss, runs, [run["loss"] for run in runs], QUANTITIES["loss"])
        loss.axhline(first["teacher_loss"][-1], color=GREY, lw=0.8, ls=":")
        mark_departures(loss, first)
        loss.set(xscale="log", xlabel=step_label(runs), ylim=(0, None), ylabel="test loss")
        loss.set_title(f"{next(letters)}  loss (dotted: teacher)", pad=17)
    references = ["$A_1$", *(f"$A_{{1:{k}}}$" for k in range(2, groups.count)), "teacher"]
    # A reference has the colour of the group that it adds.
    colours = [COLOURS[group] for group in groups.ranking]
    draw_kl(panels[0], runs, "kl_references", dict(zip(references, colours, strict=True)))
    panels[0].set_ylabel("KL(reference ‖ student)")
    seeds = sum(run.maps == "drawn" for run in runs)
    panels[0].set_title(f"{next(letters)}  references, seeds: {seeds}", pad=17)
    if contexts:
        seen = {f"$c$ = {c}": colour for c, colour in zip(contexts, COLOURS, strict=False)}
        draw_kl(panels[1], runs, "kl_contexts", seen)
        panels[1].set_title(f"{next(letters)}  students that see $c$ tokens", pad=17)
    draw_heads(right, first, f"{next(letters)}  attention on each group")
    words = "attention by head and lag; dotted above: the student leaves a reference"
    draw_snapshots(below, first, f"{next(letters)}  {words}")


def head_names(run: ChainRun) -> dict[int, str]:
    """Return the labels of heads, in order: by layer, then by the group attended to most at the
    end."""
    _, layers, heads, _ = run["attention_by_lag"].shape
    layer, number = np.divmod(np.arange(layers * heads), heads)
    order = np.lexsort((run.favourites, layer)).tolist()
    labels = [f"{layer[k] + 1}.{number[k] + 1}" for k in range(layers * heads)]
    if layers == 1:
        labels = [label.removeprefix("1.") for label in labels]
    return dict(zip(order, sorted(labels), strict=True))


def draw_kl(axes: Axes, runs: ChainRuns, curve: str, colours: Mapping[str, str]) -> None:
    """Draw the columns of a curve of KL divergences, one line per seed, in these colours."""
    compared = [run for run in runs if curve in run.curves]
    for k, colour in enumerate(colours.values()):
        draw_seeds(axes, compared, [run[curve][:, k] for run in compared], colour)
    mark_departures(axes, compared[0])
    axes.set(xscale="log", xlabel=step_label(compared), ylim=(0, None))
    over(axes, [(name, {"color": colour}) for name, colour in colours.items()])


def draw_heads(part: Any, run: ChainRun, title: str) -> None:
    """Draw the attention on each group over training, one panel per head."""
    groups = run.groups
    names = head_names(run)
    step = run["step"][1:]
    panels = part.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (k, name) in zip(panels, names.items(), strict=True):
        mass = run.group_attention[1:, k].T
        if groups.disjoint:
            axes.stackplot(step, mass, colors=COLOURS, lw=0)
            axes.set_facecolor(ELSEWHERE)
        else:  # a position may belong to two groups
            for colour, one in zip(COLOURS, mass, strict=False):
                axes.plot(step, one, color=colour, lw=1.2)
        mark_departures(axes, run)
        axes.set(xscale="log", ylim=(0, 1), yticks=[0, 1], xlim=(step[0], step[-1]))
        axes.set_ylabel(f"head {name}", rotation=0, ha="right", va="center", fontsize=7)
        axes.grid(visible=False)
    entries = {}
    for start, span, colour in zip(groups.starts, groups.spans, COLOURS, strict=False):
        entries[f"{start}–{start + span - 1}" if span > 1 else f"{start}"] = colour
    if groups.disjoint:
        entries["other"] = ELSEWHERE
    over(panels[0], [(lags, {"color": colour, "lw": 3}) for lags, colour in entries.items()])
    panels[0].set_title(title, pad=17)
    panels[-1].set_xlabel("step")


def mark_departures(axes: Axes, run: ChainRun) -> None:
    """Mark the steps at which the student leaves a reference."""
    for step in run.left_at:
        axes.axvline(step, color=BLACK, lw=0.7, ls=":")


def moments_of(run: ChainRun) -> list[int]:
    """Return the evaluations to show: the start, each departure from a reference, the end.

    If the student departs from fewer than two references, the steps between are spaced evenly.
    """
    step = run["step"]
    between = run.left_at
    if len(between) < 2:
        between = np.geomspace(step[1], step[-1], 4)[1:-1]
    return sorted({0, *np.searchsorted(step, between).tolist(), len(step) - 1})


def moment_panels(part: Any, run: ChainRun) -> Iterator[tuple[Axes, int]]:
    """Yield a panel over lags and an evaluation for each moment."""
    moments = moments_of(run)
    panels = part.subplots(1, len(moments), sharey=True)
    for axes, at in zip(panels, moments, strict=True):
        yield axes, at
        axes.set_xlabel("lag")
        axes.set_title(f"step {run['step'][at]:.0f}", fontsize=7.5, pad=8)
        mark_groups(axes, run.groups)


def draw_snapshots(part: Any, run: ChainRun, title: str) -> None:
    """Draw attention by head and lag at a few moments."""
    names = head_names(run)
    image = None
    for axes, at in moment_panels(part, run):
        image = draw_map(axes, run, at)
    part.axes[0].set_ylabel("head")
    part.axes[0].set_yticks(range(len(names)), list(names.values()), fontsize=6)
    part.colorbar(image, ax=part.axes, label="attention", pad=0.01, aspect=10)
    heading(part, title)


def shades_of(run: ChainRun) -> Normalize:
    """Return the colour scale from no attention to the run's maximum."""
    return Normalize(0, max(0.3, float(run.attention.max())))


def draw_map(axes: Axes, run: ChainRun, at: int) -> AxesImage:
    """Draw attention by head and lag at one evaluation."""
    maps = run.attention[at][list(head_names(run))]
    image = axes.imshow(
        maps, cmap="Greys", aspect="auto", interpolation="nearest", norm=shades_of(run)
    )
    axes.grid(visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return image


def mark_groups(axes: Axes, groups: Groups, left: bool = False) -> None:
    """Mark the lags of each group with a bar in its colour, above a panel or on its left.

    Bars of overlapping groups lie side by side.
    """
    for j, (start, span) in enumerate(zip(groups.starts, groups.spans, strict=True)):
        away = 0.05 if groups.disjoint or j % 2 else 0.12
        ends = (start - 0.42, start + span - 0.58)
        look: Any = {"color": COLOURS[j], "lw": 2.2, "clip_on": False, "solid_capstyle": "butt"}
        if left:
            axes.plot([-away] * 2, ends, transform=axes.get_yaxis_transform(), **look)
        else:
            axes.plot(ends, [1 + away] * 2, transform=axes.get_xaxis_transform(), **look)


def map_plot(run: ChainRun, mapped: ChainRun | None = None, apart: bool = False) -> Plot:
    """Draw attention by lag at a few moments, over training, and as query-key maps.

    **Arguments:**

    - `mapped`: the run that kept query-key maps.
    - `apart`: draw a query-key map per head instead of all heads in one picture.
    """
    heads = len(head_names(run))
    heights = [1.5, 0.8 + 0.16 * heads, 1.9]
    if mapped is not None:
        steps = len(kept_maps(mapped))
        heights.append(0.45 + (1.25 * steps if apart else 2.0))
    plot = Plot(figsize=(WIDTH, 0.2 + sum(heights)), layout="constrained")
    parts: Any = plot.subfigures(len(heights), 1, height_ratios=heights)
    _draw_summed(parts[0], run)
    draw_snapshots(parts[1], run, "b  attention by head and lag")
    _draw_training(parts[2], run)
    if mapped is not None:
        _draw_maps(parts[3], mapped, apart)
    return plot


def head_colours(run: ChainRun) -> list[Any]:
    """Return one colour per head, in the order of their labels; lighter from the fifth on."""
    colours: dict[int, Any] = {}
    for place, k in enumerate(head_names(run)):
        white = 1 - 0.5 ** (place // len(HEADS))
        colours[k] = tuple(c + (1 - c) * white for c in to_rgb(HEADS[place % len(HEADS)]))
    return [colours[k] for k in range(len(colours))]


def _draw_summed(part: Any, run: ChainRun) -> None:
    """Stack the attention of all heads by lag at a few moments."""
    colours = head_colours(run)
    names = head_names(run)
    for axes, at in moment_panels(part, run):
        foot = np.zeros(run.attention.shape[-1])
        for k in names:
            axes.bar(np.arange(len(foot)), run.attention[at, k], bottom=foot, color=colours[k])
            foot += run.attention[at, k]
    part.axes[0].set_ylabel("attention")
    entries = [(name, {"color": colours[k], "lw": 4}) for k, name in names.items()]
    outside(part.axes[-1], "head", entries)
    heading(part, "a  where the heads look, summed, first seed; bars above: groups")


def _draw_training(part: Any, run: ChainRun) -> None:
    """Draw one map of lag against step per head; dotted lines mark the moments shown above."""
    names = head_names(run)
    step = run["step"][1:]
    panels = part.subplots(1, len(names), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (k, name) in zip(panels, names.items(), strict=True):
        lags = run.attention[1:, k].T
        axes.pcolormesh(
            step,
            np.arange(len(lags)),
            lags,
            norm=shades_of(run),
            cmap="Greys",
            shading="nearest",
            rasterized=True,
        )
        mark_departures(axes, run)
        window = (run.groups.window - 0.5, -0.5)
        axes.set(xscale="log", xlim=(step[0], step[-1]), xlabel="step", ylim=window)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(visible=False)
        mark_groups(axes, run.groups, left=True)
        axes.tick_params(axis="y", length=0, pad=9)
        axes.set_title(f"head {name}", fontsize=7.5)
    panels[0].set_ylabel("lag")
    heading(part, "c  attention of each head over training; dotted: the student leaves a reference")


def _draw_maps(part: Any, run: ChainRun, apart: bool) -> None:
    """Draw query against key at the steps that were kept."""
    kept = kept_maps(run)
    colours = head_colours(run)
    heads = list(head_names(run))
    full = (1 if apart else 1.5) * max(0.3, *(float(maps.max()) for maps in kept.values()))
    cells = [(step, [k]) for step in kept for k in heads] if apart else [(s, heads) for s in kept]
    rows = len(kept) if apart else 1
    grid = part.subplots(rows, len(cells) // rows, sharex=True, sharey=True, squeeze=False)
    for axes, (step, shown) in zip(grid.ravel(), cells, strict=True):
        inks = [colours[k] for k in shown]
        draw_blended(axes, kept[step][shown], inks, run.groups, full)
        head = f", head {head_names(run)[shown[0]]}" if apart else ""
        axes.set_title(f"step {step}{head}", fontsize=7.5)
    part.supxlabel("key", fontsize=8)
    part.supylabel("query", fontsize=8)
    where = "the published teacher" if run.maps == "published" else "the first seed"
    heading(part, f"d  query against key, heads as colours, as the paper draws it: {where}")


def animate(run: ChainRun) -> Animation:
    """Animate the heads over training, next to the KL divergence from the teacher."""
    step = run["step"]
    kl = run["kl_teacher"]
    moments = np.geomspace(step[1], step[-1], FRAMES - 1)
    frames = sorted({0, *np.searchsorted(step, moments - 1e-6).tolist()})
    plot = Plot(figsize=(5.6, 2.4), dpi=120, layout="constrained")
    left, right = plot.subplots(1, 2)
    left.plot(step[1:], kl[1:], color=GREY, lw=1.2)
    (dot,) = left.plot([], [], "o", color=BLACK)
    left.set(xscale="log", xlabel="step", ylabel="KL(teacher ‖ student)", ylim=(0, None))
    image = draw_map(right, run, 0)
    mark_groups(right, run.groups)
    right.set(xlabel="lag", ylabel="head", yticks=[])

    def show(i: int) -> Sequence[Artist]:
        at = frames[min(i, len(frames) - 1)]
        dot.set_data([max(step[at], step[1])], [kl[at]])
        image.set_data(run.attention[at][list(head_names(run))])
        return [dot, image]

    return Animation(plot, len(frames) + HOLD, show)


def draw_task(part: Any, groups: Groups) -> None:
    """Draw a context with its groups, and the attention of one head per group."""
    left, right = part.subplots(1, 2, width_ratios=(1.5, 1))
    for axes in (left, right):
        axes.axis("off")
        axes.set_xlim(-0.6, groups.window + 2.2)
    left.set(ylim=(-1.1, 1.2), title="the task")
    right.set(ylim=(groups.count - 0.4, -0.9), title="one head per group")
    for lag in range(groups.window):
        x = groups.window - 1 - lag  # the newest token stands on the right
        group = int(groups.members[:, lag].argmax())
        box = {"boxstyle": "round", "fc": COLOURS[group], "ec": "white"}
        name = f"$x_{{t-{lag}}}$" if lag else "$x_t$"
        left.text(x, 0.55, name, bbox=box, ha="center", fontsize=7, color="white")
        for head in range(groups.count):
            share = 1 / groups.spans[group] if head == group else 0
            right.text(
                *(x, head, "■"), ha="center", va="center", fontsize=9, alpha=0.12 + 0.88 * share,
                color=COLOURS[group],
            )  # fmt: skip
    for j, (start, span) in enumerate(zip(groups.starts, groups.spans, strict=True)):
        x = groups.window - start - (span + 1) / 2
        words = f"$A_{j + 1}$\n× {groups.strengths[j]:.3g}"
        left.text(x, -0.15, words, ha="center", va="top", fontsize=7, color=COLOURS[j])
        right.text(groups.window, j, f"head {j + 1}", va="center", fontsize=7)
    left.text(groups.window + 0.1, 0.55, "$\\to$ next token\n= softmax of\nthe sum", fontsize=7,
              va="center")  # fmt: skip


def draw_lag_maps(part: Any, run: ChainRun, letter: str) -> None:
    """Draw query against key with heads as colours, from the attention by lag.

    The records of these runs have the mean over queries of the attention at each lag, so that all
    queries of a map look alike.
    """
    moments = moments_of(run)
    colours = head_colours(run)
    count = 2 * run.groups.window
    query, key = np.indices((count, count))
    lag = query - key
    inside = (lag >= 0) & (lag < run.groups.window)
    full = 1.5 * max(0.3, float(run.attention.max()))
    for axes, at in zip(part.subplots(1, len(moments), sharey=True), moments, strict=True):
        by_lag = run.attention[at][:, np.where(inside, lag, 0)]
        draw_blended(axes, np.where(inside, by_lag, 0), colours, run.groups, full)
        axes.set_title(f"step {run['step'][at]:.0f}", fontsize=7.5)
        axes.set_xlabel("key")
    part.axes[0].set_ylabel("query")
    names = head_names(run)
    outside(part.axes[-1], "head", [(n, {"color": colours[k], "lw": 4}) for k, n in names.items()])
    words = "query against key, heads as colours that mix, from the mean attention at each lag"
    heading(part, f"{letter}  {words}")
