"""Test the log file: never stale, continued, and never overwriting another file."""

import math
import os
import threading

import pandas as pd
import pytest

from emergo import InputError
from emergo.core.errors import StorageError
from emergo.logs import measure_logs
from emergo.measure import read_table
from emergo.torch import _log
from emergo.torch._log import Log


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(_log, "PAUSE", 0.0)  # rows of tests come fast
    return tmp_path / "log.csv"


def write(log: Log, steps, heads=1, loss=lambda step: 1 / (1 + step)):
    for step in steps:
        probes = {f"entropy_0_{head}": math.log(8) for head in range(heads)}
        log.check_heads(probes)
        log.append(step, {"loss": loss(step)}, probes)


def test_a_log_is_a_table(path):
    log = Log(path, None)
    write(log, range(0, 100, 10))
    log.flush()
    table = pd.read_csv(path)
    assert list(table) == ["step", "loss", "entropy_0_0"]
    assert table["step"].tolist() == list(range(0, 100, 10))
    (row,) = measure_logs([path], "loss", 0.04).to_dict("records")
    assert row["state"] == "reached"
    assert 20 < row["plateau"] <= 30


def test_rows_are_appended_and_reach_the_file_at_once(path):
    """Every row is in the file when the next one comes. The file is not written again."""
    log = Log(path, None)
    write(log, [0, 1])
    node = path.stat().st_ino
    for step in range(2, 200):
        write(log, [step])
        assert path.read_text().count("\n") == step + 1
    assert path.stat().st_ino == node
    log.flush()


def test_rows_that_come_fast_are_appended_together(path, monkeypatch):
    monkeypatch.setattr(_log, "PAUSE", 60.0)
    log = Log(path, None)
    rows = []
    for step in range(50):
        write(log, [step])
        rows.append(len(pd.read_csv(path)) if path.exists() else 0)
    assert rows[:3] == [0, 1, 1]
    assert sorted(set(rows)) == [0, 1, 21, 41]
    assert all(step - row <= _log.MOST_ROWS for step, row in enumerate(rows))
    log.flush()
    assert len(pd.read_csv(path)) == 50


def test_a_timer_writes_the_last_row_and_flushes_it_to_the_disk(path, monkeypatch):
    """The training may be busy meanwhile, for example in a long evaluation."""
    done = threading.Event()
    disk = []
    monkeypatch.setattr(_log, "SECONDS", 0.01)
    monkeypatch.setattr(_log, "flush", lambda file: (disk.append(file), done.set()))
    log = Log(path, None)
    write(log, [7])
    assert done.wait(30)
    assert pd.read_csv(path)["step"].tolist() == [7]
    assert disk == [path]


def test_a_slow_disk_delays_no_row(path, monkeypatch):
    """Flushing to the disk may take minutes. Rows are in the file meanwhile."""
    begun, end = threading.Event(), threading.Event()
    monkeypatch.setattr(_log, "SECONDS", 0.01)
    monkeypatch.setattr(_log, "flush", lambda file: (begun.set(), end.wait(30)))
    log = Log(path, None)
    write(log, [0])
    assert begun.wait(30)
    write(log, range(1, 50))
    assert len(pd.read_csv(path)) >= 49
    end.set()
    log.flush()


def test_new_columns_come_last_and_earlier_rows_are_blank(path):
    log = Log(path, None)
    log.append(0, {"loss": 1.0}, {"entropy_0_0": 0.5, "same_0_0": math.nan})
    log.append(5, {"loss": math.nan}, {"entropy_0_0": 0.5})
    log.append(9, {"eval/loss, mean": 2.0}, {})
    log.append(9, {"accuracy": 0.5}, {})  # joins the row of its step
    log.flush()
    table = pd.read_csv(path)
    assert list(table) == [
        *("step", "loss", "entropy_0_0", "same_0_0", "eval/loss, mean", "accuracy")
    ]
    assert table["accuracy"].isna().tolist() == [True, True, False]
    assert path.read_text().splitlines()[1:] == ["0,1.0,0.5,,,", "5,nan,0.5,,,", "9,,,,2.0,0.5"]


def test_a_log_is_continued(path):
    """Rows from the given step on are dropped, because they are computed again."""
    first = Log(path, None)
    write(first, range(0, 100, 10))
    first.flush()
    with path.open("a") as file:
        file.write("95,0.1")  # a kill has cut this row short
    again = Log(path, 50)
    write(again, range(50, 120, 10), loss=lambda step: -1.0)
    again.flush()
    table = read_table(path)
    assert table["step"].tolist() == list(range(0, 120, 10))
    assert (table["loss"] < 0).tolist() == [step >= 50 for step in range(0, 120, 10)]
    assert Log(path, 70).last == 60


def test_an_existing_log_is_replaced_only_if_asked(path):
    log = Log(path, None)
    write(log, [0, 10], heads=2)
    log.flush()
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"start=STEP continues it .* overwrite=True replaces it"):
        Log(path, None)
    with pytest.raises(InputError, match=r"belongs to another model, with 2 heads, not 1 heads"):
        write(Log(path, 5), [10], heads=1)
    log = Log(path, None, overwrite=True)
    assert path.read_bytes() == before  # until there is a new row
    write(log, [3])
    log.flush()
    assert pd.read_csv(path)["step"].tolist() == [3]


@pytest.mark.parametrize(
    "content", [b"", b"epoch,loss\n1,2\n", b"step,loss\none,2\n", b"\xff\xfe\x00", b"PAR1"]
)
@pytest.mark.parametrize("options", [(10, False), (None, True)], ids=["start", "overwrite"])
def test_other_files_are_left_alone(path, content, options):
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"exists already and is not a log of emergo\.torch"):
        Log(path, *options)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("log.parquet", "log.parquet: the log must be a .csv file, to which rows are added"),
        ("log", "log: the log must be a .csv file"),
        ("missing/log.csv", "there is no folder .*missing; create it"),
    ],
)
def test_invalid_paths_are_errors(tmp_path, path, words):
    with pytest.raises(InputError, match=words):
        Log(tmp_path / path, None)


def test_a_full_disk_does_not_end_the_training(path, monkeypatch, capsys):
    """A failed write is reported once and tried again, without losing rows or half a row."""
    log = Log(path, None)
    write(log, range(2))
    real = os.write
    monkeypatch.setattr(_log.os, "write", lambda file, content: real(file, content[:3]))
    write(log, range(2, 5))
    assert capsys.readouterr().err.count("No space left on device") == 1
    assert pd.read_csv(path)["step"].tolist() == [0]
    with pytest.raises(StorageError):
        log.flush()
    monkeypatch.setattr(_log.os, "write", real)
    write(log, [5])
    log.flush()
    assert pd.read_csv(path)["step"].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_log_that_was_removed_begins_again(path):
    log = Log(path, None)
    write(log, range(3))
    path.unlink()
    write(log, [3])
    log.flush()
    assert pd.read_csv(path)["step"].tolist() == [2, 3]
