"""One transition, two papers: the plateau of a single location is the first stage of several heads; what rules the second.

The two theories meet in one flow (`docs/theory.md`, "Where the two papers meet"): B copies are a group of n positions, T is T,
and the signal is m, in the first paper √d in a time unit of d. A stage of the flow is dated by half of its drop of the loss,
one of a trained model, whose levels have no closed form, by half of some head's weight on the group.
"""

import dataclasses
import functools
from collections.abc import Sequence
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
from ...engine import Config, Optimizer, Run
from ...measure import Law, emergence, fit_law, group_mass
from ...models import MinimalAttention
from ...studies import Result, provenance_of
from ...tasks import Groups, MarkovChain
from ...theory import incremental
from .._figure import Check, Comparison, Figure, Outcome
from .._work import Work
from ..zucchet2025 import fig3

FLOWS: tuple[incremental.Flow, ...] = ("logit", "preconditioned")
NAMES = {"logit": "logit flow", "preconditioned": "preconditioned flow", "sgd": "trained, SGD", "adamw": "trained, AdamW"}
COLOURS = {"logit": BLUE, "preconditioned": ORANGE, "sgd": GREEN, "adamw": PINK}
AXES = {"length": "length $T$", "span": "positions a group $n$", "importance": "importance $m$"}
TERMS = {1: ("length", "span", "importance"), 2: ("length", "span", "gap")}
"""Of the laws of the two stages; gap is m² - 1, the lead of group 1 in n m² over group 2."""
SINGLE = {"length": 1.0, "span": -0.5, "importance": -1.0}
"""Exponents of the plateau in zucchet2025's task, in the flow of its model: √(π/2) T/(√n m)."""
FAR = {"logit": 2.5, "preconditioned": 8.0}
"""How far to look for the second stage, in units of its leading order, which log(1/s) approaches slowly."""
PRINTED = {"length": fig3.LAW.exponents["length"], "span": fig3.LAW.exponents["burst"]}
"""Of its Transformers (its Fig. 3)."""


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
        found = [self.base._replace(length=T) for T in self.lengths]
        found += [self.base._replace(span=n) for n in self.spans]
        found += [self.base._replace(importance=m) for m in self.importances]
        return list(dict.fromkeys(found))

    def along(self, table: pd.DataFrame, axis: str) -> pd.DataFrame:
        """The rows that differ from the base in `axis` alone."""
        others = [name for name in AXES if name != axis]
        return table[np.all([table[name] == getattr(self.base, name) for name in others], 0)]


@dataclasses.dataclass(frozen=True)
class Settings:
    flows: Star = Star(Cell(64, 2, 1.7), (16, 32, 64, 128), (1, 2, 4), (1.3, 1.7, 2.2, 2.6))
    trained: Star = Star(Cell(16, 2, 1.7), (8, 16, 32, 64), (1, 2, 4), (1.3, 1.7, 2.2, 2.8))
    optimizers: tuple[Optimizer, ...] = (Optimizer("sgd", 100.0), Optimizer("adamw", 0.08, clip=1.0))
    heads: int = 2
    seeds: int = 5
    flow_scale: float = 1e-6
    """The initial scale of the flows."""
    scale: float = 1e-3
    """And of the models."""
    points: int = 600
    vocabulary: int = 50
    batch: int = 1000
    steps: int = 30_000
    tests: int = 1000
    sequences: int = 1 << 15
    """From which the signal is measured."""

    def runs(self, optimizer: Optimizer) -> list[Run]:
        """One token is to be predicted, after `length` uniform ones: all positions are alike, as in the flow."""
        found = []
        for cell in self.trained.cells:
            task = MarkovChain(cell.groups, self.vocabulary, generated=1, prefix=cell.length)
            model = MinimalAttention(cell.length, self.vocabulary, self.heads, scale=self.scale)
            # A run ends when both groups are learned, and a tenth of its time later.
            config = Config(task, model, optimizer, self.batch, "fp32", self.steps, 0.15, 0.1, tests=self.tests)
            found += [Run(config, seed) for seed in range(self.seeds)]
        return found


