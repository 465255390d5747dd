"""One transition, two papers: the plateau of a single location is the first stage of several heads; what rules the second.

The two theories meet in one flow (`docs/theory.md`, "Where the two papers meet"): B copies are a group of n positions, T is T,
and the signal is m, in the first paper √d in a time unit of d. A stage of the flow is dated by half of its drop of the loss,
one of a trained model, whose levels have no closed form, by half of some head's weight on the group.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ... import theory
from ..._errors import InputError
from ..._random import fold_in, raw
from ..._style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, WIDTH, key, panel
from ...engine import Config, Optimizer
from ...measure import Law, emergence, fit_law
from ...models import MinimalAttention
from ...studies import Study
from ...tasks import Groups, MarkovChain
from ...theory import incremental
from .._figure import Check, Comparison, Figure, Outcome, Plot, Presets, RunSource
from ..yuksel2026._chains import ADAMW, ChainRun, ChainRuns, chain_of, paper
from ..zucchet2025 import fig3

FLOWS: tuple[incremental.Flow, ...] = ("logit", "preconditioned")
STAGES = {1: "stage 1: group 1 found", 2: "stage 2: heads part"}
LOOKS: dict[int, dict[str, Any]] = {1: {"marker": "o", "mec": "white", "mew": 0.5}, 2: {"marker": "s", "mfc": "white"}}
NAMES = {"logit": "logit flow", "preconditioned": "preconditioned flow", "sgd": "trained, SGD", "adamw": "trained, AdamW"}
COLOURS = {"logit": BLUE, "preconditioned": ORANGE, "sgd": GREEN, "adamw": PINK}
AXES = {"length": "length $T$", "span": "positions per group $n$", "importance": "importance $m$"}
SINGLE = {"length": 1.0, "span": -0.5, "importance": -1.0}
"""Exponents of the plateau in zucchet2025's task, in the flow of its model: √(π/2) T/(√n m)."""
FAR = {"logit": 2.5, "preconditioned": 8.0}
"""How far to look for the second stage, in units of its leading order, which log(1/s) approaches slowly."""
PRINTED = {"length": fig3.LAW.exponents["length"], "span": fig3.LAW.exponents["burst"]}  # of its Transformers
Laws = Mapping[tuple[str, int], Law]
"""By flow or optimizer, and stage; without those that cannot be fitted."""
HEADS = 2
STUDY = paper(MinimalAttention(heads=HEADS, scale=1e-3), MarkovChain(vocabulary=50, generated=1), batch=1000, n_train=None)
STUDY = STUDY.replace(steps=30_000, n_test=1000, threshold=0.15, overtrain=0.1)
"""One token is to be predicted, after `length` uniform ones: all positions are alike, as in the flow. A run ends when both
groups are learned, and a tenth of its time later."""


class Cell(NamedTuple):
    """Two groups of `span` positions, the first `importance` times as strong, among `length`."""

    length: int
    span: int
    importance: float

    @property
    def groups(self) -> Groups:
        return Groups((self.span, self.span), self.importance)

    @property
    def columns(self) -> dict[str, Any]:
        return self._asdict() | {"gap": self.importance**2 - 1}


