"""The plateau of zucchet2025 is the first stage of yuksel2026; and the laws of the second stage.

The two theories share one flow (docs/theory.md, "Where the two papers meet"): B copies are a group
of n positions, T is T, and the signal is m, in the first paper √d in a time unit of d. A stage of
the flow ends at half of its drop of the loss. The levels of trained models lack a closed form, so
their stages end when some head has half of its weight on the group.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ... import theory
from ...core.errors import InputError
from ...core.plotting import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, outside
from ...core.random import fold_in, raw
from ...measure import Law, emergence, fit_law
from ...models import MinimalAttention
from ...study import Study
from ...tasks import Groups, MarkovChain
from ...theory import incremental
from ...training import Config, Optimizer
from .._figure import Check, Comparison, Figure, Outcome, Plot, RunSource
from .._panels import panels
from ..yuksel2026._chains import ADAMW, ChainRun, ChainRuns, chain_of, paper
from ..zucchet2025 import fig3
from ._shared import DOT, HOLLOW, Look, draw_interval, entries, geometric_mean, name_rows

FLOWS: tuple[incremental.Flow, ...] = ("logit", "preconditioned")
# The dots of each stage: in stage 1 group 1 is found, in stage 2 heads part.
LOOKS: dict[int, Look] = {1: DOT, 2: DOT | {"marker": "s"}}
NAMES = {
    "logit": "logit flow",
    "preconditioned": "preconditioned flow",
    "sgd": "trained, SGD",
    "adamw": "trained, AdamW",
}
COLOURS = {"logit": BLUE, "preconditioned": ORANGE, "sgd": GREEN, "adamw": PINK}
AXES = {"length": "length $T$", "span": "positions per group $n$", "importance": "importance $m$"}
EXPONENTS = {
    "length": "exponent of $T$",
    "span": "exponent of $n$",
    "importance": "exponent of $m$ (stage 2: $m^2 - 1$)",
}
# Exponents of the plateau in the flow of zucchet2025: √(π/2) T/(√n m).
SINGLE = {"length": 1.0, "span": -0.5, "importance": -1.0}
# The time to integrate, in units of the leading order of the second stage, which is approached
# slowly as log(1/s) grows.
FAR = {"logit": 2.5, "preconditioned": 8.0}
# Exponents that zucchet2025 reports for Transformers.
PRINTED = {"length": fig3.LAW.exponents["length"], "span": fig3.LAW.exponents["burst"]}
# Laws by flow or optimizer, and stage; only those with enough runs.
Laws = Mapping[tuple[str, int], Law]
HEADS = 2
# One token is predicted after `length` uniform ones, so all positions are alike, as in the flow. A
# run ends a tenth of its time after both groups are learned.
STUDY = paper(
    MinimalAttention(heads=HEADS, scale=1e-3),
    MarkovChain(vocabulary=50, generated=1),
    batch=1000,
    n_train=None,
).replace(steps=30_000, n_test=1000, threshold=0.15, overtrain=0.1)


class Cell(NamedTuple):
    """Two groups of `span` positions among `length`; the first is `importance` times as strong."""

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
    """Cells that differ from a base cell in one number: the other values by axis."""

    base: Cell
    length: tuple[int, ...]
    span: tuple[int, ...]
    importance: tuple[float, ...]

    @property
    def cells(self) -> list[Cell]:
        cells = [
            self.base._replace(**{axis: value}) for axis in AXES for value in getattr(self, axis)
        ]
        return list(dict.fromkeys(cells))

    def along(self, table: pd.DataFrame, axis: str) -> pd.DataFrame:
        """Return the rows that differ from the base in `axis` alone."""
        others = [name for name in AXES if name != axis]
        return table[np.all([table[name] == getattr(self.base, name) for name in others], 0)]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the figure.

    - `flows`, `trained`: the cells of the flows and of the trained models.
    - `flow_scale`: the initial scale of the flows.
    - `sequences`: the sample size from which the signal is measured.
    """

    flows: Star = Star(Cell(64, 2, 1.7), (16, 32, 64, 128), (1, 2, 4), (1.3, 1.7, 2.2, 2.6))
    trained: Star = Star(Cell(16, 2, 1.7), (8, 16, 32, 64), (1, 2, 4), (1.3, 1.7, 2.2, 2.8))
    optimizers: tuple[Optimizer, ...] = (Optimizer("sgd", 100.0), ADAMW)
    study: Study = STUDY
    flow_scale: float = 1e-6
    points: int = 600
    sequences: int = 1 << 15

    def studies(self) -> dict[str, Study]:
        """Return one study per optimizer and cell."""
        every = {}
        for optimizer, cell in itertools.product(self.optimizers, self.trained.cells):
            name = f"{optimizer.label}, T = {cell.length}, n = {cell.span}, m = {cell.importance:g}"
            every[name] = self.study.replace(
                optimizer=optimizer, task__groups=cell.groups, task__prefix=cell.length
            )
        return every


