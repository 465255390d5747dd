"""Studies, measurements and checks shared by the figures of trained chains."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes

from ...core.errors import InputError
from ...core.plotting import shades
from ...measure import (
    Boundary,
    Drop,
    all_hold,
    boundary_of,
    departure,
    find_stages,
    group_mass,
    judge,
    stage_boundaries,
)
from ...models import MinimalAttention, Model
from ...store import curve_frame
from ...study import Study
from ...tasks import Groups, MarkovChain
from ...training import Config, Optimizer, Result
from .._figure import Check, Studies
from .._panels import Colours
from ._contexts import ContextPredictors

CHAIN = MarkovChain()
NEAR = Groups()
PAIR = Groups((1, 1))
ADAMW = Optimizer("adamw", 0.08, clip=1.0, weight_decay=0.01)
FULL = ADAMW.replace(learning_rate=3e-3)
"""The optimizer of the full Transformer."""
TINY = MinimalAttention(heads=2, scale=1e-3)
PAPER: dict[str, Any] = {
    "batch": 3000,
    "n_train": 9000,
    "steps": 2000,
    "n_test": 3000,
    "seeds": 5,
    "precision": "fp32",
    "threshold": None,
}
LAPTOP = {"batch": 256, "n_train": None, "steps": 1200, "n_test": 512, "seeds": 2}
SMOKE = {"batch": 32, "n_train": None, "steps": 60, "n_test": 64, "seeds": 2}
COMPETITION = "competitive: heads converge on the most statistically dominant pattern"
COOPERATION = "cooperative: heads specialize in distinct patterns"
OWN_HEADS = "seeds at whose end each group has a head of its own, the one that looks at it most"


def paper(
    model: Model, task: MarkovChain = CHAIN, optimizer: Optimizer = ADAMW, **changes: Any
) -> Study:
    """Return a study in the paper's setting, with five seeds instead of one.

    Without a threshold, every run trains for all of its steps.
    """
    return Study(task, model, optimizer, **(PAPER | changes))


def laptop(
    model: Model, groups: Groups = NEAR, optimizer: Optimizer = ADAMW, **changes: Any
) -> Study:
    """Return a study that is small enough for a laptop and shows the stages."""
    return paper(model, MarkovChain(groups, 16, generated=12), optimizer, **(LAPTOP | changes))


def smoke(
    model: Model = TINY, groups: Groups = PAIR, optimizer: Optimizer = ADAMW, **changes: Any
) -> Study:
    """Return a study of a few seconds; most figures share its compiled program."""
    return paper(model, MarkovChain(groups, 5, generated=4), optimizer, **(SMOKE | changes))


def on_published_teacher(
    studies: Study | Studies, seeds: int = 3, first: Sequence[Any] = (), **changes: Any
) -> dict[str, Study]:
    """Return studies, and each of them on the teacher of the published runs, with `changes`.

    `first` are further probes for seed 0 of the latter, such as predictors of restricted context,
    whose training takes longer than the run itself. With `seeds=0`, return the studies alone.
    """
    studies = {"runs": studies} if isinstance(studies, Study) else studies
    every = dict(studies)
    for name, study in studies.items() if seeds else ():
        published = study.replace(task__maps="published", seeds=seeds, **changes)
        name = f"{name}, published teacher"
        if first:
            probes = (*study.base.probes, *first)
            every[f"{name}, seed 0"] = published.replace(seeds=1, probes=probes)
            published = published.replace(seeds=range(1, seeds))
        every[name] = published
    return every


def chain_of(config: Config) -> MarkovChain:
    """Return the task of a config as a Markov chain, the only task of this paper's figures."""
    return cast(MarkovChain, config.task)


