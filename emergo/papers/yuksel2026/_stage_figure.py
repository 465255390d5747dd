"""The figures that show the stages of one setting: KLs from the references over training, and where the heads look."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot

from ..._style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, WIDTH, key, panel
from ...engine import Run
from ...models import ChainModel
from ...studies import provenance_of
from .._figure import Check, Figure, Outcome, Preset
from .._work import Work
from ._chains import LAPTOP, SMOKE, Seen, Training, table, watch, weight

COLOURS = (BLUE, ORANGE, GREEN, PINK)


@dataclasses.dataclass(frozen=True)
class Settings:
    training: Training
    model: ChainModel


@dataclasses.dataclass(frozen=True)
class Printed:
    """What the paper's figure shows, read off its plot (one seed)."""

    boundaries: tuple[float, ...] = ()
    last: tuple[float, ...] = ()
    plateaus: tuple[float, ...] = ()


NOTHING = Printed()
Checks = Callable[[Seen], list[Check]]


def stage_figure(
    id: str,
    shows: str,
    presets: Mapping[Preset, Settings],
    seconds: Mapping[Preset, float],
    printed: Printed = NOTHING,
    more: Checks = lambda seen: [],
    laptop: str = LAPTOP,
    heads_meet: bool = True,
) -> Figure:
    """A figure of the stages of one setting.

    **Arguments:**

    - `printed`: the published numbers that are known.
    - `more`: checks of this figure alone.
    - `heads_meet`: whether all heads at once are to look at the strongest group first.
    """

    def make(settings: Settings, work: Work) -> Outcome:
        seen = watch(work.results(runs(settings), curves=True))
        return Outcome(
            tables={"curves": table(seen.results)},
            plot=draw(seen, settings),
            checks=checks_of(seen, printed, heads_meet) + more(seen),
            precision="fp32",
            device=provenance_of({"all": seen.results}),
        )

    shrunk: dict[Preset, str] = {"laptop": laptop, "smoke": SMOKE}
    return Figure(id, shows, presets, make, seconds, shrunk, runs)


def runs(settings: Settings) -> list[Run]:
    return settings.training.runs(settings.model)


def checks_of(seen: Seen, printed: Printed, heads_meet: bool) -> list[Check]:
    count, seeds = seen.groups.count, len(seen.results)
    whole = sum(len(run) == count for run in seen.stages)
    steps = [float(x) for b in seen.boundaries for x in (b.step, b.low, b.high)]
    wanted = [group + 1 for group in seen.groups.ranking]
    right = [run[: len(wanted)] == wanted for run in seen.order()]
    between = [b.step for b in seen.boundaries]
    as_printed = len(between) == count - 1
    if printed.boundaries:
        as_printed = len(between) == len(printed.boundaries) and bool(
            np.all(np.abs(np.log(np.divide(between, printed.boundaries))) < np.log(1.5))
        )
    found = [
        Check(f"seeds that learn in {count} stages", whole, None, whole == seeds, f"all {seeds}"),
        Check(
            "ends of the plateaus, with 95% intervals over seeds",
            steps,
            list(printed.boundaries) or None,
            as_printed,
            "within a factor of 1.5: they are drawn by eye" if printed.boundaries else f"{count - 1} of them",
        ),
        Check(
            "seeds in which some head has half of its attention on each group, the strongest group first",
            sum(right),
            "each stage corresponds to the acquisition of a sparse attention pattern",
            all(right),
        ),
        Check(
            "seeds at whose end each group has a head of its own, the one that looks at it most",
            seen.owners,
            "cooperative: heads specialize in distinct patterns",
            seen.owners == seeds,
        ),
    ]
    if heads_meet:
        words = "competitive: heads converge on the most statistically dominant pattern"
        name = "attention that all heads at once have on the strongest group before the second drop, least over seeds"
        found.append(Check(name, seen.together, words, seen.together > 0.5))
    if len(printed.last) == count:
        ours = seen.last
        close = bool(np.all(np.abs(ours - printed.last) < 0.1 + 0.1 * np.array(printed.last)))
        found.append(Check("KL from A_1, ... and the teacher at the end", ours.tolist(), list(printed.last), close))
    if printed.plateaus:
        levels = np.array(seen.plateaus)
        close = len(levels) == len(printed.plateaus) and bool(np.allclose(levels, printed.plateaus, rtol=0.25))
        found.append(Check("KL from the teacher on the plateaus", levels.tolist(), list(printed.plateaus), close))
    return found


