"""Chart exports of Weights & Biases: a column of steps, then for every run its metric and the extremes of its bins."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..._errors import InputError, unknown
from ._long import BOOKKEEPING, Query, numbers
from ._records import Cells, Records

_BETWEEN = " - "  # the name of a run and its metric
_EXTREMES = ("__MIN", "__MAX")


def is_chart(table: pd.DataFrame) -> bool:
    """Whether a table is such an export: some column `run - metric` has its extremes beside it."""
    names = {str(name) for name in table.columns}
    return any(_BETWEEN in name and all(name + end in names for end in _EXTREMES) for name in names)


def chart_records(table: pd.DataFrame, where: str, query: Query) -> Iterator[Records]:
    """The runs of a chart, in the order of its columns. A blank cell is a step at which the run has no point."""
    if table.empty:
        raise InputError(f"{where}: the table has no rows")
    table.columns = pd.Index([str(name) for name in table.columns])
    step = query.step if query.step in table else str(table.columns[0])
    steps, _ = numbers(table[step], f"{where}: column '{step}'")
    runs: dict[str, dict[str, str]] = {}
    for name in table.columns.drop(step):
        run, between, metric = str(name).rpartition(_BETWEEN)
        if between and not metric.endswith(_EXTREMES) and metric not in BOOKKEEPING:
            runs.setdefault(run, {})[metric] = str(name)
    for run, columns in runs.items():
        cells = {}
        for metric in query.metrics or columns:
            if metric not in columns:
                raise InputError(f"{where}: run '{run}': {unknown('metric', metric, columns)}")
            values, written = numbers(table[columns[metric]], f"{where}: column '{columns[metric]}'")
            rows = np.flatnonzero(written & np.isfinite(steps))
            if len(rows):
                cells[metric] = Cells(rows, values[rows])
            elif query.metrics:
                raise InputError(f"{where}: run '{run}' has no value of '{metric}'")
        yield Records(run, steps, cells, {}, step, labelled=True)
