"""What the figures of trained chains share: their studies, what is measured of their runs, and what that is held against."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes

from ..._errors import InputError
from ..._style import shades
from ...engine import Config, Optimizer, Result
from ...measure import Boundary, Drop, boundary_of, departure, find_stages, group_mass, stage_boundaries
from ...models import MinimalAttention, Model
from ...studies import Study, curve_frame
from ...tasks import Groups, MarkovChain
from .._figure import Check
from .._panels import Colours
from ._contexts import ContextPredictors

CHAIN, NEAR, PAIR = MarkovChain(), Groups(), Groups((1, 1))
ADAMW = Optimizer("adamw", 0.08, clip=1.0, weight_decay=0.01)
FULL = ADAMW.replace(learning_rate=3e-3)
"""The optimizer of the full Transformer."""
TINY = MinimalAttention(heads=2, scale=1e-3)


def paper(model: Model, task: MarkovChain = CHAIN, optimizer: Optimizer = ADAMW, **changes: Any) -> Study:
    """The paper's setting, with five seeds instead of one. No threshold ends a run: all steps are trained."""
    options: dict[str, Any] = {"batch": 3000, "n_train": 9000, "steps": 2000, "n_test": 3000, "seeds": 5}
    return Study(task, model, optimizer, **({"precision": "fp32", "threshold": None} | options | changes))


def laptop(model: Model, groups: Groups = NEAR, optimizer: Optimizer = ADAMW, **changes: Any) -> Study:
    """A small setting that shows the stages."""
    options: dict[str, Any] = {"batch": 256, "n_train": None, "steps": 1200, "n_test": 512, "seeds": 2}
    return paper(model, MarkovChain(groups, 16, generated=12), optimizer, **(options | changes))


def smoke(model: Model = TINY, groups: Groups = PAIR, optimizer: Optimizer = ADAMW, **changes: Any) -> Study:
    """A few seconds of training; most figures share the program."""
    options: dict[str, Any] = {"batch": 32, "n_train": None, "steps": 60, "n_test": 64, "seeds": 2}
    return paper(model, MarkovChain(groups, 5, generated=4), optimizer, **(options | changes))


def on_published_teacher(study: Study, seeds: int = 3, first: Sequence[Any] = ()) -> dict[str, Study]:
    """A study, and beside it runs on the teacher of the published runs. `first`: probes of seed 0 alone, such as predictors of
    restricted context, which take longer to train than the run."""
    beside = study.replace(task__maps="published", seeds=seeds)
    if not first:
        return {"drawn teachers": study, "published teacher": beside}
    studies = {"published teacher, seed 0": beside.replace(seeds=1, probes=(*study.base.probes, *first))}
    others = {"published teacher": beside.replace(seeds=range(1, seeds))} if seeds > 1 else {}
    return {"drawn teachers": study, **studies, **others}


def beside_published(studies: Mapping[str, Study], seeds: int, **changes: Any) -> dict[str, Study]:
    """Studies, and beside each one of so many seeds on the teacher of the published runs, with these changes."""
    there = {"task__maps": "published", "seeds": seeds} | changes
    beside = {f"{name}, published teacher": study.replace(**there) for name, study in studies.items()} if seeds else {}
    return dict(studies) | beside


def chain_of(config: Config) -> MarkovChain:
    """The task of a config; the figures of this paper have no other."""
    return cast(MarkovChain, config.task)