class ChainRun:
    """The measurements of one run. `run[name]` is a curve with one row per evaluation."""

    def __init__(self, result: Result) -> None:
        self.config = result.run.config
        self.seed = result.run.seed
        self.curves = dict(result.curves or {})
        self.groups = chain_of(self.config).groups
        self.maps = chain_of(self.config).maps

    def __getitem__(self, name: str) -> np.ndarray:
        return self.curves[name]

    def row(self, step: float) -> int:
        """Return the number of the evaluation that is nearest to a step."""
        return int(np.abs(self["step"] - step).argmin())

    @functools.cached_property
    def attention(self) -> Float[np.ndarray, "evaluations heads lags"]:
        """The attention by lag of all heads of all layers."""
        lags = self["attention_by_lag"]
        return lags.reshape(len(lags), -1, lags.shape[-1])

    @functools.cached_property
    def group_attention(self) -> Float[np.ndarray, "evaluations heads groups"]:
        """The attention of all heads on each group."""
        return group_mass(self.attention, self.groups.members)

    @functools.cached_property
    def stages(self) -> list[Drop]:
        """The drops of the KL divergence from the teacher."""
        return find_stages(self["step"], self["kl_teacher"])

    @functools.cached_property
    def departures(self) -> list[float]:
        """The step at which the student leaves each reference except the teacher; NaN if it never
        does."""
        return [departure(self["step"], kl) for kl in self["kl_references"].T[:-1]]

    @property
    def left_at(self) -> list[float]:
        """The finite departures."""
        return [step for step in self.departures if np.isfinite(step)]

    @property
    def favourites(self) -> list[int]:
        """The group with the most attention at the end, for each head."""
        return self.group_attention[-1].argmax(-1).tolist()

    @property
    def learning_order(self) -> list[int]:
        """The groups, counted from 1, in the order in which a head first gives them half of its
        attention.

        Groups that no head attends to that much are left out.
        """
        learned = self.group_attention.max(1) >= 0.5
        return [
            j + 1
            for j in np.argsort(learned.argmax(0), kind="stable").tolist()
            if learned[:, j].any()
        ]


class ChainRuns(list[ChainRun]):
    """The runs of one setting, on drawn teachers and on the published one, without failed runs."""

    def __init__(self, results: Iterable[Result | ChainRun]) -> None:
        every = list(results)
        for one in every:
            if isinstance(one, ChainRun):
                self.append(one)
            elif one.curves is not None and one.failed_step is None:
                self.append(ChainRun(one))
        if not self:
            raise InputError(
                f"all {len(every)} runs of this setting failed, or were recorded without their "
                f"curves"
            )
        self.groups = self[0].groups

    def on(self, maps: Literal["drawn", "published"]) -> "ChainRuns":
        """Return the runs on such teachers, or all runs if it would return no run."""
        return ChainRuns([run for run in self if run.maps == maps] or self)

    @property
    def contexts(self) -> tuple[int, ...]:
        """The context lengths of the predictors that some runs are compared with, or `()`."""
        probes = [probe for run in self for probe in run.config.probes]
        return next((p.contexts for p in probes if isinstance(p, ContextPredictors)), ())

    def mean(self, measure: Callable[[ChainRun], Any]) -> Any:
        """Return the mean of a measurement over runs."""
        return np.mean([measure(run) for run in self], 0)

    @property
    def table(self) -> pd.DataFrame:
        """All curves except attention maps, one row per evaluation."""
        return pd.concat(
            [
                curve_frame({n: c for n, c in run.curves.items() if n != "attention_map"}).assign(
                    seed=run.seed, maps=run.maps
                )
                for run in self
            ],
            ignore_index=True,
        )

    @property
    def boundaries(self) -> list[Boundary]:
        """The ends of the plateaus over seeds."""
        return stage_boundaries([run.stages for run in self])


def part_of(name: str) -> str:
    """Return the part of a figure that a study belongs to.

    It is the study's name up to a comma; the teachers are named after the comma.
    """
    return name.partition(",")[0]


def by_part(parts: Mapping[str, Iterable[Result]]) -> dict[str, ChainRuns]:
    """Return the runs of each part of a figure, on all teachers."""
    together: dict[str, list[Result]] = {}
    for name, results in parts.items():
        together.setdefault(part_of(name), []).extend(results)
    return {name: ChainRuns(results) for name, results in together.items()}


def draw_seeds(
    axes: Axes, runs: Sequence[ChainRun], values: Iterable[np.ndarray], colour: Any
) -> None:
    """Plot a curve of each run against step, dashed on the published teacher.

    The first run on each kind of teacher gets a thicker line.
    """
    drawn: set[str] = set()
    for run, curve in zip(runs, values, strict=True):
        axes.plot(
            run["step"][1:],
            curve[1:],
            color=colour,
            lw=0.6 if run.maps in drawn else 1.6,
            ls="--" if run.maps == "published" else "-",
        )
        drawn.add(run.maps)


def draw_parts(
    axes: Axes,
    parts: Mapping[str, ChainRuns],
    curve: Callable[[ChainRun], np.ndarray] = operator.itemgetter("kl_teacher"),
) -> Colours:
    """Plot a curve of all runs on logarithmic axes, one colour per part, and return the colours."""
    colours = dict(zip(parts, shades(len(parts)), strict=True))
    for name, runs in parts.items():
        draw_seeds(axes, runs, map(curve, runs), colours[name])
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel(step_label([run for runs in parts.values() for run in runs]))
    return colours


