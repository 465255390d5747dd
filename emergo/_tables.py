"""Tables from files and to files: CSV and Parquet, of anybody."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from ._errors import InputError
from ._files import output_folder, regular_file, staged
from ._parquet import MOST_BYTES, parquet_frame

_KINDS = {".csv": "CSV", ".parquet": "Parquet", ".pq": "Parquet"}
_CSV: dict[str, Any] = {"index_col": False, "low_memory": False, "skipinitialspace": True}


def read_table(path: Path | str, text: Sequence[str] = ()) -> pd.DataFrame:
    """Reads a CSV or Parquet file, chosen by its suffix; the columns `text` of a CSV are kept as text. Raises `InputError` with
    the file's name when it cannot."""
    path = Path(path)
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        raise InputError(f"{path}: expected a .csv or .parquet file")
    if not path.is_file():
        raise InputError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
    try:
        regular_file(os.path.realpath(path), MOST_BYTES)
        if kind == "Parquet":
            table = parquet_frame(path)
            return table.reset_index() if any(name is not None for name in table.index.names) else table
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(path, **_CSV)
            present = [name for name in text if name in table]
            if present:
                table[present] = pd.read_csv(path, usecols=present, dtype=str, keep_default_na=False, **_CSV)[present]
            return table
    except pd.errors.EmptyDataError:
        raise InputError(f"{path}: the file is empty") from None
    except pd.errors.ParserWarning:
        raise InputError(f"{path}: some rows have more cells than the header; is there a comma at the end of lines?") from None
    except (ValueError, OverflowError, MemoryError, pa.ArrowException, OSError) as error:
        words = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: not a readable {kind} file ({words})") from None


def write_table(table: pd.DataFrame, path: Path | str) -> None:
    """Writes a CSV or Parquet file, chosen by its suffix, whole or not at all. Makes the folder where there is none."""
    path = Path(path)
    kind = _KINDS.get(path.suffix.lower())
    if kind is None or path.is_dir():
        raise InputError(f"{path}: expected the name of a file that ends in .csv or .parquet")
    output_folder(path.parent)
    with staged(path.parent) as stage:
        if kind == "CSV":
            table.to_csv(stage / path.name, index=False)
        else:
            storable(table).to_parquet(stage / path.name, index=False)


def storable(table: pd.DataFrame) -> pd.DataFrame:
    """The table with text in columns that mix numbers and text, such as constants and schedules: Parquet has one type each."""
    mixed = [name for name in table if table[name].dtype == object and len(set(table[name].dropna().map(type))) > 1]
    return table.assign(**{str(name): table[name].map(lambda v: v if pd.isna(v) else str(v)) for name in mixed})