class ChainRun:
    """One run, measured; `run[name]` is one of its curves, one row per evaluation."""

    def __init__(self, result: Result) -> None:
        self.config, self.seed, self.curves = result.run.config, result.run.seed, dict(result.curves or {})
        self.groups, self.maps = chain_of(self.config).groups, chain_of(self.config).maps

    def __getitem__(self, name: str) -> np.ndarray:
        return self.curves[name]

    @functools.cached_property
    def attention(self) -> Float[np.ndarray, "evaluations heads lags"]:
        """Attention by lag of all heads of all layers."""
        lags = self["attention_by_lag"]
        return lags.reshape(len(lags), -1, lags.shape[-1])

    @functools.cached_property
    def group_attention(self) -> Float[np.ndarray, "evaluations heads groups"]:
        return group_mass(self.attention, self.groups.members)

    @functools.cached_property
    def stages(self) -> list[Drop]:
        """The drops of the KL from the teacher."""
        return find_stages(self["step"], self["kl_teacher"])

    @functools.cached_property
    def departures(self) -> list[float]:
        """When the student leaves each reference but the teacher; NaN where it does not."""
        return [departure(self["step"], kl) for kl in self["kl_references"].T[:-1]]

    @property
    def left_at(self) -> list[float]:
        """When references are left, without those that are not."""
        return [step for step in self.departures if np.isfinite(step)]

    @property
    def favourites(self) -> list[int]:
        """For each head the group that it looks at most in the end."""
        return self.group_attention[-1].argmax(-1).tolist()

    @property
    def learning_order(self) -> list[int]:
        """The groups, counted from 1, in the order in which some head first gives them half of its attention; without those
        that no head does."""
        learned = self.group_attention.max(1) >= 0.5
        return [j + 1 for j in np.argsort(learned.argmax(0), kind="stable").tolist() if learned[:, j].any()]


class ChainRuns(list[ChainRun]):
    """The runs of one setting, on drawn teachers and on the published one. Runs that failed are left out."""

    def __init__(self, results: Iterable[Result | ChainRun]) -> None:
        every, whole = list(results), []
        for one in every:
            if isinstance(one, ChainRun):
                whole.append(one)
            elif one.curves is not None and one.failed_step is None:
                whole.append(ChainRun(one))
        super().__init__(whole)
        if not self:
            raise InputError(f"all {len(every)} runs of this setting failed, or were recorded without their curves")
        self.groups = self[0].groups

    def on(self, maps: Literal["drawn", "published"]) -> "ChainRuns":
        """The runs on such teachers, or all where there are none."""
        return ChainRuns([run for run in self if run.maps == maps] or self)

    @property
    def like_published(self) -> "ChainRuns":
        """The runs to hold published numbers against: all of the paper's have one teacher, and levels depend on it."""
        return self.on("published")

    @property
    def contexts(self) -> tuple[int, ...]:
        """How many tokens the predictors see that some of the runs are compared with; empty where none is."""
        probes = [probe for run in self for probe in run.config.probes]
        return next((probe.contexts for probe in probes if isinstance(probe, ContextPredictors)), ())

    @property
    def table(self) -> pd.DataFrame:
        """All curves but the maps of attention, one row per evaluation."""
        shown = [{name: values for name, values in run.curves.items() if name != "attention_map"} for run in self]
        frames = [curve_frame(each).assign(seed=run.seed, maps=run.maps) for each, run in zip(shown, self, strict=True)]
        return pd.concat(frames, ignore_index=True)

    @property
    def boundaries(self) -> list[Boundary]:
        """The ends of the plateaus over seeds."""
        return stage_boundaries([run.stages for run in self])


def part_of(name: str) -> str:
    """The part of a figure that a study belongs to: its name up to a comma, behind which its teachers are."""
    return name.partition(",")[0]


def by_part(parts: Mapping[str, Iterable[Result]]) -> dict[str, ChainRuns]:
    """The runs of each part of a figure, on all teachers."""
    together: dict[str, list[Result]] = {}
    for name, results in parts.items():
        together.setdefault(part_of(name), []).extend(results)
    return {name: ChainRuns(results) for name, results in together.items()}


def draw_seeds(axes: Axes, runs: Sequence[ChainRun], values: Iterable[np.ndarray], colour: Any) -> None:
    """A curve of each run against step, dashed on the published teacher; the first of either kind stands out."""
    drawn: set[str] = set()
    for run, curve in zip(runs, values, strict=True):
        later, dashes = run.maps in drawn, (0, (3, 1.2)) if run.maps == "published" else "-"
        axes.plot(run["step"][1:], curve[1:], color=colour, lw=0.7 if later else 1.6, alpha=0.45 if later else None, ls=dashes)
        drawn.add(run.maps)


def draw_parts(
    axes: Axes, parts: Mapping[str, ChainRuns], curve: Callable[[ChainRun], np.ndarray] = operator.itemgetter("kl_teacher")
) -> Colours:
    """A curve of all runs on logarithmic axes, one colour per part; returns the colours."""
    colours = dict(zip(parts, shades(len(parts)), strict=True))
    for name, runs in parts.items():
        draw_seeds(axes, runs, map(curve, runs), colours[name])
    axes.set(xscale="log", yscale="log", xlabel="step")
    return colours


