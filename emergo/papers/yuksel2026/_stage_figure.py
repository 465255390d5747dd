"""The figures that show the stages of one setting: KLs from the references over training, and where the heads look."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from ..._style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, WIDTH, over
from ...engine import Run
from ...models import ChainModel
from ...studies import provenance_of
from ...tasks import Groups
from .._figure import Check, Figure, Outcome, Preset
from .._work import Work
from ._chains import LAPTOP, SMOKE, Seen, Training, table, watch, weight
from ._stage_checks import NOTHING, Printed, checks_of

COLOURS = (BLUE, ORANGE, GREEN, PINK)
REST = "#dddddd"
"""Behind the attention on the groups: what is on no group."""


@dataclasses.dataclass(frozen=True)
class Settings:
    training: Training
    model: ChainModel


Checks = Callable[[Seen], list[Check]]


def stage_figure(
    id: str,
    shows: str,
    presets: Mapping[Preset, Settings],
    seconds: Mapping[Preset, float],
    printed: Printed = NOTHING,
    more: Checks = lambda seen: [],
    laptop: str = LAPTOP,
    one_layer: bool = True,
) -> Figure:
    """A figure of the stages of one setting.

    **Arguments:**

    - `printed`: the published numbers that are known.
    - `more`: checks of this figure alone.
    - `one_layer`: whether heads are to be held against the groups; of more layers, one may look at what
      another gathered.
    """

    def make(settings: Settings, work: Work) -> Outcome:
        seen = watch(work.results(runs(settings), curves=True))
        return Outcome(
            tables={"curves": table(seen.results)},
            plot=draw(seen, settings),
            checks=checks_of(seen, printed, one_layer) + more(seen),
            precision="fp32",
            device=provenance_of({"all": seen.results}),
        )

    shrunk: dict[Preset, str] = {"laptop": laptop, "smoke": SMOKE}
    return Figure(id, shows, presets, make, seconds, shrunk, runs)


def runs(settings: Settings) -> list[Run]:
    return settings.training.runs(settings.model)


def draw(seen: Seen, settings: Settings) -> Plot:
    """Above: KLs over training, and each head's attention by group; below: attention by head and lag at four moments."""
    first = seen.curves[0]
    heads = seen.heads(first).shape[1]
    plot = Plot(figsize=(WIDTH, 4.4 if heads <= 4 else 5.4), layout="constrained")
    parts: Any = plot.subfigures(2, 1, height_ratios=(2.6, 0.9 + 0.12 * heads))
    top, bottom = parts
    windows = settings.training.windows
    left, right = top.subfigures(1, 2, width_ratios=(1.8, 1) if windows else (1, 1))
    panels = left.subplots(1, 2 if windows else 1, sharey=True, squeeze=False)[0]
    divergences(panels[0], seen, narrow=windows is not None)
    if windows:
        restricted(panels[1], seen, windows)
    columns = right.subplots(heads, 1, sharex=True, squeeze=False)[:, 0]
    order = np.lexsort((seen.mass(first)[-1].argmax(-1), np.arange(heads) // settings.model.heads))  # by layer, then by group
    for i, (axes, k) in enumerate(zip(columns, order, strict=True)):
        masses(axes, seen, int(k), f"head {_name(int(k), settings.model)}")
        if i == 0:
            by_group(axes, seen, "c" if windows else "b", "attention on each group")
    columns[-1].set_xlabel("step")
    moments = moments_of(seen)
    strips, image = bottom.subplots(1, len(moments)), None
    for axes, (at, title) in zip(strips, moments, strict=True):
        image = snapshot(axes, seen, order, at)
        axes.set_title(title, fontsize=7.5, pad=8)
    bar = bottom.colorbar(
        image, ax=list(strips), label="attention", pad=0.01, aspect=10, ticks=MaxNLocator(4, steps=[1, 2, 5, 10])
    )
    bar.outline.set_linewidth(0.5)
    bottom.axes[0].set_ylabel("head")
    bottom.axes[0].set_yticks(range(heads), [f"{_name(int(k), settings.model)}" for k in order], fontsize=6)
    words = "attention by head and lag"
    if len(leavings(seen)) == len(moments) - 2:  # else some moments are others
        words += ": at the start, where a reference is left (dotted above), at the end"
    bottom.suptitle(f"{'d' if windows else 'c'}  {words}", x=0.01, ha="left", fontsize=8.5, fontweight="bold")
    return plot


def _name(k: int, model: Any) -> str:
    return f"{k + 1}" if model.layers == 1 else f"{k // model.heads + 1}.{k % model.heads + 1}"


def divergences(axes: Axes, seen: Seen, letter: str = "a", what: str = "", narrow: bool = False) -> None:
    count = seen.groups.count
    colours = [COLOURS[group % len(COLOURS)] for group in seen.groups.ranking]  # a reference has that of the group it adds
    for i, curve in enumerate(seen.curves):
        for j, colour in enumerate(colours):
            axes.plot(curve["step"][1:], curve["divergences"][1:, j], color=colour, **weight(i))
    mark(axes, seen)
    axes.set(xscale="log", ylabel="KL(reference ‖ student)", ylim=(0, None))
    axes.set_xlabel("step (dotted: seed 0 leaves a reference)" if leavings(seen) and not narrow else "step")
    words = ["teacher" if k == count else ("$A_1$" if k == 1 else f"$A_{{1:{k}}}$") for k in range(1, count + 1)]
    if not narrow:  # which group each reference adds
        spans = lags_of(seen.groups)
        words = [
            f"{word}: {'+ ' if k else 'lags '}{spans[group]}"
            for k, (word, group) in enumerate(zip(words, seen.groups.ranking, strict=True))
        ]
    entries = [(word, {"color": colour}) for word, colour in zip(words, colours, strict=True)]
    over(axes, entries)
    seeds = len(seen.results)
    axes.set_title(
        f"{letter}  {what}{'references' if narrow else 'KL from references'}, {seeds} seed{'s' if seeds > 1 else ''}", pad=17
    )


def restricted(axes: Axes, seen: Seen, windows: Sequence[int]) -> None:
    """KL from the trained predictors of restricted context."""
    for i, curve in enumerate(c for c in seen.curves if "restricted" in c):
        for j, colour in enumerate(COLOURS[: len(windows)]):
            axes.plot(curve["step"][1:], curve["restricted"][1:, j], color=colour, **weight(i))
    mark(axes, seen)
    axes.set(xscale="log", xlabel="step")
    over(axes, [(f"$c$ = {c}", {"color": colour}) for c, colour in zip(windows, COLOURS, strict=False)])
    axes.set_title("b  students that see $c$ tokens", pad=17)


def lags_of(groups: Groups) -> list[str]:
    """The lags of each group in words."""
    ends = [(start, start + span - 1) for start, span in zip(groups.starts, groups.spans, strict=True)]
    return [f"{first}" if first == last else f"{first}–{last}" for first, last in ends]


def by_group(axes: Axes, seen: Seen, letter: str, title: str) -> None:
    """The title of panels of masses, and what their colours are."""
    spans, thick = lags_of(seen.groups), {"lw": 4.5, "solid_capstyle": "butt"} if seen.groups.disjoint else {"lw": 1.2}
    entries = [(f"{'' if j else 'lags '}{span}", {"color": COLOURS[j % len(COLOURS)]} | thick) for j, span in enumerate(spans)]
    if seen.groups.disjoint:
        entries.append(("other", {"color": REST} | thick))
    over(axes, entries)
    axes.set_title(f"{letter}  {title}", pad=17)


def masses(axes: Axes, seen: Seen, k: int, name: str) -> None:
    """What one head of the first seed looks at over training."""
    curve = seen.curves[0]
    step, mass = curve["step"][1:], seen.mass(curve)[1:, k]
    axes.set_facecolor(REST if seen.groups.disjoint else "white")
    if seen.groups.disjoint:
        axes.stackplot(step, mass.T, colors=COLOURS[: mass.shape[1]], lw=0)
    else:  # a position may count for two groups
        for one, colour in zip(mass.T, COLOURS, strict=False):
            axes.plot(step, one, color=colour, lw=1.2)
    mark(axes, seen)
    axes.set(xscale="log", ylim=(0, 1), yticks=[0, 1], xlim=(step[0], step[-1]))
    axes.tick_params(axis="y", labelsize=6, length=2)
    axes.set_ylabel(name, rotation=0, ha="right", va="center", labelpad=1, fontsize=7)
    axes.grid(visible=False)


def leavings(seen: Seen) -> list[float]:
    """When the first seed leaves the references."""
    return [step for step in seen.departures(seen.curves[0]) if np.isfinite(step)]


def mark(axes: Axes, seen: Seen) -> None:
    for step in leavings(seen):
        axes.axvline(step, color=BLACK, lw=0.7, ls=":")


def moments_of(seen: Seen) -> list[tuple[int, str]]:
    """The start, where the first seed leaves each reference, and the end; if it leaves fewer than two, some between."""
    step, found = seen.steps, leavings(seen)
    if len(found) < 2:
        found += np.geomspace(found[0] if found else step[1], step[-1], 4 - len(found))[1:-1].tolist()
    within = [int(np.searchsorted(step, one)) for one in found]
    at = sorted({0, *within, len(step) - 1})
    return [(i, f"step {step[i]:.0f}") for i in at]


def brackets(axes: Axes, groups: Groups, side: Literal["above", "below", "left"]) -> None:
    """The lags of each group, as a bar in its colour along one side of a panel; where groups overlap, bars lie side by side."""
    rows = 1 if groups.disjoint else 2
    for j, (start, span) in enumerate(zip(groups.starts, groups.spans, strict=True)):
        away = 3 + 3 * (j % rows)  # points
        ends = (start - 0.42, start + span - 0.58)
        along = axes.get_xaxis_transform() if side != "left" else axes.get_yaxis_transform()
        shift = {"above": (0, away), "below": (0, -away), "left": (-away, 0)}[side]
        place = along + ScaledTranslation(shift[0] / 72, shift[1] / 72, cast(Any, axes.figure).dpi_scale_trans)
        edge = [1.0 if side == "above" else 0.0] * 2
        x, y = (edge, ends) if side == "left" else (ends, edge)
        axes.plot(x, y, color=COLOURS[j % 4], lw=2.2, clip_on=False, transform=place, solid_capstyle="butt", zorder=5)


def snapshot(axes: Axes, seen: Seen, order: np.ndarray, at: int) -> AxesImage:
    maps = seen.heads(seen.curves[0])[at][order]
    most = max(0.3, float(seen.heads(seen.curves[0]).max()))
    image = axes.imshow(maps, vmin=0, vmax=most, cmap="Greys", aspect="auto", interpolation="nearest")
    brackets(axes, seen.groups, "above")
    axes.set(xlabel="lag", yticks=[], ylim=(len(maps) - 0.5, -0.5))
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    for spine in axes.spines.values():
        spine.set(color=GREY, visible=True)
    return image
