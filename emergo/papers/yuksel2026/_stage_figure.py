"""Figures of the learning stages in one setting: KL divergences from references, and attention."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from ...core.plotting import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, WIDTH, over
from ...study import Study
from ...tasks import Groups
from .._figure import Check, Figure, Outcome, Plot, Preset, Presets, RunSource, Seconds, Studies
from ._chains import (
    NOTHING,
    ChainRun,
    ChainRuns,
    Printed,
    comparison_checks,
    draw_seeds,
    head_checks,
    ladder_checks,
)

COLOURS = (BLUE, ORANGE, GREEN, PINK)
ELSEWHERE = "#dddddd"
"""The colour of attention outside all groups."""
Checks = Callable[[ChainRuns], list[Check]]
Timed = Mapping[Preset, tuple[Study | Studies, float]]
"""A study, or several, and the seconds of each preset."""


def stage_figure(
    number: int,
    title: str,
    presets: Timed,
    printed: Printed = NOTHING,
    more: Checks = lambda runs: [],
    one_layer: bool = True,
) -> Figure:
    """Build a figure of the stages of one setting.

    **Arguments:**

    - `presets`: the studies, which differ in their teachers and probes, and the seconds of each
      preset.
    - `printed`: published numbers, compared with runs on the published teacher.
    - `more`: further checks of the runs on drawn teachers.
    - `one_layer`: check which groups the heads attend to. With several layers a head may attend to
      positions where an earlier one has gathered information.
    """

    def make(studies: Studies, source: RunSource) -> Outcome:
        runs = read_runs(source, studies)
        own = runs.on("drawn")
        heads = head_checks(own) if one_layer else []
        checks = ladder_checks(own) + heads + more(own) + comparison_checks(runs, printed)
        return Outcome({"curves": runs.table}, draw(runs), checks=checks)

    named: Presets = {
        p: {"runs": s} if isinstance(s, Study) else s for p, (s, _) in presets.items()
    }
    seconds: Seconds = {p: seconds for p, (_, seconds) in presets.items()}
    return Figure(f"yuksel2026/fig{number}", title, named, make, seconds, curves=True)


def read_runs(source: RunSource, studies: Studies) -> ChainRuns:
    """Return the runs of all these studies."""
    return ChainRuns(
        result for runs in source.runs(studies, curves=True).values() for result in runs
    )


def heading(part: Any, words: str) -> None:
    """Write a heading above a part of a plot."""
    part.suptitle(words, x=0.01, ha="left", fontsize=8.5, fontweight="bold")


def draw(runs: ChainRuns) -> Plot:
    """Draw KL divergences over training and attention by group; below, attention at four
    moments."""
    first = runs[0]
    contexts = runs.contexts
    heads = first.attention.shape[1]
    plot = Plot(figsize=(WIDTH, 4.4 if heads <= 4 else 5.4), layout="constrained")
    parts: Any = plot.subfigures(2, 1, height_ratios=(2.6, 0.9 + 0.12 * heads))
    left, right = parts[0].subfigures(1, 2, width_ratios=(1.65, 1) if contexts else (1, 1))
    panels = left.subplots(1, 2 if contexts else 1, sharey=True, squeeze=False)[0]
    draw_references(panels[0], runs, narrow=bool(contexts))
    if contexts:
        draw_contexts(panels[1], runs)
    names = head_names(first)
    draw_heads(
        right.subplots(heads, 1, sharex=True, squeeze=False)[:, 0],
        first,
        names,
        "c" if contexts else "b",
    )
    draw_snapshots(parts[1], first, names, "d" if contexts else "c")
    return plot


def head_names(run: ChainRun) -> dict[int, str]:
    """Return the labels of heads, sorted by layer, then by the group attended to most at the
    end."""
    _, layers, heads, _ = run["attention_by_lag"].shape
    layer, number = np.divmod(np.arange(layers * heads), heads)
    order = np.lexsort((run.favourites, layer)).tolist()
    return {k: f"{k + 1}" if layers == 1 else f"{layer[k] + 1}.{number[k] + 1}" for k in order}


def draw_references(
    axes: Axes, runs: ChainRuns, letter: str = "a", what: str = "", narrow: bool = False
) -> None:
    """Draw the KL divergence from the references, one line per seed.

    A reference has the colour of the group that it adds.
    """
    groups = runs.groups
    entries = []
    names = ["$A_1$", *(f"$A_{{1:{k}}}$" for k in range(2, groups.count)), "teacher"]
    for k, group in enumerate(groups.ranking):
        draw_seeds(axes, runs, [run["kl_references"][:, k] for run in runs], COLOURS[group])
        lags = f": {'+ ' if k else 'lags '}{lag_words(groups)[group]}"
        entries.append((names[k] + ("" if narrow else lags), {"color": COLOURS[group]}))
    mark_departures(axes, runs[0])
    own = [run for run in runs if run.maps == "drawn"]
    marks = (
        ["dotted: seed 0 leaves a reference"] if runs[0].left_at and not (narrow or what) else []
    )
    marks += ["dashed: published teacher"] if len(own) < len(runs) else []
    axes.set(xscale="log", ylabel="KL(reference ‖ student)", ylim=(0, None))
    axes.set_xlabel(f"step ({'; '.join(marks)})" if marks else "step")
    over(axes, entries)
    seeds = f"{len(own)} seed{'s' if len(own) != 1 else ''}"
    axes.set_title(
        f"{letter}  {what}{'references' if narrow else 'KL from references'}, {seeds}", pad=17
    )


def draw_contexts(axes: Axes, runs: ChainRuns) -> None:
    """Draw the KL divergence from the trained predictors of restricted context."""
    compared = [run for run in runs if "kl_contexts" in run.curves]
    for j in range(len(runs.contexts)):
        draw_seeds(axes, compared, [run["kl_contexts"][:, j] for run in compared], COLOURS[j])
    mark_departures(axes, compared[0])
    axes.set(xscale="log", xlabel="step")
    over(axes, [(f"$c$ = {c}", {"color": COLOURS[j]}) for j, c in enumerate(runs.contexts)])
    axes.set_title("b  students that see $c$ tokens", pad=17)


def lag_words(groups: Groups) -> list[str]:
    """Return the lags of each group in words."""
    ends = [
        (start, start + span - 1) for start, span in zip(groups.starts, groups.spans, strict=True)
    ]
    return [f"{first}" if first == last else f"{first}–{last}" for first, last in ends]


def draw_heads(
    panels: np.ndarray,
    run: ChainRun,
    names: Mapping[int, str],
    letter: str,
    title: str = "attention on each group",
) -> None:
    """Draw the attention on each group over training, one panel per head."""
    disjoint = run.groups.disjoint
    step = run["step"][1:]
    words = lag_words(run.groups)
    for axes, (k, name) in zip(panels, names.items(), strict=True):
        mass = run.group_attention[1:, k].T
        if disjoint:
            axes.stackplot(step, mass, colors=COLOURS[: len(mass)], lw=0)
            axes.set_facecolor(ELSEWHERE)
        else:  # a position may belong to two groups
            for j, one in enumerate(mass):
                axes.plot(step, one, color=COLOURS[j], lw=1.2)
        mark_departures(axes, run)
        axes.set(xscale="log", ylim=(0, 1), yticks=[0, 1], xlim=(step[0], step[-1]))
        axes.tick_params(axis="y", labelsize=6, length=2)
        axes.set_ylabel(f"head {name}", rotation=0, ha="right", va="center", labelpad=1, fontsize=7)
        axes.grid(visible=False)
    thick = {"lw": 4.5, "solid_capstyle": "butt"} if disjoint else {"lw": 1.2}
    entries = [
        (f"{'' if j else 'lags '}{lags}", {"color": COLOURS[j]} | thick)
        for j, lags in enumerate(words)
    ]
    over(panels[0], [*entries, ("other", {"color": ELSEWHERE} | thick)] if disjoint else entries)
    panels[0].set_title(f"{letter}  {title}", pad=17)
    panels[-1].set_xlabel("step")


def mark_departures(axes: Axes, run: ChainRun) -> None:
    """Mark the steps at which the student leaves a reference."""
    for step in run.left_at:
        axes.axvline(step, color=BLACK, lw=0.7, ls=":")


def moments_of(run: ChainRun) -> list[int]:
    """Return the evaluations to show: the start, each departure from a reference, the end.

    If there are fewer than two departures, steps between them are added.
    """
    step = run["step"]
    moments = list(run.left_at)
    if len(moments) < 2:
        moments += np.geomspace(moments[0] if moments else step[1], step[-1], 4 - len(moments))[
            1:-1
        ].tolist()
    return sorted({0, *(int(np.searchsorted(step, moment)) for moment in moments), len(step) - 1})


def draw_snapshots(part: Any, run: ChainRun, names: Mapping[int, str], letter: str) -> None:
    """Draw attention by head and lag at a few moments."""
    moments = moments_of(run)
    panels = part.subplots(1, len(moments))
    image = None
    for axes, at in zip(panels, moments, strict=True):
        image = draw_map(axes, run, list(names), at)
        mark_groups(axes, run.groups, "above")
        axes.set(xlabel="lag", yticks=[], ylim=(len(names) - 0.5, -0.5))
        axes.set_title(f"step {run['step'][at]:.0f}", fontsize=7.5, pad=8)
    ticks = MaxNLocator(4, steps=[1, 2, 5, 10])
    part.colorbar(
        image, ax=list(panels), label="attention", pad=0.01, aspect=10, ticks=ticks
    ).outline.set_linewidth(0.5)
    panels[0].set_ylabel("head")
    panels[0].set_yticks(range(len(names)), list(names.values()), fontsize=6)
    all_left = len(run.left_at) == len(moments) - 2  # otherwise moments were added
    words = (
        ": at the start, where a reference is left (dotted above), at the end" if all_left else ""
    )
    heading(part, f"{letter}  attention by head and lag{words}")


def shades_of(run: ChainRun) -> Normalize:
    """Return the colour scale from no attention to the run's maximum."""
    return Normalize(0, max(0.3, float(run.attention.max())))


