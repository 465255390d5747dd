"""Figure 10: the gradient flow, whose loss falls in stages while heads share, then divide
groups."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.plotting import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, WIDTH, outside, panel
from ...measure import (
    all_hold,
    boundary_of,
    division,
    find_stages,
    group_mass,
    head_similarity,
    judge,
    stage_boundaries,
)
from ...tasks import Groups
from ...theory import incremental
from .._figure import Check, Figure, Outcome, Plot, Presets, RunSource
from .._panels import legend
from ._chains import COMPETITION, COOPERATION, OWN_HEADS, intervals, named
from ._plots import HEADS as HEAD_COLOURS

TITLES: dict[incremental.Flow, str] = {
    "preconditioned": "preconditioned flow",
    "logit": "gradient flow on the logits",
}
GROUPS = Groups((1, 1, 1))
HEADS = 3
LEVELS = incremental.plateaus(GROUPS, HEADS)
COLOURS = (BLUE, ORANGE, GREEN)
PUBLISHED = (4.7, 50.0, 230.0)
"""The times at which the published loss is half-way between its plateaus, read off its plot."""
SHARES = {"competition": "#8c6bb1", "cooperation": SKY, "indecision": "#eeeeee"}
"""The colours of the shares of `division`."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of the flow.

    The paper does not give them. Its attention starts at 1/30, and its drops come when ours do with
    an initial scale of about 1e-4, which was chosen for that.
    """

    length: int = 30
    scale: float = 1e-4
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
    def half_way(self) -> np.ndarray:
        """The times at which the loss is half-way down each drop, one row per seed."""
        middles = (np.array(LEVELS[:-1]) + LEVELS[1:]) / 2
        below = self.path.loss[:-1, :, None] < middles
        return np.where(below.any(1), self.path.time[below.argmax(1)], np.nan)

    @property
    def parts(self) -> np.ndarray:
        """The loss of the first seed in the entry (j, j): feature j at the position of group j."""
        sent = self.path.values[0] * self.mass[0]  # each group has one position
        return (np.asarray(GROUPS.strengths) - sent.sum(1)) ** 2 / 2

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
    if runs.flow == "preconditioned" and settings.length == PRESETS["paper"].length:
        checks.append(time_check(runs))
    return named(f"{runs.flow} flow", checks)


def time_check(runs: FlowRuns) -> Check:
    """Compare the times of the drops with the published ones; the scale was chosen to match."""
    drops = [boundary_of(times) for times in runs.half_way.T]
    near = all_hold(
        judge(drop.step, (drop.low, drop.high), time / 1.5, time * 1.5, time)
        for drop, time in zip(drops, PUBLISHED, strict=True)
    )
    name = "times half-way down the drops of the loss, with 95% intervals over seeds"
    return Check(name, intervals(drops), PUBLISHED, near, "within a factor of 1.5")


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
        columns[f"value{k + 1}_feature{j + 1}"] = runs.path.values[:, :, k, j].ravel()
    return pd.DataFrame(columns).assign(flow=runs.flow)


def draw(flows: list[FlowRuns], settings: Settings) -> Plot:
    """Draw the published panels for the published flow, and losses and shares of both flows."""
    plot = Plot(figsize=(WIDTH, 7.0), layout="constrained")
    halves: Any = plot.subfigures(2, 1, height_ratios=(1.1, 1))
    above, below = halves
    draw_heads(above, flows[0], settings.until)
    grid = below.subplots(2, 2, sharex="col", height_ratios=(1.5, 1))
    for runs, column, letter in zip(flows, grid.T, "gh", strict=True):
        draw_losses(column[0], runs)
        panel(column[0], letter, f"loss: {TITLES[runs.flow]}")
        shares = np.stack(runs.division)[:, 0, 1:]
        column[1].stackplot(runs.path.time[1:], shares, colors=[*SHARES.values()], lw=0)
        column[1].set(ylim=(0, 1), yticks=[0, 1], xlabel="flow time $t$")
        for axes in column:
            axes.set(xscale="log", xlim=(0.3, settings.until))
            axes.grid(visible=False)
    grid[0, 0].set_ylabel("loss")
    grid[1, 0].set_ylabel("division of\nthe groups")
    parts = [(f"entry ({j}, {j})", {"color": colour}) for j, colour in enumerate(COLOURS, start=1)]
    others = [
        (f"sum, {settings.seeds} seeds", {"color": BLACK}),
        ("identical heads", {"color": GREY, "ls": "--"}),
        ("closed form", {"color": GREY, "lw": 0.7}),
    ]
    outside(grid[0, 1], "", [*others, *parts])
    legend(grid[1, 1], "", SHARES, lw=4)
    return plot


def draw_heads(part: Any, runs: FlowRuns, until: float) -> None:
    """Draw attention on each group's position, and the value of its feature, by head."""
    time = runs.path.time[1:]
    grid = part.subplots(2, GROUPS.count, sharex=True)
    rows = (("attention", runs.mass[0]), ("value", runs.path.values[0]))
    for axes, (name, heads), letters in zip(grid, rows, ("abc", "def"), strict=True):
        for j, (cell, letter) in enumerate(zip(axes, letters, strict=True)):
            where = "position" if name == "attention" else "feature"
            panel(cell, letter, f"{name}, {where} {j + 1}")
            for k, (style, shade) in enumerate(
                zip(("-", "--", ":"), HEAD_COLOURS[:HEADS], strict=True)
            ):
                cell.plot(time, heads[1:, k, j], color=shade, ls=style, lw=1.5)
            cell.set(xscale="log", xlim=(0.3, until))
    for cell in grid[0]:
        cell.set_ylim(-0.03, 1.03)
    for cell in grid[1]:
        cell.set_xlabel("flow time $t$")
    names = [
        (f"head {k + 1}", {"color": shade, "ls": style})
        for k, (style, shade) in enumerate(zip(("-", "--", ":"), HEAD_COLOURS[:HEADS], strict=True))
    ]
    outside(grid[0, -1], "", names)


def draw_losses(axes: Axes, runs: FlowRuns) -> None:
    """Draw the loss of each seed and the parts of the first, with the plateaus in closed form."""
    for level in LEVELS[:-1]:
        axes.axhline(level, color=GREY, lw=0.6)
    seeds = runs.path.loss[:-1]
    for row, lw in zip(seeds, [1.8, *[0.5] * (len(seeds) - 1)], strict=True):
        axes.plot(runs.path.time, row, color=BLACK, lw=lw)
    for part, colour in zip(runs.parts.T, COLOURS, strict=True):
        axes.plot(runs.path.time, part, color=colour, lw=1.3)
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
