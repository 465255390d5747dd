"""One transition, two papers: the plateau of a single location is the first stage of several heads; what rules the second.

The two theories meet in one flow (`docs/theory.md`, "Where the two papers meet"): B copies are a group of n positions, T is T,
and the signal is m, in the first paper √d in a time unit of d. A stage of the flow is dated by half of its drop of the loss,
one of a trained model, whose levels have no closed form, by half of some head's weight on the group.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot

from ... import theory
from ..._errors import InputError
from ..._random import fold_in, raw
from ..._style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, WIDTH, key
from ...engine import Config, Optimizer
from ...measure import Law, emergence, fit_law
from ...models import MinimalAttention
from ...studies import Study, provenance_of
from ...tasks import Groups, MarkovChain
from ...theory import incremental
from .._figure import Check, Comparison, Figure, Outcome
from .._source import RunSource
from ..yuksel2026._chains import ADAMW, ChainRuns, chain_of
from ..zucchet2025 import fig3

FLOWS: tuple[incremental.Flow, ...] = ("logit", "preconditioned")
NAMES = {"logit": "logit flow", "preconditioned": "preconditioned flow", "sgd": "trained, SGD", "adamw": "trained, AdamW"}
COLOURS = {"logit": BLUE, "preconditioned": ORANGE, "sgd": GREEN, "adamw": PINK}
AXES = {"length": "length $T$", "span": "positions per group $n$", "importance": "importance $m$"}
TERMS = {1: ("length", "span", "importance"), 2: ("length", "span", "gap")}
"""Of the laws of the two stages; gap is m² - 1, the lead of group 1 in n m² over group 2."""
SINGLE = {"length": 1.0, "span": -0.5, "importance": -1.0}
"""Exponents of the plateau in zucchet2025's task, in the flow of its model: √(π/2) T/(√n m)."""
FAR = {"logit": 2.5, "preconditioned": 8.0}
"""How far to look for the second stage, in units of its leading order, which log(1/s) approaches slowly."""
PRINTED = {"length": fig3.LAW.exponents["length"], "span": fig3.LAW.exponents["burst"]}
"""Of its Transformers (its Fig. 3)."""
Laws = Mapping[tuple[str, int], Law]
"""By flow or optimizer, and stage; without those that cannot be fitted."""


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
    """Cells that differ from one of them in one number."""

    base: Cell
    lengths: tuple[int, ...]
    spans: tuple[int, ...]
    importances: tuple[float, ...]

    @property
    def cells(self) -> list[Cell]:
        cells = [self.base._replace(length=T) for T in self.lengths]
        cells += [self.base._replace(span=n) for n in self.spans]
        cells += [self.base._replace(importance=m) for m in self.importances]
        return list(dict.fromkeys(cells))

    def along(self, table: pd.DataFrame, axis: str) -> pd.DataFrame:
        """The rows that differ from the base in `axis` alone."""
        others = [name for name in AXES if name != axis]
        return table[np.all([table[name] == getattr(self.base, name) for name in others], 0)]


@dataclasses.dataclass(frozen=True)
class Settings:
    flows: Star = Star(Cell(64, 2, 1.7), (16, 32, 64, 128), (1, 2, 4), (1.3, 1.7, 2.2, 2.6))
    trained: Star = Star(Cell(16, 2, 1.7), (8, 16, 32, 64), (1, 2, 4), (1.3, 1.7, 2.2, 2.8))
    optimizers: tuple[Optimizer, ...] = (Optimizer("sgd", 100.0), ADAMW)
    heads: int = 2
    seeds: int = 5
    flow_scale: float = 1e-6
    """The initial scale of the flows."""
    scale: float = 1e-3
    """The initial scale of the models."""
    points: int = 600
    vocabulary: int = 50
    batch: int = 1000
    steps: int = 30_000
    n_test: int = 1000
    sequences: int = 1 << 15
    """From which the signal is measured."""

    def studies(self, optimizer: Optimizer) -> dict[str, Study]:
        """One per cell. One token is to be predicted, after `length` uniform ones: all positions are alike, as in the flow. A
        run ends when both groups are learned, and a tenth of its time later."""
        model, by_cell = MinimalAttention(heads=self.heads, scale=self.scale), {}
        training: dict[str, Any] = {"batch": self.batch, "steps": self.steps, "n_test": self.n_test, "seeds": self.seeds}
        training |= {"precision": "fp32", "threshold": 0.15, "overtrain": 0.1}
        for cell in self.trained.cells:
            task = MarkovChain(cell.groups, self.vocabulary, generated=1, prefix=cell.length)
            name = f"{optimizer.label}, T = {cell.length}, n = {cell.span}, m = {cell.importance:g}"
            by_cell[name] = Study(task, model, optimizer, **training)
        return by_cell


