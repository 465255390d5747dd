"""The command as a user meets it: status, one line of error, one object of JSON."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from emergo.cli import main


def call(capsys, *arguments):
    """Exit status, standard output and standard error of one command."""
    status = 0
    try:
        main(list(arguments))
    except SystemExit as stop:
        status = stop.code or 0
    out, err = capsys.readouterr()
    return status, out, err


def test_theory_prints_one_json_object(capsys):
    status, out, err = call(capsys, "theory", "--length", "64", "--dim", "16", "--burst", "2", "--flow", "exact", "--json")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert {"plateau", "censored", "rate", "predicted", "escape_linear"} <= set(found)
    assert found["plateau"] > 0


def test_theory_for_people(capsys):
    status, out, _ = call(capsys, "theory", "--length", "64", "--dim", "16")
    assert status == 0
    assert "plateau" in out


def test_a_cell_that_does_not_get_there_is_censored_and_not_an_error(capsys):
    status, out, _ = call(capsys, "theory", "--length", "64", "--dim", "16", "--horizon", "5", "--json")
    assert status == 0
    assert json.loads(out)["censored"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Expected one of"),
        (("thery",), "thery"),
        (("theory",), "--length"),
        (("theory", "--length", "8", "--dim", "4", "--burst", "8"), "burst must be smaller than length"),
        (("theory", "--length", "8", "--dim", "4", "--repeat", "1.5"), "repeat must be in [0, 1], got 1.5"),
        (("theory", "--length", "8", "--dim", "4", "--repeat", "nan"), "repeat must be in [0, 1], got nan"),
        (("theory", "--length", "0", "--dim", "4"), "length must be a whole number of at least 2, got 0"),
        (("theory", "--length", "-8", "--dim", "4"), "length must be a whole number of at least 2, got -8"),
        (("theory", "--length", "8.5", "--dim", "4"), "--length: expected a whole number, got '8.5'"),
        (("theory", "--length", "8", "--dim", "inf"), "--dim: expected a whole number, got 'inf'"),
        (("theory", "--length", "8", "--dim", "4", "--flow", "exat"), "exact"),
        (("theory", "--length", "8", "--dim", "4", "--horizon", "-1"), "horizon must be a positive"),
        (("theory", "--length", "8", "--dim", "4", "--threshold", "2"), "threshold must be between 0 and 1"),
        (("figure",), "name at least one figure"),
        (("figure", "zucchet2025/fig99"), "unknown figure"),
        (("figure", "zucchet2025/fig1", "zucchet2025/fig99", "--out", "{tmp}/new"), "unknown figure"),
        (("figure", "zucchet2025/fig1", "--preset", "big"), "unknown preset 'big'"),
        (("figure", "zucchet2025/fig1", "--out", "{tmp}/file/out"), "cannot write to this folder"),
        (("measure", "{tmp}/none.csv", "--metric", "loss", "--below", "1"), "no such file"),
        (("measure", "{tmp}/runs.csv", "--metric", "plateau"), "--below VALUE or --above VALUE"),
        (("fit", "{tmp}/none.csv"), "no such file"),
        (("fit", "{tmp}/empty.csv"), "the file is empty"),
        (("fit", "{tmp}/head.csv"), "is empty"),
        (("fit", "{tmp}/constant.csv", "--x", "dim"), "'dim' is constant"),
        (("fit", "{tmp}/few.csv", "--x", "dim", "length"), "fewer than the 3 numbers"),
        (("fit", "{tmp}/runs.csv", "--x", "dmi"), "did you mean dim"),
        (("fit", "{tmp}/runs.csv", "--x", "dim", "--fix", "length"), "write column=exponent"),
        (("fit", "{tmp}/runs.csv", "--x", "dim", "--out", "{tmp}/file"), "cannot write to this folder"),
        (("bench", "--cells", "0"), "--cells must be at least 1"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(capsys, tmp_path, arguments, words):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "head.csv").write_text("dim,length,plateau\n")
    (tmp_path / "constant.csv").write_text("dim,plateau\n4,1\n4,2\n4,3\n")
    (tmp_path / "few.csv").write_text("dim,length,plateau\n4,1,1\n8,2,2\n")
    (tmp_path / "runs.csv").write_text("dim,length,plateau\n4,1,1\n8,2,2\n16,2,5\n")
    before = sorted(os.listdir(tmp_path))
    status, out, err = call(capsys, *(a.format(tmp=tmp_path) for a in arguments))
    assert status == 2
    assert out == ""
    assert err.startswith("emergo: ")
    assert err.count("\n") == 1
    assert words in err
    assert sorted(os.listdir(tmp_path)) == before


def test_measure_then_fit(capsys, tmp_path):
    rows = ["run,dim,seed,step,loss"]
    for dim in (4, 8, 16):
        for seed in range(3):
            crossing = 10 * dim + seed
            rows += [f"{dim}-{seed},{dim},{seed},{s},{1.0 if s < crossing else 0.0}" for s in range(0, 401, 2)]
    (tmp_path / "logs.csv").write_text("\n".join(rows))
    table = tmp_path / "runs.parquet"
    status, out, _ = call(
        capsys,
        "measure",
        str(tmp_path / "logs.csv"),
        "--metric",
        "loss",
        "--below",
        "0.5",
        "--out",
        str(table),
        "--json",
    )
    found = json.loads(out)
    assert status == 0
    assert len(found["runs"]) == 9
    assert found["censored"] == 0
    status, out, _ = call(capsys, "fit", str(table), "--x", "dim", "--out", str(tmp_path / "fit"), "--json")
    law = json.loads(out)
    assert status == 0
    assert law["exponents"]["dim"] == pytest.approx(1, abs=0.05)
    assert all(os.path.exists(f) for f in law["files"])
    status, out, _ = call(capsys, "fit", str(table), "--x", "dim", "--out", str(tmp_path / "fit"))
    assert status == 0
    assert "95%" in out


def test_fit_shows_both_laws_when_runs_are_censored(capsys, tmp_path):
    rows = ["dim,plateau,censored"] + [f"{d},{min(d * k, 30)},{d * k > 30}" for d in (2, 4, 8) for k in (2, 3, 4)]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    status, out, _ = call(capsys, "fit", str(tmp_path / "t.csv"), "--x", "dim", "--out", str(tmp_path))
    assert status == 0
    assert "this fit uses them" in out


def test_figures_lists_all_with_their_state(capsys, tmp_path):
    status, out, _ = call(capsys, "figures", "--out", str(tmp_path), "--json")
    rows = {f["id"]: f for f in json.loads(out)["figures"]}
    assert status == 0
    assert {f"zucchet2025/fig{n}" for n in (1, 2, 6, 7, 8, 9, 10)} | {"emergo/reduction", "emergo/closed-form"} <= set(rows)
    assert all(f["made"] is None and f["shows"] and f["seconds"]["laptop"] for f in rows.values())
    status, out, _ = call(capsys, "figures", "--out", str(tmp_path))
    assert "emergo/closed-form" in out


@pytest.mark.slow
def test_figure_prints_json_and_nothing_else(capsys, tmp_path):
    status, out, _ = call(capsys, "figure", "zucchet2025/fig7", "--preset", "smoke", "--out", str(tmp_path), "--json")
    found = json.loads(out)
    assert status == 0
    assert all(os.path.exists(f) for f in found["files"])


@pytest.mark.slow
def test_several_figures_at_once(capsys, tmp_path):
    ids = ("zucchet2025/fig6", "zucchet2025/fig7")
    status, out, _ = call(capsys, "figure", *ids, "--preset", "smoke", "--out", str(tmp_path), "--json")
    assert status == 0
    assert [f["figure"] for f in json.loads(out)["figures"]] == list(ids)
    status, out, _ = call(capsys, "figure", ids[0], "--preset", "smoke", "--out", str(tmp_path))
    assert "smoke preset, so no verdict" in out


def test_version(capsys):
    assert call(capsys, "--version")[1].startswith("emergo 0.")


def test_a_failure_is_one_line_and_status_1(capsys, monkeypatch):
    monkeypatch.setattr("emergo.theory.describe_cell", lambda *a, **k: 1 / 0)
    status, _, err = call(capsys, "theory", "--length", "8", "--dim", "4")
    assert status == 1
    assert err.startswith("emergo: ZeroDivisionError")
    assert err.count("\n") == 1


@pytest.mark.slow
def test_ctrl_c_is_status_130_and_leaves_nothing_by_halves(tmp_path):
    command = [
        sys.executable,
        "-m",
        "emergo",
        "figure",
        "zucchet2025/fig9",
        "--preset",
        "paper",
        "--out",
        str(tmp_path),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    folder = tmp_path / "zucchet2025"
    deadline = time.monotonic() + 60
    while not folder.exists() and time.monotonic() < deadline:  # it is made just before the work starts
        time.sleep(0.1)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err
    assert list(folder.iterdir()) == []
