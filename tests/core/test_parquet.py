"""Parquet files of any origin, read within bounds."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emergo.core import parquet as _parquet
from emergo.core.errors import InputError
from emergo.core.parquet import parquet_table
from emergo.measure import read_table


def test_a_table_is_read_from_a_file_and_from_its_bytes(tmp_path):
    table = pa.table({"step": [1, 2], "loss": [0.5, None]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert parquet_table(tmp_path / "a.parquet").equals(table)
    assert parquet_table((tmp_path / "a.parquet").read_bytes()).equals(table)
    pq.write_table(table[:0], tmp_path / "empty.parquet")
    assert parquet_table(tmp_path / "empty.parquet").column_names == ["step", "loss"]


def test_a_column_twice_is_refused(tmp_path):
    pq.write_table(
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["loss", "loss"]),
        tmp_path / "a.parquet",
    )
    with pytest.raises(ValueError, match="a column twice"):
        parquet_table(tmp_path / "a.parquet")


def test_a_small_file_with_too_many_rows_is_refused_before_they_are_unpacked(tmp_path):
    """Repeated numbers compress well: 24 million rows take less than 200 kB."""
    path = tmp_path / "bomb.parquet"
    many = pa.repeat(pa.scalar(0.0), 4_000_000)
    with pq.ParquetWriter(path, pa.schema([("loss", pa.float64())])) as writer:
        for _ in range(6):
            writer.write_table(pa.table({"loss": many}))
    assert path.stat().st_size < 200_000
    with pytest.raises(
        InputError,
        match=r"bomb\.parquet: not a readable Parquet file \(it unpacks to 24,000,000 rows of 1 "
        r"columns",
    ):
        read_table(path)


def test_the_unpacked_size_is_bounded_too(tmp_path, monkeypatch):
    """A long text that every row repeats is stored once."""
    monkeypatch.setattr(_parquet, "MOST_BYTES", 2**20)
    pq.write_table(pa.table({"name": ["x" * 1000] * 5000}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    with pytest.raises(ValueError, match="it unpacks to 5,000 rows"):
        parquet_table(tmp_path / "a.parquet")


N = 2**13
BOMBS = {
    "a text in many rows": lambda: pa.array(["x" * N]).dictionary_encode().take([0] * N),
    "a text in a list": lambda: pa.ListArray.from_arrays([0, N], BOMBS["a text in many rows"]()),
    "a list of equal numbers": lambda: pa.ListArray.from_arrays([0, 2**23], np.zeros(2**23)),
    "missing lists": lambda: pa.nulls(N // 4, pa.list_(pa.int8(), N)),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_small_file_does_not_fill_the_memory_before_it_is_refused(tmp_path, monkeypatch, kind):
    """Each of these would take at least 64 MB."""
    monkeypatch.setattr(_parquet, "MOST_BYTES", 2**23)
    monkeypatch.setattr(_parquet, "_AT_ONCE", 2**22)
    path = tmp_path / "bomb.parquet"
    plain = kind != "missing lists"  # only the schema of Arrow has lists of fixed length
    table = pa.table({"a": BOMBS[kind]()})
    pq.write_table(table, path, compression="zstd", store_schema=not plain)
    assert path.stat().st_size < 50_000
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(ValueError, match="at most"):
            parquet_table(path)
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 2**25


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\xff" * 60 + b"PAR1", b"text"])
def test_invalid_files_are_errors_of_one_line(tmp_path, content):
    (tmp_path / "a.parquet").write_bytes(content)
    for source in (content, tmp_path / "a.parquet"):
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            parquet_table(source)
