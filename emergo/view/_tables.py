"""Sets of runs from Parquet tables of figures and records. Needs neither JAX nor pandas."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.files import read_regular
from ..core.json import parse_json
from ..core.parquet import parquet_table
from ..store.reader import check_listed, checker, number_or_none, read_json
from ._runset import RunSet, check_columns, columns_of, varied

LARGEST = 400_000_000  # bytes of a table; larger ones are listed in the notes and left out
JOIN = ", "  # between the names of the tables that contain a run
_STEPS = ("step", "t")


class TableCurves:
    """The curves in a table with one row per evaluation; each run has a slice of the rows."""

    def __init__(
        self, table: pa.Table, rows: Mapping[str, slice], names: Sequence[str], step: str
    ) -> None:
        self._table = table
        self._rows = rows
        self._names = list(names)
        self._step = step
        self._stamp = object()  # every table that is read gets its own

    def stamp(self, identity: str) -> Any:
        return self._stamp if identity in self._rows else None

    def read(self, identity: str, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Return columns of a run; those without a value in its rows do not count."""
        rows = self._rows.get(identity)
        if rows is None:
            return {}
        part = self._table.slice(rows.start, rows.stop - rows.start)
        columns = {
            name: part[name].to_numpy()
            for name in self._names
            if name in (names or self._names) and part[name].null_count < len(part)
        }
        return {"step": part[self._step].to_numpy(), **columns}


NO_CURVES = TableCurves(pa.table({"step": pa.array([], pa.float64())}), {}, (), "step")


def read_table(path: Path, listed: bool = False) -> pa.Table:
    """Read a Parquet file; raise a `ValueError` of one line if it is damaged or too large.

    **Arguments:**

    - `listed`: also compare it with a list of checksums, if there is one.
    """
    try:
        data = read_regular(path, LARGEST)
        if listed:
            check_listed(path, data)
        return parquet_table(data)
    except OSError as error:
        raise ValueError(error.strerror or type(error).__name__) from None


def record_set(path: Path) -> RunSet:
    """Read `NAME.runs.parquet`, with its curves from `NAME.curves.parquet`."""
    name = path.name.removesuffix(".runs.parquet")
    columns = read_table(path, listed=True).to_pydict()
    if "identity" not in columns:
        raise ValueError("it lacks the column identity")
    described = columns.pop("run", [])
    columns = check_columns(columns)
    descriptions = dict(zip(columns["identity"], described, strict=False))

    def config(identity: str) -> Mapping[str, Any]:
        try:
            content = parse_json(str(descriptions.get(identity) or "{}").encode())
            if not isinstance(content, dict) or not isinstance(content.get("config", {}), dict):
                raise ValueError("it is not a table")
            return content.get("config", {})
        except ValueError as error:
            return {"cannot be read": str(error)}

    curve_path = path.with_name(f"{name}.curves.parquet")
    curves = NO_CURVES
    notes = ()
    if curve_path.is_file() and not curve_path.is_symlink():
        try:
            curves = _curves_by_identity(read_table(curve_path, listed=True))
        except ValueError as error:
            notes = (f"{curve_path.name}: {error}",)
    version = f"{path.stat().st_mtime_ns}"
    return RunSet(name, "records", version, varied(columns), columns, curves, config, notes=notes)


def _curves_by_identity(table: pa.Table) -> TableCurves:
    """Find the rows of each run in a table with the column `identity`."""
    step = _step_column(table)
    if step is None or "identity" not in table.column_names:
        raise ValueError("needs the columns identity and step")
    kind = table["identity"].type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise ValueError("the column identity does not hold the names of runs")
    _check_steps(table, step)
    identities = table["identity"].to_numpy(zero_copy_only=False).astype(str)
    bounds = _bounds(identities[1:] != identities[:-1], len(identities))
    if len(bounds) != len(np.unique(identities)):  # the rows of some run are not contiguous
        order = np.argsort(identities, kind="stable")
        return _curves_by_identity(table.take(pa.array(order)))
    rows = {identities[rows.start]: rows for rows in bounds}
    return TableCurves(table, rows, [name for name in _numeric(table) if name != step], step)


