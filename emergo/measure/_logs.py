"""Emergence times from anybody's logs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from .._errors import InputError, unknown
from .._tables import read_table
from ._emergence import Direction, emergence

Missing = Literal["auto", "skip", "failed"]

_OURS = ("run", "plateau", "plateau_low", "plateau_high", "censored", "state", "evaluations")
_RUN_COLUMNS = ("run", "identity")


def _numbers(table: pd.DataFrame, name: str, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A column as numbers, and where a number was written at all: a literal nan is one, a blank cell or a null is not."""
    raw = table[name]
    written = raw.notna()
    if raw.dtype == object or pd.api.types.is_string_dtype(raw):
        words = raw.astype(str).str.strip()
        written &= ~words.str.lower().isin(["", "none", "null", "na", "n/a", "<na>"])
        raw = words.where(written, "nan")
    try:
        return np.asarray(raw.astype(np.float64)), np.asarray(written)
    except (TypeError, ValueError):
        words = raw[pd.to_numeric(raw, errors="coerce").isna() & (raw.astype(str).str.lower() != "nan")]
        example = f", e.g. '{words.iloc[0]}'" if len(words) else ""
        raise InputError(f"{path}: column '{name}' is not numeric{example}") from None


def _is_constant(column: pd.Series, labels: np.ndarray) -> bool:
    """Whether a column has one value in every run."""
    try:
        return int(column.groupby(labels).nunique(dropna=False).max()) == 1
    except TypeError:  # lists and the like
        return False


def _read_runs(
    path: Path, label: str, metric: str, step: str, run: str | None, missing: Missing
) -> Iterator[tuple[str, dict[str, Any], pd.Series]]:
    """The name, constant columns and curve of each run in a file; without a run column it is one run, called `label`."""
    table = read_table(path, text=[metric, *([run] if run else _RUN_COLUMNS)])
    if table.empty:
        raise InputError(f"{path}: the table has no rows")
    names = [str(name) for name in table.columns]
    table.columns = pd.Index(names)
    run = run or next((name for name in _RUN_COLUMNS if name in names), None)
    for name in filter(None, (metric, step, run)):
        if name not in names:
            raise InputError(f"{path}: {unknown('column', name, names)}")
    values, written = _numbers(table, metric, path)
    steps, _ = _numbers(table, step, path)
    if run is None and "seed" in table and table["seed"].groupby(steps).nunique().max() > 1:
        raise InputError(f"{path}: steps repeat with another 'seed'; name the column that tells runs apart, e.g. run='seed'")
    labels = table[run].astype(str).to_numpy() if run else np.full(len(table), label)
    others = [name for name in names if name not in (metric, step, run)]
    constant = [name for name in others if name not in _OURS and _is_constant(table[name], labels)]
    evaluated = written if missing == "skip" else np.ones(len(table), bool)
    if missing == "auto":
        evaluated = written | ~np.asarray(table[others].drop(columns=constant).notna().any(axis=1), bool)
    for name, indices in pd.Series(labels).groupby(labels, sort=False).indices.items():
        rows = np.asarray(indices)
        logged = rows[evaluated[rows]]
        if not written[logged].any():
            raise InputError(f"{path}: run '{name}' has no value of '{metric}'")
        if not np.isfinite(steps[logged]).all():
            raise InputError(f"{path}: run '{name}' has rows without a '{step}'")
        curve = pd.Series(values[logged], index=steps[logged])
        curve = curve[~curve.index.duplicated(keep="last")].sort_index()
        yield str(name), {column: table[column].iloc[rows[0]] for column in constant}, curve


def measure_logs(
    paths: Sequence[Path | str],
    metric: str,
    threshold: float,
    direction: Direction = "below",
    *,
    step: str = "step",
    run: str | None = None,
    hold: int = 1,
    window: int = 1,
    missing: Missing = "auto",
) -> pd.DataFrame:
    """Emergence times from long tables: one row per evaluation in, one row per run out, with the columns that are constant
    within every run (length, seed, ...).

    - `paths`: CSV or Parquet files.
    - `metric`, `step`: columns. Of rows that repeat a step, as a resumed run writes them, the last counts.
    - `run`: the column that tells runs apart; by default `run` or `identity` where there is one, else each file is one run.
    - `threshold`, `direction`, `hold`, `window`: as in [`emergo.measure.emergence`][].
    - `missing`: what a row without a value of the metric means. `"skip"`: it was not evaluated there. `"failed"`: it was not a
      number, and the run has diverged; this is what pandas writes for NaN. `"auto"`: skip where the row holds something
      else that varies within runs (loggers that write several metrics in separate rows), failed otherwise. A literal nan or inf
      always is a run that diverged.
    """
    files = [Path(path) for path in paths]
    stems = [file.stem for file in files]
    if not files:
        raise InputError("no file was given to measure")
    measured: list[dict[str, Any]] = []
    source: dict[str, Path] = {}
    for file in files:
        if files.count(file) > 1:
            raise InputError(f"{file}: given more than once")
        label = file.stem if stems.count(file.stem) == 1 else str(file)
        for name, constant, curve in _read_runs(file, label, metric, step, run, missing):
            if name in source:
                raise InputError(f"run '{name}' is in {source[name]} and in {file}; rename one of them, or join their rows")
            source[name] = file
            result = emergence(np.asarray(curve.index), np.asarray(curve), threshold, direction, hold=hold, window=window)
            outcome = (name, result.time, result.low, result.high, result.censored, result.state, len(curve))
            measured.append({"run": name} | constant | dict(zip(_OURS, outcome, strict=True)))
    return pd.DataFrame(measured)
