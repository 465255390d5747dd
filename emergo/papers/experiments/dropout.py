"""Effects of dropout and initialisation on the stages of yuksel2026.

Dropout is active in every step, or in every third step as in the published runs.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ...core.plotting import WIDTH, plain_ticks
from ...models import ChainTransformer
from ...study import Study
from .._figure import Check, Figure, Outcome, Plot, RunSource, Studies
from .._panels import legend, panels
from ..yuksel2026._chains import ChainRun, ChainRuns, draw_parts, smoke
from ..yuksel2026._contexts import ContextPredictors
from ..yuksel2026.stages_and_maps import FULL_SIZE, SMALL, TINY_TRANSFORMER

ALWAYS = "in every step"
SELDOM = "in one step of three"
PUBLISHED = "and the published start"
CHANGES: dict[str, dict[str, Any]] = {
    ALWAYS: {},
    SELDOM: {"model__dropout_every": 3},
    PUBLISHED: {"model__dropout_every": 3, "model__start": "xavier"},
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """`task`: a description; `parts`: models with dropout in every step and PyTorch's start."""

    task: str
    parts: Studies

    def studies(self) -> dict[str, Study]:
        return {
            f"{how}: {name}": study.replace(**changes)
            for how, changes in CHANGES.items()
            for name, study in self.parts.items()
        }


def first_compared(study: Study) -> dict[str, Study]:
    """Split a study, so that only its first run is compared with predictors of restricted context.

    These predictors take longer to train than the run.
    """
    first, *others = study.seeds
    probes = (ContextPredictors((4, 8, 12)),)
    compared = study.replace(seeds=[first], probes=probes)
    return {"compared": compared, "others": study.replace(seeds=others)}


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies(), curves=True)
    runs = {}
    for how in CHANGES:
        results = [r for name in settings.parts for r in parts.get(f"{how}: {name}", ())]
        if results:
            runs[how] = ChainRuns(results)
    table = pd.DataFrame([row_of(how, run) for how, each in runs.items() for run in each])
    checks = [*dropout_checks(settings.task, table)]
    return Outcome({"runs": table}, draw(settings.task, runs), checks=checks)


def row_of(how: str, run: ChainRun) -> dict[str, Any]:
    kl = run["kl_teacher"]
    least = int(np.argmin(kl))
    return {
        "dropout": how,
        "seed": run.seed,
        "stages": len(run.stages),
        "kl_teacher": float(kl[-1]),
        "least": float(kl[least]),
        "least_at": int(run["step"][least]),
        **{f"left_{k}": step for k, step in enumerate(run.departures, 1)},
        "heads": float(run.group_attention[-1].max(0).min()),
    }


def dropout_checks(task: str, table: pd.DataFrame) -> Iterator[Check]:
    means = table.groupby("dropout", sort=False)[["kl_teacher", "stages", "heads"]].mean()
    if not {ALWAYS, SELDOM} <= {*means.index}:
        return
    kl = means["kl_teacher"]
    stages = means["stages"]
    heads = means["heads"]
    words = f"dropout {', '.join(means.index)}"
    yield Check(
        f"{task}: KL from the teacher at the end, mean over seeds, {words}",
        kl,
        None,
        kl[ALWAYS] > kl[SELDOM],
        "less with less dropout",
    )
    yield Check(
        f"{task}: the most that a head looks at the group looked at least, in the end, {words}",
        heads,
        None,
        heads[SELDOM] >= 0.5,
        "with less dropout above 0.5: each group has a head",
    )
    yield Check(
        f"{task}: stages found, mean over seeds, {words}",
        stages,
        None,
        stages[SELDOM] >= stages[ALWAYS],
        "no fewer with less dropout",
    )
    if PUBLISHED in means.index:
        left = table.set_index("dropout").filter(like="left_")
        logs = left.transform("log").groupby(level=0).mean().loc[means.index]
        yield Check(
            f"{task}: steps at which the student leaves A_1, ..., geometric mean over seeds, "
            f"{words}",
            np.exp(logs.to_numpy()).ravel(),
            None,
            np.all(logs.loc[PUBLISHED] < logs.loc[SELDOM]),
            "sooner with the published start",
        )


def draw(task: str, runs: Mapping[str, ChainRuns]) -> Plot:
    plot, (axes,) = panels(2.6, task, width=WIDTH * 0.42 + 1)
    colours = draw_parts(axes, runs)
    axes.set_ylabel("KL from the teacher")
    plain_ticks(axes.yaxis)
    names = [how.replace(" step", "\nstep").replace(" pub", "\npub") for how in colours]
    legend(axes, "dropout", dict(zip(names, colours.values(), strict=True)))
    return plot


FULL = FULL_SIZE.replace(model=ChainTransformer(), seeds=5)
LAPTOP = SMALL.replace(model__width=48, model__dropout=0.1, steps=2500)
FIGURE = Figure(
    "emergo/dropout",
    "the stages of the full Transformer with dropout in every step, in one of three, and "
    "with the published start",
    {
        "paper": Settings("groups of 4, 4, 4", first_compared(FULL)),
        "laptop": Settings("groups of 4, 4, 4", {"runs": LAPTOP}),
        "smoke": Settings("two groups", {"runs": smoke(TINY_TRANSFORMER, seeds=1)}),
    },
    make,
    {"paper": 80000, "laptop": 47, "smoke": 25},
    curves=True,
)