def make(settings: Settings, source: RunSource) -> Outcome:
    trained = source.runs(settings.studies(), curves=True)
    rows = []
    for i, flow in enumerate(FLOWS):
        source.report(f"{flow} flow", i / len(FLOWS))
        rows += flow_rows(flow, settings)
    for runs in trained.values():
        for run in ChainRuns(runs):
            rows += trained_rows(run, settings.sequences)
    table = pd.DataFrame(rows)
    laws = laws_of(table)
    derived = laws_of(table, "derived")
    return Outcome(
        {"times": table},
        draw(table, laws, derived, settings),
        [Comparison(f"stage {stage}, {NAMES[part]}", law) for (part, stage), law in laws.items()],
        [*meeting_checks(settings.flows.base.length), *stage_checks(table, laws, derived)],
        precision="float64 (flows), fp32 (trained)",
    )


def flow_rows(flow: incremental.Flow, settings: Settings) -> list[dict[str, Any]]:
    """Integrate the flow of each cell: the times of half drops, and the closed forms."""
    rows = []
    scale = settings.flow_scale
    seeds = np.array(settings.study.seeds)
    for cell in settings.flows.cells:
        about = cell.groups, cell.length, HEADS, flow
        first = incremental.first_stage(*about)
        second = incremental.escape_factor(*about) * np.log(scale) ** 2
        end = 5 * first + FAR[flow] * second
        times = np.append(0, np.geomspace(0.05 * first, end, settings.points))
        path = incremental.trajectory(cell.groups, times, HEADS, cell.length, flow, scale, seeds)
        halves = incremental.stage_times(path, incremental.plateaus(cell.groups, HEADS))
        for seed, stage in itertools.product(range(len(halves)), (1, 2)):
            time = halves[seed][stage - 1]
            late = bool(np.isnan(time))
            row = {"part": flow, "seed": seed, "stage": stage}
            row |= {"time": times[-1] if late else time, "censored": late}
            row |= {"state": "censored" if late else "reached"}
            rows.append(cell.columns | row | {"derived": (first, second)[stage - 1]})
    return rows


def trained_rows(run: ChainRun, sequences: int) -> list[dict[str, Any]]:
    """Measure when some head has half of its weight on each group."""
    rows = []
    part = run.config.optimizer.label
    groups = run.groups
    cell = Cell(chain_of(run.config).given, groups.spans[0], groups.importance)
    first = derived_first(run.config, run.seed, sequences) if part == "sgd" else np.nan
    for stage, derived in ((1, first), (2, np.nan)):
        weight = run.group_attention[:, :, stage - 1].max(1)
        half = emergence(run["step"], weight, 0.5, "above")
        row = {"part": part, "seed": run.seed, "stage": stage, "time": half.time}
        row |= {"censored": half.censored, "state": half.state, "derived": derived}
        rows.append(cell.columns | row)
    return rows


@functools.lru_cache(maxsize=1024)
def derived_first(config: Config, seed: int, sequences: int) -> float:
    r"""Derive the first stage of a minimal model trained by gradient descent, in steps.

    A position of group 1 has the signal $q$ of its token. The curvature of the loss is $1/V^2$ per
    head and position. Logits are parameters over $\sqrt D$, so they move at $1/D$ of the speed of
    the values.
    """
    task = chain_of(config)
    key = raw(jax.random.key(seed))
    truth = task.truth(fold_in(key, 0))
    signals = task.signals(truth, task.sample(fold_in(key, 4), sequences, truth))
    q = np.asarray(signals)[task.groups.members[0]]
    width = task.spec.inputs + task.spec.length
    signal = float(np.linalg.norm(q)) / np.sqrt(width * task.generated)
    time = incremental.takeoff(signal, HEADS / task.vocabulary**2)
    return task.given * time / config.optimizer.learning_rate


def term_of(axis: str, stage: int) -> str:
    """Return the term of an axis in the law of a stage.

    In the second stage, importance enters as m² - 1, the lead of group 1 in n m² over group 2.
    """
    return "gap" if (axis, stage) == ("importance", 2) else axis


