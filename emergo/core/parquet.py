"""Parquet files of anybody, read within bounds: a file of a megabyte may say that it holds a
thousand million rows."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 20_000_000
MOST_CELLS = 2**28
MOST_BYTES = 2**32
_BATCH = 8192  # rows that are unpacked at a time
_SMALL = 2**22  # bytes up to which threads cost more than they save


def parquet_table(
    source: Path | bytes, wanted: Callable[[str], bool] = lambda name: True
) -> pa.Table:
    """The table in a file or in its bytes, with the wanted columns; a `ValueError` in one line for
    what is none, has a column twice, or is larger than a table of this laboratory can be. What it
    says of its size is looked at first, and what comes out is counted."""
    try:
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
            for batch in file.iter_batches(
                batch_size=_BATCH, columns=names, use_threads=packed > _SMALL
            ):
                rows = rows + batch.num_rows
                unpacked = unpacked + batch.nbytes
                check_size(rows, len(names), unpacked)
                batches.append(batch)
            return pa.Table.from_batches(batches, schema=schema)
    except MemoryError:
        raise ValueError("it needs more memory than there is") from None
    except (pa.ArrowException, OSError, OverflowError) as error:
        raise ValueError(
            str(error).splitlines()[0] if str(error) else type(error).__name__
        ) from None


def parquet_frame(source: Path | bytes) -> "pd.DataFrame":
    """The same for pandas, with the index that it had there; what pandas noted of it in the file
    may be damaged, too."""
    try:
        return parquet_table(source).to_pandas(split_blocks=True, self_destruct=True)
    except MemoryError:
        raise ValueError("it needs more memory than there is") from None
    except (
        pa.ArrowException,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        OverflowError,
    ) as error:
        raise ValueError(
            f"what pandas noted in it cannot be read: {type(error).__name__}"
        ) from None


def check_size(rows: int, columns: int, size: int) -> None:
    """A `ValueError` for a table that is larger than one of this laboratory can be, of whatever
    format."""
    if rows > MOST_ROWS or rows * columns > MOST_CELLS or size > MOST_BYTES:
        most = (
            f"at most {MOST_ROWS:,} rows, {MOST_CELLS:,} cells and {MOST_BYTES // 10**9} GB "
            f"are read"
        )
        raise ValueError(
            f"it unpacks to {rows:,} rows of {columns:,} columns, {size / 1e9:.1f} GB; {most}"
        )
