"""Figure 10: the gradient flow itself. The loss falls in stages; heads first share one group, then divide them."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot

from ..._style import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, WIDTH, key, panel
from ...measure import Boundary, Division, division, find_stages, group_mass, head_similarity, stage_boundaries
from ...tasks import Groups
from ...theory import incremental
from .._figure import Check, Figure, Outcome
from .._source import RunSource

TITLES: dict[incremental.Flow, str] = {"preconditioned": "preconditioned flow", "logit": "gradient flow on the logits"}
ONES = Groups((1, 1, 1))
COLOURS = (BLUE, ORANGE, GREEN)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The paper's length, initial scale and seeds are not known; its groups and strengths are."""

    groups: Groups = ONES
    length: int = 30
    heads: int = 3
    scale: float = 1e-6
    seeds: int = 5
    until: float = 2e4
    points: int = 1200


@dataclasses.dataclass(frozen=True)
class FlowRuns:
    """One flow, measured: its last member starts with identical heads."""

    flow: incremental.Flow
    path: incremental.Path
    mass: np.ndarray
    division: Division
    stages: list[Any]
    boundaries: list[Boundary]
    shared_attention: float
    """The largest attention that all heads at once have on the strongest group before the second drop, least over seeds."""


def integrate(flow: incremental.Flow, settings: Settings) -> FlowRuns:
    times = np.append(0, np.geomspace(0.05, settings.until, settings.points))
    path = incremental.trajectory(
        settings.groups,
        times,
        settings.heads,
        settings.length,
        flow,
        scale=[settings.scale] * settings.seeds + [0.0],
        seed=[*range(settings.seeds), 0],
    )
    mass = group_mass(path.attention, settings.groups.members)
    stages = [find_stages(times, row) for row in path.loss[:-1]]
    shares = division(mass, np.array(settings.groups.spans, float))
    shared = 0.0
    if all(len(run) > 1 for run in stages):
        before = [times < run[1].onset for run in stages]
        strongest = settings.groups.ranking[0]
        shared = float(min(m[early, :, strongest].min(1).max() for m, early in zip(mass[:-1], before, strict=True)))
    return FlowRuns(flow, path, mass, shares, stages, stage_boundaries(stages), shared)


def make(settings: Settings, source: RunSource) -> Outcome:
    flows = []
    for i, flow in enumerate(TITLES):
        source(TITLES[flow], i / len(TITLES))
        flows.append(integrate(flow, settings))
    levels = incremental.plateaus(settings.groups, settings.heads)
    return Outcome(
        tables={"curves": pd.concat([table(runs, settings) for runs in flows], ignore_index=True)},
        plot=draw(flows, levels, settings),
        checks=[check for runs in flows for check in checks_of(runs, levels, settings)],
    )


def checks_of(runs: FlowRuns, levels: np.ndarray, settings: Settings) -> list[Check]:
    name, count = f"{runs.flow} flow", len(levels) - 1
    usual = [run for run in runs.stages if len(run) == count]
    measured = np.mean([[drop.level for drop in run] for run in usual] or [[0.0] * count], 0)
    owners = [sorted(end.argmax(0).tolist()) == list(range(count)) for end in runs.mass[:-1, -1]]
    same = bool((runs.path.attention[-1] == runs.path.attention[-1][:, :1]).all())
    stuck = float(runs.path.loss[-1, -1])
    apart = [[float(x) for x in (b.step, b.low, b.high)] for b in runs.boundaries]
    formula = incremental.first_stage(settings.groups, settings.length, settings.heads, runs.flow)
    half = incremental.stage_times(runs.path, levels)
    return [
        Check(f"{name}: seeds with {count} stages", len(usual), None, len(usual) == settings.seeds, f"all {settings.seeds}"),
        Check(
            f"{name}: loss on the plateaus, mean over seeds",
            measured.tolist(),
            None,
            bool(np.allclose(measured, levels[:-1], rtol=0.05)),
            f"{', '.join(f'{x:.4g}' for x in levels[:-1])}: half the sum of n m² of what is not learned, within 5%",
        ),
        Check(
            f"{name}: attention that all heads at once have on group 1 before the second drop, least over seeds",
            runs.shared_attention,
            "competitive: heads converge on the most statistically dominant pattern",
            runs.shared_attention > 0.5,
        ),
        Check(
            f"{name}: seeds at whose end each group has a head of its own, the one that looks at it most",
            int(sum(owners)),
            "cooperative: heads specialize in distinct patterns",
            all(owners),
        ),
        Check(
            f"{name}: ends of the plateaus with 95% intervals over seeds",
            apart,
            None,
            len(runs.boundaries) == count - 1 and bool(np.all(np.diff([b.step for b in runs.boundaries]) > 0)),
            f"{count - 1} boundaries in order",
        ),
        Check(
            f"{name}: time of the first stage over the formula",
            float(half[0, 0] / formula),
            None,
            bool(abs(half[0, 0] / formula - 1) < 0.15),
            f"1 up to order n/T or its root; held to 15% at T = {settings.length}",
        ),
        Check(
            f"{name}: identical heads stay identical, and their loss at the end",
            [same, stuck],
            None,
            same and bool(abs(stuck / levels[1] - 1) < 0.05),
            f"bit for bit, at {levels[1]:.4g} within 5%",
        ),
    ]