def laws_of(table: pd.DataFrame, y: str = "time") -> dict[tuple[str, int], Law]:
    """Fit power laws of the stages, as measured or derived.

    If runs are censored, the law is the fit that includes them.
    """
    laws = {}
    for part, stage in itertools.product(table["part"].unique(), (1, 2)):
        rows = table[(table["part"] == part) & (table["stage"] == stage)]
        if y == "derived":
            rows = rows.assign(censored=False, state="reached")
        if rows[y].isna().all():
            continue
        terms = [term_of(axis, stage) for axis in AXES]
        with contextlib.suppress(InputError):  # too few runs got there
            law = fit_law(rows, y, terms, what=f"stage {stage} of {part}")
            laws[part, stage] = law.with_censored or law
    return laws


def compare_single(T: int, dim: int, n: int) -> tuple[float, float]:
    """Compare a head with one group of n positions with the single location with n copies.

    Returns the largest difference of their losses, relative to the initial loss, and the ratio of
    the times of half attention.
    """
    cell = theory.cells(T, dim, n)
    times = np.linspace(0, 2.5 * float(theory.predicted_plateau(cell, "exact")), 400)
    single = theory.trajectory(cell, times, "exact")
    group = Groups((n,), weights=((float(np.sqrt(dim)),) * n,))
    heads = incremental.trajectory(group, times / dim, 1, T, scale=0.0)
    attention = heads.attention[:, 0, :n].sum(-1), single.attention
    one, other = (emergence(times, values, 0.5, "above").time for values in attention)
    return float(np.max(np.abs(single.loss - heads.loss / dim)) / single.loss[0]), one / other


def meeting_checks(T: int, dim: int = 16) -> Iterator[Check]:
    """Check that a single location is one head and one group.

    The loss is the same for one copy, and the plateau for several copies.
    """
    difference, _ = compare_single(T, dim, 1)
    yield Check(
        f"single location (T = {T}, d = {dim}) and one head with n = 1, m = √d: largest "
        f"difference of the loss",
        difference,
        None,
        difference < 1e-6,
        "0: one flow in two notations, time in units of d",
    )
    copies = T // 16
    if copies > 1:
        ratios = [compare_single(length, dim, copies)[1] for length in (T, 4 * T)]
        near, far = (abs(ratio - 1) for ratio in ratios)
        yield Check(
            f"the same with {copies} copies: time of half attention, one head over single "
            f"location, at T and 4T",
            ratios,
            None,
            far < 0.7 * near and far < 0.1,
            "1 where T is much larger than B: within 10%, and nearer, at 4T",
        )


def stage_checks(table: pd.DataFrame, laws: Laws, derived: Laws) -> Iterator[Check]:
    for part in (*FLOWS, "sgd"):
        if (part, 1) in laws and (part, 1) in derived:
            law = laws[part, 1]
            exponents = derived[part, 1].exponents
            off = {n: law.exponents[n] - exponents[n] for n in law.exponents}
            # In trained models, group 2 disturbs the signal of group 1, which is derived alone.
            least = 0.15 if part in FLOWS else 0.25
            holds = all(abs(off[n]) <= max(least, np.ptp(law.ci95[n]) / 2) for n in off)
            yield Check(
                f"stage 1, {NAMES[part]}: exponents less the derived ones",
                off,
                None,
                holds,
                f"0 within {least} or half of the interval",
            )
    for part, other in (FLOWS, FLOWS[::-1]):
        if (part, 2) in laws:
            # Derived to leading order in log(1/s).
            three = [
                each[one, 2] for each, one in ((laws, part), (derived, part), (derived, other))
            ]
            shown = {n: [law.exponents[n] for law in three] for n in ("length", "span")}
            holds = all(abs(own - one) < abs(own - two) for own, one, two in shown.values())
            yield Check(
                f"stage 2, {NAMES[part]}: exponents of T and n, derived, "
                f"derived for the other flow",
                shown,
                None,
                holds,
                "nearer to their own",
            )
    first = table[(table["part"] == "sgd") & (table["stage"] == 1)]
    reached = first[~first["censored"].astype(bool)]
    if len(reached):
        level = geometric_mean(reached["time"] / reached["derived"])
        yield Check(
            "stage 1, trained, SGD: steps over those derived without a fit, geometric mean",
            level,
            None,
            1 / 1.5 < level < 1.5,
            "1 within a factor of 1.5",
        )
    for part in ("sgd", "adamw"):
        if (part, 1) in laws and (part, 2) in laws:
            one = laws[part, 1].exponents["importance"]
            two = laws[part, 2].exponents["gap"]
            holds = one < 0 < two and laws[part, 2].ci95["gap"][0] > 0
            yield Check(
                f"{NAMES[part]}: exponent of m in stage 1 and of m² - 1 in stage 2",
                [one, two],
                None,
                holds,
                "a stronger first group is found sooner and left later: below 0, above 0",
            )


