"""Tables from files and to files: CSV and Parquet, within bounds."""

import codecs
import contextlib
import os
import sys
import warnings
from collections.abc import Collection, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from .errors import InputError
from .files import open_regular, output_folder, regular_file, staged
from .parquet import MOST_BYTES, check_size, parquet_frame

# suffixes
CSV = (".csv", ".csv.gz")
PARQUET = (".parquet", ".pq")
_CHUNK = 2**20  # rows of a CSV that are parsed at a time
_HOW: dict[str, Any] = {"index_col": False, "low_memory": False, "skipinitialspace": True}
_BLANKS = ["", "#N/A", "#NA", "<NA>", "N/A", "NA", "NULL", "None", "n/a", "na", "none", "null"]
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_table(path: Path | str) -> pd.DataFrame:
    """Reads a CSV or Parquet file, chosen by its suffix. Raises `InputError` with the file's name
    when it cannot."""
    path = Path(path)
    name = path.name.lower()
    if not name.endswith(CSV + PARQUET):
        raise InputError(f"{path}: expected a .csv or .parquet file")
    return read_csv(path) if name.endswith(CSV) else read_parquet(path)


def read_parquet(path: Path) -> pd.DataFrame:
    """A Parquet file; an index that pandas kept becomes columns."""
    with naming_file(path, "Parquet"):
        regular_file(os.path.realpath(path), MOST_BYTES)
        table = parquet_frame(path)
        return table.reset_index() if any(name is not None for name in table.index.names) else table


def read_csv(path: Path, text: Collection[str] | None = None) -> pd.DataFrame:
    """A CSV file in UTF-8 or UTF-16, packed by gzip or not. Where `text` is given, these columns
    are kept as they are written, and in the others a blank cell is null, while a literal nan makes
    the column one of texts: so the two can be told apart."""
    how = dict(_HOW)
    with naming_file(path, "CSV"):
        if text is not None:
            how |= {
                "converters": dict.fromkeys(text, _marked),
                "keep_default_na": False,
                "na_values": _BLANKS,
            }
        chunks = []
        rows = 0
        for chunk in _parsed(path, how):
            rows += len(chunk)
            check_size(rows, len(chunk.columns), 0)
            chunks.append(
                chunk.assign(**{name: chunk[name].str[1:] for name in text or () if name in chunk})
            )
        return chunks[0] if len(chunks) == 1 else pd.concat(chunks, ignore_index=True)


def _marked(cell: str) -> str:
    """A text that pandas takes neither for a number nor for a blank; one object for all cells that
    hold it."""
    return sys.intern(f"'{cell}")


def _parsed(path: Path, how: dict[str, Any]) -> Iterator[pd.DataFrame]:
    with open_regular(os.path.realpath(path), MOST_BYTES) as file, warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        yield from pd.read_csv(file, encoding=encoding_of(file), chunksize=_CHUNK, **how)


def encoding_of(file: BufferedReader) -> str:
    """The encoding of a text file by its first bytes; UTF-8 where they do not say."""
    return (
        "utf-16"
        if file.peek(2)[:2] in _UTF_16
        else "utf-8-sig"
        if file.peek(3)[:3] == codecs.BOM_UTF8
        else "utf-8"
    )


@contextlib.contextmanager
def naming_file(path: Path, kind: str) -> Iterator[None]:
    """What goes wrong while a file is read becomes an `InputError` of one line that names it."""
    if not path.is_file():
        raise InputError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
    try:
        yield
    except InputError:
        raise
    except pd.errors.EmptyDataError:
        raise InputError(f"{path}: the file is empty") from None
    except pd.errors.ParserWarning:
        raise InputError(
            f"{path}: some rows have more cells than the header; is there a comma at the end of "
            f"lines?"
        ) from None
    except UnicodeError:
        raise InputError(
            f"{path}: not a readable {kind} file (neither UTF-8 nor UTF-16); save it as UTF-8"
        ) from None
    except (
        ValueError,
        OverflowError,
        MemoryError,
        RecursionError,
        pa.ArrowException,
        OSError,
    ) as error:
        words = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: not a readable {kind} file ({words})") from None


def write_table(table: pd.DataFrame, path: Path | str) -> None:
    """Writes a CSV or Parquet file, chosen by its suffix, whole or not at all. Makes the folder
    where there is none."""
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
    """The table with text in columns that mix numbers and text, such as constants and schedules:
    Parquet has one type each."""
    mixed = [
        name
        for name in table
        if table[name].dtype == object and len(set(table[name].dropna().map(type))) > 1
    ]
    return table.assign(
        **{str(name): table[name].map(lambda v: v if pd.isna(v) else str(v)) for name in mixed}
    )
