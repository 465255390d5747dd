"""Sets of runs from tables: the Parquet files of figures and of records. Needs neither JAX nor pandas."""

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from .._files import read_regular
from .._parquet import parquet_table
from ..studies._reader import checker, read_json
from ..studies._version_1 import renamed_curve
from ._runset import RunSet, columns_of, varied

_RUNS = re.compile(r"(.+)\.runs\.parquet")
LARGEST = 400_000_000  # bytes of a table in memory; a larger one is named and left out
JOIN = ", "  # between the names of the tables that a run is in
_STEPS = ("step", "t")
_NUMBERS = itertools.count()  # of tables, each of which is read once


class TableCurves:
    """The curves of a table with one row per evaluation: where each run's rows are, and the table itself."""

    def __init__(self, table: pa.Table, rows: Mapping[str, slice], names: Sequence[str], step: str) -> None:
        self._table, self._rows, self._names, self._step = table, rows, list(names), step
        self._number = next(_NUMBERS)

    def stamp(self, identity: str) -> Any:
        return self._number if identity in self._rows else None

    def _columns(self, identity: str, names: Sequence[str]) -> dict[str, np.ndarray]:
        rows = self._rows[identity]
        part = self._table.select(list(names)).slice(rows.start, rows.stop - rows.start)
        return {name: part[name].to_numpy() for name in names}

    def names(self, identity: str) -> list[str]:
        """Runs of one table may have different curves: a column of nothing is not one of this run."""
        if identity not in self._rows:
            return []
        rows = self._rows[identity]
        part = self._table.slice(rows.start, rows.stop - rows.start)
        return [renamed_curve(name) for name in self._names if part[name].null_count < len(part)]

    def read(self, identity: str, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        if identity not in self._rows:
            return {}
        held = {renamed_curve(name): name for name in self._names}
        wanted = [held[name] for name in (self.names(identity) if names is None else names) if name in held]
        columns = self._columns(identity, [self._step, *wanted])
        return {"step": columns.pop(self._step), **{renamed_curve(name): values for name, values in columns.items()}}


NO_CURVES = TableCurves(pa.table({"step": pa.array([], pa.float64())}), {}, (), "step")


def read_table(path: Path) -> pa.Table:
    """A Parquet file; a `ValueError` in one line where it cannot be read or is too large."""
    try:
        return parquet_table(read_regular(path, LARGEST))
    except OSError as error:
        raise ValueError(error.strerror or type(error).__name__) from None


def record_set(path: Path) -> RunSet:
    """`NAME.runs.parquet` with `NAME.curves.parquet` beside it."""
    match = _RUNS.fullmatch(path.name)
    name = match[1] if match else path.stem
    runs, beside = read_table(path), path.with_name(f"{name}.curves.parquet")
    columns = _plain(runs)
    described = dict(zip(columns["identity"], columns.pop("run", []), strict=False))
    curves, notes = NO_CURVES, ()
    if beside.is_file() and not beside.is_symlink():
        try:
            curves = _by_identity(read_table(beside))
        except (ValueError, KeyError) as error:
            notes = (f"{beside.name}: {error}",)
    version = f"{path.stat().st_mtime_ns}"
    return RunSet(name, "records", version, varied(columns), columns, curves, _described(described), notes=notes)


def _described(texts: Mapping[str, Any]) -> Callable[[str], Mapping[str, Any]]:
    def config(identity: str) -> Mapping[str, Any]:
        try:
            content = json.loads(texts.get(identity) or "{}")
        except (TypeError, ValueError):
            return {}
        return content.get("config", {}) if isinstance(content, dict) else {}

    return config


def _by_identity(table: pa.Table) -> TableCurves:
    """Curves whose rows name their runs."""
    step = next((name for name in _STEPS if name in table.column_names), None)
    if step is None or "identity" not in table.column_names:
        raise ValueError("needs the columns identity and step")
    identities = table["identity"].to_numpy(zero_copy_only=False).astype(str)
    starts = np.flatnonzero(np.append(True, identities[1:] != identities[:-1])) if len(identities) else np.zeros(0, int)
    if len(starts) != len(np.unique(identities[starts])):  # rows of a run are not together
        table = table.take(pa.array(np.argsort(identities, kind="stable")))
        return _by_identity(table)
    ends = np.append(starts[1:], len(identities))
    rows = {identities[a]: slice(int(a), int(b)) for a, b in zip(starts, ends, strict=True)}
    return TableCurves(table, rows, [name for name in _numeric(table) if name != step], step)


def figure_set(path: Path) -> RunSet | None:
    """A figure by its JSON file: its tables of runs as one set with `part`, or, where it has none, the runs of its curves; None
    for a JSON file of something else."""
    report = _report(path)
    if report is None:
        return None
    rows: dict[str, dict[str, Any]] = {}  # by identity: a run may be in several tables of its figure
    curves, notes = NO_CURVES, []
    for file in sorted(path.parent.glob(f"{path.stem}.*.parquet")):
        part = file.name[len(path.stem) + 1 : -len(".parquet")]
        if file.is_symlink():
            notes.append(f"{file.name}: a link, which is not followed")
            continue
        try:
            table = read_table(file)
        except ValueError as error:
            notes.append(f"{file.name}: {error}")
            continue
        step = next((name for name in _STEPS if name in table.column_names), None)
        if step is None:
            columns = _plain(table)
            held = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            for i, row in enumerate(held):
                identity = str(row.get("identity") or f"{part}.{i}")
                parts = f"{rows[identity]['part']}{JOIN}{part}" if identity in rows else part
                rows[identity] = rows.get(identity, {}) | row | {"part": parts, "identity": identity}
        elif curves is NO_CURVES:
            curves, found = _by_restart(table, step, part)
            rows |= {row["identity"]: row for row in found}
    columns = columns_of(rows.values())
    version = f"{path.stat().st_mtime_ns}"
    more = {"figure": report, "notes": tuple(notes)}
    return RunSet(report["figure"], "figure", version, varied(columns), columns, curves, lambda identity: {}, **more)


def _report(path: Path) -> dict[str, Any] | None:
    try:
        content = read_json(path, checker({"figure": str}))
    except (OSError, ValueError):
        return None
    lists = [content.get(name) for name in ("laws", "checks")]
    return content if all(isinstance(each, list) and all(isinstance(e, dict) for e in each) for each in lists) else None


def _by_restart(table: pa.Table, step: str, part: str) -> tuple[TableCurves, list[dict[str, Any]]]:
    """Curves whose rows do not name their runs: a run begins where the steps begin again. What is the same in all rows of every
    run is a field of it; other numbers are curves."""
    steps = np.asarray(table[step].to_numpy(zero_copy_only=False), np.float64)
    starts = np.flatnonzero(np.append(True, np.diff(steps) <= 0)) if len(steps) else np.zeros(0, int)
    ends, fields, names = np.append(starts[1:], len(steps)), {}, []
    for name in table.column_names:
        if name == step:
            continue
        values = table[name].to_numpy(zero_copy_only=False)
        texts = values.astype(str)
        if all((texts[a:b] == texts[a]).all() for a, b in zip(starts, ends, strict=True)):
            fields[name] = [values[a].item() if isinstance(values[a], np.generic) else values[a] for a in starts]
        elif name in _numeric(table):
            names.append(name)
    fields.pop("identity", None)
    keys = [f"{part}.{i}" for i in range(len(starts))]
    rows = {key: slice(int(a), int(b)) for key, a, b in zip(keys, starts, ends, strict=True)}
    fields["steps"] = [float(steps[b - 1]) for b in ends] if len(steps) else []
    found = [
        {name: column[i] for name, column in fields.items()} | {"identity": key, "part": part} for i, key in enumerate(keys)
    ]
    return TableCurves(table, rows, names, step), found


def _numeric(table: pa.Table) -> list[str]:
    kinds = (pa.types.is_integer, pa.types.is_floating)
    return [field.name for field in table.schema if any(is_kind(field.type) for is_kind in kinds)]


def _plain(table: pa.Table) -> dict[str, list[Any]]:
    return {name: table[name].to_pylist() for name in table.column_names}