def studies(settings: Settings) -> dict[str, Study]:
    return {name: study for optimizer in settings.optimizers for name, study in settings.studies(optimizer).items()}


def make(settings: Settings, source: RunSource) -> Outcome:
    trained = source.runs(studies(settings), curves=True)
    rows = []
    for i, flow in enumerate(FLOWS):
        source(f"{flow} flow", i / len(FLOWS))
        rows += flow_rows(flow, settings)
    for runs in trained.values():
        rows += trained_rows(ChainRuns(runs), settings)
    table = pd.DataFrame(rows)
    laws, derived = laws_of(table), laws_of(table, "derived")
    return Outcome(
        tables={"times": table},
        plot=draw(table, laws, derived, settings),
        laws=[Comparison(f"stage {stage}, {NAMES[part]}", law) for (part, stage), law in laws.items()],
        checks=meeting_checks(settings) + stage_checks(table, laws, derived),
        precision="float64 (flows), fp32 (trained)",
        device=provenance_of(trained),
    )


def flow_rows(flow: incremental.Flow, settings: Settings) -> list[dict[str, Any]]:
    """When the loss has done half of each drop, and when the closed forms say."""
    rows = []
    for cell in settings.flows.cells:
        first = incremental.first_stage(cell.groups, cell.length, settings.heads, flow)
        second = incremental.escape_factor(cell.groups, cell.length, settings.heads, flow) * np.log(settings.flow_scale) ** 2
        times = np.append(0, np.geomspace(0.05 * first, 5 * first + FAR[flow] * second, settings.points))
        path = incremental.trajectory(
            cell.groups, times, settings.heads, cell.length, flow, settings.flow_scale, np.arange(settings.seeds)
        )
        halves = incremental.stage_times(path, incremental.plateaus(cell.groups, settings.heads))
        for seed, stages in enumerate(halves):
            for stage, (time, derived) in enumerate(zip(stages, (first, second), strict=True), 1):
                late = bool(np.isnan(time))
                row = {"part": flow, "seed": seed, "stage": stage, "time": times[-1] if late else time, "censored": late}
                rows.append(cell.columns | row | {"state": "censored" if late else "reached", "derived": derived})
    return rows


def trained_rows(runs: ChainRuns, settings: Settings) -> list[dict[str, Any]]:
    """When some head has half of its weight on the group."""
    rows = []
    for result, curve in zip(runs.results, runs.curves, strict=True):
        config, seed = result.run.config, result.run.seed
        cell = Cell(chain_of(config).given, runs.groups.spans[0], runs.groups.importance)
        part, largest = config.optimizer.label, runs.group_attention(curve).max(1)
        first = derived_first(config, seed, settings.sequences) if part == "sgd" else np.nan
        for stage, derived in ((1, first), (2, np.nan)):
            half = emergence(curve["step"], largest[:, stage - 1], 0.5, "above")
            row = {"part": part, "seed": seed, "stage": stage, "time": half.time, "censored": half.censored}
            rows.append(cell.columns | row | {"state": half.state, "derived": derived})
    return rows


