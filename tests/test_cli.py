"""The command as a user meets it: status, one line of error, one object of JSON."""

import importlib.util
import io
import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from emergo.cli import main
from emergo.engine import History, Progress
from emergo.studies import Store


def call(capsys, *arguments):
    """Exit status, standard output and standard error of one command."""
    status = 0
    try:
        main(list(arguments))
    except SystemExit as stop:
        status = stop.code or 0
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def cpu(monkeypatch):
    """As on a computer without a GPU."""
    monkeypatch.setattr("jax.default_backend", lambda: "cpu")


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
        (("bench", "trainig"), "unknown benchmark 'trainig'; did you mean training?"),
        (("train", "--attention", "sofmax"), "unknown attention 'sofmax'; did you mean softmax?"),
        (("train", "--precision", "fp8"), "did you mean fp32?"),
        (("train", "--length", "8", "16", "--burst", "8", "--out", "{tmp}/new"), "got burst 8 with length 8"),
        (("train", "--heads", "3", "--out", "{tmp}/new"), "heads must divide width, got 3 heads with width 64"),
        (("train", "--precision", "tf32", "--out", "{tmp}/new"), "precision tf32 is a GPU's"),
        (("train", "--out", "{tmp}/file"), "cannot write to this folder"),
        (("train", "--seeds", "-1", "--out", "{tmp}/new"), "--seeds must be at least 1, got -1"),
        (("train", "--together", "0", "--out", "{tmp}/new"), "--together must be at least 1, got 0"),
        (("train", "--together", "some"), "--together: expected a whole number, got 'some'"),
        (("train", "--length"), "--length needs at least one value"),
        (("train", "--dim", "4.5"), "--dim: cannot be read from '4.5'"),
        (("train", "--repeat", "1.5", "--out", "{tmp}/new"), "repeat must be in [0, 1]"),
        (("train", "--learning-rate", "0", "--out", "{tmp}/new"), "learning_rate must be positive"),
        (("train", "--momentum", "1", "--out", "{tmp}/new"), "momentum must be in [0, 1)"),
        (("train", "--steps", "0", "--out", "{tmp}/new"), "steps must be a whole number of at least 1"),
        (("train", "--no-indicator", "--out", "{tmp}/new"), "cannot be learned without the indicator"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(capsys, tmp_path, cpu, arguments, words):
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


class Engine:
    """Stands for the engine: seed 0 reaches its threshold at step 10 * dim, seed 1 is censored, seed 2 fails."""

    def __init__(self):
        self.asked = []

    def __call__(self, runs, *, on_end, progress, width, **_):
        self.asked.append((runs, width))
        for done, run in enumerate(runs):
            end, low = 10 * run.config.task.dim, run.config.threshold
            loss = {0: [1.0, low], 1: [1.0, 0.9], 2: [1.0, math.nan]}[run.seed]
            shown = np.ones((2, run.config.model.layers, run.config.model.heads), np.float32)
            curves = {"step": np.array([0, end]), "loss": np.array(loss), "attention": shown, "entropy": shown}
            state = ("reached", "exhausted", "failed")[run.seed]
            on_end(History(run, state, end if state == "failed" else None, curves, "cpu"))
            progress(Progress(len(runs), done + 1, 0, [(run, end, loss[0])], end, 1.0, None, 10**6))


@pytest.fixture
def engine(monkeypatch):
    made = Engine()
    monkeypatch.setattr("emergo.studies._run.train", made)
    return made


def test_train_prints_a_row_a_cell_and_asking_again_costs_nothing(capsys, tmp_path, engine):
    arguments = ("train", "--dim", "4", "8", "8", "--seeds", "3", "--together", "2", "--out", str(tmp_path / "runs"))
    status, out, err = call(capsys, *arguments)
    assert (status, err) == (0, "")
    head, four, eight, last = out.splitlines()
    assert head.split() == ["length", "dim", "burst", "repeat", "rate", "runs", "plateau", "min-max", "censored", "failed"]
    # Seeds 0 and 1 have plateaus 40 and over 40, so that the median is a bound too; seed 2 has none.
    assert four.split() == ["32", "4", "1", "0", "0.0005", "3", ">40", "40->40", "1", "1"]
    assert eight.split() == ["32", "8", "1", "0", "0.0005", "3", ">80", "80->80", "1", "1"]
    assert last == f"6 runs, 0 s; kept in {tmp_path / 'runs'}"
    assert [(len(runs), width) for runs, width in engine.asked] == [(6, 2)]
    again = call(capsys, *arguments)[1].splitlines()
    assert again[:3] == [head, four, eight]
    assert again[3].startswith("6 runs (6 were there)")
    call(capsys, "train", "--dim", "8", "2", "--seeds", "2", "--out", str(tmp_path / "runs"))
    assert [run.config.task.dim for run in engine.asked[1][0]] == [2, 2]
    assert len(engine.asked) == 2


def test_train_prints_one_json_object(capsys, tmp_path, engine):
    status, out, err = call(capsys, "train", "--dim", "4", "--out", str(tmp_path), "--json")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert [(r["seed"], r["state"]) for r in found["runs"]] == [(0, "reached"), (1, "censored"), (2, "failed")]
    assert {"plateau", "plateau_low", "plateau_high", "censored", "learning_rate", "precision"} <= set(found["runs"][0])
    cell = {"length": 32, "dim": 4, "burst": 1, "repeat": 0.0, "learning_rate": 5e-4, "runs": 3}
    outcome = {"plateau": 40, "plateau_min": 40, "plateau_max": 40, "bound": True, "censored": 1, "failed": 1}
    assert found["cells"] == [cell | outcome]
    assert found["out"] == str(tmp_path)


def test_every_option_of_train_reaches_its_run(capsys, tmp_path, engine):
    task = "--length 8 --dim 2 --burst 3 --repeat 0.5 --position last --no-indicator --special basis --seeds 1"
    model = "--layers 2 --heads 2 --width 8 --mlp-factor 2 --norm pre --mask causal --activation gelu --attention biased"
    more = "--initial xavier --positions learned --no-skip --no-mlp --optimizer sgd --momentum 0.9 --learning-rate 0.01"
    rest = "--batch 4 --precision bf16 --steps 7 --threshold 0.3 --beyond 0.5"
    status, _, err = call(capsys, "train", *f"{task} {model} {more} {rest} --out {tmp_path}".split())
    assert (status, err) == (0, "")
    [run] = engine.asked[0][0]
    assert run.seed == 0
    asked = {
        "task": {"length": 8, "dim": 2, "burst": 3, "repeat": 0.5, "position": "last", "indicator": False, "special": "basis"},
        "model": {
            "layers": 2,
            "heads": 2,
            "width": 8,
            "mlp_factor": 2,
            "norm": "pre",
            "mask": "causal",
            "activation": "gelu",
            "attention": "biased",
            "initial": "xavier",
            "positions": "learned",
            "skip": False,
            "mlp": False,
        },
        "optimizer": {"method": "sgd", "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.01},
        "batch": 4,
        "precision": "bf16",
        "steps": 7,
        "threshold": 0.3,
        "beyond": 0.5,
    }
    found = run.config.describe()
    for name, value in asked.items():
        assert (found[name] | value if isinstance(value, dict) else value) == found[name], name


@pytest.mark.slow
def test_train_trains(capsys, tmp_path):
    small = ("--length", "4", "--dim", "2", "--width", "16", "--learning-rate", "1e-2", "--seeds", "2", "--batch", "8")
    status, out, _ = call(capsys, "train", *small, "--steps", "1000", "--out", str(tmp_path), "--json")
    found = json.loads(out)
    assert status == 0
    assert [run["state"] for run in found["runs"]] == ["reached", "reached"]
    assert sorted(run["identity"] for run in found["runs"]) == list(Store(tmp_path))
    assert not list((tmp_path / ".checkpoints").glob("*.npz"))


@pytest.mark.slow
def test_ctrl_c_in_training_keeps_what_is_finished_and_says_so(tmp_path):
    """Dim 2 is learned at once; dim 64 cannot be, with a width of 8."""
    options = "--length 4 --dim 2 64 --width 8 --learning-rate 1e-2 --seeds 1 --batch 4 --steps 1000000"
    command = [sys.executable, "-m", "emergo", "train", *options.split(), "--out", str(tmp_path / "runs")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 180  # usually 10 s
    while not list((tmp_path / "runs").glob("*/run.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "emergo: interrupted; 1 of 2 runs are finished; the same command goes on from there"
    assert len(list(Store(tmp_path / "runs"))) == 1
    assert len(list((tmp_path / "runs" / ".checkpoints").glob("*.npz"))) == 1


def test_figures_shows_what_is_still_to_be_trained(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("emergo.papers.seconds_needed", lambda f, p, w: 0.0 if f.id.endswith("fig3") else 40_000.0)
    found = call(capsys, "figures", "--out", str(tmp_path))[1]
    lines = {line.split()[0]: line for line in found.splitlines()}
    assert lines["zucchet2025/fig3"].count("recorded") == 2
    assert lines["zucchet2025/fig13"].count("11 h") == 2
    rows = json.loads(call(capsys, "figures", "--out", str(tmp_path), "--json")[1])["figures"]
    assert {f["id"]: f["needed"]["paper"] for f in rows}["zucchet2025/fig3"] == 0


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def started(monkeypatch, cpu):
    """The figures that were started, with `fresh`; none is made."""
    made = []

    def run_figure(figure, preset, out, progress, fresh, partial):
        made.append((figure.id, fresh))
        return {"figure": figure.id, "shrunk": None, "partial": None, "laws": [], "checks": [], "seconds": 0.0, "files": []}

    monkeypatch.setattr("emergo.papers.run_figure", run_figure)
    monkeypatch.setattr("emergo.papers.seconds_needed", lambda f, p, w: 3e6 if f.id.endswith("fig3") else 600.0)
    return made


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("yes\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_a_long_figure_asks_on_a_terminal(capsys, monkeypatch, tmp_path, started, answer, status):
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    found = call(capsys, "figure", "zucchet2025/fig3", "zucchet2025/fig1", "--preset", "paper", "--out", str(tmp_path))
    assert found[0] == status
    assert found[2].startswith("on a CPU of two cores the paper preset of zucchet2025/fig3 takes about 35 d. Start? [y/N] ")
    assert started == ([] if status else [("zucchet2025/fig3", False), ("zucchet2025/fig1", False)])
    assert status == 0 or found[2].endswith("emergo: nothing was started\n")


@pytest.mark.parametrize("arguments", [("--yes", "--json"), ("--yes", "--fresh", "--json")])
def test_with_yes_a_figure_does_not_ask(capsys, tmp_path, started, arguments):
    status, out, err = call(capsys, "figure", "zucchet2025/fig3", "--preset", "paper", "--out", str(tmp_path), *arguments)
    assert (status, err) == (0, "")
    assert json.loads(out)["figure"] == "zucchet2025/fig3"
    assert started == [("zucchet2025/fig3", "--fresh" in arguments)]


@pytest.mark.parametrize(("terminal", "more"), [(True, ("--json",)), (False, ())])
def test_where_nobody_can_be_asked_a_long_figure_wants_yes(capsys, monkeypatch, tmp_path, started, terminal, more):
    monkeypatch.setattr(sys, "stdin", Terminal("y\n") if terminal else io.StringIO("y\n"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    status, out, err = call(capsys, "figure", "zucchet2025/fig3", "--preset", "paper", "--out", str(tmp_path / "new"), *more)
    assert (status, out) == (2, "")
    assert err == (
        "emergo: on a CPU of two cores the paper preset of zucchet2025/fig3 takes about 35 d; add --yes to start it\n"
    )
    assert not (tmp_path / "new").exists()
    assert started == []


def test_a_partial_figure_does_not_ask_and_says_what_it_shows(capsys, tmp_path):
    status, out, _ = call(capsys, "figure", "zucchet2025/fig15", "--preset", "paper", "--partial", "--out", str(tmp_path))
    assert status == 0
    assert (
        "runs: cells that lack a seed are left out" in out
        or json.loads((tmp_path / "zucchet2025/fig15.json").read_text())["partial"] is None
    )


def test_on_a_gpu_a_figure_does_not_ask(capsys, monkeypatch, tmp_path, started):
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    assert call(capsys, "figure", "zucchet2025/fig3", "--preset", "paper", "--out", str(tmp_path))[0] == 0
    assert len(started) == 1


TIMED = {
    "layers": 2,
    "heads": 4,
    "length": 64,
    "dim": 16,
    "runs": 4,
    "precision": "fp32",
    "ms": 12.5,
    "runs_per_hour": 28.8,
    "ratio": 2.5,
    "ratio_compile": None,
    "share_of_floor": 0.5,
}


@pytest.fixture
def timed(monkeypatch, cpu):
    """The cases that the benchmark of training was asked for; nothing is timed."""
    asked = []

    def bench_training(cases):
        asked.extend(cases)
        print("a compiler talks")
        yield TIMED
        yield {k: TIMED[k] for k in ("layers", "heads", "length", "dim", "runs", "precision")} | {"error": "4 runs do not fit"}

    monkeypatch.setattr("emergo.bench.bench_training", bench_training)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    return asked


def test_bench_prints_a_row_a_case(capsys, monkeypatch, timed):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status, out, err = call(capsys, "bench", "training", "--quick")
    head, under, first, second = out.splitlines()
    assert status == 0
    assert err == (
        "emergo: PyTorch is not installed, so nothing is compared with it: pip install 'emergo[bench]'\na compiler talks\n"
    )
    assert first.split() == ["2", "4", "64", "16", "4", "fp32", "12.5", "28.8", "2.5", "-", "50%"]
    assert second.endswith("4 runs do not fit")
    assert len(first) == len(head) > len(under)
    assert len(timed) == 2


def test_bench_prints_one_json_object(capsys, monkeypatch, timed):
    monkeypatch.setattr("emergo.bench.bench_flows", lambda cells: {"name": "flows", "cells": cells})
    status, out, _ = call(capsys, "bench", "--cells", "3", "--json")
    flows, first, second = json.loads(out)["benchmarks"]
    assert status == 0
    assert flows == {"name": "flows", "cells": 3}
    assert first == TIMED
    assert "error" in second
    assert len(timed) > 2
    assert len(json.loads(call(capsys, "bench", "flows", "--json")[1])["benchmarks"]) == 1


def test_bench_warns_of_other_work(capsys, monkeypatch, timed):
    monkeypatch.setattr(os, "getloadavg", lambda: (64.0 * (os.cpu_count() or 1), 0.0, 0.0))
    assert "other work spoils timings" in call(capsys, "bench", "training", "--quick")[2]
