"""Curves of a run, as arrays, as tables and in files. Needs no JAX, so that `export` and `view` do not wait for it."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from .._parquet import parquet_table
from ._outcomes import CURVES, read_curve_bytes
from ._version_1 import renamed_curve

INDEX_SUFFIX = re.compile(r"(_\d+)+$")
_ARRAY = ":"  # in the name of a column of whole arrays: what follows is their shape, such as 3x20x20


def curve_frame(curves: Mapping[str, np.ndarray] | None) -> pd.DataFrame:
    """Curves as a table, one row per evaluation; a curve of several numbers has columns like `attention_0_1`."""
    columns: dict[str, np.ndarray] = {}
    for name, values in (curves or {}).items():
        for index in np.ndindex(values.shape[1:]):
            columns["_".join([name, *map(str, index)])] = values[(slice(None), *index)]
    return pd.DataFrame(columns)


def compact_frame(curves: Mapping[str, np.ndarray] | None) -> pd.DataFrame:
    """As `curve_frame`, but a curve of many numbers that has them in few evaluations, and NaN in all others, is one column of
    whole arrays: a map of attention at four steps would else be a thousand columns."""
    arrays = {name: values for name, values in (curves or {}).items() if values.ndim > 1 and _seldom(values)}
    frame = curve_frame({name: values for name, values in (curves or {}).items() if name not in arrays})
    for name, values in arrays.items():
        rows = [None if np.isnan(one).all() else one.ravel() for one in values]
        frame[f"{name}{_ARRAY}{'x'.join(map(str, values.shape[1:]))}"] = pd.Series(rows, dtype=object)
    return frame


def _seldom(values: np.ndarray) -> bool:
    return bool(np.isnan(values).reshape(len(values), -1).all(1).mean() > 0.5)


def curves_from(table: pd.DataFrame | Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inverse of `curve_frame` and of `compact_frame`; columns without a number are left out, as other runs of a table may
    have other curves."""
    columns = {renamed_curve(str(name)): np.asarray(values) for name, values in table.items()}
    shown = {name: values for name, values in columns.items() if not pd.isna(values).all()}
    numbers = {name: values for name, values in shown.items() if _ARRAY not in name}
    return _numbers_from(numbers) | dict(_arrays_from(name, shown[name]) for name in shown if name not in numbers)


def _arrays_from(column: str, rows: np.ndarray) -> tuple[str, np.ndarray]:
    name, _, sizes = column.partition(_ARRAY)
    kept = ~pd.isna(rows)
    values = np.stack(rows[kept].tolist())
    every = np.full((len(rows), *map(int, sizes.split("x"))), np.nan, values.dtype)
    every[kept] = values.reshape(-1, *every.shape[1:])
    return name, every


def _numbers_from(shown: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    columns: dict[str, list[str]] = {}
    for column in shown:
        columns.setdefault(INDEX_SUFFIX.sub("", column), []).append(column)
    curves: dict[str, np.ndarray] = {}
    for name, members in columns.items():
        if name in members:
            curves[name] = shown[name]
            continue
        indices = [tuple(map(int, member[len(name) + 1 :].split("_"))) for member in members]
        first = shown[members[0]]
        curves[name] = np.full((len(first), *(1 + np.max(indices, 0))), np.nan, first.dtype)
        for index, member in zip(indices, members, strict=True):
            curves[name][(slice(None), *index)] = shown[member]
    return curves


def read_curves(folder: Path, content: Mapping[str, Any], wanted: Callable[[str], bool] = lambda name: True) -> pa.Table:
    """The curves of a run with this `run.json`, one row per evaluation, or those that are wanted; a `ValueError` for what are
    none."""
    data = read_curve_bytes(folder, content)
    table = parquet_table(data, lambda name: name == "step" or wanted(name)).replace_schema_metadata(None)
    if table.num_columns and not ("step" in table.column_names and all(map(_is_number, table.schema.types))):
        raise ValueError(f"{CURVES} does not hold curves: columns of numbers, one of them step")
    return table


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