@functools.lru_cache(maxsize=1024)
def derived_first(config: Config, seed: int, sequences: int) -> float:
    r"""The first stage of a minimal model trained by plain gradient descent, in steps, from the flow alone.

    A position of group 1 has the signal $q$ of its token; the curvature of the loss is $1/V^2$ per head and position; logits
    are parameters over $\sqrt D$, and so move at $1/D$ of the values' speed.
    """
    task, heads = chain_of(config), getattr(config.model, "heads", 1)
    key = raw(jax.random.key(seed))
    truth = task.truth(fold_in(key, 0))
    q = np.asarray(task.signals(truth, task.sample(fold_in(key, 4), sequences, truth)))[task.groups.members[0]]
    signal = float(np.linalg.norm(q)) / np.sqrt((task.spec.inputs + task.spec.length) * task.generated)
    return task.given * incremental.takeoff(signal, heads / task.vocabulary**2) / config.optimizer.learning_rate


def laws_of(table: pd.DataFrame, y: str = "time") -> dict[tuple[str, int], Law]:
    """The power laws of the stages' times, as measured or derived."""
    places = [(str(part), stage) for part in table["part"].unique() for stage in (1, 2)]
    laws = {(part, stage): law_of(table, part, stage, y) for part, stage in places}
    return {place: law for place, law in laws.items() if law is not None}


def law_of(table: pd.DataFrame, part: str, stage: int, y: str = "time") -> Law | None:
    """The power law of a stage's time; with censored runs, the fit that uses them. None where there is nothing to fit."""
    rows = table[(table["part"] == part) & (table["stage"] == stage)]
    if y == "derived":
        rows = rows.assign(censored=False, state="reached")
    if rows[y].isna().all():
        return None
    try:
        law = fit_law(rows, y, TERMS[stage], what=f"stage {stage} of {part}")
    except InputError:  # too few runs came so far
        return None
    return law.with_censored or law


def compare_single(T: int, dim: int, n: int) -> tuple[float, float]:
    """One head with one group of n positions against the single location with n copies: the largest difference of their losses,
    over their start, and the ratio of the times of half attention."""
    times = np.linspace(0, 2.5 * float(theory.predicted_plateau(theory.cells(T, dim, n), "exact")), 400)
    single = theory.trajectory(theory.cells(T, dim, n), times, "exact")
    group = Groups((n,), weights=((float(np.sqrt(dim)),) * n,))
    heads = incremental.trajectory(group, times / dim, 1, T, scale=0.0)
    one, other = (emergence(times, a, 0.5, "above").time for a in (heads.attention[:, 0, :n].sum(-1), single.attention))
    return float(np.max(np.abs(single.loss - heads.loss / dim)) / single.loss[0]), one / other


