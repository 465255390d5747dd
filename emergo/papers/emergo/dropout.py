"""Dropout in every step, or in one of three as in the published runs of yuksel2026, and their start: what depends on them?"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ..._style import BLUE, GREEN, ORANGE, WIDTH, outside
from ...models import ChainTransformer
from ...studies import Study, provenance_of
from .._figure import Check, Figure, Outcome, Studies
from .._source import RunSource
from ..yuksel2026 import fig3
from ..yuksel2026._chains import ChainRuns, line_of_seed, smoke
from ..yuksel2026._stage_figure import caveats

ALWAYS, SELDOM, PUBLISHED = "in every step", "in one step of three", "and the published start"
CHANGES: dict[str, dict[str, Any]] = {
    ALWAYS: {},
    SELDOM: {"model__dropout_every": 3},
    PUBLISHED: {"model__dropout_every": 3, "model__start": "xavier"},
}
COLOURS = dict(zip(CHANGES, (ORANGE, BLUE, GREEN), strict=True))


@dataclasses.dataclass(frozen=True)
class Settings:
    task: str
    """In words."""
    parts: Studies
    """With a model whose dropout is in force in every step and that starts as PyTorch's layers do."""


def studies(settings: Settings) -> dict[str, Study]:
    parts = settings.parts.items()
    return {f"{how}: {name}": study.replace(**changes) for how, changes in CHANGES.items() for name, study in parts}


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(studies(settings), curves=True)
    results = {how: [r for name in settings.parts for r in parts.get(f"{how}: {name}", ())] for how in CHANGES}
    runs = {how: ChainRuns(each) for how, each in results.items() if each}
    table = pd.DataFrame([row for how, each in runs.items() for row in rows_of(how, each)])
    return Outcome(
        tables={"runs": table},
        plot=draw(settings.task, runs),
        checks=dropout_checks(settings.task, table),
        precision="fp32",
        device=provenance_of(parts),
    )


def rows_of(how: str, runs: ChainRuns) -> list[dict[str, Any]]:
    """One row per run."""
    rows = []
    for result, curve, stages in zip(runs.results, runs.curves, runs.stages, strict=True):
        kl, least = curve["kl_teacher"], int(np.argmin(curve["kl_teacher"]))
        row = {"dropout": how, "seed": result.run.seed, "stages": len(stages), "kl_teacher": float(kl[-1])}
        row |= {"least": float(kl[least]), "least_at": int(curve["step"][least])}
        row |= {f"left_{k}": step for k, step in enumerate(runs.departures(curve), 1)}
        rows.append(row | {"heads": float(runs.group_attention(curve)[-1].max(0).min())})
    return rows


def dropout_checks(task: str, table: pd.DataFrame) -> list[Check]:
    means = table.groupby("dropout", sort=False)[["kl_teacher", "stages", "heads"]].mean()
    there = [how for how in CHANGES if how in means.index]
    if ALWAYS not in there or SELDOM not in there:
        return []
    always, seldom, words = means.loc[ALWAYS], means.loc[SELDOM], f"dropout {', '.join(there)}"
    checks = [
        Check(
            f"{task}: KL from the teacher at the end, mean over seeds, {words}",
            means["kl_teacher"].tolist(),
            None,
            bool(always["kl_teacher"] > seldom["kl_teacher"]),
            "less with less dropout",
        ),
        Check(
            f"{task}: the most that a head looks at the group looked at least, in the end, {words}",
            means["heads"].tolist(),
            None,
            bool(seldom["heads"] >= 0.5),
            "with less dropout above 0.5: each group has a head",
        ),
        Check(
            f"{task}: stages found, mean over seeds, {words}",
            means["stages"].tolist(),
            None,
            bool(seldom["stages"] >= always["stages"]),
            "no fewer with less dropout",
        ),
    ]
    if PUBLISHED in there:
        left = table.set_index("dropout").filter(like="left_")
        logs = left.transform("log").groupby(level=0).mean().loc[there]
        sooner = bool(np.all(logs.loc[PUBLISHED] < logs.loc[SELDOM]))
        name = f"{task}: steps at which the student leaves A_1, ..., geometric mean over seeds, {words}"
        steps = np.exp(logs.to_numpy()).ravel().tolist()
        checks.append(Check(name, steps, None, sooner, "sooner with the published start"))
    return checks


def draw(task: str, runs: Mapping[str, ChainRuns]) -> Plot:
    plot = Plot(figsize=(WIDTH * 0.42 + 1, 2.6), layout="constrained")
    axes = plot.subplots()
    for how, each in runs.items():
        for i, curve in enumerate(each.curves):
            axes.plot(curve["step"][1:], curve["kl_teacher"][1:], color=COLOURS[how], **line_of_seed(i))
    axes.set(xscale="log", yscale="log", xlabel="step", ylabel="KL from the teacher")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title(task)
    entries = [(how.replace(" step", "\nstep").replace(" pub", "\npub"), {"color": c}) for how, c in COLOURS.items()]
    outside(axes, "dropout", entries)
    return plot


PAPER = fig3.PAPER.replace(model=ChainTransformer())
SMALL = fig3.SMALL.replace(model=ChainTransformer(width=48, hidden=32), steps=2500)
TINY = smoke(ChainTransformer(heads=2, width=8, hidden=8), seeds=1)
FIGURE = Figure(
    id="emergo/dropout",
    title="the stages of the full Transformer with dropout in every step, in one of three, and with the published start",
    presets={
        "paper": Settings("groups of 4, 4, 4", fig3.first_compared(PAPER)),
        "laptop": Settings("groups of 4, 4, 4", {"runs": SMALL}),
        "smoke": Settings("two groups", {"runs": TINY}),
    },
    make=make,
    seconds={"paper": 80000, "laptop": 47, "smoke": 25},
    caveat=caveats(SMALL, TINY, "width 48, learning rate 2e-3"),
    studies=studies,
    curves=True,
)