@dataclasses.dataclass(frozen=True)
class Printed:
    """What the paper's figure shows (one seed): read off its plot, or from the notebooks of its public code."""

    boundaries: tuple[float, ...] = ()
    plateau_levels: tuple[float, ...] = ()
    teacher_loss: float | None = None
    step: int | None = None
    """The last that is drawn: of `kl` and `kl_contexts`."""
    kl: tuple[float, ...] = ()
    """From A_1, ... and the teacher."""
    least: tuple[float, float] | None = None
    """The least KL from A_1, and its step."""
    kl_contexts: tuple[float, ...] = ()
    """From trained predictors of restricted context, short to long."""
    least_context: tuple[float, float] | None = None
    """The least KL from the first of these, and its step."""


NOTHING = Printed()


def named(prefix: str, checks: Iterable[Check]) -> list[Check]:
    """Checks of one part of a figure."""
    return [dataclasses.replace(check, name=f"{prefix}: {check.name}") for check in checks]


def comparison_checks(runs: ChainRuns, printed: Printed) -> list[Check]:
    """What is held against published numbers, of runs on the published teacher where there are any."""
    alike = runs.like_published
    checks = [*boundary_checks(alike, printed), *level_checks(alike, printed), *context_checks(alike, printed)]
    if alike[0].maps != "published":
        return checks
    return named("published teacher", checks)


def _boundaries(runs: ChainRuns) -> dict[str, list[Boundary]]:
    """Both measures of when a stage ends, by name."""
    departures = [boundary_of(steps) for steps in zip(*(run.departures for run in runs), strict=True)]
    leave = min((b.runs for b in departures), default=0)
    leaving = "steps at which the student leaves A_1, ...: KL from it 5% of its way up, 95% intervals"
    return {
        "ends of the plateaus, with 95% intervals over seeds": runs.boundaries,
        f"{leaving}, {leave} of {len(runs)} seeds": departures,
    }


def ladder_checks(runs: ChainRuns) -> list[Check]:
    """That a chain is learned in stages, one reference after another."""
    count, seeds = runs.groups.count, len(runs)
    complete = sum(len(run.stages) == count for run in runs)
    checks = [Check(f"seeds that learn in {count} stages", complete, None, complete == seeds, f"all {seeds}")]
    (ends, plateaus), (leaving, departures) = _boundaries(runs).items()
    rising = np.all(np.diff([0, *(b.step for b in departures)]) > 0)  # not where one is NaN
    checks.append(Check(ends, [b[:3] for b in plateaus], None, len(plateaus) == count - 1, f"{count - 1} of them"))
    checks.append(Check(leaving, [b[:3] for b in departures], None, rising, "one after another"))
    name = "steps at which the student is nearest to A_1, ... and the teacher, geometric mean over seeds"
    words = "ascend a complexity ladder by passing through simpler hypothesis classes"
    return [*checks, passing_check(runs, "kl_references", name, words)]


def boundary_checks(runs: ChainRuns, printed: Printed) -> list[Check]:
    """When stages end, beside where the paper draws it."""
    if not printed.boundaries:
        return []
    checks, expected = [], "within a factor of 1.5: they are drawn by eye"
    for name, ours in _boundaries(runs).items():
        near = [1 / 1.5 < b.step / theirs < 1.5 for b, theirs in zip(ours, printed.boundaries, strict=False)]
        holds = len(ours) == len(printed.boundaries) and all(near)
        checks.append(Check(name, [b[:3] for b in ours], printed.boundaries, holds, expected))
    return checks


def passing_check(runs: Sequence[ChainRun], curve: str, name: str, published: str) -> Check:
    """That each column of a curve is least after the one before it."""
    nearest = np.array([run["step"][run[curve].argmin(0)] for run in runs])
    means = np.exp(np.log(np.maximum(nearest, 1)).mean(0))
    return Check(name, means, published, np.all(np.diff(nearest) > 0))