def step_label(runs: Iterable[ChainRun]) -> str:
    """Return the label of the axis of steps; it explains dashed lines, if any are drawn."""
    beside = any(run.maps == "published" for run in runs)
    return "step (dashed: published teacher)" if beside else "step"


@dataclasses.dataclass(frozen=True)
class Printed:
    """The content of the paper's figure (one seed), read off its plot or taken from the notebooks
    of its public code.

    - `part`: the part of the figure that the numbers belong to.
    - `step`: the last plotted step, for the KL divergences; None for the end of the runs.
    - `kl_references`: the KL divergences from A_1, ... and the teacher.
    - `least_references`: the smallest KL divergence from A_1, and its step.
    - `kl_contexts`: those from trained predictors of restricted context, short to long.
    - `least_contexts`: the smallest KL divergence from the first of these, and its step.
    """

    boundaries: tuple[float, ...] = ()
    plateau_levels: tuple[float, ...] = ()
    teacher_loss: float | None = None
    step: int | None = None
    kl_references: tuple[float, ...] = ()
    least_references: tuple[float, float] | None = None
    kl_contexts: tuple[float, ...] = ()
    least_contexts: tuple[float, float] | None = None
    part: str = "runs"


NOTHING = Printed()


def named(prefix: str, checks: Iterable[Check]) -> list[Check]:
    """Prefix the names of checks with the part of the figure that they belong to."""
    return [dataclasses.replace(check, name=f"{prefix}: {check.name}") for check in checks]


def comparison_checks(runs: ChainRuns, printed: Printed) -> list[Check]:
    """Compare runs with published numbers, on the published teacher where possible.

    The paper's runs share one teacher, and levels depend on the teacher.
    """
    runs = runs.on("published")
    checks = (
        boundary_checks(runs, printed) + level_checks(runs, printed) + context_checks(runs, printed)
    )
    return named("published teacher", checks) if runs[0].maps == "published" else checks


def intervals(boundaries: Sequence[Boundary]) -> list[tuple[float, ...]]:
    """Return the step of each boundary with its 95% interval."""
    return [boundary[:3] for boundary in boundaries]


def _boundaries(runs: ChainRuns) -> dict[str, list[Boundary]]:
    """Return two measures of the ends of stages, by name."""
    departures = [*map(boundary_of, zip(*(run.departures for run in runs), strict=True))]
    leave = min((b.runs for b in departures), default=0)
    return {
        "ends of the plateaus, with 95% intervals over seeds": runs.boundaries,
        f"steps at which the student leaves A_1, ...: KL from it 5% of its way up, 95% intervals, "
        f"{leave} of {len(runs)} seeds": departures,
    }


def ladder_checks(runs: ChainRuns) -> list[Check]:
    """Check that a chain is learned in stages, one reference after another."""
    count = runs.groups.count
    seeds = len(runs)
    complete = sum(len(run.stages) == count for run in runs)
    (ends, plateaus), (leaving, departures) = _boundaries(runs).items()
    rising = np.all(np.diff([0, *(b.step for b in departures)]) > 0)  # False for NaN
    all_ends = len(plateaus) == count - 1
    return [
        Check(
            f"seeds that learn in {count} stages", complete, None, complete == seeds, f"all {seeds}"
        ),
        Check(ends, intervals(plateaus), None, all_ends, f"{count - 1} of them"),
        Check(leaving, intervals(departures), None, rising, "one after another"),
        passing_check(
            runs,
            "kl_references",
            "steps at which the student is nearest to A_1, ... and the teacher, geometric mean "
            "over seeds",
            "ascend a complexity ladder by passing through simpler hypothesis classes",
        ),
    ]


def boundary_checks(runs: ChainRuns, printed: Printed) -> list[Check]:
    """Compare the ends of stages with those drawn in the paper."""
    theirs = printed.boundaries
    checks = []
    for name, ours in _boundaries(runs).items() if theirs else ():
        holds: bool | None = False
        if len(ours) == len(theirs):
            holds = all_hold(
                judge(b.step, (b.low, b.high), step / 1.5, step * 1.5, step)
                for b, step in zip(ours, theirs, strict=True)
            )
        expected = "within a factor of 1.5: they are drawn by eye"
        checks.append(Check(name, intervals(ours), theirs, holds, expected))
    return checks


def passing_check(runs: Sequence[ChainRun], curve: str, name: str, published: str) -> Check:
    """Check that the minima of a curve's columns follow each other in time."""
    nearest = np.array([run["step"][run[curve].argmin(0)] for run in runs])
    means = np.exp(np.log(np.maximum(nearest, 1)).mean(0))
    return Check(name, means, published, np.all(np.diff(nearest) > 0))


