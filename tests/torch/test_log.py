"""Test the log file: always readable, continued, and never overwriting another file."""

import math

import pandas as pd
import pytest

from emergo import InputError
from emergo.core.errors import StorageError
from emergo.logs import measure_logs
from emergo.measure import read_table
from emergo.torch import _log
from emergo.torch._log import Log


class Clock:
    """A clock that a test controls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(_log.time, "monotonic", lambda: self.now)


def write(log: Log, steps, layers=("a",), loss=lambda step: 1 / (1 + step)):
    for step in steps:
        probes = {f"entropy_{layer}_0": math.log(8) for layer in range(len(layers))}
        log.check_layers(layers, probes)
        log.append(step, {"loss": loss(step)}, probes)


@pytest.mark.parametrize("name", ["log.parquet", "log.csv"])
def test_a_log_is_a_table(tmp_path, name):
    log = Log(tmp_path / name, None)
    write(log, range(0, 100, 10))
    log.flush()
    table = read_table(tmp_path / name)
    assert list(table) == ["step", "loss", "entropy_0_0"]
    assert table["step"].tolist() == list(range(0, 100, 10))
    (row,) = measure_logs([tmp_path / name], "loss", 0.04).to_dict("records")
    assert row["state"] == "reached"
    assert 20 < row["plateau"] <= 30


def test_metrics_come_first_also_later_ones(tmp_path):
    log = Log(tmp_path / "log.parquet", None)
    log.append(0, {"loss": 1.0}, {"entropy_0_0": 0.5})
    log.append(5, {"loss": math.nan, "accuracy": 0.1}, {"entropy_0_0": 0.5, "entropy_1_0": 0.6})
    log.flush()
    table = pd.read_parquet(tmp_path / "log.parquet")
    assert list(table) == ["step", "loss", "accuracy", "entropy_0_0", "entropy_1_0"]
    assert table["accuracy"].isna().tolist() == [True, False]
    assert table["loss"].isna().tolist() == [False, True]


@pytest.mark.parametrize("name", ["log.parquet", "log.csv"])
def test_a_log_is_continued(tmp_path, name):
    """Rows from the given step on are dropped, because they are computed again."""
    first = Log(tmp_path / name, None)
    write(first, range(0, 100, 10))
    first.flush()
    again = Log(tmp_path / name, 50)
    write(again, range(50, 120, 10), loss=lambda step: -1.0)
    again.flush()
    table = read_table(tmp_path / name)
    assert table["step"].tolist() == list(range(0, 120, 10))
    assert (table["loss"] < 0).tolist() == [step >= 50 for step in range(0, 120, 10)]
    assert Log(tmp_path / name, 70).last == 60


def test_an_existing_log_is_not_overwritten(tmp_path):
    path = tmp_path / "log.parquet"
    log = Log(path, None)
    write(log, [0, 10], layers=("a", "b"))
    log.flush()
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"exists already; start=STEP continues it"):
        Log(path, None)
    with pytest.raises(
        InputError,
        match=r"the log belongs to another model, with 2 layers and 2 heads, not 1 layers",
    ):
        write(Log(path, 0), [0], layers=("c",))
    other = Log(path, 0)
    with pytest.raises(InputError, match="another model, with 2 layers and 2 heads"):
        other.check_layers(("a", "b"), {"entropy_0_0": 1.0})
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("log.parquet", b"PAR1 and no more"),
        ("log.parquet", b""),
        ("log.csv", b"epoch,loss\n1,2\n"),
        ("log.csv", b"step,loss\none,2\n"),
        ("log.csv", b"\xff\xfe\x00"),
    ],
)
def test_other_files_are_left_alone(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        InputError, match=r"exists already and is not a log of emergo\.torch; choose another name"
    ):
        Log(tmp_path / name, 10)
    assert (tmp_path / name).read_bytes() == content


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("log.txt", "log.txt: the log must be a .parquet or .csv file"),
        ("log", "log: the log must be a .parquet or .csv file"),
        ("missing/log.csv", "there is no folder .*missing; create it"),
    ],
)
def test_invalid_paths_are_errors(tmp_path, path, words):
    with pytest.raises(InputError, match=words):
        Log(tmp_path / path, None)


def test_a_full_disk_does_not_end_the_training(tmp_path, monkeypatch, capsys):
    """A failed write is reported once and tried again, without losing rows."""
    clock = Clock(monkeypatch)
    atomic_write = _log.atomic_write

    def full(path, content):
        raise StorageError(f"{path}: cannot be written (No space left on device)")

    monkeypatch.setattr(_log, "atomic_write", full)
    log = Log(tmp_path / "log.parquet", None)
    write(log, range(3))
    assert capsys.readouterr().err.count("No space left on device) (will be tried again)") == 1
    with pytest.raises(StorageError):
        log.flush()
    monkeypatch.setattr(_log, "atomic_write", atomic_write)
    clock.now += 60
    write(log, [3])
    assert pd.read_parquet(tmp_path / "log.parquet")["step"].tolist() == [0, 1, 2, 3]
