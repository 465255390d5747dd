"""Curves of a run as arrays, tables and files. Does not import JAX."""

import hashlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..core.curves import INDEX_SUFFIX, curve_columns
from ..core.parquet import one_line, parquet_table
from .outcomes import CURVES, read_curve_bytes, read_run, run_file
from .reader import LARGE

LONGEST = 200  # letters in the name of a curve
MOST_VALUES = 2**28  # numbers in a curve with several values per evaluation, NaN included
_ARRAY = ":"  # marks a column of whole arrays; their shape follows, such as `attention:3x20x20`


class StoredRun(NamedTuple):
    """A finished run as it was read from a store or from records."""

    row: Mapping[str, Any]  # as `outcome_row` returns it
    provenance: Mapping[str, Any]
    curves: Mapping[str, np.ndarray] | None  # None if only the outcome was read or kept


def curve_frame(curves: Mapping[str, np.ndarray] | None) -> pd.DataFrame:
    """Return curves as a table with one row per evaluation.

    A curve with several values per evaluation becomes columns such as `attention_0_1`.
    """
    curves = curves or {}
    columns = {column: curves[name][index] for column, name, index in curve_columns(curves)}
    return pd.DataFrame(columns)


def curve_bytes(curves: Mapping[str, np.ndarray] | None) -> bytes:
    """Return the content of a file with curves.

    Curves are short and rarely repeat a number: dictionaries, statistics and the schema of Arrow
    would take more space than the numbers, and time whenever the file is opened.
    """
    file = io.BytesIO()
    curve_frame(curves).to_parquet(
        file, index=False, use_dictionary=False, write_statistics=False, store_schema=False
    )
    return file.getvalue()


def compact_frame(curves: Mapping[str, np.ndarray] | None) -> pd.DataFrame:
    """Return curves as a table, like `curve_frame`, with sparse arrays in one column each.

    An attention map that is measured at four steps would need a thousand columns otherwise.
    """
    dense = {}
    arrays = {}
    for name, values in (curves or {}).items():
        missing = np.isnan(values).reshape(len(values), -1).all(1) if values.ndim > 1 else False
        if np.mean(missing) > 0.5:
            rows = [None if np.isnan(row).all() else row.ravel() for row in values]
            shape = "x".join(map(str, values.shape[1:]))
            arrays[f"{name}{_ARRAY}{shape}"] = pd.Series(rows, dtype=object)
        else:
            dense[name] = values
    return curve_frame(dense).assign(**arrays)


