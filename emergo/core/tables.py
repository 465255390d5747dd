"""Tables in CSV and Parquet files, read within bounds and written atomically."""

import codecs
import contextlib
import io
import os
import sys
import warnings
from collections.abc import Collection, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import pandas as pd

from .errors import InputError
from .files import open_regular, output_folder, regular_file, staged
from .parquet import MOST_BYTES, check_size, parquet_frame

# Suffixes of files.
CSV = (".csv", ".csv.gz")
PARQUET = (".parquet", ".pq")
_CHUNK = 2**20  # most rows of a CSV file that are parsed at a time
_CELLS = 2**25  # most cells
_HEADER = 2**22  # bytes in which the header of a CSV file must end
_BLANKS = ["", "#N/A", "#NA", "<NA>", "N/A", "NA", "NULL", "None", "n/a", "na", "none", "null"]
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_table(path: Path | str) -> pd.DataFrame:
    """Read a CSV or Parquet file, chosen by its suffix.

    Raises `InputError` with the name of the file if it cannot be read.
    """
    path = Path(path)
    name = path.name.lower()
    if not name.endswith(CSV + PARQUET):
        raise InputError(f"{path}: expected a .csv or .parquet file")
    return read_csv(path) if name.endswith(CSV) else read_parquet(path)


def read_parquet(path: Path) -> pd.DataFrame:
    """Read a Parquet file; an index that pandas stored becomes columns."""
    with naming_file(path, "Parquet"):
        regular_file(os.path.realpath(path), MOST_BYTES)
        table = parquet_frame(path)
        return table.reset_index() if any(name is not None for name in table.index.names) else table


def read_csv(path: Path, text: Collection[str] | None = None) -> pd.DataFrame:
    """Read a CSV file in UTF-8 or UTF-16, compressed by gzip or not.

    **Arguments:**

    - `text`: columns to keep as text. If given, blank cells and literal nan can be told apart in
      the other columns: blank cells are null, and a literal nan turns the column into text.
    """
    options: dict[str, Any] = {"index_col": False, "low_memory": False, "skipinitialspace": True}
    if text is not None:
        converters = dict.fromkeys(text, _quoted)
        options |= {"converters": converters, "keep_default_na": False, "na_values": _BLANKS}
    chunks = []
    rows = 0
    with (
        naming_file(path, "CSV"),
        open_regular(os.path.realpath(path), MOST_BYTES) as file,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", pd.errors.ParserWarning)
        encoding = encoding_of(file)
        size = max(1, min(_CHUNK, _CELLS // _count_columns(path, encoding)))
        for chunk in pd.read_csv(file, encoding=encoding, chunksize=size, **options):
            rows += len(chunk)
            check_size(rows, len(chunk.columns), 0)
            unquoted = {name: chunk[name].str[1:] for name in text or () if name in chunk}
            chunks.append(chunk.assign(**unquoted))
        return pd.concat(chunks, ignore_index=True)


def _count_columns(path: Path, encoding: str) -> int:
    """Return the number of columns of a CSV file.

    Raises `ValueError` for a column that occurs twice, which pandas would rename, and for too many.
    """
    options: dict[str, Any] = {"header": None, "nrows": 1, "dtype": str, "keep_default_na": False}
    with open_regular(os.path.realpath(path), MOST_BYTES) as file:
        start = file.read(_HEADER)
    if len(start) == _HEADER and not (b"\n" in start or b"\r" in start):
        raise ValueError(f"its first line has over {_HEADER >> 20} MB")
    first = pd.read_csv(io.BytesIO(start), encoding=encoding, skipinitialspace=True, **options)
    check_size(1, len(first.columns), 0)
    names = [name for name in first.iloc[0].tolist() if name]
    for name in names if len(set(names)) < len(names) else ():
        if names.count(name) > 1:
            raise ValueError(f"it has the column '{name}' twice")
    return len(first.columns)


def _quoted(cell: str) -> str:
    """Add a quote, so that pandas takes the text neither for a number nor for a blank.

    Equal cells share one object, which saves memory.
    """
    return sys.intern(f"'{cell}")


def encoding_of(file: BufferedReader) -> str:
    """Return the encoding of a text file by its byte order mark; UTF-8 without one."""
    start = file.peek(3)
    if start[:2] in _UTF_16:
        return "utf-16"
    return "utf-8-sig" if start[:3] == codecs.BOM_UTF8 else "utf-8"


@contextlib.contextmanager
def naming_file(path: Path, kind: str) -> Iterator[None]:
    """Turn errors of reading a file into an `InputError` of one line that names the file."""
    if not path.is_file():
        raise InputError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
    try:
        yield
    except InputError:
        raise
    except pd.errors.EmptyDataError:
        raise InputError(f"{path}: the file is empty") from None
    except UnicodeError:
        raise InputError(
            f"{path}: not a readable {kind} file (neither UTF-8 nor UTF-16); save it as UTF-8"
        ) from None
    except Exception as error:
        words = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: not a readable {kind} file ({words})") from None


def write_table(table: pd.DataFrame, path: Path | str) -> None:
    """Write a CSV or Parquet file, chosen by its suffix, atomically. Creates missing folders."""
    path = Path(path)
    if path.suffix.lower() not in (".csv", *PARQUET) or path.is_dir():
        raise InputError(f"{path}: expected the name of a file that ends in .csv or .parquet")
    output_folder(path.parent)
    with staged(path.parent) as stage:
        if path.suffix.lower() == ".csv":
            table.to_csv(stage / path.name, index=False)
        else:
            storable(table).to_parquet(stage / path.name, index=False)


def storable(table: pd.DataFrame) -> pd.DataFrame:
    """Convert columns that mix numbers and text, such as constants and schedules, to text.

    Parquet allows one type per column.
    """
    mixed = {
        str(name): column.map(lambda value: value if pd.isna(value) else str(value))
        for name, column in table.items()
        if column.dtype == object and len(set(column.dropna().map(type))) > 1
    }
    return table.assign(**mixed)
