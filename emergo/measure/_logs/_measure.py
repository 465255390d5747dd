"""Emergence times from logs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .._emergence import Direction, emergence
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
    """Emergence times from logs: one row per run, with what is constant in it (length, seed, ...).

    - `paths`, and all further `options`: as in [`emergo.measure.read_logs`][].
    - `metric`, `threshold`, `direction`, `hold`, `window`: as in [`emergo.measure.emergence`][].
    - `missing`: what a row without a value of the metric means. `"skip"`: it was not evaluated there. `"failed"`: it was not a
      number, and the run has diverged; this is what pandas writes for NaN. `"auto"`: skip where the row holds something
      else that varies within runs (loggers that write several metrics in separate rows), failed otherwise. A literal nan or inf
      always is a run that diverged.
    """
    measured: list[dict[str, Any]] = []
    for run in read_logs(paths, metrics=[metric], **options):
        curve = run.curve(metric)
        result = emergence(np.asarray(curve.index), np.asarray(curve), threshold, direction, hold=hold, window=window)
        outcome = (run.name, result.time, result.low, result.high, result.censored, result.state, len(curve))
        measured.append({"run": run.name} | dict(run.constants) | dict(zip(MEASURED, outcome, strict=True)))
    return pd.DataFrame(measured)
