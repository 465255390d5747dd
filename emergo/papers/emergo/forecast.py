"""Is it about to learn? Forecasts of emergence from logs that are cut at steps fixed in advance, beside what became of the runs.

The method is in `emergo/measure/_forecast.py`, its table in `emergo/measure/forecast.json`. What it was fitted to, how it is
judged and against which baselines was written down (docs/dev/LOG.md) before it was asked about any run that it is judged on.
"""

from ...studies import Study
from .. import yuksel2026, zucchet2025
from . import attention, capacity, coupled, dropout, rounding, schedule, second_plateau, stages
from ._forecast_moments import Followed, follow, group_of
from .._figure import RunSource


def recorded_studies() -> dict[str, Study]:
    """All parts of the figures whose runs have curves, by the figure's id and their names; those of papers come first, so that a
    run which two figures share is the paper's."""
    ours = (attention, capacity, schedule, coupled, stages, rounding, dropout, second_plateau)
    figures = [*zucchet2025.FIGURES, *yuksel2026.FIGURES, *(module.FIGURE for module in ours)]
    return {f"{figure.id}: {name}": study for figure in figures for name, study in figure.studies("paper").items()}


def recorded_runs(source: RunSource) -> list[Followed]:
    """The runs of these whose curves were kept, each once."""
    followed: dict[str, Followed | None] = {}
    for part, runs in source.runs(recorded_studies()).items():
        for result in runs:
            if result.run.identity not in followed:
                group = group_of(result.run, part.partition(":")[0])
                followed[result.run.identity] = follow(result, group)
    return [run for run in followed.values() if run is not None]