def meeting_checks(settings: Settings, dim: int = 16) -> list[Check]:
    """The single location as one head and one group: the same loss for one copy, the same plateau for several."""
    T = settings.flows.base.length
    copies = max(1, T // 16)
    difference, _ = compare_single(T, dim, 1)
    checks = [
        Check(
            f"single location (T = {T}, d = {dim}) and one head with n = 1, m = √d: largest difference of the loss",
            difference,
            None,
            difference < 1e-6,
            "0: one flow in two notations, time in units of d",
        )
    ]
    if copies > 1:
        ratios = [compare_single(length, dim, copies)[1] for length in (T, 4 * T)]
        near, far = (abs(ratio - 1) for ratio in ratios)
        checks.append(
            Check(
                f"the same with {copies} copies: time of half attention, one head over single location, at T and 4T",
                ratios,
                None,
                far < 0.7 * near and far < 0.1,
                "1 where T is much larger than B: within 10%, and nearer, at 4T",
            )
        )
    return checks


def stage_checks(table: pd.DataFrame, laws: Laws, derived: Laws) -> list[Check]:
    first = [part for part in (*FLOWS, "sgd") if (part, 1) in laws and (part, 1) in derived]
    checks = [exponent_check(part, laws[part, 1], derived[part, 1]) for part in first]
    for part, other in (FLOWS, FLOWS[::-1]):
        if (part, 2) in laws:
            checks.append(nearer_check(part, laws[part, 2], derived[part, 2], derived[other, 2]))
    reached = table[(table["part"] == "sgd") & (table["stage"] == 1) & ~table["censored"].astype(bool)]
    if len(reached):
        checks.append(level_check(float(np.exp(np.log(reached["time"] / reached["derived"]).mean()))))
    both = [part for part in ("sgd", "adamw") if (part, 1) in laws and (part, 2) in laws]
    return checks + [opposed_check(part, laws[part, 1], laws[part, 2]) for part in both]


def exponent_check(part: str, law: Law, expected: Law) -> Check:
    """The first stage: exponents as derived."""
    off = {n: law.exponents[n] - expected.exponents[n] for n in law.exponents}
    least = 0.15 if part in FLOWS else 0.25  # the signal of group 1 is derived as if group 2 were not there
    holds = all(abs(off[n]) <= max(least, float(np.ptp(law.ci95[n])) / 2) for n in off)
    name = f"stage 1, {NAMES[part]}: exponents less the derived ones"
    return Check(name, off, None, holds, f"0 within {least} or half of the interval")


def nearer_check(part: str, law: Law, own: Law, other: Law) -> Check:
    """The second stage, derived to leading order in log(1/s): exponents nearer to their own flow than to the other."""
    shown = {n: [law.exponents[n], own.exponents[n], other.exponents[n]] for n in ("length", "span")}
    holds = all(abs(measured - mine) < abs(measured - theirs) for measured, mine, theirs in shown.values())
    name = f"stage 2, {NAMES[part]}: exponents of T and n, derived, derived for the other flow"
    return Check(name, shown, None, holds, "nearer to their own")


def level_check(level: float) -> Check:
    name = "stage 1, trained, SGD: steps over those derived without a fit, geometric mean"
    return Check(name, level, None, 1 / 1.5 < level < 1.5, "1 within a factor of 1.5")


def opposed_check(part: str, one: Law, two: Law) -> Check:
    """What the strength of the first group does to both stages."""
    exponents = [one.exponents["importance"], two.exponents["gap"]]
    holds = bool(exponents[0] < 0 < exponents[1] and two.ci95["gap"][0] > 0)
    words = "a stronger first group is found sooner and left later: below 0, above 0"
    return Check(f"{NAMES[part]}: exponent of m in stage 1 and of m² - 1 in stage 2", exponents, None, holds, words)


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
    words = (
        "a  flow, integrated (dots) and derived (lines)",
        "b  trained (dots) and derived without a fit (line)",
        "c  exponents: measured (dots), derived (bars)",
    )
    for axes, text in zip(grid[:, 0], words, strict=True):
        axes.set_title(text)
    marks = [
        ("stage 1: group 1 found", {"marker": "o", "ls": ""}),
        ("stage 2: heads part", {"marker": "s", "ls": "", "mfc": "white"}),
    ]
    key(grid[0, 2], marks, loc="upper left")
    key(grid[0, 1], [(NAMES[part], {"color": COLOURS[part]}) for part in FLOWS], loc="upper left")
    key(grid[1, 1], [(NAMES[part], {"color": COLOURS[part]}) for part in trained], loc="upper left")
    return plot


LOOKS: dict[int, dict[str, Any]] = {
    1: {"marker": "o", "mec": "white", "mew": 0.5},
    2: {"marker": "s", "mfc": "white", "mew": 0.9},
}
"""Of the stages."""


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


class ExponentRow(NamedTuple):
    """One theory or measurement."""

    label: str
    colour: str
    stage: int
    law: Law | None = None
    derived: float | None = None
    printed: float | None = None


def exponent_rows(laws: Laws, derived: Laws, axis: str, trained: Sequence[str]) -> list[ExponentRow]:
    rows = [
        ExponentRow("zucchet2025, flow", BLACK, 1, derived=SINGLE[axis]),
        ExponentRow("zucchet2025, Fig. 3", GREY, 1, printed=PRINTED.get(axis)),
    ]
    for stage in (1, 2):
        for part in (*FLOWS, *trained):
            expected = derived.get((part, stage))
            exponent = None if expected is None else expected.exponents[term_of(axis, stage)]
            rows.append(ExponentRow(NAMES[part], COLOURS[part], stage, laws.get((part, stage)), exponent))
    return rows


def term_of(axis: str, stage: int) -> str:
    """What stands for an axis in the law of a stage."""
    return TERMS[stage][list(AXES).index(axis)]


def draw_exponents(axes: Axes, laws: Laws, derived: Laws, axis: str, trained: Sequence[str]) -> None:
    """One row per theory or measurement: the first stage above, the second below."""
    rows = exponent_rows(laws, derived, axis, trained)
    half = sum(row.stage == 1 for row in rows)
    heights, labels = [1.0, -half - 0.4], ["stage 1: group 1 found", "stage 2: heads part"]
    for i, row in enumerate(rows):
        y = -i - 1.4 * (row.stage == 2)
        heights.append(y)
        labels.append(row.label)
        if row.derived is not None:
            axes.plot([row.derived] * 2, [y - 0.36, y + 0.36], color=row.colour, lw=2.4, solid_capstyle="butt", alpha=0.5)
        if row.printed is not None:
            axes.plot(row.printed, y, "D", color=row.colour, ms=4)
        if row.law is not None:
            term = term_of(axis, row.stage)
            axes.plot(row.law.ci95[term], [y, y], color=row.colour, lw=1)
            axes.plot(row.law.exponents[term], y, color=row.colour, ms=4.5, **LOOKS[row.stage])
    axes.axvline(0, color=GREY, lw=0.6)
    axes.set_yticks(heights, labels if axis == "length" else [])
    for label in axes.get_yticklabels()[:2]:
        label.set_fontweight("bold")
    axes.set_ylim(min(heights) - 0.7, 1.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    words = {"length": "exponent of $T$", "span": "exponent of $n$", "importance": "exponent of $m$ (stage 2: $m^2 - 1$)"}
    axes.set_xlabel(words[axis])


SGD = Optimizer("sgd", 30.0)
FIGURE = Figure(
    id="emergo/stages",
    title="a single location's plateau is the first stage of several heads; the second depends on T, n and m otherwise",
    presets={
        "paper": Settings(),
        "laptop": Settings(
            flows=Star(Cell(64, 2, 1.7), (16, 32, 64), (1, 2, 4), (1.3, 1.7, 2.2)),
            trained=Star(Cell(16, 2, 1.7), (8, 16, 32), (1, 2, 3), (1.3, 1.7, 2.2)),
            optimizers=(SGD,),
            seeds=3,
            vocabulary=16,
            batch=128,
            steps=2500,
            n_test=256,
            sequences=1 << 14,
        ),
        "smoke": Settings(
            flows=Star(Cell(6, 1, 2.0), (6, 12), (1, 2), (2.0, 3.0)),
            trained=Star(Cell(4, 1, 2.0), (4,), (1,), (2.0, 3.0)),
            optimizers=(SGD,),
            seeds=2,
            flow_scale=1e-3,
            points=100,
            vocabulary=5,
            batch=32,
            steps=60,
            n_test=32,
            sequences=256,
        ),
    },
    make=make,
    studies=studies,
    curves=True,
    seconds={"paper": 40_000, "laptop": 109, "smoke": 25},
    caveat={
        "laptop": "flows T ≤ 64 and m ≤ 2.2; SGD only, 16 tokens, batches of 128, T ≤ 32, n ≤ 3; 3 seeds",
        "smoke": "T ≤ 12, 5 tokens, batches of 32, at most 60 steps",
    },
)
