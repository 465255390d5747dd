"""Forecasts of emergence, from logs cut at fixed steps, compared with the outcomes of the runs.

The method is in `emergo/forecasting/_forecast.py`, its calibration in
`emergo/forecasting/forecast.json`. The runs it was fitted to, the measures and the baselines were
written down before it was applied to runs of other figures and tasks (docs/forecast.md).
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from ...measure import read_table
from ...papers import FIGURES, Check, Figure, Outcome, RunSource
from ...papers.transformers import SMALL, TINY
from ...study import Study
from ._judge import BASELINES, config_law, judge, summarise, without_own_sizes
from ._moments import LATER, SIZES, TORCH, Followed, follow, follow_table, group_of
from ._panels import draw

# Logs of small Transformers that `benchmarks/torch_logs.py` trained in PyTorch.
PYTORCH = Path(__file__).with_name("forecast_torch.parquet")
TORCH_GOAL = 0.1
HERE = "trained here"
LEAST = 0.75
MOST = 0.85
# Our experiments whose runs are forecast, in addition to the figures of the papers.
OURS = (
    *("attention", "capacity", "schedule", "coupled"),
    *("stages", "rounding", "dropout", "second-plateau"),
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """`own`: a study to train and forecast; None forecasts all recorded runs."""

    own: Study | None = None

    def studies(self) -> dict[str, Study]:
        return recorded_studies() if self.own is None else {HERE: self.own}


def recorded_studies() -> dict[str, Study]:
    """Return the studies of all figures with recorded curves, by figure and name.

    The papers come first: a run that belongs to two figures is assigned to the first.
    """
    papers = [id for id in FIGURES if not id.startswith("emergo/")]
    return {
        f"{id}: {name}": study
        for id in [*papers, *(f"emergo/{name}" for name in OURS)]
        for name, study in FIGURES[id].studies("paper").items()
    }


def recorded_runs(source: RunSource) -> list[Followed]:
    """Return all recorded runs with curves, without repetition."""
    followed: dict[str, Followed | None] = {}
    for part, runs in source.runs(recorded_studies()).items():
        figure = part.partition(":")[0]
        for result in runs:
            if result.run.identity not in followed:
                followed[result.run.identity] = follow(result, group_of(result.run, figure))
    return [run for run in followed.values() if run is not None]


def make(settings: Settings, source: RunSource) -> Outcome:
    if settings.own is not None:
        results = source.runs(settings.studies(), curves=True)[HERE]
        followed = [follow(result, HERE) for result in results]
        moments = judge([run for run in followed if run is not None])
    else:
        runs = [*recorded_runs(source), *follow_table(read_table(PYTORCH), TORCH, TORCH_GOAL)]
        fitted = [run for run in runs if run.group == SIZES]
        parts = [judge(fitted, *without_own_sizes(fitted))]
        for group in dict.fromkeys(run.group for run in runs if run.group != SIZES):
            law = config_law(fitted) if group == LATER else None
            parts.append(judge([run for run in runs if run.group == group], law=law))
        moments = pd.concat(parts, ignore_index=True)
    summary = summarise(moments)
    tables = {"moments": moments, "summary": summary}
    return Outcome(tables, draw(moments, summary), checks=[*checks_of(summary)])


def checks_of(summary: pd.DataFrame) -> Iterator[Check]:
    """Check the coverage and the error of every group and level, and its false alarms."""
    for row in summary[summary["told"] > 0].to_dict("records"):
        level = "metric alone" if row["level"] == "metric" else f"level {row['level']}"
        what = f"{row['group']}, {level} ({row['told']} forecasts of {row['told_runs']} runs)"
        yield Check(
            f"{what}: share in the 80% interval; with every cell counting once "
            f"{row['held80_by_cell']:.2f}",
            row["held80"],
            None,
            LEAST <= row["held80"] <= MOST,
            f"{LEAST} to {MOST}",
        )
        known = [(words, row[f"error_{name}"]) for name, words in BASELINES.items()]
        others = ", ".join(f"{words} {off:.2f}" for words, off in known if np.isfinite(off))
        yield Check(
            f"{what}: median factor off ({others})",
            row["error"],
            None,
            row["error"] < row["error_again"],
            f"below {row['error_again']:.2f}",
        )
        if row["negatives"]:
            yield Check(
                f"{row['group']}, {level}: share of {row['negatives']} runs that do not "
                f"emerge with a false alarm",
                row["false_alarms"],
                None,
                row["false_alarms"] <= 0.1,
                "at most 0.1",
            )


class _Recorded:
    """The parts whose recorded outcomes suffice: all but the runs that are trained here."""

    def __contains__(self, part: object) -> bool:
        return part != HERE


LAPTOP = SMALL.replace(optimizer__learning_rate=5e-4, steps=3000)
SMOKE = TINY.replace(optimizer__learning_rate=2e-3)
FIGURE = Figure(
    "emergo/forecast",
    "forecasts of emergence: error, coverage and false alarms, beside baselines",
    {
        "paper": Settings(),
        "laptop": Settings(Study.of(LAPTOP, grid={"length": (16, 32), "dim": (8, 16)}, seeds=3)),
        "smoke": Settings(Study.of(SMOKE, grid={"length": (8,), "dim": (4,)}, seeds=2)),
    },
    make,
    {"paper": 1e6, "laptop": 90, "smoke": 10},
    curves=True,
    outcomes=_Recorded(),
)