def draw(seen: Seen, settings: Settings) -> Plot:
    """Above: KLs over training, and each head's attention by group; below: attention by head and lag at four moments."""
    first = seen.curves[0]
    heads = seen.heads(first).shape[1]
    plot = Plot(figsize=(WIDTH, 4.4 if heads <= 4 else 5.4), layout="constrained")
    parts: Any = plot.subfigures(2, 1, height_ratios=(2.6, 0.9 + 0.12 * heads))
    top, bottom = parts
    left, right = top.subfigures(1, 2)
    divergences(left.subplots(), seen)
    columns = right.subplots(heads, 1, sharex=True, squeeze=False)[:, 0]
    order = np.argsort(seen.mass(first)[-1].argmax(-1), kind="stable")
    for i, (axes, k) in enumerate(zip(columns, order, strict=True)):
        masses(axes, seen, int(k))
        axes.set_ylabel(_name(int(k), settings.model), rotation=0, ha="right", va="center")
        if i == 0:
            panel(axes, "b", "attention on each group, stacked")
    columns[-1].set_xlabel("step")
    moments = moments_of(seen)
    for axes, (at, title) in zip(bottom.subplots(1, len(moments)), moments, strict=True):
        snapshot(axes, seen, order, at)
        axes.set_title(title, fontsize=7.5)
    bottom.axes[0].set_ylabel("head")
    bottom.axes[0].set_yticks(range(heads), [f"{_name(int(k), settings.model)}" for k in order], fontsize=6)
    bottom.suptitle("c  attention by head and lag", x=0.01, ha="left", fontsize=8.5, fontweight="bold")
    return plot


def _name(k: int, model: Any) -> str:
    return f"{k + 1}" if model.layers == 1 else f"{k // model.heads + 1}.{k % model.heads + 1}"


def divergences(axes: Axes, seen: Seen) -> None:
    count = seen.groups.count
    for i, curve in enumerate(seen.curves):
        for j, colour in zip(range(count), COLOURS, strict=False):
            axes.plot(curve["step"][1:], curve["divergences"][1:, j], color=colour, **weight(i))
    for drop in seen.stages[0][1:] if seen.stages else ():
        axes.axvline(drop.onset, color=BLACK, lw=0.7, ls=":")
    axes.set(xscale="log", xlabel="step", ylabel="KL(reference ‖ student)", ylim=(0, None))
    words = ["teacher" if k == count else ("$A_1$" if k == 1 else f"$A_{{1:{k}}}$") for k in range(1, count + 1)]
    entries = [(word, {"color": colour}) for word, colour in zip(words, COLOURS, strict=False)]
    key(axes, [*entries, ("plateau ends (first seed)", {"color": BLACK, "lw": 0.7, "ls": ":"})], loc="lower left")
    seeds = len(seen.results)
    panel(axes, "a", f"KL from the references, {seeds} seed{'s' if seeds > 1 else ''}")


def masses(axes: Axes, seen: Seen, k: int) -> None:
    """What one head of the first seed looks at over training."""
    curve = seen.curves[0]
    step, mass = curve["step"][1:], seen.mass(curve)[1:, k]
    axes.set_facecolor("#f4f4f4")
    if seen.groups.disjoint:
        axes.stackplot(step, mass.T, colors=COLOURS[: mass.shape[1]], lw=0)
    else:  # a position may count for two groups
        for one, colour in zip(mass.T, COLOURS, strict=False):
            axes.plot(step, one, color=colour, lw=1.2)
    for drop in seen.stages[0][1:] if seen.stages else ():
        axes.axvline(drop.onset, color=BLACK, lw=0.7, ls=":")
    axes.set(xscale="log", ylim=(0, 1), yticks=[], xlim=(step[0], step[-1]))
    axes.grid(visible=False)


def moments_of(seen: Seen) -> list[tuple[int, str]]:
    """The start, the end of each plateau of the first seed, and the end; without plateaus, evenly in log step."""
    step = seen.steps
    drops = seen.stages[0][1:] if seen.stages else []
    onsets = [drop.onset for drop in drops] or np.geomspace(step[1], step[-1], 4)[1:-1]
    within = [int(np.searchsorted(step, onset)) for onset in onsets]
    at = sorted({0, *within, len(step) - 1})
    return [(i, f"step {step[i]}") for i in at]


def snapshot(axes: Axes, seen: Seen, order: np.ndarray, at: int) -> None:
    maps = seen.heads(seen.curves[0])[at][order]
    axes.imshow(maps, vmin=0, vmax=max(0.5, float(maps.max())), cmap="Greys", aspect="auto", interpolation="nearest")
    if seen.groups.disjoint:
        for start, colour, span in zip(seen.groups.starts, COLOURS, seen.groups.spans, strict=False):
            axes.plot([start - 0.45, start + span - 0.55], [-0.62, -0.62], color=colour, lw=2.5, clip_on=False)
    axes.set(xlabel="lag", yticks=[], ylim=(len(maps) - 0.5, -0.5))
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_color(GREY)