def head_checks(runs: ChainRuns) -> list[Check]:
    """Check where the heads of a single layer attend."""
    expected = [group + 1 for group in runs.groups.ranking]
    in_order = [run.learning_order[: len(expected)] == expected for run in runs]
    together = min(shared_attention(run) for run in runs)
    return [
        Check(
            "seeds in which some head has half of its attention on each group, the strongest "
            "group first",
            sum(in_order),
            "each stage corresponds to the acquisition of a sparse attention pattern",
            all(in_order),
        ),
        owner_check(runs, COOPERATION),
        Check(
            "attention that all heads at once have on the strongest group before A_1 is left, "
            "least over seeds",
            together,
            COMPETITION,
            together > 0.5,
        ),
    ]


def owner_check(runs: ChainRuns, published: str) -> Check:
    """Check that each group is attended to most by a different head."""
    owners = [len({*run.group_attention[-1].argmax(0)}) == runs.groups.count for run in runs]
    return Check(OWN_HEADS, sum(owners), published, all(owners))


def shared_attention(run: ChainRun) -> float:
    """Return the largest attention that all heads at once have on the strongest group before A_1 is
    left."""
    early = ~(run["step"] >= run.departures[0])  # all steps if A_1 is never left (NaN)
    return float(run.group_attention[early][:, :, run.groups.ranking[0]].min(1).max())


def level_checks(runs: ChainRuns, printed: Printed) -> list[Check]:
    """Compare the teacher's loss, and KL divergences from the references and on plateaus."""
    checks = []
    if printed.teacher_loss is not None:
        # Test sequences differ from the paper's, and the paper prints two digits.
        losses = np.array([run["teacher_loss"][-1] for run in runs])
        close = np.allclose(losses, printed.teacher_loss, atol=0.02)
        name = "loss of the teacher itself, by seed"
        checks.append(Check(name, losses, printed.teacher_loss, close))
    checks += _kl_checks(runs, printed, "references", "A_1, ... and the teacher")
    if printed.plateau_levels:
        published = printed.plateau_levels
        usual = len(runs.boundaries) + 1  # the number of stages of most runs
        alike = [run.stages[1:] for run in runs if len(run.stages) == usual]
        levels = np.mean([[drop.level for drop in stages] for stages in alike] or [[]], 0)
        close = len(levels) == len(published) and np.allclose(levels, published, rtol=0.25)
        checks.append(Check("KL from the teacher on the plateaus", levels, published, close))
    return checks


def _kl_checks(runs: ChainRuns, printed: Printed, which: str, what: str) -> list[Check]:
    """Compare mean KL divergences at the last published step, and the minimum of the first one.

    `which` is references or contexts. Presets with another number of them are not compared.
    """
    curve = f"kl_{which}"
    published = getattr(printed, curve)
    least = getattr(printed, f"least_{which}")
    if len(published) != runs[0][curve].shape[1]:
        return []
    step = printed.step
    levels = runs.mean(lambda run: run[curve][-1 if step is None else run.row(step)])
    close = np.allclose(levels, published, atol=0.1, rtol=0.1)
    name = f"KL from {what} at step {step or 'the end'}, mean over runs"
    checks = [Check(name, levels, published, close)]
    if least is not None:
        level = runs.mean(lambda run: run[curve][:, 0].min())
        at = runs.mean(lambda run: run["step"][run[curve][:, 0].argmin()])
        close = abs(level - least[0]) < 0.1 + 0.1 * least[0] and 1 / 1.5 < at / least[1] < 1.5
        name = f"least KL from the first of {what}, and its step, mean over runs"
        checks.append(Check(name, [float(level), float(at)], least, close))
    return checks


def context_checks(runs: ChainRuns, printed: Printed) -> list[Check]:
    """Check that the student passes the predictors of restricted context one after another."""
    if not any("kl_contexts" in run.curves for run in runs):
        return []
    compared = ChainRuns([run for run in runs if "kl_contexts" in run.curves])
    what = "trained predictors of short, ... and whole context"
    passing = passing_check(
        compared,
        "kl_contexts",
        f"steps at which the student is nearest to {what}, geometric mean over runs",
        "each stage corresponds to the acquisition of information from a subset of positions",
    )
    checks = _kl_checks(compared, printed, "contexts", what)
    if not checks:
        final = compared.mean(lambda run: run["kl_contexts"][-1])
        name = f"KL from {what} at the end, mean over runs"
        falling = np.all(np.diff(final) < 0)
        checks = [Check(name, final, None, falling, "less for longer context")]
    return [passing, *checks]