@dataclasses.dataclass(frozen=True)
class Star:
    """Cells that differ from one of them in one number: its other values, by axis."""

    base: Cell
    length: tuple[int, ...]
    span: tuple[int, ...]
    importance: tuple[float, ...]

    @property
    def cells(self) -> list[Cell]:
        cells = [self.base._replace(**{axis: value}) for axis in AXES for value in getattr(self, axis)]
        return list(dict.fromkeys(cells))

    def along(self, table: pd.DataFrame, axis: str) -> pd.DataFrame:
        """The rows that differ from the base in `axis` alone."""
        return table[np.all([table[name] == getattr(self.base, name) for name in AXES if name != axis], 0)]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The cells of the flows and of the trained models, and how each is run."""  # without it, `dataclass` prints the study

    flows: Star = Star(Cell(64, 2, 1.7), (16, 32, 64, 128), (1, 2, 4), (1.3, 1.7, 2.2, 2.6))
    trained: Star = Star(Cell(16, 2, 1.7), (8, 16, 32, 64), (1, 2, 4), (1.3, 1.7, 2.2, 2.8))
    optimizers: tuple[Optimizer, ...] = (Optimizer("sgd", 100.0), ADAMW)
    study: Study = STUDY
    flow_scale: float = 1e-6  # at the start
    points: int = 600
    sequences: int = 1 << 15
    """From which the signal is measured."""

    def studies(self) -> dict[str, Study]:
        """One per optimizer and cell."""
        every = {}
        for optimizer, cell in itertools.product(self.optimizers, self.trained.cells):
            name = f"{optimizer.label}, T = {cell.length}, n = {cell.span}, m = {cell.importance:g}"
            every[name] = self.study.replace(optimizer=optimizer, task__groups=cell.groups, task__prefix=cell.length)
        return every


def make(settings: Settings, source: RunSource) -> Outcome:
    trained = source.runs(settings.studies(), curves=True)
    rows = []
    for i, flow in enumerate(FLOWS):
        source.report(f"{flow} flow", i / len(FLOWS))
        rows += flow_rows(flow, settings)
    rows += [row for runs in trained.values() for run in ChainRuns(runs) for row in trained_rows(run, settings.sequences)]
    table = pd.DataFrame(rows)
    laws, derived = laws_of(table), laws_of(table, "derived")
    comparisons = [Comparison(f"stage {stage}, {NAMES[part]}", law) for (part, stage), law in laws.items()]
    checks = meeting_checks(settings.flows.base.length) + stage_checks(table, laws, derived)
    plot = draw(table, laws, derived, settings)
    return Outcome({"times": table}, plot, comparisons, checks, precision="float64 (flows), fp32 (trained)")


def flow_rows(flow: incremental.Flow, settings: Settings) -> list[dict[str, Any]]:
    """When the loss has done half of each drop, and when the closed forms say."""
    rows, scale, seeds = [], settings.flow_scale, np.array(settings.study.seeds)
    for cell in settings.flows.cells:
        first = incremental.first_stage(cell.groups, cell.length, HEADS, flow)
        second = incremental.escape_factor(cell.groups, cell.length, HEADS, flow) * np.log(scale) ** 2
        times = np.append(0, np.geomspace(0.05 * first, 5 * first + FAR[flow] * second, settings.points))
        path = incremental.trajectory(cell.groups, times, HEADS, cell.length, flow, scale, seeds)
        for seed, halves in enumerate(incremental.stage_times(path, incremental.plateaus(cell.groups, HEADS))):
            for stage, (time, derived) in enumerate(zip(halves, (first, second), strict=True), 1):
                late = bool(np.isnan(time))
                row = {"part": flow, "seed": seed, "stage": stage, "time": times[-1] if late else time, "censored": late}
                rows.append(cell.columns | row | {"state": "censored" if late else "reached", "derived": derived})
    return rows


def trained_rows(run: ChainRun, sequences: int) -> list[dict[str, Any]]:
    """When some head has half of its weight on the group."""
    rows, part, groups = [], run.config.optimizer.label, run.groups
    cell = Cell(chain_of(run.config).given, groups.spans[0], groups.importance)
    first = derived_first(run.config, run.seed, sequences) if part == "sgd" else np.nan
    for stage, derived in ((1, first), (2, np.nan)):
        half = emergence(run["step"], run.group_attention[:, :, stage - 1].max(1), 0.5, "above")
        row = {"part": part, "seed": run.seed, "stage": stage, "time": half.time, "censored": half.censored}
        rows.append(cell.columns | row | {"state": half.state, "derived": derived})
    return rows


@functools.lru_cache(maxsize=1024)
def derived_first(config: Config, seed: int, sequences: int) -> float:
    r"""The first stage of a minimal model trained by plain gradient descent, in steps, from the flow alone.

    A position of group 1 has the signal $q$ of its token; the curvature of the loss is $1/V^2$ per head and position; logits
    are parameters over $\sqrt D$, and so move at $1/D$ of the values' speed.
    """
    task = chain_of(config)
    key = raw(jax.random.key(seed))
    truth = task.truth(fold_in(key, 0))
    q = np.asarray(task.signals(truth, task.sample(fold_in(key, 4), sequences, truth)))[task.groups.members[0]]
    signal = float(np.linalg.norm(q)) / np.sqrt((task.spec.inputs + task.spec.length) * task.generated)
    return task.given * incremental.takeoff(signal, HEADS / task.vocabulary**2) / config.optimizer.learning_rate


def term_of(axis: str, stage: int) -> str:
    """What stands for an axis in the law of a stage: in the second, m² - 1, the lead of group 1 in n m² over group 2."""
    return "gap" if (axis, stage) == ("importance", 2) else axis


def laws_of(table: pd.DataFrame, y: str = "time") -> dict[tuple[str, int], Law]:
    """The power laws of the stages' times, as measured (with censored runs, the fit that uses them) or derived."""
    laws = {}
    for part, stage in itertools.product(table["part"].unique(), (1, 2)):
        rows = table[(table["part"] == part) & (table["stage"] == stage)]
        if y == "derived":
            rows = rows.assign(censored=False, state="reached")
        if rows[y].isna().all():
            continue
        with contextlib.suppress(InputError):  # too few runs came so far
            law = fit_law(rows, y, [term_of(axis, stage) for axis in AXES], what=f"stage {stage} of {part}")
            laws[part, stage] = law.with_censored or law
    return laws


