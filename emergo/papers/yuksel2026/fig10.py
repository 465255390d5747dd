"""Figure 10: the gradient flow, whose loss falls in stages while heads share, then divide
groups."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.plotting import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, WIDTH, key, panel
from ...measure import division, find_stages, group_mass, head_similarity, stage_boundaries
from ...tasks import Groups
from ...theory import incremental
from .._figure import Check, Figure, Outcome, Plot, Presets, RunSource
from ._chains import COMPETITION, COOPERATION, OWN_HEADS

TITLES: dict[incremental.Flow, str] = {
    "preconditioned": "preconditioned flow",
    "logit": "gradient flow on the logits",
}
GROUPS = Groups((1, 1, 1))
HEADS = 3
LEVELS = incremental.plateaus(GROUPS, HEADS)
COLOURS = (BLUE, ORANGE, GREEN)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of the flow; the paper does not give its length, initial scale and seeds."""

    length: int = 30
    scale: float = 1e-6
    seeds: int = 5
    until: float = 2e4
    points: int = 1200


class FlowRuns:
    """The measurements of one flow, whose last member starts with identical heads."""

    def __init__(self, flow: incremental.Flow, path: incremental.Path) -> None:
        self.flow: incremental.Flow = flow
        self.path = path
        self.mass = group_mass(path.attention, GROUPS.members)
        self.division = division(self.mass, np.array(GROUPS.spans, float))
        self.stages = [find_stages(path.time, row) for row in path.loss[:-1]]

    @property
    def shared_attention(self) -> float:
        """The largest attention of all heads at once on the strongest group before the second drop.

        The minimum over seeds, or 0 if a seed drops only once.
        """
        if any(len(run) < 2 for run in self.stages):
            return 0.0
        early = [self.path.time < run[1].onset for run in self.stages]
        return min(
            m[e, :, GROUPS.ranking[0]].min(1).max() for m, e in zip(self.mass, early, strict=False)
        )


def integrate(flow: incremental.Flow, settings: Settings) -> FlowRuns:
    times = np.append(0, np.geomspace(0.05, settings.until, settings.points))
    members = {
        "scale": [settings.scale] * settings.seeds + [0.0],
        "seed": [*range(settings.seeds), 0],
    }
    path = incremental.trajectory(GROUPS, times, HEADS, settings.length, flow, **members)
    return FlowRuns(flow, path)


def make(settings: Settings, source: RunSource) -> Outcome:
    flows = []
    for i, flow in enumerate(TITLES):
        source.report(TITLES[flow], i / len(TITLES))
        flows.append(integrate(flow, settings))
    curves = pd.concat([table(runs, settings) for runs in flows], ignore_index=True)
    checks = [check for runs in flows for check in checks_of(runs, settings)]
    return Outcome({"curves": curves}, draw(flows, settings), checks=checks)


def checks_of(runs: FlowRuns, settings: Settings) -> list[Check]:
    flow = f"{runs.flow} flow"
    count = GROUPS.count
    seeds = settings.seeds
    usual = [run for run in runs.stages if len(run) == count]
    checks = [
        Check(
            f"{flow}: seeds with {count} stages",
            len(usual),
            None,
            len(usual) == seeds,
            f"all {seeds}",
        )
    ]
    levels = np.mean([[drop.level for drop in run] for run in usual] or [[0.0] * count], 0)
    close = np.allclose(levels, LEVELS[:-1], rtol=0.05)
    words = (
        f"{', '.join(f'{x:.4g}' for x in LEVELS[:-1])}: half the sum of n m² of what is not "
        f"learned, within 5%"
    )
    checks.append(
        Check(f"{flow}: loss on the plateaus, mean over seeds", levels, None, close, words)
    )
    shared = runs.shared_attention
    name = (
        f"{flow}: attention that all heads at once have on group 1 before the second drop, "
        f"least over seeds"
    )
    checks.append(Check(name, shared, COMPETITION, shared > 0.5))
    owners = [sorted(end.argmax(0).tolist()) == list(range(count)) for end in runs.mass[:-1, -1]]
    checks.append(Check(f"{flow}: {OWN_HEADS}", sum(owners), COOPERATION, all(owners)))
    ends = stage_boundaries(runs.stages)
    in_order = len(ends) == count - 1 and np.all(np.diff([b.step for b in ends]) > 0)
    name = f"{flow}: ends of the plateaus with 95% intervals over seeds"
    words = f"{count - 1} boundaries in order"
    checks.append(Check(name, [b[:3] for b in ends], None, in_order, words))
    first = incremental.first_stage(GROUPS, settings.length, HEADS, runs.flow)
    ratio = incremental.stage_times(runs.path, LEVELS)[0, 0] / first
    words = f"1 up to order n/T or its root; held to 15% at T = {settings.length}"
    checks.append(
        Check(
            f"{flow}: time of the first stage over the formula",
            ratio,
            None,
            abs(ratio - 1) < 0.15,
            words,
        )
    )
    same = (runs.path.attention[-1] == runs.path.attention[-1][:, :1]).all()
    stuck = runs.path.loss[-1, -1]
    holds = same and abs(stuck / LEVELS[1] - 1) < 0.05
    words = f"bit for bit, at {LEVELS[1]:.4g} within 5%"
    name = f"{flow}: identical heads stay identical, and their loss at the end"
    return [*checks, Check(name, [same, stuck], None, holds, words)]


