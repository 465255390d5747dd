"""Chart exports of Weights & Biases.

A table has a column of steps, and for every run a column `run - metric` with the smallest and
largest value of each bin in `run - metric__MIN` and `run - metric__MAX`.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..core.errors import InputError, unknown
from ._long import BOOKKEEPING, Query, numbers
from ._records import Cells, Records

_BETWEEN = " - "
_EXTREMES = ("__MIN", "__MAX")


def is_chart(table: pd.DataFrame) -> bool:
    """Return True if some column `run - metric` comes with its extremes."""
    names = {str(name) for name in table.columns}
    return any(_BETWEEN in name and all(name + end in names for end in _EXTREMES) for name in names)


def chart_records(table: pd.DataFrame, where: str, query: Query) -> Iterator[Records]:
    """Yield the runs of a chart in the order of its columns; blank cells are not points."""
    step = query.step if query.step in table else str(table.columns[0])
    steps, _ = numbers(table[step], f"{where}: column '{step}'")
    runs: dict[str, dict[str, str]] = {}
    for name in table.columns.drop(step):
        run, between, metric = name.rpartition(_BETWEEN)
        if between and not metric.endswith(_EXTREMES) and metric not in BOOKKEEPING:
            runs.setdefault(run, {})[metric] = name
    for run, columns in runs.items():
        cells = {}
        for metric in query.metrics or columns:
            if metric not in columns:
                raise InputError(f"{where}: run '{run}': {unknown('metric', metric, columns)}")
            name = columns[metric]
            values, written = numbers(table[name], f"{where}: column '{name}'")
            rows = np.flatnonzero(written & np.isfinite(steps))
            if len(rows):
                cells[metric] = Cells(rows, values[rows])
            elif query.metrics:
                raise InputError(f"{where}: run '{run}' has no value of '{metric}'")
        yield Records(run, steps, cells, {}, step, labelled=True)