def draw(table: pd.DataFrame, laws: Laws, derived: Laws, settings: Settings) -> Plot:
    titles = (
        *("a  flow, integrated (dots) and derived (lines)", "", ""),
        *("b  trained (dots) and derived without a fit (line)", "", ""),
        *("c  exponents: measured (dots), derived (bars)", "", ""),
    )
    plot, every = panels(7.4, *titles, rows=3, share="row")
    trained = [optimizer.label for optimizer in settings.optimizers]
    rows = (
        (every[:3], FLOWS, settings.flows, "flow time of the stage"),
        (every[3:6], trained, settings.trained, "step of the stage"),
    )
    for row, parts, star, label in rows:
        for axes, axis in zip(row, AXES, strict=True):
            along = star.along(table[table["part"].isin(parts)], axis)
            draw_times(axes, along, parts, axis)
        row[0].set_ylabel(label)
        marks = [(f"stage {stage}", look) for stage, look in LOOKS.items()]
        outside(row[2], "", [*entries({NAMES[part]: COLOURS[part] for part in parts}), *marks])
    for axes, axis in zip(every[6:], AXES, strict=True):
        draw_exponents(axes, laws, derived, axis, trained)
    return plot


def draw_times(axes: Axes, table: pd.DataFrame, parts: Sequence[str], axis: str) -> None:
    """Draw the times of both stages along an axis, with the derived ones as lines."""
    for part, (stage, look) in itertools.product(parts, LOOKS.items()):
        colour = COLOURS[part]
        rows = table[(table["part"] == part) & (table["stage"] == stage)]
        line = rows.groupby(axis)["derived"].mean()
        axes.plot(line.index, line, color=colour, lw=1.1, zorder=1)
        late = rows["censored"].astype(bool)
        for some, shape in ((rows[~late], look), (rows[late], HOLLOW)):
            axes.plot(some[axis], some["time"], color=colour, **shape)
    axes.set(xscale="log", yscale="log", xlabel=AXES[axis])
    sizes = sorted(set(table[axis].tolist()))
    axes.set_xticks(sizes, sizes)
    axes.minorticks_off()


def draw_exponents(
    axes: Axes, laws: Laws, derived: Laws, axis: str, trained: Sequence[str]
) -> None:
    """Draw one row per theory or measurement: the first stage above, the second below."""
    names = ["zucchet2025, flow", "zucchet2025, Fig. 3"]
    draw_bar(axes, SINGLE[axis], 0, BLACK)
    axes.plot(PRINTED.get(axis, np.nan), 1, color=GREY, **DOT)
    for stage, part in itertools.product((1, 2), (*FLOWS, *trained)):
        y = len(names)
        names.append(f"{stage}: {NAMES[part]}")
        term = term_of(axis, stage)
        if (part, stage) in derived:
            draw_bar(axes, derived[part, stage].exponents[term], y, COLOURS[part])
        if (part, stage) in laws:
            law = laws[part, stage]
            ends = law.ci95[term]
            draw_interval(axes, law.exponents[term], ends, y, COLOURS[part], **LOOKS[stage])
    axes.axvline(0, color=GREY, lw=0.6)
    name_rows(axes, names)
    axes.set_xlabel(EXPONENTS[axis])


def draw_bar(axes: Axes, exponent: float, y: float, colour: str) -> None:
    axes.plot([exponent] * 2, [y - 0.36, y + 0.36], color=colour, lw=2.4, alpha=0.5)


SGD = Optimizer("sgd", 30.0)
SMALL = Settings(
    Star(Cell(64, 2, 1.7), (16, 32, 64), (1, 2, 4), (1.3, 1.7, 2.2)),
    Star(Cell(16, 2, 1.7), (8, 16, 32), (1, 2, 3), (1.3, 1.7, 2.2)),
    optimizers=(SGD,),
    study=STUDY.replace(task__vocabulary=16, batch=128, steps=2500, n_test=256, seeds=3),
    sequences=1 << 14,
)
TINY = dataclasses.replace(
    SMALL,
    flows=Star(Cell(6, 1, 2.0), (6, 12), (1, 2), (2.0, 3.0)),
    trained=Star(Cell(4, 1, 2.0), (4,), (1,), (2.0,)),
    study=STUDY.replace(task__vocabulary=5, batch=32, steps=60, n_test=32, seeds=2),
    flow_scale=1e-3,
    points=100,
    sequences=256,
)
FIGURE = Figure(
    "emergo/stages",
    "a single location's plateau is the first stage of several heads; the second depends on "
    "T, n and m otherwise",
    {"paper": Settings(), "laptop": SMALL, "smoke": TINY},
    make,
    {"paper": 40_000, "laptop": 109, "smoke": 25},
    curves=True,
)