def draw_map(axes: Axes, run: ChainRun, order: Sequence[int], at: int) -> AxesImage:
    """Draw attention by head and lag at one evaluation."""
    maps = run.attention[at][list(order)]
    image = axes.imshow(
        maps, cmap="Greys", aspect="auto", interpolation="nearest", norm=shades_of(run)
    )
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    for spine in axes.spines.values():
        spine.set(color=GREY, visible=True)
    return image


def mark_groups(axes: Axes, groups: Groups, side: Literal["above", "below", "left"]) -> None:
    """Mark the lags of each group with a bar in its colour along one side of a panel.

    Bars of overlapping groups lie side by side.
    """
    rows = 1 if groups.disjoint else 2
    along = axes.get_yaxis_transform() if side == "left" else axes.get_xaxis_transform()
    figure: Any = axes.figure
    for j, (start, span) in enumerate(zip(groups.starts, groups.spans, strict=True)):
        away = (3 + 3 * (j % rows)) / 72  # points
        right, up = {"above": (0, away), "below": (0, -away), "left": (-away, 0)}[side]
        ends = (start - 0.42, start + span - 0.58)
        edge = [1.0 if side == "above" else 0.0] * 2
        x, y = (edge, ends) if side == "left" else (ends, edge)
        shifted = along + ScaledTranslation(right, up, figure.dpi_scale_trans)
        axes.plot(
            x,
            y,
            color=COLOURS[j],
            lw=2.2,
            clip_on=False,
            transform=shifted,
            solid_capstyle="butt",
            zorder=5,
        )