def compare_single(T: int, dim: int, n: int) -> tuple[float, float]:
    """One head with one group of n positions against the single location with n copies: the largest difference of their losses,
    over their start, and the ratio of the times of half attention."""
    times = np.linspace(0, 2.5 * float(theory.predicted_plateau(theory.cells(T, dim, n), "exact")), 400)
    single = theory.trajectory(theory.cells(T, dim, n), times, "exact")
    group = Groups((n,), weights=((float(np.sqrt(dim)),) * n,))
    heads = incremental.trajectory(group, times / dim, 1, T, scale=0.0)
    one, other = (emergence(times, a, 0.5, "above").time for a in (heads.attention[:, 0, :n].sum(-1), single.attention))
    return float(np.max(np.abs(single.loss - heads.loss / dim)) / single.loss[0]), one / other


def meeting_checks(T: int, dim: int = 16) -> list[Check]:
    """The single location as one head and one group: the same loss for one copy, the same plateau for several."""
    copies, (difference, _) = max(1, T // 16), compare_single(T, dim, 1)
    name = f"single location (T = {T}, d = {dim}) and one head with n = 1, m = √d: largest difference of the loss"
    checks = [Check(name, difference, None, difference < 1e-6, "0: one flow in two notations, time in units of d")]
    if copies > 1:
        ratios = [compare_single(length, dim, copies)[1] for length in (T, 4 * T)]
        near, far = (abs(ratio - 1) for ratio in ratios)
        name = f"the same with {copies} copies: time of half attention, one head over single location, at T and 4T"
        words = "1 where T is much larger than B: within 10%, and nearer, at 4T"
        checks.append(Check(name, ratios, None, far < 0.7 * near and far < 0.1, words))
    return checks


def stage_checks(table: pd.DataFrame, laws: Laws, derived: Laws) -> list[Check]:
    checks = []
    for part in (part for part in (*FLOWS, "sgd") if (part, 1) in laws and (part, 1) in derived):
        law, exponents = laws[part, 1], derived[part, 1].exponents
        off = {n: law.exponents[n] - exponents[n] for n in law.exponents}
        least = 0.15 if part in FLOWS else 0.25  # the signal of group 1 is derived as if group 2 were not there
        holds = all(abs(off[n]) <= max(least, np.ptp(law.ci95[n]) / 2) for n in off)
        name = f"stage 1, {NAMES[part]}: exponents less the derived ones"
        checks.append(Check(name, off, None, holds, f"0 within {least} or half of the interval"))
    for part, other in ((part, other) for part, other in (FLOWS, FLOWS[::-1]) if (part, 2) in laws):
        # Derived to leading order in log(1/s).
        three = [law.exponents for law in (laws[part, 2], derived[part, 2], derived[other, 2])]
        shown = {n: [exponents[n] for exponents in three] for n in ("length", "span")}
        holds = all(abs(measured - own) < abs(measured - theirs) for measured, own, theirs in shown.values())
        name = f"stage 2, {NAMES[part]}: exponents of T and n, derived, derived for the other flow"
        checks.append(Check(name, shown, None, holds, "nearer to their own"))
    reached = table[(table["part"] == "sgd") & (table["stage"] == 1) & ~table["censored"].astype(bool)]
    if len(reached):
        level = np.exp(np.log(reached["time"] / reached["derived"]).mean())
        name = "stage 1, trained, SGD: steps over those derived without a fit, geometric mean"
        checks.append(Check(name, level, None, 1 / 1.5 < level < 1.5, "1 within a factor of 1.5"))
    for part in (part for part in ("sgd", "adamw") if (part, 1) in laws and (part, 2) in laws):
        one, two = laws[part, 1].exponents["importance"], laws[part, 2].exponents["gap"]
        holds = one < 0 < two and laws[part, 2].ci95["gap"][0] > 0
        name = f"{NAMES[part]}: exponent of m in stage 1 and of m² - 1 in stage 2"
        words = "a stronger first group is found sooner and left later: below 0, above 0"
        checks.append(Check(name, [one, two], None, holds, words))
    return checks


def draw(table: pd.DataFrame, laws: Laws, derived: Laws, settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 7.4), layout="constrained")
    grid: Any = plot.subplots(3, 3, height_ratios=(1, 1, 1.15), gridspec_kw={"wspace": 0.04})
    trained = [optimizer.label for optimizer in settings.optimizers]
    for top, middle, bottom, axis in zip(*grid, AXES, strict=True):
        for axes, parts, star in ((top, FLOWS, settings.flows), (middle, trained, settings.trained)):
            draw_times(axes, {part: star.along(table[table["part"] == part], axis) for part in parts}, axis)
        draw_exponents(bottom, laws, derived, axis, trained)
    for row, label in ((grid[0], "flow time of the stage"), (grid[1], "step of the stage")):
        row[0].set_ylabel(label)
        low, high = min(a.get_ylim()[0] for a in row), 6 * max(a.get_ylim()[1] for a in row)  # room for the legends
        for axes in row:
            axes.set_ylim(low, high)
            axes.tick_params(labelleft=axes is row[0])
    panel(grid[0, 0], "a", "flow, integrated (dots) and derived (lines)")
    panel(grid[1, 0], "b", "trained (dots) and derived without a fit (line)")
    panel(grid[2, 0], "c", "exponents: measured (dots), derived (bars)")
    key(grid[0, 2], [(STAGES[stage], {"ls": ""} | look) for stage, look in LOOKS.items()], loc="upper left")
    for axes, parts in ((grid[0, 1], FLOWS), (grid[1, 1], trained)):
        key(axes, [(NAMES[part], {"color": COLOURS[part]}) for part in parts], loc="upper left")
    return plot


