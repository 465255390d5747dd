"""Long tables, one row per evaluation: CSV, Parquet, JSON lines, and histories of Weights & Biases."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from ..._errors import InputError, unknown
from ._records import Cells, Records

Missing = Literal["auto", "skip", "failed"]

MEASURED = ("run", "plateau", "plateau_low", "plateau_high", "censored", "state", "evaluations")  # what `measure_logs` adds
RUN_COLUMNS = ("run", "identity")
STEP_COLUMNS = ("step", "_step", "Step", "global_step", "train/global_step", "trainer/global_step", "iteration", "iter")
BOOKKEEPING = ("_step", "_runtime", "_timestamp", "_wandb")  # of Weights & Biases: neither curves nor constants


class Query(NamedTuple):
    """What is asked of a log; see [`emergo.measure.read_logs`][]."""

    step: str = "step"
    run: str | None = None
    metrics: Sequence[str] | None = None
    missing: Missing = "auto"


def find_step(names: Sequence[str], step: str, where: str) -> str:
    """The column of steps: the one asked for or, where it is the default and not there, one with a well-known name."""
    known = STEP_COLUMNS if step == "step" else (step,)
    for name in known:
        if name in names:
            return name
    raise InputError(f"{where}: {unknown('column', step, names)}")


def long_records(table: pd.DataFrame, where: str, query: Query) -> Iterator[Records]:
    """The runs of a long table, in the order in which they first appear."""
    if table.empty:
        raise InputError(f"{where}: the table has no rows")
    table.columns = pd.Index([str(name) for name in table.columns])
    names, asked = list(table.columns), tuple(query.metrics or ())
    step = find_step(names, query.step, where)
    run = query.run or next((name for name in RUN_COLUMNS if name in names), None)
    for name in (*asked, *([run] if run else [])):
        if name not in names:
            raise InputError(f"{where}: {unknown('column', name, names)}")
    table, codes, runs, bounds = _by_run(table, run)
    steps, _ = numbers(table[step], f"{where}: column '{step}'")
    if run is None and "seed" in names and table["seed"].groupby(steps).nunique().max() > 1:
        raise InputError(f"{where}: steps repeat with another 'seed'; name the column that tells runs apart, e.g. run='seed'")
    others = [name for name in names if name not in (step, run)]
    constant = [name for name in others if name not in asked and _is_constant(table[name], codes, bounds[:-1])]
    varying = [name for name in others if name not in constant]
    columns = _columns(table[varying], where, query)
    numeric = [name for name in varying if name not in (*BOOKKEEPING, *columns) and pd.api.types.is_numeric_dtype(table[name])]
    hint = "" if run else _telling(table[varying], steps)
    for name, first, end in zip(runs, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        about, own = where if name is None else f"{where}: run '{name}'", steps[first:end]
        cells = _cells_between(columns, first, end, own, asked, about, step)
        held = {key: table[key].iloc[first] for key in constant if key not in (*MEASURED, *BOOKKEEPING)}
        rows = {}
        if (own[1:] < own[:-1]).any():
            rows = {key: np.flatnonzero(table[key].iloc[first:end].notna() & np.isfinite(own)) for key in numeric}
        yield Records(name, own, cells, held, step, run is not None, hint=hint, others=rows)


def _by_run(table: pd.DataFrame, run: str | None) -> tuple[pd.DataFrame, np.ndarray, Sequence[str | None], np.ndarray]:
    """The table with the rows of each run together, the number of the run of each row, the names of the runs, and where the
    rows of each begin; the last entry is where they all end."""
    if run is None:
        return table, np.zeros(len(table), int), [None], np.array([0, len(table)])
    codes, runs = pd.factorize(table[run].astype(str))
    if (codes[1:] < codes[:-1]).any():
        order = np.argsort(codes, kind="stable")
        table, codes = table.iloc[order].reset_index(drop=True), codes[order]
    return table, codes, [str(name) for name in runs], np.searchsorted(codes, np.arange(len(runs) + 1))


def _columns(varying: pd.DataFrame, where: str, query: Query) -> "dict[str, _Column]":
    """The metrics that are asked for, by default all columns of numbers."""
    blank = np.ones(len(varying), bool)  # rows that hold nothing but what is constant
    for name in varying:
        blank &= np.asarray(varying[name].isna())
    columns: dict[str, _Column] = {}
    for name in query.metrics or [name for name in map(str, varying) if name not in BOOKKEEPING]:
        try:
            columns[name] = _column(varying[name], f"{where}: column '{name}'", query.missing, blank)
        except InputError:
            if query.metrics:
                raise
    return columns


def _cells_between(
    columns: "dict[str, _Column]", first: int, end: int, steps: np.ndarray, asked: Sequence[str], about: str, step: str
) -> dict[str, Cells]:
    """What the rows of one run hold. Of metrics that were not asked for, values without a step are left out."""
    own = {}
    for name, column in columns.items():
        cells = column.between(first, end)
        stepped = np.isfinite(steps[cells.rows])
        if column.written[first:end].any():
            own[name] = cells if stepped.all() else Cells(cells.rows[stepped], cells.values[stepped])
        elif name in asked:
            raise InputError(f"{about} has no value of '{name}'")
        if name in asked and not stepped.all():
            raise InputError(f"{about} has rows without a '{step}'")
    return own


class _Column(NamedTuple):
    """A column of numbers: in which rows it was evaluated, the values there, and in which rows of all one was written."""

    rows: Int[np.ndarray, " cells"]
    values: Float[np.ndarray, " cells"]
    written: Bool[np.ndarray, " rows"]

    def between(self, first: int, end: int) -> Cells:
        """The cells of some rows in a row, numbered from the first of them."""
        low, high = np.searchsorted(self.rows, (first, end))
        return Cells(self.rows[low:high] - first, self.values[low:high])


def _column(raw: pd.Series, where: str, missing: Missing, blank: Bool[np.ndarray, " rows"]) -> _Column:
    values, written = numbers(raw, where)
    evaluated = written if missing == "skip" else written | blank if missing == "auto" else np.ones(len(raw), bool)
    rows = np.flatnonzero(evaluated)
    return _Column(rows, values if len(rows) == len(values) else values[rows], written)


def numbers(raw: pd.Series, where: str) -> tuple[Float[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """A column as numbers, and where a number was written at all: a literal nan is one, a blank cell or a null is not."""
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
        raise InputError(f"{where} is not numeric{example}") from None


def _is_constant(column: pd.Series, codes: Int[np.ndarray, " rows"], firsts: Int[np.ndarray, " runs"]) -> bool:
    """Whether a column has one value in every run."""
    if not pd.api.types.is_numeric_dtype(column):
        try:
            column = pd.Series(pd.factorize(column)[0])
        except TypeError:  # lists and the like
            return False
    values, missing = column.to_numpy(np.float64, na_value=np.nan), np.asarray(column.isna())
    same = (values == values[firsts][codes]) | (missing & missing[firsts][codes])
    return bool(same.all())


def _telling(table: pd.DataFrame, steps: Float[np.ndarray, " rows"]) -> str:
    """A column that may tell runs apart: with each of its values, every step is there once. Empty where there is none."""
    if (steps[1:] > steps[:-1]).all():
        return ""
    labels = [str(name) for name in table if not pd.api.types.is_float_dtype(table[name])]
    for name in sorted(labels, key=lambda name: name != "seed"):
        pairs = pd.DataFrame({"step": steps, "label": table[name].astype(str)})
        if not pairs.duplicated().any() and 1 < pairs["label"].nunique() <= len(pairs) / 2:
            return name
    return ""
