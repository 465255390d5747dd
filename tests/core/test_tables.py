"""Tables in CSV and Parquet files."""

import gzip

import pandas as pd
import pytest

from emergo.core import tables as _tables
from emergo.core.errors import InputError
from emergo.core.tables import read_table, write_table

ROWS = pd.DataFrame({"step": [0, 10], "loss": [1.0, 0.5], "nöte": ["é", "z"]})
TEXT = ROWS.to_csv(index=False)


def test_tables_round_trip(tmp_path):
    for suffix in (".csv", ".parquet"):
        write_table(ROWS, tmp_path / f"t{suffix}")
        pd.testing.assert_frame_equal(read_table(tmp_path / f"t{suffix}"), ROWS)
    with pytest.raises(InputError, match=r"ends in \.csv or \.parquet"):
        write_table(ROWS, tmp_path / "t.xlsx")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_with_a_byte_order_mark(tmp_path, encoding):
    (tmp_path / "t.csv").write_bytes(TEXT.encode(encoding))
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.csv"), ROWS)


def test_another_encoding_is_one_line(tmp_path):
    (tmp_path / "t.csv").write_bytes(TEXT.encode("latin-1"))
    with pytest.raises(InputError, match=r"t\.csv: .*neither UTF-8 nor UTF-16.*save it as UTF-8"):
        read_table(tmp_path / "t.csv")


def test_gzip_is_unpacked_within_bounds(tmp_path, monkeypatch):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(TEXT.encode()))
    pd.testing.assert_frame_equal(read_table(path), ROWS)
    path.write_bytes(gzip.compress(TEXT.encode())[:-12])
    with pytest.raises(InputError, match=r"t\.csv\.gz: not a readable CSV file \(gzip: "):
        read_table(path)
    path.write_bytes(
        gzip.compress(b"step,loss\n" + b"\n" * 10**6)
    )  # blank lines do not count as rows
    monkeypatch.setattr(_tables, "MOST_BYTES", 10**5)
    assert path.stat().st_size < 10**4
    with pytest.raises(InputError, match="it unpacks to over 100,000 bytes"):
        read_table(path)


def test_a_long_csv_is_read_in_parts_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(_tables, "_CHUNK", 7)
    table = pd.DataFrame({"step": range(50), "loss": [0.5] * 50})
    write_table(table, tmp_path / "t.csv")
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.csv"), table)
    monkeypatch.setattr("emergo.core.parquet.MOST_ROWS", 20)
    with pytest.raises(InputError, match=r"t\.csv: .*21 rows of 2 columns.*at most 20 rows"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("a" * 2**22, "its first line has over 4 MB"),
        (",".join(map(str, range(200))), "200 columns"),
    ],
)
def test_a_csv_with_a_long_head_is_refused_before_it_is_parsed(tmp_path, monkeypatch, head, why):
    monkeypatch.setattr("emergo.core.parquet.MOST_COLUMNS", 100)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(f"{head}\n1\n".encode()))
    with pytest.raises(InputError, match=why):
        read_table(tmp_path / "t.csv.gz")


def test_columns_of_text_are_kept_and_blanks_differ_from_nan(tmp_path):
    (tmp_path / "t.csv").write_text("run,loss,other\n01,nan,\nNA,,1\n,2,\n")
    table = _tables.read_csv(tmp_path / "t.csv", text=["run", "absent"])
    assert table["run"].tolist() == ["01", "NA", ""]
    assert table["loss"].isna().tolist() == [False, True, False]
    assert table["other"].tolist()[1] == 1
