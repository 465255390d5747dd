"""Every command in windows of any width: nothing is cut, and no line is wider than the window."""

import re

import numpy as np
import pytest

from emergo.core.terminal import FittedTable, console
from emergo.store import StudyFolder
from emergo.study import study_table

from ..view.logs import write_log
from ..view.made_up import finish, made_up_study
from .command import call

NARROWEST = 40  # narrower windows are printed to as if they had so many columns
COMMANDS = [
    "demo",
    "figures",
    "figure",
    "train",
    "study",
    "view",
    "sample",
    "theory",
    "measure",
    "fit",
    "forecast",
    "doctor",
]
STUDY = ["run", "status", "show", "grow", "export"]
HELP = [[], *([name] for name in COMMANDS), *(["study", name] for name in STUDY)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a study, its table and a log."""
    place = tmp_path_factory.mktemp("widths")
    finish(made_up_study(dims=[4, 8, 16], lengths=[8, 16], seeds=2), place / "study")
    folder = StudyFolder(place / "study")
    study_table(folder, folder.read()[0]).to_parquet(place / "runs.parquet")
    write_log(place / "log.csv")
    return place


RESULTS = {
    "figures": ["figures"],
    "status": ["study", "status", "study"],
    "show": ["study", "show", "study"],
    "export": ["study", "export", "study", "--to", "out.csv"],
    "theory": ["theory", "--length", "64", "--dim", "8"],
    "fit": ["fit", "runs.parquet", "--y", "plateau", "--x", "dim", "length"],
    "measure": ["measure", "log.csv", "--metric", "loss", "--below", "1.0"],
    "forecast": ["forecast", "log.csv", "--metric", "loss", "--below", "1.0"],
    "page": ["view", "study", "--export", "page.html"],
}


def printed(capsys, monkeypatch, columns, arguments):
    monkeypatch.setenv("COLUMNS", str(columns))
    status, out, _ = call(capsys, *arguments)
    assert status == 0
    return out


def check_lines(text, columns):
    """No line is wider than the window, unless it is a single word; nothing is left out."""
    most = max(columns, NARROWEST)
    wide = [line for line in text.splitlines() if len(line) > most and len(line.split()) > 1]
    assert wide == []
    assert "…" not in text


@pytest.mark.parametrize("columns", [20, 40, 80, 120])
def test_help_follows_the_width(columns, capsys, monkeypatch):
    for command in HELP:
        wide = printed(capsys, monkeypatch, 500, [*command, "--help"])
        text = printed(capsys, monkeypatch, columns, [*command, "--help"])
        check_lines(text, columns)
        words = [re.sub(r"[\s─│╭╮╰╯-]", "", each) for each in (text, wide)]
        assert sorted(words[0]) == sorted(words[1]), command


@pytest.mark.parametrize("columns", [20, 40, 80, 120])
@pytest.mark.parametrize("name", RESULTS)
def test_results_are_never_cut(place, name, columns, capsys, monkeypatch):
    monkeypatch.chdir(place)
    (place / "out.csv").unlink(missing_ok=True)
    text = printed(capsys, monkeypatch, columns, RESULTS[name])
    check_lines(text, columns)
    flat = " ".join(text.split())
    if name == "figures":
        assert "zucchet2025/fig3" in text
    if name == "show":
        heads, *rows = text.splitlines()[1:]
        assert heads.split()[:4] == ["dim", "length", "runs", "plateau"]
        assert [row.split()[:2] for row in rows[:2]] == [["4", "8"], ["4", "16"]]
    if name in ("show", "fit"):
        assert re.search(r"plateau = [\d.]+ dim\^1\.\d+ length\^0\.\d+, R² 0\.9\d+", flat)
    if name == "theory":
        values = dict(line.split() for line in text.splitlines())
        assert float(values["plateau"]) > float(values["dim"])


def test_a_table_of_many_axes_becomes_lists(capsys, monkeypatch):
    """Seven axes do not fit into 40 columns, so every row names its values."""
    monkeypatch.setenv("COLUMNS", "40")
    axes = [f"axis_{i}" for i in range(7)]
    shown = FittedTable(*axes, "plateau", optional=("plateau",))
    numbers = np.arange(7) + 1000
    shown.add_row(*map(str, numbers), ">123")
    console().print(shown)
    lines = capsys.readouterr().out
    pairs = [f"{axis} {number}" for axis, number in zip(axes, numbers, strict=True)]
    assert " ".join(lines.split()) == ", ".join([*pairs, "plateau >123"])
    assert max(map(len, lines.splitlines())) <= 40
