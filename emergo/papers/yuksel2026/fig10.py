"""Figure 10: the gradient flow, whose loss falls in stages while heads share, then divide
groups."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.plotting import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, WIDTH, outside, panel
from ...measure import division, find_stages, group_mass, head_similarity, stage_boundaries
from ...tasks import Groups
from ...theory import incremental
from .._figure import Check, Figure, Outcome, Plot, Presets, RunSource
from .._panels import legend
from ._chains import COMPETITION, COOPERATION, OWN_HEADS, intervals, named

TITLES: dict[incremental.Flow, str] = {
    "preconditioned": "preconditioned flow",
    "logit": "gradient flow on the logits",
}
GROUPS = Groups((1, 1, 1))
HEADS = 3
LEVELS = incremental.plateaus(GROUPS, HEADS)
COLOURS = (BLUE, ORANGE, GREEN)
SHARES = {"competition": "#8c6bb1", "cooperation": SKY, "indecision": "#eeeeee"}
"""The colours of the shares of `division`."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of the flow; the paper does not give its length, initial scale and seeds."""

    length: int = 30
    scale: float = 1e-6
    seeds: int = 5
    until: float = 2e4
    points: int = 1200

    def members(self) -> dict[str, list[Any]]:
        """Return scale and seed of each member: the seeds, and one with identical heads."""
        scale = [self.scale] * self.seeds + [0.0]
        return {"scale": scale, "seed": [*range(self.seeds), 0]}


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
    path = incremental.trajectory(GROUPS, times, HEADS, settings.length, flow, **settings.members())
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
    count = GROUPS.count
    seeds = settings.seeds
    usual = [run for run in runs.stages if len(run) == count]
    levels = np.mean([[drop.level for drop in run] for run in usual] or [[0.0] * count], 0)
    shared = runs.shared_attention
    owners = [sorted(end.argmax(0).tolist()) == list(range(count)) for end in runs.mass[:-1, -1]]
    ends = stage_boundaries(runs.stages)
    first = incremental.first_stage(GROUPS, settings.length, HEADS, runs.flow)
    ratio = incremental.stage_times(runs.path, LEVELS)[0, 0] / first
    same = (runs.path.attention[-1] == runs.path.attention[-1][:, :1]).all()
    stuck = runs.path.loss[-1, -1]
    checks = [
        Check(f"seeds with {count} stages", len(usual), None, len(usual) == seeds, f"all {seeds}"),
        Check(
            "loss on the plateaus, mean over seeds",
            levels,
            None,
            np.allclose(levels, LEVELS[:-1], rtol=0.05),
            f"{', '.join(f'{x:.4g}' for x in LEVELS[:-1])}: half the sum of n m² of what is not "
            f"learned, within 5%",
        ),
        Check(
            "attention that all heads at once have on group 1 before the second drop, least over "
            "seeds",
            shared,
            COMPETITION,
            shared > 0.5,
        ),
        Check(OWN_HEADS, sum(owners), COOPERATION, all(owners)),
        Check(
            "ends of the plateaus with 95% intervals over seeds",
            intervals(ends),
            None,
            len(ends) == count - 1 and np.all(np.diff([b.step for b in ends]) > 0),
            f"{count - 1} boundaries in order",
        ),
        Check(
            "time of the first stage over the formula",
            ratio,
            None,
            abs(ratio - 1) < 0.15,
            f"1 up to order n/T or its root; held to 15% at T = {settings.length}",
        ),
        Check(
            "identical heads stay identical, and their loss at the end",
            [same, stuck],
            None,
            same and abs(stuck / LEVELS[1] - 1) < 0.05,
            f"bit for bit, at {LEVELS[1]:.4g} within 5%",
        ),
    ]
    return named(f"{runs.flow} flow", checks)


def table(runs: FlowRuns, settings: Settings) -> pd.DataFrame:
    """Return one row per time: loss, shares, and each head's attention on each group."""
    rows, times = runs.path.loss.shape
    columns = {name: np.repeat(each, times) for name, each in settings.members().items()}
    columns |= {
        "time": np.tile(runs.path.time, rows),
        "loss": runs.path.loss.ravel(),
        "similarity": head_similarity(runs.path.attention).ravel(),
    }
    columns |= {name: share.ravel() for name, share in runs.division._asdict().items()}
    for k, j in np.ndindex(HEADS, GROUPS.count):
        columns[f"head{k + 1}_group{j + 1}"] = runs.mass[:, :, k, j].ravel()
    return pd.DataFrame(columns).assign(flow=runs.flow)


def draw(flows: list[FlowRuns], settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 5.6), layout="constrained")
    grid = plot.subplots(2 + HEADS, 2, sharex="col", height_ratios=(2.6, 1.5, *[0.75] * HEADS))
    for runs, column, letter in zip(flows, grid.T, "ab", strict=True):
        top, middle, *heads = column
        draw_losses(top, runs)
        panel(top, letter, TITLES[runs.flow])
        time = runs.path.time[1:]
        for axes, shares, colours in (
            (middle, np.stack(runs.division)[:, 0, 1:], SHARES.values()),
            *zip(heads, runs.mass[0, 1:].transpose(1, 2, 0), [COLOURS] * HEADS, strict=True),
        ):
            axes.stackplot(time, shares, colors=[*colours], lw=0)
            axes.set(ylim=(0, 1), yticks=[0, 1])
        heads[-1].set_xlabel("flow time $t$")
        for axes in column:
            for drop in runs.stages[0][1:]:
                axes.axvline(drop.onset, color=BLACK, lw=0.7, ls=":")
            axes.set(xscale="log", xlim=(0.3, settings.until))
            axes.grid(visible=False)
    last = grid[:, 1]
    outside(
        last[0],
        "",
        [
            (f"flow, {settings.seeds} seeds", {"color": BLUE}),
            ("identical heads", {"color": GREY, "ls": "--"}),
            ("closed form", {"color": BLACK, "lw": 0.7}),
            ("plateau ends\n(first seed)", {"color": BLACK, "lw": 0.7, "ls": ":"}),
        ],
    )
    legend(last[1], "", SHARES, lw=4)
    legend(last[2], "", {f"group {j + 1}": colour for j, colour in enumerate(COLOURS)}, lw=4)
    words = ("loss", "division of\nthe groups", *(f"head {k + 1}" for k in range(HEADS)))
    for axes, label in zip(grid[:, 0], words, strict=True):
        axes.set_ylabel(label)
    plot.align_ylabels(grid[:, 0])
    return plot


def draw_losses(axes: Axes, runs: FlowRuns) -> None:
    """Draw the loss of each seed, with the plateaus in closed form."""
    for level in LEVELS[:-1]:
        axes.axhline(level, color=BLACK, lw=0.6)
    seeds = runs.path.loss[:-1]
    for row, lw in zip(seeds, [1.8, *[0.7] * (len(seeds) - 1)], strict=True):
        axes.plot(runs.path.time, row, color=BLUE, lw=lw)
    axes.plot(runs.path.time, runs.path.loss[-1], color=GREY, ls="--", lw=1.2)


TITLE = (
    "the gradient flow: loss plateaus in closed form; heads compete for one group, then "
    "divide the groups"
)
PRESETS: Presets = {
    "paper": Settings(),
    "smoke": Settings(length=6, seeds=2, scale=0.1, until=300.0, points=150),
}
FIGURE = Figure("yuksel2026/fig10", TITLE, PRESETS, make, {"paper": 25, "smoke": 8})