def table(runs: FlowRuns, settings: Settings) -> pd.DataFrame:
    """Return one row per time: loss, shares, and each head's attention on each group."""
    rows, times = runs.path.loss.shape
    columns: dict[str, Any] = {
        "flow": runs.flow,
        "seed": np.repeat([*range(settings.seeds), 0], times),
        "scale": np.repeat([settings.scale] * settings.seeds + [0.0], times),
        "time": np.tile(runs.path.time, rows),
        "loss": runs.path.loss.ravel(),
        "similarity": head_similarity(runs.path.attention).ravel(),
    }
    columns |= {name: share.ravel() for name, share in runs.division._asdict().items()}
    heads = itertools.product(range(HEADS), range(GROUPS.count))
    return pd.DataFrame(
        columns | {f"head{k + 1}_group{j + 1}": runs.mass[:, :, k, j].ravel() for k, j in heads}
    )


def draw(flows: list[FlowRuns], settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 5.6), layout="constrained")
    grid = plot.subplots(2 + HEADS, 2, sharex="col", height_ratios=(2.6, 1.5, *[0.75] * HEADS))
    for runs, column, letter in zip(flows, grid.T, "ab", strict=True):
        top, middle, *heads = column
        draw_losses(top, runs, settings)
        panel(
            top,
            letter,
            f"{TITLES[runs.flow]}"
            + (" (the paper's simulation)" if runs.flow == "preconditioned" else ""),
        )
        draw_division(middle, runs)
        order = runs.mass[0, -1].argmax(0)
        order = order if len(set(order.tolist())) == HEADS else np.arange(HEADS)
        for axes, k in zip(heads, order, strict=True):
            draw_head(axes, runs, int(k))
        heads[-1].set_xlabel("flow time $t$")
        for axes in column:
            for drop in runs.stages[0][1:]:
                axes.axvline(drop.onset, color=BLACK, lw=0.7, ls=":")
            axes.set(xscale="log", xlim=(0.3, settings.until))
            axes.grid(visible=False)
    left = grid[:, 0]
    left[0].set_ylabel("loss")
    left[1].set_ylabel("division of\nthe groups")
    for i, axes in enumerate(left[2:]):
        axes.set_ylabel(f"head {i + 1}", rotation=0, ha="right", va="center")
    plot.align_ylabels(left)
    entries = [
        (f"flow, {settings.seeds} seeds", {"color": BLUE}),
        ("identical heads", {"color": GREY, "ls": "--"}),
    ]
    thin = {"color": BLACK, "lw": 0.7}
    entries += [("closed form", thin), ("plateau ends (first seed)", thin | {"ls": ":"})]
    framed = {"frameon": True, "framealpha": 1.0, "edgecolor": "none"}
    key(grid[0, 0], entries, loc="center right", bbox_to_anchor=(1.0, 0.62), **framed)
    return plot


def draw_losses(axes: Axes, runs: FlowRuns, settings: Settings) -> None:
    """Draw the loss of each seed, with the plateaus in closed form."""
    for level in LEVELS[:-1]:
        axes.axhline(level, color=BLACK, lw=0.6)
        axes.text(
            settings.until * 0.93,
            level * 1.03 + 0.05,
            f"{level:.4g}",
            fontsize=6.5,
            ha="right",
            va="bottom",
            color=GREY,
        )
    for i, row in enumerate(runs.path.loss[:-1]):
        axes.plot(
            runs.path.time, row, color=BLUE, lw=1.8 if i == 0 else 0.8, alpha=1 if i == 0 else 0.45
        )
    axes.plot(runs.path.time, runs.path.loss[-1], color=GREY, ls="--", lw=1.2)
    axes.set_ylim(-0.1, LEVELS[0] * 1.13)


def draw_division(axes: Axes, runs: FlowRuns) -> None:
    """Stack competition, indecision and cooperation, which sum to 1."""
    time = runs.path.time[1:]
    (competition, cooperation, _) = (share[0, 1:] for share in runs.division)
    axes.fill_between(time, 0, competition, color="#8c6bb1", lw=0)
    axes.fill_between(time, 1 - cooperation, 1, color=SKY, lw=0)
    axes.fill_between(time, competition, 1 - cooperation, color="#eeeeee", lw=0)
    axes.set(ylim=(0, 1), yticks=[0, 1])
    above = time[competition > 0.5]
    if len(above):
        axes.text(
            np.sqrt(above[0] * above[-1]),
            0.3,
            "competition",
            fontsize=6.5,
            color="white",
            ha="center",
            va="center",
        )
    box = {"fc": SKY, "ec": "none", "pad": 1.0}
    axes.text(
        time[-1] * 0.85,
        0.85,
        "cooperation",
        fontsize=6.5,
        color=BLACK,
        ha="right",
        va="center",
        bbox=box,
    )
    axes.text(0.36, 0.5, "indecision", fontsize=6.5, color=GREY, ha="left", va="center")


def draw_head(axes: Axes, runs: FlowRuns, k: int) -> None:
    """Stack one head's attention on each group; the rest lies outside all groups."""
    time = runs.path.time[1:]
    mass = runs.mass[0, 1:, k]
    axes.stackplot(time, mass.T, colors=COLOURS, lw=0)
    axes.set(ylim=(0, 1), yticks=[])
    axes.set_facecolor("#f4f4f4")
    for j, (share, top) in enumerate(zip(mass[-1], np.cumsum(mass[-1]), strict=True)):
        if share > 0.25:
            axes.text(
                time[-1] * 0.85,
                top - share / 2,
                f"group {j + 1}",
                fontsize=6.5,
                color="white",
                ha="right",
                va="center",
            )


TITLE = (
    "the gradient flow: loss plateaus in closed form; heads compete for one group, then "
    "divide the groups"
)
PRESETS: Presets = {
    "paper": Settings(),
    "smoke": Settings(length=6, seeds=2, scale=0.1, until=300.0, points=150),
}
FIGURE = Figure("yuksel2026/fig10", TITLE, PRESETS, make, {"paper": 25, "smoke": 8})
