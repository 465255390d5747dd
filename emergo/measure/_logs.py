"""Tables from files, and emergence times from anybody's logs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from .._errors import InputError, unknown
from .._files import output_folder, staged
from ._emergence import Direction, emergence


def read_table(path: Path | str) -> pd.DataFrame:
    """Reads a CSV or Parquet file, chosen by its suffix. Raises `InputError` with the file's name when it cannot."""
    path = Path(path)
    kinds = {".csv": "CSV", ".parquet": "Parquet", ".pq": "Parquet"}
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise InputError(f"{path}: expected a .csv or .parquet file")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        # Blank cells are missing; a literal nan stays a number, since it is what a run that diverged has logged.
        return pd.read_csv(path) if kind == "CSV" else pq.read_table(path).to_pandas()
    except pd.errors.EmptyDataError:
        raise InputError(f"{path}: the file is empty") from None
    except (pd.errors.ParserError, UnicodeDecodeError, pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: not a readable {kind} file ({str(error).splitlines()[0]})") from None


def write_table(table: pd.DataFrame, path: Path | str) -> None:
    """Writes a CSV or Parquet file, chosen by its suffix, whole or not at all."""
    path = Path(path)
    if path.suffix.lower() not in (".csv", ".parquet", ".pq"):
        raise InputError(f"{path}: expected a name that ends in .csv or .parquet")
    output_folder(path.parent)
    with staged(path.parent) as stage:
        if path.suffix.lower() == ".csv":
            table.to_csv(stage / path.name, index=False)
        else:
            table.to_parquet(stage / path.name, index=False)


def _numbers(path: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A column's values and whether each was logged at all: a blank cell or a null is not, a literal nan is."""
    if path.suffix.lower() == ".csv":
        raw = pd.read_csv(path, usecols=[name], dtype=str, keep_default_na=False)[name].str.strip()
        logged = np.asarray(raw != "")
        text = raw.where(raw != "", "nan")
    else:
        column = pq.read_table(path, columns=[name]).column(name)
        logged = ~np.asarray(column.is_null())
        text = pd.Series(column.to_pandas())
    try:
        return np.asarray(text.astype(np.float64)), logged
    except (TypeError, ValueError):
        raise InputError(f"{path}: column '{name}' is not numeric") from None


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
) -> pd.DataFrame:
    """Emergence times from long tables: one row an evaluation in, one row a run out.

    **Arguments:**

    - `paths`: CSV or Parquet files.
    - `metric`, `step`: columns. Rows where the metric was not logged (a blank cell, a null) are skipped; a literal nan or inf is
      a run that diverged. Of rows that repeat a step, as a resumed run writes them, the last counts.
    - `run`: the column that tells runs apart; by default `run` where there is one, else each file is one run.
    - `threshold`, `direction`, `hold`, `window`: as in [`emergo.measure.emergence`][].

    **Returns:**

    A table with `run`, the columns that are constant within every run (length, seed, ...), `plateau`, `plateau_low`,
    `plateau_high`, `censored`, `state` and `evaluations`.
    """
    rows = []
    for path in map(Path, paths):
        table = read_table(path)
        if table.empty:
            raise InputError(f"{path}: the table has no rows")
        names = [str(c) for c in table.columns]
        by = run if run is not None else ("run" if "run" in names else None)
        for name in (metric, step, *([by] if by else [])):
            if name not in names:
                error = unknown("column", name, names)
                raise InputError(f"{path}: {error}")
        values, logged = _numbers(path, metric)
        steps, _ = _numbers(path, step)
        groups = table.groupby(by, sort=False, dropna=False).indices if by else {path.stem: np.arange(len(table))}
        kept = [n for n in names if n not in (metric, step, by)]
        steady = [n for n in kept if all(table[n].iloc[i].nunique(dropna=False) == 1 for i in groups.values())]
        for name, index in groups.items():
            index = index[logged[index]]
            if not len(index):
                raise InputError(f"{path}: run '{name}' has no value of '{metric}'")
            if not np.isfinite(steps[index]).all():
                raise InputError(f"{path}: run '{name}' has rows without a '{step}'")
            curve = pd.Series(values[index], index=steps[index])
            curve = curve[~curve.index.duplicated(keep="last")].sort_index()
            found = emergence(
                np.asarray(curve.index), np.asarray(curve), threshold, direction, hold=hold, window=window
            )
            rows.append(
                {"run": name}
                | {n: table[n].iloc[groups[name][0]] for n in steady}
                | {
                    "plateau": found.time,
                    "plateau_low": found.low,
                    "plateau_high": found.high,
                    "censored": found.censored,
                    "state": found.state,
                    "evaluations": len(curve),
                }
            )
    if not rows:
        raise InputError("no file was given to measure")
    return pd.DataFrame(rows)
