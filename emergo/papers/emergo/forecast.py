"""Is it about to learn? Forecasts of emergence from logs cut at steps fixed in advance, beside what became of the runs.

The method is in `emergo/measure/_forecast.py`, its table in `emergo/measure/forecast.json`. What it was fitted to, how it is
judged and against which baselines was written down (docs/dev/LOG.md) before it was asked about runs of other figures or tasks.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd

from ...measure import read_table
from ...studies import Study
from .. import yuksel2026, zucchet2025
from .._figure import Check, Figure, Outcome, Presets, RunSource, Seconds
from .._transformers import SMALL, TINY
from . import attention, capacity, coupled, dropout, rounding, schedule, second_plateau, stages
from ._forecast_judge import BASELINES, config_law, judge, summarise, without_own_sizes
from ._forecast_moments import LATER, SIZES, TORCH, Followed, follow, follow_table, group_of
from ._forecast_panels import draw

PYTORCH = Path(__file__).with_name("forecast_torch.parquet")
"""Logs of small Transformers that `benchmarks/torch_logs.py` trained in PyTorch."""
TORCH_GOAL = 0.1
HERE = "trained here"
LEAST, MOST = 0.75, 0.85


@dataclasses.dataclass(frozen=True)
class Settings:
    own: Study | None = None
    """What is trained and then forecast; None: all recorded runs are forecast."""

    def studies(self) -> dict[str, Study]:
        return recorded_studies() if self.own is None else {HERE: self.own}


def recorded_studies() -> dict[str, Study]:
    """All parts of the figures whose runs have curves, by the figure's id and their names. Papers come first, so that a run
    which two figures share is the paper's."""
    ours = (attention, capacity, schedule, coupled, stages, rounding, dropout, second_plateau)
    figures = [*zucchet2025.FIGURES, *yuksel2026.FIGURES, *(module.FIGURE for module in ours)]
    return {f"{figure.id}: {name}": study for figure in figures for name, study in figure.studies("paper").items()}


def recorded_runs(source: RunSource) -> list[Followed]:
    """The runs of these whose curves were kept, each once."""
    followed: dict[str, Followed | None] = {}
    for part, runs in source.runs(recorded_studies()).items():
        for result in runs:
            if result.run.identity not in followed:
                followed[result.run.identity] = follow(result, group_of(result.run, part.partition(":")[0]))
    return [run for run in followed.values() if run is not None]


def make(settings: Settings, source: RunSource) -> Outcome:
    if settings.own is not None:
        results = source.runs(settings.studies(), curves=True)[HERE]
        runs = [run for result in results if (run := follow(result, HERE)) is not None]
        moments = judge(runs)
    else:
        recorded = recorded_runs(source)
        runs = [*recorded, *follow_table(read_table(PYTORCH), TORCH, TORCH_GOAL)]
        fitted = [run for run in runs if run.group == SIZES]
        parts = [judge(fitted, *without_own_sizes(fitted))]
        groups = {run.group: None for run in runs if run.group != SIZES}
        parts += [
            judge([r for r in runs if r.group == group], law=config_law(fitted) if group == LATER else None) for group in groups
        ]
        moments = pd.concat(parts, ignore_index=True)
    summary = summarise(moments)
    return Outcome({"moments": moments, "summary": summary}, draw(moments, summary), checks=checks_of(summary))


def checks_of(summary: pd.DataFrame) -> list[Check]:
    """For every group and level: do its intervals hold what they say, and does it beat "as long again"?"""
    checks = []
    for row in summary.to_dict("records"):
        if not row["told"]:
            continue
        level = "metric alone" if row["level"] == "metric" else f"level {row['level']}"
        what = f"{row['group']}, {level} ({row['told']} forecasts of {row['told_runs']} runs)"
        held, error = row["held80"], row["error"]
        by_cell = f"; with every cell counting once {row['held80_by_cell']:.2f}"
        checks.append(
            Check(f"{what}: share in the 80% interval{by_cell}", held, None, LEAST <= held <= MOST, f"{LEAST} to {MOST}")
        )
        known = [(words, row[f"error_{name}"]) for name, words in BASELINES.items()]
        beside = ", ".join(f"{words} {off:.2f}" for words, off in known if np.isfinite(off))
        below = row["error_again"]
        checks.append(Check(f"{what}: median factor off ({beside})", error, None, error < below, f"below {below:.2f}"))
        if row["negatives"]:
            name = f"{row['group']}, {level}: share of {row['negatives']} runs that do not emerge with a false alarm"
            checks.append(Check(name, row["false_alarms"], None, row["false_alarms"] <= 0.1, "at most 0.1"))
    return checks


SIZES_HERE = {"grid": {"length": (16, 32), "dim": (8, 16)}}
TITLE = "forecasts of emergence: error, coverage and false alarms, beside baselines"
PRESETS: Presets = {
    "paper": Settings(),
    "laptop": Settings(Study.of(SMALL.replace(optimizer__learning_rate=5e-4, steps=3000), **SIZES_HERE, seeds=3)),
    "smoke": Settings(Study.of(TINY.replace(optimizer__learning_rate=2e-3), grid={"length": (8,), "dim": (4,)}, seeds=2)),
}
SECONDS: Seconds = {"paper": 1e6, "laptop": 90, "smoke": 10}


class _Recorded:
    """All parts but what is trained here: of recorded runs, those that have curves will do."""

    def __contains__(self, part: object) -> bool:
        return part != HERE


FIGURE = Figure("emergo/forecast", TITLE, PRESETS, make, SECONDS, curves=True, outcomes=_Recorded())