def curves_from(table: pd.DataFrame | Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return curves from a table of `curve_frame` or `compact_frame`.

    Columns without any number are left out: they belong to other runs of the same table.
    """
    members: dict[str, dict[tuple[int, ...], np.ndarray]] = {}
    curves: dict[str, np.ndarray] = {}
    for column, cells in table.items():
        values = np.asarray(cells)
        if pd.isna(values).all():
            continue
        name, mark, shape = str(column).partition(_ARRAY)
        if mark:
            curves[name] = _unpack_arrays(values, tuple(map(int, shape.split("x"))))
            continue
        base, index = split_index(name)
        members.setdefault(base, {})[index] = values
    return {name: _join_columns(columns) for name, columns in members.items()} | curves


def _unpack_arrays(rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Stack flattened arrays; rows without an array become NaN.

    Raises `ValueError` if they have another shape, or are too large together.
    """
    kept = ~pd.isna(rows)
    values = np.stack(rows[kept].tolist()).reshape(-1, *shape)
    _check_values((len(rows), *shape))
    stacked = np.full((len(rows), *shape), np.nan, values.dtype)
    stacked[kept] = values
    return stacked


def _join_columns(columns: Mapping[tuple[int, ...], np.ndarray]) -> np.ndarray:
    """Return the curve whose value at each index is a column."""
    if () in columns:
        return columns[()]
    first = next(iter(columns.values()))
    shape = _shape(list(columns), len(first))
    curve = np.full(shape, np.nan, first.dtype)
    for index, values in columns.items():
        curve[(slice(None), *index)] = values
    return curve


def _shape(indices: Sequence[tuple[int, ...]], rows: int) -> tuple[int, ...]:
    """Return the shape of a curve from the indices of its columns.

    Raises `ValueError` if the indices have different lengths or are so sparse that the array would
    not fit into memory.
    """
    if len(set(map(len, indices))) > 1:
        raise ValueError("a curve has columns with indices of different lengths")
    shape = (rows, *(1 + max(index[axis] for index in indices) for axis in range(len(indices[0]))))
    _check_values(shape)
    return shape


def _check_values(shape: tuple[int, ...]) -> None:
    if math.prod(shape) > MOST_VALUES:
        raise ValueError(f"a curve has the shape {shape}; at most {MOST_VALUES:,} numbers are read")


def read_curves(
    folder: Path, content: Mapping[str, Any], wanted: Callable[[str], bool] = lambda name: True
) -> pa.Table:
    """Return the curves of a run as a table with one row per evaluation.

    **Arguments:**

    - `folder`: the folder of the runs.
    - `content`: content of the run's `run.json`.
    - `wanted`: selects columns by name; `step` is always read.

    Raises `ValueError` if the file does not hold curves.
    """
    return _curve_table(read_curve_bytes(folder, content), wanted)


def read_known_curves(
    folder: Path,
    identity: str,
    checksum: str | None,
    wanted: Callable[[str], bool] = lambda name: True,
) -> pa.Table:
    """Return the curves of a run in `Outcomes`, like `read_curves`.

    Reading and checking `run.json` takes a third of the time, and is needed only if the file with
    the curves no longer has the checksum that `run.json` stated.

    **Arguments:**

    - `checksum`: of the file with the curves, from `Outcomes.checksums`.

    Raises `OSError`, or `ValueError` with the reason.
    """
    data = run_file(folder, identity, CURVES, LARGE)
    if hashlib.sha256(data).hexdigest() == checksum:
        return _curve_table(data, wanted)
    return read_curves(folder, read_run(folder, identity, curves=False), wanted)


def _curve_table(data: bytes, wanted: Callable[[str], bool]) -> pa.Table:
    table = parquet_table(data, lambda name: name == "step" or wanted(name))
    table = table.replace_schema_metadata(None)
    check_curves(table.schema, table)
    return table


def check_curve_bytes(data: bytes) -> None:
    """Raise `ValueError` if the content of a file does not hold curves; reads steps only."""
    with one_line(), pq.ParquetFile(pa.BufferReader(data)) as file:
        schema = file.schema_arrow
    check_curves(schema, parquet_table(data, lambda name: name == "step"))


def check_curves(schema: pa.Schema, steps: pa.Table) -> None:
    """Raise `ValueError` if a table does not hold curves.

    **Arguments:**

    - `schema`: all its columns; they hold numbers.
    - `steps`: a table with its column `step`, whose numbers increase.
    """
    if not len(schema):
        return
    if "step" not in schema.names or not all(map(_is_number, schema.types)):
        raise ValueError(f"{CURVES} does not hold curves: columns of numbers, one of them step")
    indices: dict[str, list[tuple[int, ...]]] = {}
    for name in schema.names:
        if len(name) > LONGEST:
            raise ValueError(f"{CURVES} has a curve with a name of {len(name):,} letters")
        base, index = split_index(name)
        if index:
            indices.setdefault(base, []).append(index)
    for members in indices.values():
        _shape(members, len(steps))
    step = steps["step"].to_numpy()
    if not (np.isfinite(step).all() and (step[1:] > step[:-1]).all()):
        raise ValueError(f"{CURVES} has steps that are not increasing numbers")


def split_index(column: str) -> tuple[str, tuple[int, ...]]:
    """Split the name of a column, such as `attention_0_1`, into the curve and the index."""
    found = INDEX_SUFFIX.search(column)
    if not found:
        return column, ()
    return column[: found.start()], tuple(map(int, found[0][1:].split("_")))


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
