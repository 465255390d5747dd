"""Emergence times from logs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..measure import Direction, emergence
from ._long import MEASURED
from ._read import read_logs


def measure_logs(
    paths: Sequence[Path | str],
    metric: str,
    threshold: float,
    direction: Direction = "below",
    *,
    hold: int = 1,
    window: int = 1,
    **options: Any,
) -> pd.DataFrame:
    """Measure emergence times in logs.

    **Arguments:**

    - `paths`, and all further `options`: as in [`emergo.logs.read_logs`][].
    - `metric`, `threshold`, `direction`, `hold`, `window`: as in [`emergo.measure.emergence`][].
    - `missing`: the meaning of a row without a value of the metric. `"skip"`: the metric was not
      evaluated there. `"failed"`: the value was not a number, and the run has diverged; pandas
      writes NaN like this. `"auto"`: skip if the row holds another value that varies within runs
      (some loggers write each metric in a separate row), otherwise failed. A literal nan or inf
      always means that the run has diverged.

    **Returns:** a table with one row per run, with its constants (length, seed, ...).
    """
    rows = []
    for run in read_logs(paths, metrics=[metric], **options):
        curve = run.curve(metric)
        result = emergence(
            curve.index.to_numpy(),
            curve.to_numpy(),
            threshold,
            direction,
            hold=hold,
            window=window,
        )
        measured = (run.name, result.time, result.low, result.high, result.censored, result.state)
        # The name of the run comes first, and the measured columns replace constants.
        row = {"run": run.name} | dict(run.constants)
        rows.append(row | dict(zip(MEASURED, (*measured, len(curve)), strict=True)))
    return pd.DataFrame(rows)
