"""`emergo figure`: questions before long training, Slurm, records. `emergo figures` is tested in
tests/papers/test_index.py."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from emergo.papers import find_figure
from emergo.store import Store, StudyFolder, read_records
from emergo.study.results import read_result, write_result
from emergo.study.slurm import Submission

from .command import call

LONG = ("figure", "zucchet2025/fig3", "--preset", "paper", "--fresh")


@pytest.mark.slow
def test_several_figures_at_once(capsys, tmp_path):
    ids = ("zucchet2025/fig6", "zucchet2025/fig7")
    options = ("--preset", "smoke", "--out", str(tmp_path))
    status, out, _ = call(capsys, "figure", *ids, *options, "--json")
    assert status == 0
    assert [f["figure"] for f in json.loads(out)["figures"]] == list(ids)
    assert all(os.path.exists(f) for figure in json.loads(out)["figures"] for f in figure["files"])
    status, out, _ = call(capsys, "figure", ids[0], *options)
    assert status == 0
    assert "smoke preset, so no verdict" in out


@pytest.mark.slow
def test_ctrl_c_exits_with_130_and_leaves_no_partial_file(tmp_path):
    words = ["figure", "zucchet2025/fig9", "--preset", "paper", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "emergo", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    folder = tmp_path / "zucchet2025"  # created just before the work starts
    deadline = time.monotonic() + 300
    while not folder.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    err = ""
    for _ in range(12):
        # An interrupt during a callback of JAX's garbage collection is lost, so send several.
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, err = process.communicate(timeout=10)
            break
    assert process.poll() == 130
    assert "interrupted" in err
    assert list(folder.iterdir()) == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def made(monkeypatch, cpu):
    """The figures and options of each call of `make_figures`, which makes nothing."""
    calls = []

    def make_figures(ids, preset, out, **options):
        calls.append((ids, options))
        return [{"figure": id} for id in ids]

    monkeypatch.setattr("emergo.papers.make_figures", make_figures)
    return calls


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("yes\n", 0), ("n\n", 1), ("", 1)])
def test_long_training_asks_on_a_terminal(capsys, monkeypatch, tmp_path, made, answer, status):
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, _, err = call(capsys, *LONG, "--out", str(tmp_path))
    assert code == status
    question = "on a CPU of two cores the paper preset of zucchet2025/fig3 takes about 13 d. Start?"
    assert err.startswith(f"{question} [y/N] ")
    assert len(made) == (status == 0)
    assert status == 0 or err.endswith("emergo: nothing was started\n")


@pytest.mark.parametrize("words", [("--yes",), ("--partial",), ("--seconds", "5")])
def test_options_that_make_the_question_unnecessary(capsys, tmp_path, made, words):
    status, out, err = call(capsys, *LONG, *words, "--out", str(tmp_path), "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {"figure": "zucchet2025/fig3"}
    [(ids, options)] = made
    assert ids == ("zucchet2025/fig3",)
    assert options["fresh"]
    assert options["partial"] == ("--partial" in words)
    assert options["seconds"] == (5 if "--seconds" in words else None)


@pytest.mark.parametrize(("terminal", "more"), [(True, ("--json",)), (False, ())])
def test_without_a_terminal_long_training_needs_yes(
    capsys, monkeypatch, tmp_path, made, terminal, more
):
    monkeypatch.setattr(sys, "stdin", Terminal("y\n") if terminal else io.StringIO("y\n"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    status, out, err = call(capsys, *LONG, "--out", str(tmp_path / "new"), *more)
    assert (status, out) == (2, "")
    assert err == (
        "emergo: on a CPU of two cores the paper preset of zucchet2025/fig3 takes about 13 d; "
        "add --yes to start it, or --seconds N to train for a while\n"
    )
    assert not (tmp_path / "new").exists()
    assert made == []


def test_long_training_on_a_gpu_does_not_ask(capsys, monkeypatch, tmp_path, made):
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    assert call(capsys, *LONG, "--out", str(tmp_path))[0] == 0
    assert len(made) == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--workers", "0"), "--workers must be positive, got 0"),
        (
            ("--workers", "2", "--on", "slurm"),
            "--workers are processes of this machine; of Slurm ask for --slurm tasks=4",
        ),
        (
            ("--slurm", "gpus=1"),
            "--slurm gpus=1 asks Slurm for something, but this trains here; add --on slurm",
        ),
    ],
)
def test_options_that_do_not_fit(capsys, tmp_path, made, words, why):
    assert call(capsys, *LONG, *words, "--out", str(tmp_path)) == (2, "", f"emergo: {why}\n")
    assert made == []


def test_without_ids_there_is_nothing_to_make(capsys):
    assert "name at least one figure" in call(capsys, "figure")[2]


def test_a_machine_without_slurm(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    options = ("--on", "slurm", "--slurm", "gpus=0", "--out", str(tmp_path / "out"))
    status, out, err = call(capsys, *LONG, *options)
    assert (status, out) == (2, "")
    assert "there is no Slurm here" in err


def test_missing_runs_are_submitted_to_slurm(capsys, tmp_path, monkeypatch):
    asked = []

    def submit_plan(folder, plan, slurm):
        asked.append((folder.path, len(plan.runs), slurm.gpus))
        return Submission("17", 2, folder.path / "slurm")

    monkeypatch.setattr("emergo.papers._source.submit_plan", submit_plan)
    ids = ("zucchet2025/fig3", "zucchet2025/fig1")
    options = ("--preset", "smoke", "--on", "slurm", "--slurm", "gpus=0", "--out", str(tmp_path))
    status, out, _ = call(capsys, "figure", *ids, *options)
    runs = len(find_figure("zucchet2025/fig3").runs("smoke"))
    assert status == 0
    assert asked == [(tmp_path, runs, 0)]
    first, second, last = out.splitlines()
    assert first.startswith(f"zucchet2025/fig3: array job 17 with 2 tasks trains {runs} runs")
    assert second == "zucchet2025/fig1: all runs are there"
    assert last.startswith(f"emergo study status {tmp_path} --watch")


def add_records(capsys, folder, to, *more):
    words = ("figure", "--out", str(folder), "--add-records", str(to), *more)
    return call(capsys, *words)


@pytest.mark.slow
def test_finished_runs_are_added_to_records(capsys, tmp_path):
    """With complete curves for figures that plot them, otherwise with what a plot can show."""
    runs = [find_figure(id).runs("paper")[0] for id in ("yuksel2026/fig1", "zucchet2025/fig3")]
    recorded = [read_result(read_records(), run) for run in runs]
    folder = StudyFolder(tmp_path / "out")
    folder.prepare()
    curves = {"step": np.arange(300), "loss": np.linspace(1.0, 0.5, 300)}
    for result in recorded:
        write_result(Store(folder.runs), result._replace(curves=curves))
    status, out, _ = add_records(capsys, folder.path, tmp_path / "records")
    words = f"added 1 runs to yuksel2026, 1 runs to zucchet2025; the records are in {tmp_path}"
    assert (status, out) == (0, f"{words}/records\n")
    added = [read_result(read_records(tmp_path / "records"), run) for run in runs]
    assert [len((result.curves or {})["step"]) for result in added] == [300, 100]
    outcomes = [[(r.state, r.steps) for r in results] for results in (added, recorded)]
    assert outcomes[0] == outcomes[1]
    out = add_records(capsys, folder.path, tmp_path / "records")[1]
    assert out.startswith("nothing to add")
    out = add_records(capsys, tmp_path / "records", tmp_path / "merged", "--json")[1]
    expected = {"figures": [], "added": {"yuksel2026": 1, "zucchet2025": 1}}
    assert json.loads(out) == expected


def test_records_need_a_folder_of_runs(capsys, tmp_path):
    status, out, err = add_records(capsys, tmp_path, tmp_path / "records")
    assert (status, out) == (2, "")
    assert "no study here" in err


def test_curves_and_probes_are_passed_on(capsys, tmp_path, made):
    command = (*LONG, "--yes", "--out", str(tmp_path), "--probes", "emergo.training:gradient_probe")
    for words, curves in (((), None), (("--curves",), ()), (("--curves", "left"), ("left",))):
        assert call(capsys, *command, *words)[0] == 0
        options = made[-1][1]
        assert options["curves"] == curves
        assert [probe.__name__ for probe in options["probes"]] == ["gradient_probe"]
