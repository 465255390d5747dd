"""`emergo figures` and `emergo figure`."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from emergo._errors import WorkerError
from emergo.engine import OutOfTime
from emergo.papers import FIGURES, find_figure
from emergo.papers._make import add_figure_records
from emergo.studies import Records, Store, StudyFolder, read_records
from emergo.studies._records import SHIPPED
from emergo.studies._slurm import Submission

from .command import call


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_figures_lists_all_with_their_state(capsys, tmp_path):
    status, out, _ = call(capsys, "figures", "--out", str(tmp_path), "--json")
    rows = {f["id"]: f for f in json.loads(out)["figures"]}
    assert status == 0
    assert {f"zucchet2025/fig{n}" for n in (1, 2, 6, 7, 8, 9, 10)} | {"emergo/reduction", "emergo/closed-form"} <= set(rows)
    assert all(f["made"] is None and f["title"] and f["seconds"]["laptop"] for f in rows.values())


def test_figures_shows_what_is_still_to_be_trained(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("emergo.papers.seconds_needed", lambda f, p, w: 0.0 if f.id.endswith("fig3") else 40_000.0)
    shown = call(capsys, "figures", "--out", str(tmp_path))[1]
    lines = {line.split()[0]: line for line in shown.splitlines()}
    assert lines["zucchet2025/fig3"].count("recorded") == 2
    assert lines["zucchet2025/fig13"].count("11 h") == 2
    rows = json.loads(call(capsys, "figures", "--out", str(tmp_path), "--json")[1])["figures"]
    assert {f["id"]: f["needed"]["paper"] for f in rows}["zucchet2025/fig3"] == 0


@pytest.mark.slow
def test_several_figures_at_once(capsys, tmp_path):
    ids = ("zucchet2025/fig6", "zucchet2025/fig7")
    status, out, _ = call(capsys, "figure", *ids, "--preset", "smoke", "--out", str(tmp_path), "--json")
    assert status == 0
    assert [f["figure"] for f in json.loads(out)["figures"]] == list(ids)
    assert all(os.path.exists(f) for figure in json.loads(out)["figures"] for f in figure["files"])
    status, out, _ = call(capsys, "figure", ids[0], "--preset", "smoke", "--out", str(tmp_path))
    assert status == 0
    assert "smoke preset, so no verdict" in out


@pytest.mark.slow
def test_ctrl_c_is_status_130_and_leaves_nothing_by_halves(tmp_path):
    command = [sys.executable, "-m", "emergo", "figure", "zucchet2025/fig9", "--preset", "paper", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    folder = tmp_path / "zucchet2025"
    deadline = time.monotonic() + 300
    while not folder.exists() and time.monotonic() < deadline:  # it is made just before the work starts
        time.sleep(0.1)
    err = ""
    for _ in range(12):  # an interrupt that comes during a callback of JAX's garbage collection is swallowed: press again
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
def started(monkeypatch, cpu):
    """The figures that were started, with their options; none is made."""
    calls = []

    def run_figure(figure, preset, out, report, fresh=False, partial=False, seconds=None, **others):
        calls.append((figure.id, fresh, partial, seconds))
        if seconds is not None:
            raise OutOfTime
        report = {"figure": figure.id, "preset": preset, "caveat": None, "partial": None, "laws": [], "checks": []}
        return report | {"seconds": 0.0, "files": []}

    monkeypatch.setattr("emergo.papers._make.run_figure", run_figure)
    monkeypatch.setattr("emergo.papers.seconds_needed", lambda f, p, w: 3e6 if f.id.endswith("fig3") else 600.0)
    return calls


PAPER = ("figure", "zucchet2025/fig3", "--preset", "paper")


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("yes\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_a_long_figure_asks_on_a_terminal(capsys, monkeypatch, tmp_path, started, answer, status):
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, _, err = call(capsys, "figure", "zucchet2025/fig3", "zucchet2025/fig1", "--preset", "paper", "--out", str(tmp_path))
    assert code == status
    assert err.startswith("on a CPU of two cores the paper preset of zucchet2025/fig3 takes about 35 d. Start? [y/N] ")
    assert [id for id, *_ in started] == ([] if status else ["zucchet2025/fig3", "zucchet2025/fig1"])
    assert status == 0 or err.endswith("emergo: nothing was started\n")


@pytest.mark.parametrize("arguments", [("--yes", "--json"), ("--yes", "--fresh", "--json")])
def test_with_yes_a_figure_does_not_ask(capsys, tmp_path, started, arguments):
    status, out, err = call(capsys, *PAPER, "--out", str(tmp_path), *arguments)
    assert (status, err) == (0, "")
    assert json.loads(out)["figure"] == "zucchet2025/fig3"
    assert started == [("zucchet2025/fig3", "--fresh" in arguments, False, None)]


@pytest.mark.parametrize(("terminal", "more"), [(True, ("--json",)), (False, ())])
def test_where_nobody_can_be_asked_a_long_figure_wants_yes(capsys, monkeypatch, tmp_path, started, terminal, more):
    monkeypatch.setattr(sys, "stdin", Terminal("y\n") if terminal else io.StringIO("y\n"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    status, out, err = call(capsys, *PAPER, "--out", str(tmp_path / "new"), *more)
    assert (status, out) == (2, "")
    assert err == (
        "emergo: on a CPU of two cores the paper preset of zucchet2025/fig3 takes about 35 d; "
        "add --yes to start it, or --seconds N to train for a while\n"
    )
    assert not (tmp_path / "new").exists()
    assert started == []


def test_on_a_gpu_a_figure_does_not_ask(capsys, monkeypatch, tmp_path, started):
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    assert call(capsys, *PAPER, "--out", str(tmp_path))[0] == 0
    assert len(started) == 1


def test_when_its_seconds_are_over_a_figure_says_how_far_it_is(capsys, tmp_path, started):
    status, out, err = call(capsys, *PAPER, "--fresh", "--seconds", "500", "--out", str(tmp_path))
    (figure, fresh, partial, seconds) = started[0]
    assert (status, err) == (0, "")
    assert (figure, fresh, partial) == ("zucchet2025/fig3", True, False)
    assert 490 < seconds <= 500
    runs = len(find_figure("zucchet2025/fig3").runs("paper"))
    assert out == f"zucchet2025/fig3: the time is over, 0 of {runs} runs are there; the same command goes on\n"
    status, out, _ = call(capsys, *PAPER, "--seconds", "500", "--out", str(tmp_path), "--json")
    assert json.loads(out) == {"figure": "zucchet2025/fig3", "preset": "paper", "runs": runs, "finished": runs}


def test_with_partial_what_is_there_when_its_seconds_are_over_is_drawn(capsys, tmp_path, started):
    status, out, _ = call(capsys, *PAPER, "--seconds", "500", "--partial", "--out", str(tmp_path))
    assert status == 0
    assert [(partial, seconds is None) for _, _, partial, seconds in started] == [(False, False), (True, True)]
    assert out.startswith("zucchet2025/fig3\n")


@pytest.mark.slow
@pytest.mark.parametrize("lacking", [0, 1])
@pytest.mark.usefixtures("unchecked")
def test_a_partial_figure_does_not_ask_and_says_what_it_shows(capsys, monkeypatch, tmp_path, lacking):
    """Of a figure whose runs are all recorded, and of one that lacks the runs of one cell."""
    figure, records = find_figure("zucchet2025/fig3"), read_records()
    runs = figure.runs("paper")
    gone = [run for run in runs if run.config == runs[0].config] if lacking else []
    rows = pd.DataFrame([row for identity, row in records._rows.items() if identity not in {run.identity for run in gone}])
    monkeypatch.setattr("emergo.papers._figure.read_records", lambda: Records(rows))
    status, out, _ = call(capsys, *PAPER, "--partial", "--out", str(tmp_path))
    assert status == 0
    words = f"{len(runs) - len(gone)} of {len(runs)} runs: cells that lack a seed are left out" if lacking else None
    assert json.loads((tmp_path / "zucchet2025/fig3.json").read_text())["partial"] == words
    assert ("cells that lack a seed" in out) is bool(lacking)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--workers", "0"), "--workers must be positive, got 0"),
        (("--workers", "2", "--on", "slurm"), "--workers are processes of this machine; of Slurm ask for --slurm tasks=4"),
    ],
)
def test_workers_are_some_of_this_machine(capsys, tmp_path, started, words, why):
    assert call(capsys, *PAPER, *words, "--out", str(tmp_path)) == (2, "", f"emergo: {why}\n")
    assert started == []


def test_several_workers_train_before_figures_are_made(capsys, monkeypatch, tmp_path, started):
    """On a GPU without a question, for which JAX would take its memory."""
    monkeypatch.setattr("jax.default_backend", None)
    monkeypatch.setattr("emergo.studies._processes.has_nvidia", lambda: True)
    before = []
    monkeypatch.setattr("emergo.papers._make.train_figures", lambda *given, **_: before.append((given[3], len(started))))
    status, out, err = call(capsys, *PAPER, "--workers", "3", "--json", "--out", str(tmp_path))
    assert (status, err, json.loads(out)["figure"]) == (0, "", "zucchet2025/fig3")
    assert before == [(3, 0)]
    assert len(started) == 1


def test_a_worker_that_failed_is_one_line(capsys, monkeypatch, tmp_path, started):
    def fail(*_, **__):
        raise WorkerError("worker 1 of 2 failed: it broke")

    monkeypatch.setattr("emergo.papers._make.train_figures", fail)
    status, out, err = call(capsys, *PAPER, "--yes", "--workers", "2", "--json", "--out", str(tmp_path))
    assert (status, out, err) == (1, "", "emergo: worker 1 of 2 failed: it broke\n")


def test_without_slurm_the_option_says_so(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    status, out, err = call(capsys, *PAPER, "--fresh", "--on", "slurm", "--slurm", "gpus=0", "--out", str(tmp_path / "out"))
    assert (status, out) == (2, "")
    assert "there is no Slurm here" in err


def test_on_slurm_the_missing_runs_are_submitted(capsys, tmp_path, monkeypatch):
    asked = []

    def submit_plan(folder, plan, slurm):
        asked.append((folder.path, len(plan.runs), slurm.gpus))
        return Submission("17", 2, folder.path / "slurm")

    monkeypatch.setattr("emergo.papers._source.submit_plan", submit_plan)
    command = ("figure", "zucchet2025/fig3", "zucchet2025/fig1", "--preset", "smoke", "--on", "slurm", "--slurm", "gpus=0")
    status, out, _ = call(capsys, *command, "--out", str(tmp_path))
    runs = len(find_figure("zucchet2025/fig3").runs("smoke"))
    assert status == 0
    assert asked == [(tmp_path, runs, 0)]
    first, second, last = out.splitlines()
    assert first.startswith(f"zucchet2025/fig3: array job 17 with 2 tasks trains {runs} runs")
    assert second == "zucchet2025/fig1: has no runs to train"
    assert last.startswith(f"emergo study status {tmp_path} --watch")


@pytest.mark.slow
def test_runs_of_figures_are_added_to_the_records(tmp_path, monkeypatch):
    """Those of the paper's preset that are not recorded; whole curves for figures that draw them, else what a plot can show."""
    with_curves = next(f for f in FIGURES.values() if f.curves and f.id.startswith("yuksel2026"))
    without = find_figure("zucchet2025/fig3")
    monkeypatch.setattr("emergo.papers._make.FIGURES", {figure.id: figure for figure in (with_curves, without)})
    records, store = read_records(), Store(StudyFolder(tmp_path / "out").runs)
    StudyFolder(tmp_path / "out").prepare()
    for figure in (with_curves, without):
        run = figure.runs("paper")[0]
        store.write(records.read(run)._replace(curves={"step": np.arange(300), "loss": np.linspace(1.0, 0.5, 300)}))
    assert add_figure_records(tmp_path / "out", to=tmp_path / "records") == {"yuksel2026": 1, "zucchet2025": 1}
    added = read_records(tmp_path / "records")
    curves = [added.read(figure.runs("paper")[0]).curves or {} for figure in (with_curves, without)]
    assert [len(each["step"]) for each in curves] == [300, 100]
    assert added.read(without.runs("paper")[0]).plateau == records.read(without.runs("paper")[0]).plateau
    assert add_figure_records(tmp_path / "out", to=tmp_path / "records") == {}
    assert add_figure_records(tmp_path / "records", to=tmp_path / "merged") == {"yuksel2026": 1, "zucchet2025": 1}


def test_adding_records_says_where_they_are(capsys, tmp_path, monkeypatch):
    StudyFolder(tmp_path).prepare()
    assert "need a name" in call(capsys, "records", "add", str(tmp_path), "--all")[2]
    for added, words in (({"fig": 3}, "added 3 runs to fig"), ({}, "nothing to add: what is finished here is recorded")):
        monkeypatch.setattr("emergo.papers._make.add_figure_records", lambda *_, added=added: added)
        status, out, _ = call(capsys, "records", "add", str(tmp_path))
        assert status == 0
        assert out.startswith(words)
        assert out.endswith(f"; the records are in {SHIPPED}\n")


@pytest.mark.slow
def test_figures_can_be_made_without_the_packages_of_the_command_line(tmp_path):
    """As on a GPU machine that lacks them."""
    for name in ("tyro", "vl_convert", "submitit"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    command = [sys.executable, "-m", "emergo.papers", "zucchet2025/fig3", "--seconds", "100", "--out", "out", "--json"]
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])}
    done = subprocess.run(command, cwd=tmp_path, env=dict(os.environ) | path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["figures"][0]["figure"] == "zucchet2025/fig3"
    assert (tmp_path / "out" / "zucchet2025" / "fig3.svg").exists()
