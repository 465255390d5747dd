"""Dropout in every step, or in one of three as in the published runs of yuksel2026, and their start: what depends on them?"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..._style import WIDTH, plain_ticks
from ...models import ChainTransformer
from ...studies import Study
from .._figure import Check, Figure, Outcome, Plot, Presets, RunSource, Studies
from .._panels import legend, panels
from ..yuksel2026._chains import ChainRun, ChainRuns, draw_parts, smoke
from ..yuksel2026._contexts import ContextPredictors
from ..yuksel2026.stages_and_maps import FULL_SIZE, SMALL, TINY_TRANSFORMER

ALWAYS, SELDOM, PUBLISHED = "in every step", "in one step of three", "and the published start"
CHANGES: dict[str, dict[str, Any]] = {
    ALWAYS: {},
    SELDOM: {"model__dropout_every": 3},
    PUBLISHED: {"model__dropout_every": 3, "model__start": "xavier"},
}


@dataclasses.dataclass(frozen=True)
class Settings:
    task: str
    """In words."""
    parts: Studies
    """With a model whose dropout is in force in every step and that starts as PyTorch's layers do."""

    def studies(self) -> dict[str, Study]:
        parts = self.parts.items()
        return {f"{how}: {name}": study.replace(**changes) for how, changes in CHANGES.items() for name, study in parts}


def first_compared(study: Study) -> dict[str, Study]:
    """A study of which only the first run is compared with the predictors of restricted context, which take longer to train."""
    first, *others = study.seeds
    probes = (ContextPredictors((4, 8, 12)),)
    return {"compared": study.replace(seeds=[first], probes=probes), "others": study.replace(seeds=others)}


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies(), curves=True)
    results = {how: [r for name in settings.parts for r in parts.get(f"{how}: {name}", ())] for how in CHANGES}
    runs = {how: ChainRuns(each) for how, each in results.items() if each}
    table = pd.DataFrame([row_of(how, run) for how, each in runs.items() for run in each])
    return Outcome({"runs": table}, draw(settings.task, runs), checks=dropout_checks(settings.task, table))


def row_of(how: str, run: ChainRun) -> dict[str, Any]:
    kl, least = run["kl_teacher"], int(np.argmin(run["kl_teacher"]))
    row = {"dropout": how, "seed": run.seed, "stages": len(run.stages), "kl_teacher": float(kl[-1])}
    row |= {"least": float(kl[least]), "least_at": int(run["step"][least])}
    row |= {f"left_{k}": step for k, step in enumerate(run.departures, 1)}
    return row | {"heads": float(run.group_attention[-1].max(0).min())}


def dropout_checks(task: str, table: pd.DataFrame) -> list[Check]:
    means = table.groupby("dropout", sort=False)[["kl_teacher", "stages", "heads"]].mean()
    there = [how for how in CHANGES if how in means.index]
    if ALWAYS not in there or SELDOM not in there:
        return []
    kl, stages, heads, words = means["kl_teacher"], means["stages"], means["heads"], f"dropout {', '.join(there)}"
    name = f"{task}: KL from the teacher at the end, mean over seeds, {words}"
    checks = [Check(name, kl, None, kl[ALWAYS] > kl[SELDOM], "less with less dropout")]
    name = f"{task}: the most that a head looks at the group looked at least, in the end, {words}"
    expected = "with less dropout above 0.5: each group has a head"
    checks.append(Check(name, heads, None, heads[SELDOM] >= 0.5, expected))
    name = f"{task}: stages found, mean over seeds, {words}"
    checks.append(Check(name, stages, None, stages[SELDOM] >= stages[ALWAYS], "no fewer with less dropout"))
    if PUBLISHED in there:
        left = table.set_index("dropout").filter(like="left_")
        logs = left.transform("log").groupby(level=0).mean().loc[there]
        sooner = np.all(logs.loc[PUBLISHED] < logs.loc[SELDOM])
        name = f"{task}: steps at which the student leaves A_1, ..., geometric mean over seeds, {words}"
        checks.append(Check(name, np.exp(logs.to_numpy()).ravel(), None, sooner, "sooner with the published start"))
    return checks


def draw(task: str, runs: Mapping[str, ChainRuns]) -> Plot:
    plot, (axes,) = panels(2.6, task, width=WIDTH * 0.42 + 1)
    colours = draw_parts(axes, runs)
    axes.set_ylabel("KL from the teacher")
    plain_ticks(axes.yaxis)
    legend(axes, "dropout", {how.replace(" step", "\nstep").replace(" pub", "\npub"): c for how, c in colours.items()})
    return plot


TITLE = "the stages of the full Transformer with dropout in every step, in one of three, and with the published start"
PRESETS: Presets = {
    "paper": Settings("groups of 4, 4, 4", first_compared(FULL_SIZE.replace(model=ChainTransformer(), seeds=5))),
    "laptop": Settings("groups of 4, 4, 4", {"runs": SMALL.replace(model__width=48, model__dropout=0.1, steps=2500)}),
    "smoke": Settings("two groups", {"runs": smoke(TINY_TRANSFORMER, seeds=1)}),
}
FIGURE = Figure("emergo/dropout", TITLE, PRESETS, make, {"paper": 80000, "laptop": 47, "smoke": 25}, curves=True)