def figure_set(path: Path) -> RunSet | None:
    """Read a figure by its JSON file; return None for any other JSON file.

    The tables of runs form one set, whose column `part` names the tables that contain a run. If a
    table holds curves, its runs belong to the set too.
    """
    try:
        report = read_json(path, _is_figure)
    except (OSError, ValueError):
        return None
    _check_report(report, "the content")
    rows: dict[str, dict[str, Any]] = {}  # by identity: a run may be in several tables
    curves = NO_CURVES
    notes = []
    for file in sorted(path.parent.glob(f"{path.stem}.*.parquet")):
        part = file.name[len(path.stem) + 1 : -len(".parquet")]
        try:
            table = read_table(file)
        except ValueError as error:
            notes.append(f"{file.name}: {error}")
            continue
        step = _step_column(table)
        try:
            _check_steps(table, step)
        except ValueError as error:
            notes.append(f"{file.name}: {error}")
            continue
        if step is None:
            for i, row in enumerate(table.to_pylist()):
                identity = str(row.get("identity") or f"{part}.{i}")
                known = rows.get(identity, {})
                parts = f"{known['part']}{JOIN}{part}" if known else part
                rows[identity] = known | row | {"part": parts, "identity": identity}
        elif curves is NO_CURVES:
            curves, found = _curves_by_restart(table, step, part)
            rows |= {row["identity"]: row for row in found}
    columns = check_columns(columns_of(rows.values()))
    return RunSet(
        report["figure"],
        "figure",
        f"{path.stat().st_mtime_ns}",
        varied(columns),
        columns,
        curves,
        lambda identity: {},
        figure=report,
        notes=tuple(notes),
        picture=path.with_suffix(".png"),
    )


def exponents(value: Any) -> bool:
    return isinstance(value, dict) and all(map(number_or_none, value.values()))


def intervals(value: Any) -> bool:
    pairs = value.values() if isinstance(value, dict) else [None]
    return all(isinstance(p, list) and len(p) == 2 and all(map(number_or_none, p)) for p in pairs)


def published(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and exponents(value.get("exponents", {})))


_LAW = {"name?": str, "formula?": str, "exponents?": exponents, "ci95?": intervals}
_LAW |= {"published?": published, "why?": str | None}
_check_report = checker({"figure": str, "laws": [_LAW], "checks": [{"name?": str}]})
_is_figure = checker({"figure": str, "laws": [dict], "checks": [dict]})


def _curves_by_restart(
    table: pa.Table, step: str, part: str
) -> tuple[TableCurves, list[dict[str, Any]]]:
    """Split a table that does not name its runs: a run begins where the steps start again.

    A column that is constant within every run is a field of the runs. Other columns of numbers
    are curves.

    **Returns:** the curves, and one row per run.
    """
    steps = np.asarray(table[step].to_numpy(zero_copy_only=False), np.float64)
    bounds = _bounds(np.diff(steps) <= 0, len(steps))
    rows = {f"{part}.{i}": rows for i, rows in enumerate(bounds)}
    found = [
        {"identity": identity, "part": part, "steps": float(steps[rows[identity].stop - 1])}
        for identity in rows
    ]
    curves = _numeric(table)
    for name in table.column_names:
        values = table[name].to_numpy(zero_copy_only=False)
        texts = values.astype(str)
        if name == step or all((texts[span] == texts[span.start]).all() for span in bounds):
            curves = [other for other in curves if other != name]
            for row, span in zip(found, bounds, strict=True):
                value = values[span.start]
                if name != step:
                    row.setdefault(name, value.item() if isinstance(value, np.generic) else value)
    return TableCurves(table, rows, curves, step), found


def _bounds(changes: np.ndarray, length: int) -> list[slice]:
    """Return the rows of each run, given whether a run ends between two rows."""
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), length]
    return list(itertools.starmap(slice, itertools.pairwise(edges))) if length else []


def _step_column(table: pa.Table) -> str | None:
    return next((name for name in _STEPS if name in table.column_names), None)


def _check_steps(table: pa.Table, step: str | None) -> None:
    """Raise `ValueError` if the steps of a table are not finite numbers."""
    if step is None:
        return
    if step not in _numeric(table):
        raise ValueError(f"the column {step} does not hold numbers")
    if not np.isfinite(table[step].to_numpy(zero_copy_only=False).astype(np.float64)).all():
        raise ValueError(f"the column {step} has values that are not finite")


def _numeric(table: pa.Table) -> list[str]:
    kinds = pa.types
    return [f.name for f in table.schema if kinds.is_integer(f.type) or kinds.is_floating(f.type)]
