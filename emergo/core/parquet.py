"""Parquet files from any source, read within bounds.

A file of one megabyte may claim, or decompress to, a billion rows.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 20_000_000
MOST_COLUMNS = 2**17
MOST_CELLS = 2**28
MOST_BYTES = 2**32
_BATCH = 8192  # most rows that are unpacked at a time
_AT_ONCE = 2**29  # most bytes that they may take; a file may say less than it holds
_CELL = 16  # bytes of a number while it is unpacked
_TEXTS = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_SMALL = 2**22  # bytes; for smaller files, threads cost more than they save


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Turn every error of reading a damaged file into a `ValueError` of one line."""
    try:
        yield
    except Exception as error:
        raise ValueError((str(error).splitlines() or [type(error).__name__])[0]) from None


@one_line()
def parquet_table(
    source: Path | bytes, wanted: Callable[[str], bool] = lambda name: True
) -> pa.Table:
    """Read the wanted columns of a Parquet file.

    The size is checked twice: as stated in the file, before anything is unpacked, and as unpacked.

    **Arguments:**

    - `source`: the path of the file, or its content.
    - `wanted`: selects columns by name.

    Raises `ValueError` with one line for an invalid file, a repeated column, or a large table.
    """
    opened = pa.BufferReader(source) if isinstance(source, bytes) else os.fspath(source)
    with pq.ParquetFile(opened) as file:
        about = file.metadata
        packed = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        check_size(about.num_rows, about.num_columns, packed)
        schema = file.schema_arrow
        if len(set(schema.names)) < len(schema.names):
            raise ValueError("it has a column twice")
        names = [name for name in schema.names if wanted(name)]
        if len(names) < len(schema.names):
            schema = pa.schema([schema.field(name) for name in names])
        batches = []
        rows = 0
        unpacked = 0
        size = _rows_at_once(about, packed, schema)
        for batch in file.iter_batches(batch_size=size, columns=names, use_threads=packed > _SMALL):
            rows += batch.num_rows
            unpacked += batch.nbytes
            check_size(rows, len(names), unpacked)
            batches.append(batch)
        return pa.Table.from_batches(batches, schema=schema)


def _rows_at_once(about: pq.FileMetaData, packed: int, schema: pa.Schema) -> int:
    """Return how many rows can be unpacked together.

    A text that many rows repeat is stored once, and so is a number that a list repeats. No text is
    longer than the part of the file that holds it, and parts say how many values they have.

    **Arguments:**

    - `packed`: bytes of the columns before they are unpacked.

    Raises `ValueError` for lists that are larger than any table of emergo.
    """
    if about.num_rows * packed <= _AT_ONCE and not any(map(_may_repeat, schema.types)):
        return _BATCH
    texts = 0  # most bytes of all texts in a row
    lists = 0
    for i in range(about.num_row_groups):
        group = about.row_group(i)
        chunks = [group.column(j) for j in range(group.num_columns)]
        sizes = [c.total_uncompressed_size if c.physical_type in _TEXTS else _CELL for c in chunks]
        texts = max(texts, sum(sizes))
        for j, (chunk, size) in enumerate(zip(chunks, sizes, strict=True)):
            if about.schema.column(j).max_repetition_level:
                lists += chunk.num_values * size
    check_size(0, 0, lists)
    row = texts + sum(map(_width, schema.types))
    return min(max(_AT_ONCE // row, 1), _BATCH)


def _may_repeat(kind: pa.DataType) -> bool:
    """Return True for types whose values take memory that the file need not hold."""
    return pa.types.is_nested(kind) or pa.types.is_fixed_size_binary(kind)


def _width(kind: pa.DataType) -> int:
    """Return the bytes of a value of fixed length, which it takes although it is missing."""
    if pa.types.is_fixed_size_binary(kind):
        return kind.byte_width
    inner = sum(_width(kind.field(i).type) for i in range(kind.num_fields))
    return (kind.list_size if pa.types.is_fixed_size_list(kind) else 1) * max(inner, _CELL)


@one_line()
def parquet_frame(source: Path | bytes) -> "pd.DataFrame":
    """Read a Parquet file as a data frame, with the index that pandas stored; see `parquet_table`.

    The metadata that pandas keeps in the file may be damaged, too.
    """
    return parquet_table(source).to_pandas(split_blocks=True, self_destruct=True)


def check_size(rows: int, columns: int, size: int) -> None:
    """Raise `ValueError` for a table, in any format, that is larger than any table of emergo."""
    shape = rows > MOST_ROWS or columns > MOST_COLUMNS or rows * columns > MOST_CELLS
    if shape or size > MOST_BYTES:
        raise ValueError(
            f"it unpacks to {rows:,} rows of {columns:,} columns, {size / 1e9:.1f} GB; at most "
            f"{MOST_ROWS:,} rows, {MOST_COLUMNS:,} columns, {MOST_CELLS:,} cells and "
            f"{MOST_BYTES // 10**9} GB are read"
        )