def head_checks(runs: ChainRuns) -> list[Check]:
    """Where the heads of one layer look."""
    expected = [group + 1 for group in runs.groups.ranking]
    in_order = [run.learning_order[: len(expected)] == expected for run in runs]
    name = "seeds in which some head has half of its attention on each group, the strongest group first"
    order = Check(name, sum(in_order), "each stage corresponds to the acquisition of a sparse attention pattern", all(in_order))
    together = min(shared_attention(run) for run in runs)
    name = "attention that all heads at once have on the strongest group before A_1 is left, least over seeds"
    words = "competitive: heads converge on the most statistically dominant pattern"
    owners = owner_check(runs, "cooperative: heads specialize in distinct patterns")
    return [order, owners, Check(name, together, words, together > 0.5)]


def owner_check(runs: ChainRuns, published: str) -> Check:
    specialised = sum(len({*run.group_attention[-1].argmax(0)}) == runs.groups.count for run in runs)
    name = "seeds at whose end each group has a head of its own, the one that looks at it most"
    return Check(name, specialised, published, specialised == len(runs))


def shared_attention(run: ChainRun) -> float:
    """The largest attention that all heads at once have on the strongest group before A_1 is left."""
    early = ~(run["step"] >= run.departures[0])  # all steps where it is not left
    return float(run.group_attention[early][:, :, run.groups.ranking[0]].min(1).max())


def level_checks(runs: ChainRuns, printed: Printed) -> list[Check]:
    """The loss of the teacher, and KLs from the references and on the plateaus, where they are known."""
    checks = []
    if printed.teacher_loss is not None:
        losses = np.array([run["teacher_loss"][-1] for run in runs])
        close = np.allclose(losses, printed.teacher_loss, atol=0.02)  # test sequences differ, and two digits are printed
        checks.append(Check("loss of the teacher itself, by seed", losses, printed.teacher_loss, close))
    if len(printed.kl) == runs.groups.count:
        checks += _kl_checks(runs, "kl_references", "A_1, ... and the teacher", printed.step, printed.kl, printed.least)
    if printed.plateau_levels:
        usual = len(runs.boundaries) + 1  # as many stages as most runs show
        levels = np.mean([[drop.level for drop in run.stages[1:]] for run in runs if len(run.stages) == usual] or [[]], 0)
        close = len(levels) == len(printed.plateau_levels) and np.allclose(levels, printed.plateau_levels, rtol=0.25)
        checks.append(Check("KL from the teacher on the plateaus", levels, printed.plateau_levels, close))
    return checks


def _kl_checks(
    runs: Sequence[ChainRun],
    curve: str,
    what: str,
    step: int | None,
    published: tuple[float, ...],
    least: tuple[float, float] | None,
) -> list[Check]:
    """KLs at the last step that is published, and the least of the first with its step: means over runs."""
    rows = [-1 if step is None else int(np.abs(run["step"] - step).argmin()) for run in runs]
    levels, when = np.mean([run[curve][row] for run, row in zip(runs, rows, strict=True)], 0), step or "the end"
    close = np.allclose(levels, published, atol=0.1, rtol=0.1)
    checks = [Check(f"KL from {what} at step {when}, mean over runs", levels, published, close)]
    if least is not None:
        level = float(np.mean([run[curve][:, 0].min() for run in runs]))
        at = float(np.mean([run["step"][run[curve][:, 0].argmin()] for run in runs]))
        close = abs(level - least[0]) < 0.1 + 0.1 * least[0] and 1 / 1.5 < at / least[1] < 1.5
        checks.append(Check(f"least KL from the first of {what}, and its step, mean over runs", [level, at], least, close))
    return checks


def context_checks(runs: ChainRuns, printed: Printed) -> list[Check]:
    """The student passes the predictors of restricted context one after another."""
    compared = [run for run in runs if "kl_contexts" in run.curves]
    if not compared:
        return []
    what = "trained predictors of short, ... and whole context"
    name = f"steps at which the student is nearest to {what}, geometric mean over runs"
    words = "each stage corresponds to the acquisition of information from a subset of positions"
    checks = [passing_check(compared, "kl_contexts", name, words)]
    if len(printed.kl_contexts) == compared[0]["kl_contexts"].shape[1]:
        return checks + _kl_checks(compared, "kl_contexts", what, printed.step, printed.kl_contexts, printed.least_context)
    final = np.mean([run["kl_contexts"][-1] for run in compared], 0)
    name = f"KL from {what} at the end, mean over runs"
    return [*checks, Check(name, final, None, np.all(np.diff(final) < 0), "less for longer context")]