def runs(settings: Settings) -> list[Run]:
    return [run for optimizer in settings.optimizers for run in settings.runs(optimizer)]


def make(settings: Settings, work: Work) -> Outcome:
    found = work.by_part({optimizer.method: settings.runs(optimizer) for optimizer in settings.optimizers}, curves=True)
    rows = []
    for i, flow in enumerate(FLOWS):
        work(f"{flow} flow", i / len(FLOWS))
        rows += flow_rows(flow, settings)
    for name, results in found.items():
        rows += [row for result in results for row in trained_rows(name, result, settings)]
    table = pd.DataFrame(rows)
    laws = {(part, stage): law_of(table, part, stage) for part in (*FLOWS, *found) for stage in (1, 2)}
    derived = {place: law_of(table, *place, "derived") for place in laws}
    return Outcome(
        tables={"times": table},
        plot=draw(table, laws, derived, settings),
        laws=[Comparison(f"stage {stage}, {NAMES[part]}", law) for (part, stage), law in laws.items() if law is not None],
        checks=meeting(settings) + checks_of(table, laws, derived),
        precision="float64 (flows), fp32 (trained)",
        device=provenance_of(found),
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
        found = incremental.stage_times(path, incremental.plateaus(cell.groups, settings.heads))
        for seed, stages in enumerate(found):
            for stage, (time, derived) in enumerate(zip(stages, (first, second), strict=True), 1):
                late = bool(np.isnan(time))
                row = {"part": flow, "seed": seed, "stage": stage, "time": times[-1] if late else time, "censored": late}
                rows.append(cell.columns | row | {"state": "censored" if late else "reached", "derived": derived})
    return rows


def trained_rows(name: str, result: Result, settings: Settings) -> list[dict[str, Any]]:
    """When some head has half of its weight on the group."""
    task = result.run.config.task
    assert isinstance(task, MarkovChain)
    assert result.curves is not None
    cell = Cell(task.given, task.groups.spans[0], task.groups.importance)
    first = derived_first(result.run.config, result.run.seed, settings.sequences) if name == "sgd" else np.nan
    most = group_mass(result.curves["lags"][:, 0], cell.groups.members).max(1)
    rows = []
    for stage, derived in ((1, first), (2, np.nan)):
        found = emergence(result.curves["step"], most[:, stage - 1], 0.5, "above")
        row = {"part": name, "seed": result.run.seed, "stage": stage, "time": found.time, "censored": found.censored}
        rows.append(cell.columns | row | {"state": found.state, "derived": derived})
    return rows


@functools.lru_cache(maxsize=1024)
def derived_first(config: Config, seed: int, sequences: int) -> float:
    r"""The first stage of a minimal model trained by plain gradient descent, in steps, from the flow alone.

    A position of group 1 has the signal $q$ of its token; the curvature of the loss is $1/V^2$ a head and position; logits are
    parameters over $\sqrt D$, and so move at $1/D$ of the values' speed.
    """
    task, model = config.task, config.model
    assert isinstance(task, MarkovChain)
    assert isinstance(model, MinimalAttention)
    at = raw(jax.random.key(seed))
    truth, family = task.truth(fold_in(at, 0)), task.family()  # strengths are in the truth: one program for all of them
    q = np.asarray(family.signals(truth, family.sample(fold_in(at, 4), sequences, truth)))[task.groups.members[0]]
    signal = float(np.linalg.norm(q)) / np.sqrt(model.size * task.generated)
    time = incremental.takeoff(signal, model.heads / task.vocabulary**2)
    return task.given * time / config.optimizer.learning_rate


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


def meeting(settings: Settings, dim: int = 16) -> list[Check]:
    """The single location as one head and one group: the same loss for one copy, the same plateau for several."""
    T = settings.flows.base.length
    copies = max(1, T // 16)

    def both(T: int, n: int) -> tuple[float, float]:
        """The largest difference of the losses, over their start; the ratio of the times of half attention."""
        times = np.linspace(0, 2.5 * float(theory.predicted_plateau(theory.cells(T, dim, n), "exact")), 400)
        single = theory.trajectory(theory.cells(T, dim, n), times, "exact")
        group = Groups((n,), weights=((float(np.sqrt(dim)),) * n,))
        heads = incremental.trajectory(group, times / dim, 1, T, scale=0.0)
        taken = [emergence(times, a, 0.5, "above").time for a in (heads.attention[:, 0, :n].sum(-1), single.attention)]
        return float(np.max(np.abs(single.loss - heads.loss / dim)) / single.loss[0]), taken[0] / taken[1]

    apart, _ = both(T, 1)
    checks = [
        Check(
            f"single location (T = {T}, d = {dim}) and one head with n = 1, m = √d: largest difference of the loss",
            apart,
            None,
            apart < 1e-6,
            "0: one flow in two notations, time in units of d",
        )
    ]
    if copies > 1:
        ratios = [both(length, copies)[1] for length in (T, 4 * T)]
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


def checks_of(table: pd.DataFrame, laws: dict[Any, Law | None], derived: dict[Any, Law | None]) -> list[Check]:
    checks = [exponent_check(part, laws[part, 1], derived[part, 1]) for part in (*FLOWS, "sgd") if laws.get((part, 1))]
    checks += [nearer_check(part, laws[part, 2], [derived[flow, 2] for flow in FLOWS]) for part in FLOWS if laws[part, 2]]
    seen = table[(table["part"] == "sgd") & (table["stage"] == 1) & ~table["censored"].astype(bool)]
    level = float(np.exp(np.log(seen["time"] / seen["derived"]).mean()))
    checks.append(
        Check(
            "stage 1, trained, SGD: steps over those derived without a fit, geometric mean",
            level,
            None,
            1 / 1.5 < level < 1.5,
            "1 within a factor of 1.5",
        )
    )
    for part in [p for p in ("sgd", "adamw") if laws.get((p, 1)) and laws.get((p, 2))]:
        one, two = laws[part, 1], laws[part, 2]
        assert one is not None
        assert two is not None
        opposed = one.exponents["importance"] < 0 < two.exponents["gap"] and two.ci95["gap"][0] > 0
        checks.append(
            Check(
                f"{NAMES[part]}: exponent of m in stage 1 and of m² - 1 in stage 2",
                [one.exponents["importance"], two.exponents["gap"]],
                None,
                bool(opposed),
                "a stronger first group is found sooner and left later: below 0, above 0",
            )
        )
    return checks


def exponent_check(part: str, law: Law | None, expected: Law | None) -> Check:
    """The first stage: exponents as derived."""
    assert law is not None
    assert expected is not None
    off = {n: law.exponents[n] - expected.exponents[n] for n in law.exponents}
    least = 0.15 if part in FLOWS else 0.25  # the signal of group 1 is derived as if group 2 were not there
    within = {n: max(least, float(np.ptp(law.ci95[n])) / 2) for n in law.exponents}
    holds = all(abs(off[n]) <= within[n] for n in off)
    return Check(
        f"stage 1, {NAMES[part]}: exponents less the derived ones",
        off,
        None,
        holds,
        f"0 within {least} or half of the interval",
    )


def nearer_check(part: str, law: Law | None, expected: Sequence[Law | None]) -> Check:
    """The second stage, derived to leading order in log(1/s): exponents nearer to their own flow than to the other."""
    assert law is not None
    own, other = (e.exponents for e in (expected if part == FLOWS[0] else expected[::-1]) if e is not None)
    names = ("length", "span")
    holds = all(abs(law.exponents[n] - own[n]) < abs(law.exponents[n] - other[n]) for n in names)
    shown = {n: [law.exponents[n], own[n], other[n]] for n in names}
    return Check(
        f"stage 2, {NAMES[part]}: exponents of T and n, derived, derived for the other flow",
        shown,
        None,
        holds,
        "nearer to their own",
    )


def draw(table: pd.DataFrame, laws: dict[Any, Law | None], derived: dict[Any, Law | None], settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 7.4), layout="constrained")
    grid: Any = plot.subplots(3, 3, height_ratios=(1, 1, 1.15), gridspec_kw={"wspace": 0.04})
    trained = [optimizer.method for optimizer in settings.optimizers]
    for top, middle, bottom, axis in zip(*grid, AXES, strict=True):
        for axes, parts, star in ((top, FLOWS, settings.flows), (middle, trained, settings.trained)):
            times(axes, [(part, star.along(table[table["part"] == part], axis)) for part in parts], axis)
        exponents(bottom, laws, derived, axis, trained)
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


def times(axes: Axes, parts: Sequence[tuple[str, pd.DataFrame]], axis: str) -> None:
    for part, table in parts:
        for stage, look in ((1, {"marker": "o", "mec": "white", "mew": 0.5}), (2, {"marker": "s", "mfc": "white", "mew": 0.9})):
            rows = table[(table["stage"] == stage) & (table["state"] != "failed")]
            line = rows.groupby(axis)["derived"].mean()
            axes.plot(line.index, line, color=COLOURS[part], lw=1.1, ls="-" if stage == 1 else "--", zorder=1)
            seen, late = rows[~rows["censored"].astype(bool)], rows[rows["censored"].astype(bool)]
            axes.plot(seen[axis], seen["time"], ls="", color=COLOURS[part], ms=4, **look)
            axes.plot(late[axis], late["time"], ls="", color=COLOURS[part], marker="^", mfc="none", ms=5)
    values = sorted(pd.concat([t for _, t in parts])[axis].unique())
    axes.set(xscale="log", yscale="log", xlabel=AXES[axis])
    axes.set_xticks(values, [f"{v:g}" for v in values], minor=False)
    axes.set_xticks([], minor=True)


def exponents(
    axes: Axes, laws: dict[Any, Law | None], derived: dict[Any, Law | None], axis: str, trained: Sequence[str]
) -> None:
    """A row a theory or measurement: the first stage above, the second below."""
    rows: list[tuple[str, str, Law | None, float | None, float | None]] = [
        ("zucchet2025, flow", BLACK, None, SINGLE[axis], None),
        ("zucchet2025, Fig. 3", GREY, None, None, PRINTED.get(axis)),
    ]
    places = [(part, stage) for stage in (1, 2) for part in (*FLOWS, *trained)]
    for part, stage in places:
        name = TERMS[stage][list(AXES).index(axis)]
        expected = derived[part, stage]
        rows.append((NAMES[part], COLOURS[part], laws[part, stage], expected and expected.exponents[name], None))
    half = 2 + len(places) // 2
    heights, labels = [1.0, -half - 0.4], ["stage 1: group 1 found", "stage 2: heads part"]
    for i, (label, colour, law, bar, printed) in enumerate(rows):
        stage = 2 if i >= half else 1
        y = -i - 1.4 * (stage == 2)
        heights.append(y)
        labels.append(label)
        if bar is not None:
            axes.plot([bar, bar], [y - 0.36, y + 0.36], color=colour, lw=2.4, solid_capstyle="butt", alpha=0.5)
        if printed is not None:
            axes.plot(printed, y, "D", color=colour, ms=4)
        if law is not None:
            name = TERMS[stage][list(AXES).index(axis)]
            low, high = law.ci95[name]
            look: dict[str, Any] = (
                {"marker": "s", "mfc": "white"} if stage == 2 else {"marker": "o", "mec": "white", "mew": 0.5}
            )
            axes.plot([low, high], [y, y], color=colour, lw=1)
            axes.plot(law.exponents[name], y, color=colour, ms=4.5, **look)
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
    shows="a single location's plateau is the first stage of several heads; the second depends on T, n and m otherwise",
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
            tests=256,
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
            tests=32,
            sequences=256,
        ),
    },
    make=make,
    runs=runs,
    seconds={"paper": 40_000, "laptop": 109, "smoke": 25},
    shrunk={
        "laptop": "flows T ≤ 64 and m ≤ 2.2; SGD only, 16 tokens, batches of 128, T ≤ 32, n ≤ 3; 3 seeds",
        "smoke": "T ≤ 12, 5 tokens, batches of 32, at most 60 steps",
    },
)
