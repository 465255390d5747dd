"""Tables as runs: long tables with one row per evaluation, tables with a column per run, and
charts of Weights & Biases.

A chart has a column of steps, and for every run a column `run - metric` with the smallest and
largest value of each bin in `run - metric__MIN` and `run - metric__MAX`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from ..core.errors import InputError, unknown
from ._records import Cells, Records

Missing = Literal["auto", "skip", "failed"]

# The columns that `measure_logs` adds.
MEASURED = ("run", "plateau", "plateau_low", "plateau_high", "censored", "state", "evaluations")
RUN_COLUMNS = ("run", "identity")
STEP_COLUMNS = (
    *("step", "_step", "Step", "global_step", "train/global_step", "trainer/global_step"),
    *("iteration", "iter", "epoch", "Epoch"),
)
# Columns of Weights & Biases that are neither curves nor constants.
BOOKKEEPING = ("_step", "_runtime", "_timestamp", "_wandb")
# A chart has a column `run - metric` for every run, with the extremes of each bin.
_BETWEEN = " - "
_EXTREMES = ("__MIN", "__MAX")
_BLANKS = ["", "none", "null", "na", "n/a", "<na>"]


class Query(NamedTuple):
    """Options for reading a log; see [`emergo.logs.read_logs`][]."""

    step: str = "step"
    run: str | None = None
    metrics: Sequence[str] | None = None
    missing: Missing = "auto"


class _Column(NamedTuple):
    """A column of numbers."""

    values: Float[np.ndarray, " rows"]
    written: Bool[np.ndarray, " rows"]  # the log has a number, or a literal nan
    evaluated: Bool[np.ndarray, " rows"]  # written, or blank because the run had diverged


def find_step(names: Sequence[str], step: str, where: str) -> str:
    """Return the column of steps: the given one, or a well-known name instead of the default."""
    known = STEP_COLUMNS if step == "step" else (step,)
    for name in known:
        if name in names:
            return name
    raise InputError(f"{where}: {unknown('column', step, names)}")


def long_records(table: pd.DataFrame, where: str, query: Query) -> Iterator[Records]:
    """Yield the runs of a long table in the order of their first rows."""
    names = list(table.columns)
    asked = tuple(query.metrics or ())
    step = find_step(names, query.step, where)
    run = query.run or next((name for name in RUN_COLUMNS if name in names), None)
    for name in (*asked, *([run] if run else [])):
        if name not in names:
            raise InputError(f"{where}: {unknown('column', name, names)}")
    table, runs, bounds = _by_run(table, run)
    steps, _ = numbers(table[step], f"{where}: column '{step}'")
    if run is None and "seed" in names and table["seed"].groupby(steps).nunique().max() > 1:
        raise InputError(
            f"{where}: steps repeat with another 'seed'; name the column that tells runs apart, "
            f"e.g. run='seed'"
        )
    constant = []
    varying = []
    for name in names:
        if name not in asked and name not in (step, run) and _is_constant(table[name], bounds):
            constant.append(name)
        elif name not in (step, run):
            varying.append(name)
    columns = _columns(table[varying], where, query)
    for name, first, end in zip(runs, bounds[:-1], bounds[1:], strict=True):
        about = where if name is None else f"{where}: run '{name}'"
        own = steps[first:end]
        part = slice(first, end)
        constants = {
            key: table[key].iloc[first] for key in constant if key not in (*MEASURED, *BOOKKEEPING)
        }
        yield Records(
            name,
            own,
            _cells(columns, part, own, query, about, step),
            constants,
            step,
            labelled=run is not None,
            wanted=query.metrics,
            gaps=frozenset(name for name in asked if _has_gaps(columns[name], part)),
        )


def _by_run(
    table: pd.DataFrame, run: str | None
) -> tuple[pd.DataFrame, Sequence[str | None], list[int]]:
    """Sort the rows by run; return the table, the names of the runs, and where their rows begin.

    The last entry of the bounds is the number of rows.
    """
    if run is None:
        return table, [None], [0, len(table)]
    names = table[run]
    if names.dtype == object:  # Parquet may hold bytes that are not text
        names = names.map(lambda name: repr(name) if isinstance(name, bytes) else name)
    codes, runs = pd.factorize(names.astype(str))
    if (codes[1:] < codes[:-1]).any():
        order = np.argsort(codes, kind="stable")
        table = table.iloc[order].reset_index(drop=True)
        codes = codes[order]
    return table, list(map(str, runs)), np.searchsorted(codes, range(len(runs) + 1)).tolist()


def _columns(varying: pd.DataFrame, where: str, query: Query) -> dict[str, _Column]:
    """Convert the columns of numbers. Requested metrics must be such columns.

    The others are converted too, because they show where a run was restarted.
    """
    asked = query.metrics or ()
    blank = varying.isna().all(axis=1).to_numpy()  # rows that hold only constants
    columns: dict[str, _Column] = {}
    for name in varying:
        candidate = not asked or pd.api.types.is_numeric_dtype(varying[name])
        if name not in asked and (name in BOOKKEEPING or not candidate):
            continue
        try:
            values, written = numbers(varying[name], f"{where}: column '{name}'")
        except InputError:
            if asked:
                raise
            continue
        evaluated = {"skip": written, "auto": written | blank, "failed": np.ones_like(blank)}
        columns[str(name)] = _Column(values, written, evaluated[query.missing])
    return columns


def _cells(
    columns: Mapping[str, _Column],
    part: slice,
    steps: Float[np.ndarray, " rows"],
    query: Query,
    about: str,
    step: str,
) -> dict[str, Cells]:
    """Return the metrics in the rows of one run; rows without a step are left out."""
    asked = query.metrics or ()
    finite = np.isfinite(steps)
    cells = {}
    for name, column in columns.items():
        evaluated = column.evaluated[part]
        if query.missing == "skip":
            evaluated = evaluated & ~_passing(column.values[part])
        if column.written[part].any():
            rows = np.flatnonzero(evaluated & finite)
            cells[name] = Cells(rows, column.values[part][rows])
        elif name in asked:
            raise InputError(f"{about} has no value of '{name}'")
        if name in asked and not finite[evaluated].all():
            raise InputError(f"{about} has rows without a '{step}'")
    return cells


def _has_gaps(column: _Column, part: slice) -> bool:
    """Return True if numbers follow a nan, or a blank cell that counts as nan."""
    return bool((column.evaluated[part] & _passing(column.values[part])).any())


def _passing(values: Float[np.ndarray, " rows"]) -> Bool[np.ndarray, " rows"]:
    """Mark every nan that a number follows: the run went on, so it has not diverged there."""
    followed = np.logical_or.accumulate(np.isfinite(values)[::-1])[::-1]
    return np.isnan(values) & followed


def numbers(
    raw: pd.Series, where: str
) -> tuple[Float[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """Convert a column to numbers; the second array is False for blank cells and nulls."""
    written = raw.notna()
    if raw.dtype == object or pd.api.types.is_string_dtype(raw):
        try:
            words = raw.astype(str).str.strip()
        except UnicodeDecodeError:
            raise InputError(f"{where} is not numeric: it holds bytes that are no text") from None
        written &= ~words.str.lower().isin(_BLANKS)
        raw = words.where(written, "nan")
    try:
        return np.asarray(raw.astype(np.float64)), np.asarray(written)
    except (TypeError, ValueError):
        invalid = pd.to_numeric(raw, errors="coerce").isna()
        words = raw[invalid & (raw.astype(str).str.lower() != "nan")]
        example = f", e.g. '{words.iloc[0]}'" if len(words) else ""
        raise InputError(f"{where} is not numeric{example}") from None


def _is_constant(column: pd.Series, bounds: Sequence[int]) -> bool:
    """Return True if a column has one value in every run."""
    try:
        codes: Int[np.ndarray, " rows"] = pd.factorize(column)[0]
    except TypeError:  # lists, for example
        return False
    changes = codes[1:] != codes[:-1]
    changes[np.array(bounds[1:-1], int) - 1] = False  # between two runs
    return not changes.any()


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


def wide_runs(table: pd.DataFrame, query: Query) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Find runs in columns such as `loss_seed0`, `loss_seed1` of a table without a column `loss`.

    **Returns:** by the name of a run (`seed0`) its constants (`seed`: 0), and its columns in the
    order of the requested metrics. The result is empty for other tables.
    """
    names = [str(name) for name in table.columns]
    if query.run is not None or any(name in names for name in RUN_COLUMNS):
        return {}
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for metric in query.metrics or ():
        pattern = re.compile(re.escape(metric) + r"[_./ -](([A-Za-z]+)[_=-]?(\d+))")
        for name in [] if metric in names else names:
            match = pattern.fullmatch(name)
            if match:
                run, axis, number = match.groups()
                found.setdefault(run, ({axis: int(number)}, []))[1].append(name)
    whole = all(len(columns) == len(query.metrics or ()) for _, columns in found.values())
    return found if whole and len(found) > 1 else {}


def wide_records(table: pd.DataFrame, where: str, query: Query, label: str) -> Iterator[Records]:
    """Yield the runs of a table with columns for each run, as found by `wide_runs`.

    A cell is not an evaluation if it is blank while another run has a value: it has ended.
    """
    for run, (constants, columns) in wide_runs(table, query).items():
        renamed = table.rename(columns=dict(zip(columns, query.metrics or (), strict=True)))
        (records,) = long_records(renamed, where, query)
        yield records._replace(
            name=f"{label}/{run}", labelled=True, constants=records.constants | constants
        )