def table(runs: FlowRuns, settings: Settings) -> pd.DataFrame:
    """One row per time: loss, shares, and each head's attention on each group."""
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
    for k in range(settings.heads):
        for j in range(settings.groups.count):
            columns[f"head{k + 1}_group{j + 1}"] = runs.mass[:, :, k, j].ravel()
    return pd.DataFrame(columns)


def draw(flows: list[FlowRuns], levels: np.ndarray, settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 5.6), layout="constrained")
    rows = 2 + settings.heads
    grid = plot.subplots(rows, 2, sharex="col", height_ratios=(2.6, 1.5, *[0.75] * settings.heads))
    for runs, column, letter in zip(flows, grid.T, "ab", strict=True):
        top, middle, *heads = column
        draw_losses(top, runs, levels, settings)
        panel(top, letter, f"{TITLES[runs.flow]}" + (" (the paper's simulation)" if runs.flow == "preconditioned" else ""))
        draw_division(middle, runs)
        order = runs.mass[0, -1].argmax(0)
        order = order if len(set(order.tolist())) == settings.heads else np.arange(settings.heads)
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
    key(
        grid[0, 0],
        [
            (f"flow, {settings.seeds} seeds", {"color": BLUE}),
            ("identical heads", {"color": GREY, "ls": "--"}),
            ("closed form", {"color": BLACK, "lw": 0.7}),
            ("plateau ends (first seed)", {"color": BLACK, "lw": 0.7, "ls": ":"}),
        ],
        loc="center right",
        bbox_to_anchor=(1.0, 0.62),
        frameon=True,
        framealpha=1.0,
        edgecolor="none",
    )
    return plot


def draw_losses(axes: Axes, runs: FlowRuns, levels: np.ndarray, settings: Settings) -> None:
    for level in levels[:-1]:
        axes.axhline(level, color=BLACK, lw=0.6)
        axes.text(settings.until * 0.93, level * 1.03 + 0.05, f"{level:.4g}", fontsize=6.5, ha="right", va="bottom", color=GREY)
    for i, row in enumerate(runs.path.loss[:-1]):
        axes.plot(runs.path.time, row, color=BLUE, lw=1.8 if i == 0 else 0.8, alpha=1 if i == 0 else 0.45)
    axes.plot(runs.path.time, runs.path.loss[-1], color=GREY, ls="--", lw=1.2)
    axes.set_ylim(-0.1, levels[0] * 1.13)


def draw_division(axes: Axes, runs: FlowRuns) -> None:
    """Competition from below, cooperation from above, indecision between them; the shares add up to 1."""
    time, first = runs.path.time[1:], [share[0, 1:] for share in runs.division]
    competition, cooperation, _ = first
    axes.fill_between(time, 0, competition, color="#8c6bb1", lw=0)
    axes.fill_between(time, 1 - cooperation, 1, color=SKY, lw=0)
    axes.fill_between(time, competition, 1 - cooperation, color="#eeeeee", lw=0)
    axes.set(ylim=(0, 1), yticks=[0, 1])
    above = time[competition > 0.5]
    if len(above):
        axes.text(np.sqrt(above[0] * above[-1]), 0.3, "competition", fontsize=6.5, color="white", ha="center", va="center")
    box = {"fc": SKY, "ec": "none", "pad": 1.0}
    axes.text(time[-1] * 0.85, 0.85, "cooperation", fontsize=6.5, color=BLACK, ha="right", va="center", bbox=box)
    axes.text(0.36, 0.5, "indecision", fontsize=6.5, color=GREY, ha="left", va="center")


def draw_head(axes: Axes, runs: FlowRuns, k: int) -> None:
    """What one head looks at: its attention on each group, stacked; the rest is outside all groups."""
    time, mass = runs.path.time[1:], runs.mass[0, 1:, k]
    axes.stackplot(time, mass.T, colors=COLOURS[: mass.shape[1]] if mass.shape[1] <= len(COLOURS) else None, lw=0)
    axes.set(ylim=(0, 1), yticks=[])
    axes.set_facecolor("#f4f4f4")
    ends = np.cumsum(mass[-1])
    for j, (share, top) in enumerate(zip(mass[-1], ends, strict=True)):
        if share > 0.25:
            axes.text(time[-1] * 0.85, top - share / 2, f"group {j + 1}", fontsize=6.5, color="white", ha="right", va="center")


FULL = Settings()
FIGURE = Figure(
    id="yuksel2026/fig10",
    title="the gradient flow: loss plateaus in closed form; heads compete for one group, then divide the groups",
    presets={"paper": FULL, "laptop": FULL, "smoke": Settings(length=6, seeds=2, scale=0.1, until=300.0, points=150)},
    make=make,
    seconds={"paper": 25, "laptop": 25, "smoke": 8},
    caveat={"smoke": "a short sequence and a large initial scale"},
)
