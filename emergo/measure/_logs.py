"""Tables from files, and emergence times from anybody's logs."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from .._errors import InputError, unknown
from .._files import output_folder, staged
from ._emergence import Direction, emergence

Missing = Literal["auto", "skip", "failed"]

_OURS = ("run", "plateau", "plateau_low", "plateau_high", "censored", "state", "evaluations")
_CSV: dict[str, Any] = {"index_col": False, "low_memory": False, "skipinitialspace": True}


def read_table(path: Path | str) -> pd.DataFrame:
    """Reads a CSV or Parquet file, chosen by its suffix. Raises `InputError` with the file's name when it cannot."""
    return _read(Path(path))


def _read(path: Path, text: Sequence[str] = ()) -> pd.DataFrame:
    """As [`read_table`][], with some columns of a CSV kept as text."""
    kind = {".csv": "CSV", ".parquet": "Parquet", ".pq": "Parquet"}.get(path.suffix.lower())
    if kind is None:
        raise InputError(f"{path}: expected a .csv or .parquet file")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        if kind == "Parquet":
            table = pq.read_table(path).to_pandas()
            return table.reset_index() if any(name is not None for name in table.index.names) else table
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(path, **_CSV)
            kept = [name for name in text if name in table]
            if kept:
                table[kept] = pd.read_csv(path, usecols=kept, dtype=str, keep_default_na=False, **_CSV)[kept]
            return table
    except pd.errors.EmptyDataError:
        raise InputError(f"{path}: the file is empty") from None
    except pd.errors.ParserWarning:
        raise InputError(f"{path}: some rows have more cells than the header; is there a comma at the end of lines?") from None
    except (pd.errors.ParserError, UnicodeDecodeError, pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable {kind} file ({str(error).splitlines()[0]})") from None


def write_table(table: pd.DataFrame, path: Path | str) -> None:
    """Writes a CSV or Parquet file, chosen by its suffix, whole or not at all."""
    path = Path(path)
    if path.suffix.lower() not in (".csv", ".parquet", ".pq") or path.is_dir():
        raise InputError(f"{path}: expected the name of a file that ends in .csv or .parquet")
    output_folder(path.parent)
    with staged(path.parent) as stage:
        if path.suffix.lower() == ".csv":
            table.to_csv(stage / path.name, index=False)
        else:
            table.to_parquet(stage / path.name, index=False)


def _numbers(table: pd.DataFrame, name: str, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A column as numbers, and where a number was written at all: a literal nan is one, a blank cell or a null is not."""
    raw = table[name]
    if raw.dtype == object or pd.api.types.is_string_dtype(raw):
        words = raw.astype(str).str.strip()
        written = raw.notna() & ~words.str.lower().isin(["", "none", "null", "na", "n/a", "<na>"])
        raw = words.where(written, "nan")
    else:
        written = raw.notna()
    try:
        return np.asarray(raw.astype(np.float64)), np.asarray(written)
    except (TypeError, ValueError):
        bad = raw[pd.to_numeric(raw, errors="coerce").isna() & (raw.astype(str).str.lower() != "nan")]
        example = f", e.g. '{bad.iloc[0]}'" if len(bad) else ""
        raise InputError(f"{path}: column '{name}' is not numeric{example}") from None


def _steady(table: pd.DataFrame, groups: dict[str, np.ndarray], names: Sequence[str]) -> list[str]:
    """The columns that have one value in every run."""

    def same(name: str) -> bool:
        try:
            return all(len(table[name].iloc[rows].drop_duplicates()) == 1 for rows in groups.values())
        except TypeError:  # lists and the like
            return False

    return [name for name in names if same(name)]


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
    """Emergence times from long tables: one row an evaluation in, one row a run out.

    **Arguments:**

    - `paths`: CSV or Parquet files.
    - `metric`, `step`: columns. Of rows that repeat a step, as a resumed run writes them, the last counts.
    - `run`: the column that tells runs apart; by default `run` or `identity` where there is one, else each file is one run.
    - `threshold`, `direction`, `hold`, `window`: as in [`emergo.measure.emergence`][].
    - `missing`: what a row without a value of the metric means. `"skip"`: it was not evaluated there. `"failed"`: it was not a
      number, and the run has diverged; this is what pandas writes for NaN. `"auto"`: skip where the row holds something
      else that varies within runs (loggers that write several metrics in separate rows), failed otherwise. A literal nan or inf
      always is a run that diverged.

    **Returns:**

    A table with `run`, the columns that are constant within every run (length, seed, ...), `plateau`, `plateau_low`,
    `plateau_high`, `censored`, `state` and `evaluations`.
    """
    files = [Path(p) for p in paths]
    if not files:
        raise InputError("no file was given to measure")
    twice = [f for f in files if files.count(f) > 1]
    if twice:
        raise InputError(f"{twice[0]}: given more than once")
    stems = [f.stem for f in files]
    rows: list[dict[str, Any]] = []
    source: dict[str, Path] = {}
    for path in files:
        table = _read(path, text=[metric, *([run] if run else ["run", "identity"])])
        if table.empty:
            raise InputError(f"{path}: the table has no rows")
        names = [str(c) for c in table.columns]
        table.columns = pd.Index(names)
        by = run if run is not None else next((name for name in ("run", "identity") if name in names), None)
        for name in (metric, step, *([by] if by else [])):
            if name not in names:
                raise InputError(f"{path}: {unknown('column', name, names)}")
        values, written = _numbers(table, metric, path)
        steps, _ = _numbers(table, step, path)
        if by:
            labels = table[by].astype(str)
            groups = {str(k): np.asarray(v) for k, v in labels.groupby(labels, sort=False).indices.items()}
        else:
            groups = {path.stem if stems.count(path.stem) == 1 else str(path): np.arange(len(table))}
        if by is None and "seed" in names and table.assign(step=steps).groupby("step")["seed"].nunique().max() > 1:
            raise InputError(f"{path}: steps repeat with another 'seed'; say which column tells runs apart, e.g. --run seed")
        others = [n for n in names if n not in (metric, step, by)]
        steady = [n for n in _steady(table, groups, others) if n not in _OURS]
        if missing == "auto":
            beside = [n for n in others if n not in steady]
            used = written | ~np.asarray(table[beside].notna().any(axis=1), bool) if beside else np.ones(len(table), bool)
        else:
            used = written if missing == "skip" else np.ones(len(table), bool)
        for name, index in groups.items():
            if name in source:
                raise InputError(
                    f"run '{name}' is in {source[name]} and in {path}; give runs different names, or join its parts"
                )
            source[name] = path
            logged = index[used[index]]
            if not len(logged) or not written[logged].any():
                raise InputError(f"{path}: run '{name}' has no value of '{metric}'")
            if not np.isfinite(steps[logged]).all():
                raise InputError(f"{path}: run '{name}' has rows without a '{step}'")
            curve = pd.Series(values[logged], index=steps[logged])
            curve = curve[~curve.index.duplicated(keep="last")].sort_index()
            found = emergence(np.asarray(curve.index), np.asarray(curve), threshold, direction, hold=hold, window=window)
            measured = (found.time, found.low, found.high, found.censored, found.state, len(curve))
            constant = {n: table[n].iloc[index[0]] for n in steady}
            rows.append({"run": name} | constant | dict(zip(_OURS[1:], measured, strict=True)))
    return pd.DataFrame(rows)