def draw_times(axes: Axes, parts: Mapping[str, pd.DataFrame], axis: str) -> None:
    for part, table in parts.items():
        colour = COLOURS[part]
        for stage, look in LOOKS.items():
            rows = table[(table["stage"] == stage) & (table["state"] != "failed")]
            line, late = rows.groupby(axis)["derived"].mean(), rows["censored"].astype(bool)
            axes.plot(line.index, line, color=colour, lw=1.1, ls="-" if stage == 1 else "--", zorder=1)
            axes.plot(rows[axis][~late], rows["time"][~late], ls="", color=colour, ms=4, **look)
            axes.plot(rows[axis][late], rows["time"][late], ls="", color=colour, marker="^", mfc="none", ms=5)
    values = sorted(pd.concat(list(parts.values()))[axis].unique())
    axes.set(xscale="log", yscale="log", xlabel=AXES[axis])
    axes.set_xticks(values, [f"{v:g}" for v in values], minor=False)
    axes.set_xticks([], minor=True)


def draw_exponents(axes: Axes, laws: Laws, derived: Laws, axis: str, trained: Sequence[str]) -> None:
    """One row per theory or measurement: the first stage above, the second below."""
    labels = {1.0: STAGES[1], 0.0: "zucchet2025, flow", -1.0: "zucchet2025, Fig. 3"}
    draw_bar(axes, SINGLE[axis], 0, BLACK)
    if axis in PRINTED:
        axes.plot(PRINTED[axis], -1, "D", color=GREY, ms=4)
    y = -2.0
    for stage in (1, 2):
        if stage == 2:
            labels[y - 0.4] = STAGES[2]
            y -= 1.4
        for part in (*FLOWS, *trained):
            labels[y], colour, term = NAMES[part], COLOURS[part], term_of(axis, stage)
            if (part, stage) in derived:
                draw_bar(axes, derived[part, stage].exponents[term], y, colour)
            if (part, stage) in laws:
                law = laws[part, stage]
                axes.plot(law.ci95[term], [y, y], color=colour, lw=1)
                axes.plot(law.exponents[term], y, color=colour, ms=4.5, **LOOKS[stage])
            y -= 1
    axes.axvline(0, color=GREY, lw=0.6)
    axes.set_yticks(list(labels), list(labels.values()) if axis == "length" else [])
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() in STAGES.values() else "normal")
    axes.set_ylim(min(labels) - 0.7, 1.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    words = {"length": "exponent of $T$", "span": "exponent of $n$", "importance": "exponent of $m$ (stage 2: $m^2 - 1$)"}
    axes.set_xlabel(words[axis])


def draw_bar(axes: Axes, exponent: float, y: float, colour: str) -> None:
    axes.plot([exponent] * 2, [y - 0.36, y + 0.36], color=colour, lw=2.4, solid_capstyle="butt", alpha=0.5)


SGD = Optimizer("sgd", 30.0)
SMALL = Settings(
    Star(Cell(64, 2, 1.7), (16, 32, 64), (1, 2, 4), (1.3, 1.7, 2.2)),
    Star(Cell(16, 2, 1.7), (8, 16, 32), (1, 2, 3), (1.3, 1.7, 2.2)),
    optimizers=(SGD,),
    study=STUDY.replace(task__vocabulary=16, batch=128, steps=2500, n_test=256, seeds=3),
    sequences=1 << 14,
)
TINY = Settings(
    Star(Cell(6, 1, 2.0), (6, 12), (1, 2), (2.0, 3.0)),
    Star(Cell(4, 1, 2.0), (4,), (1,), (2.0,)),
    optimizers=(SGD,),
    study=STUDY.replace(task__vocabulary=5, batch=32, steps=60, n_test=32, seeds=2),
    flow_scale=1e-3,
    points=100,
    sequences=256,
)
TITLE = "a single location's plateau is the first stage of several heads; the second depends on T, n and m otherwise"
PRESETS: Presets = {"paper": Settings(), "laptop": SMALL, "smoke": TINY}
FIGURE = Figure("emergo/stages", TITLE, PRESETS, make, {"paper": 40_000, "laptop": 109, "smoke": 25}, curves=True)
