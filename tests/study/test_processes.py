"""Worker processes that train one plan: what each gets, how it ends, and what it reports."""

import contextlib
import functools
import math
import os
import signal
import subprocess
import sys
import threading
import time
import types

import pandas as pd
import pytest

from emergo.core.errors import WorkerError
from emergo.store import StudyFolder, read_outcomes
from emergo.store.claims import Claims
from emergo.study import processes, run_plan, study_curves
from emergo.study.processes import environment, has_nvidia, mps, progress_of, run_workers

from . import jobs
from .tiny import STUDY, tiny

DAEMON = """#!/bin/sh
if [ "$1" = -d ]; then word=start; else read word; fi
echo "$word $CUDA_MPS_PIPE_DIRECTORY" >> "{log}"
exit {status}
"""


@pytest.fixture
def gpu(monkeypatch):
    """Make a machine look as if it had a GPU and a JAX for it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    plugin = types.SimpleNamespace(name="xla_cuda12")
    monkeypatch.setattr(processes, "entry_points", lambda group: [plugin])


@pytest.fixture
def daemon(tmp_path, monkeypatch, gpu):
    """A function that installs a replacement for MPS, with its exit status; it returns the log."""
    log = tmp_path / "log"

    def make(status=0):
        program = tmp_path / "bin" / "nvidia-cuda-mps-control"
        program.parent.mkdir()
        program.write_text(DAEMON.format(log=log, status=status))
        program.chmod(0o755)
        return lambda: log.read_text().splitlines() if log.exists() else []

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return make


def test_mps_runs_during_the_block_for_processes_with_its_variables(daemon):
    log = daemon()
    pipe = ""
    with contextlib.suppress(RuntimeError), mps() as variables:
        pipe = variables["CUDA_MPS_PIPE_DIRECTORY"]
        assert all(map(os.path.isdir, variables.values()))
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
        assert log() == [f"start {pipe}"]
        raise RuntimeError
    assert log() == [f"start {pipe}", f"quit {pipe}"]
    assert not os.path.exists(os.path.dirname(pipe))


def test_training_continues_without_mps(daemon):
    log = daemon(status=1)
    said = []
    with mps(said.append) as variables:
        assert variables == {}
    assert said == ["CUDA's MPS did not start; processes use the GPU in turn"]
    assert len(log()) == 1


@pytest.mark.parametrize(
    ("variable", "value"),
    [("CUDA_MPS_PIPE_DIRECTORY", "/mine"), ("CUDA_VISIBLE_DEVICES", ""), ("JAX_PLATFORMS", "cpu")],
)
def test_mps_is_not_started_next_to_the_users_or_without_a_gpu(
    daemon, monkeypatch, variable, value
):
    log = daemon()
    monkeypatch.setenv(variable, value)
    with mps() as variables:
        assert (variables, log()) == ({}, [])


@pytest.mark.parametrize(
    ("visible", "found"), [("0", True), ("1,2", True), ("", False), ("-1", False)]
)
def test_a_gpu_is_found_without_jax(gpu, monkeypatch, visible, found):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert has_nvidia() is found


@pytest.mark.slow
def test_mps_ends_with_a_process_that_is_killed(daemon):
    log = daemon()
    script = "\n".join(
        [
            "import os, types",
            "from emergo.study import processes",
            "plugin = types.SimpleNamespace(name='xla_cuda12')",
            "processes.entry_points = lambda group: [plugin]",
            "with processes.mps():",
            "    os.kill(os.getpid(), 9)",
        ]
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == -9
    until = time.monotonic() + 20
    while len(log()) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert [line.split()[0] for line in log()] == ["start", "quit"]


def test_workers_share_the_memory_unless_the_user_has_set_a_share(monkeypatch):
    names = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert environment(4)[names[0]] == "0.225"
    assert names[1] not in environment(4)
    for name, other in (names, names[::-1]):
        with monkeypatch.context() as patch:
            patch.setenv(name, "0.1")
            assert environment(4)[name] == "0.1"
            assert other not in environment(4), "JAX refuses both"


def wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_workers_stay_until_they_are_told_that_the_plan_does_not_grow():
    said = []
    with run_workers([jobs.wait_for_the_end] * 2, said.append) as workers:
        wait_for(lambda: workers.at_work() and said)
        workers.end()
        wait_for(lambda: not workers.at_work())
    assert said == ["a line", "a line"]
    assert [process.returncode for process in workers.processes] == [0, 0]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (jobs.fail, "^worker 2 of 2 failed: InputError: it is wrong$"),
        (jobs.get_killed, "^worker 2 of 2 was ended by SIGKILL; what was finished is kept, and"),
        (functools.partial(jobs.leave, 3), "^worker 2 of 2 failed: status 3$"),
    ],
)
def test_if_one_fails_the_others_save_and_end(tmp_path, job, words):
    begun = tmp_path / "begun"
    save = functools.partial(jobs.save, begun)
    later = functools.partial(jobs.once_there, begun, job)
    with pytest.raises(WorkerError, match=words), run_workers([save, later]) as workers:
        wait_for(lambda: not workers.at_work())
    assert begun.with_name("saved").exists()
    assert workers.processes[0].returncode == 130


def test_a_worker_that_does_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PATIENCE", 0.2)
    begun = tmp_path / "begun"
    with run_workers([functools.partial(jobs.ignore_signals, begun)]) as workers:
        wait_for(begun.exists)
    assert workers.processes[0].returncode == -9


def test_a_second_interrupt_kills_the_workers(tmp_path):
    begun = tmp_path / "begun"
    started = run_workers([functools.partial(jobs.ignore_signals, begun)])
    with contextlib.suppress(KeyboardInterrupt), started as workers:
        wait_for(begun.exists)
        threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
        raise KeyboardInterrupt
    assert workers.processes[0].returncode == -9


def test_the_progress_of_several_workers_is_combined(tmp_path):
    folder = StudyFolder(tmp_path)
    plan, _ = STUDY.open(folder)
    first, *_, last = (unit.runs[0] for unit in plan.units)
    known = {run.identity: run for run in STUDY.runs}
    assert progress_of(folder, plan, known, 2, 1) is None
    running = [[first.identity, 50, 0.3], ["0" * 16, 1, 0.1]]
    reports = [
        {"running": running, "rate": 10.0, "bytes": 5},
        {"running": [[last.identity, 25, None]], "rate": 20.0},
    ]
    claims = Claims(folder.claims, beat=0.01)
    with contextlib.ExitStack() as held:
        for unit, report in zip(plan.units, reports, strict=True):
            held.enter_context(claims.hold(unit.id)).tell(report)
        progress = functools.partial(progress_of, folder, plan, known, 2, 1)
        wait_for(lambda: (now := progress()) is not None and len(now.running) == 2)
        now = progress()
    assert now is not None
    assert (now.total, now.done, now.failed, now.rate, now.bytes) == (6, 2, 1, 30.0, 5)
    assert [(run.identity, step) for run, step, _ in now.running] == [
        (first.identity, 50),
        (last.identity, 25),
    ]
    assert math.isnan(now.running[1][2])


@pytest.mark.slow
def test_a_worker_whose_parent_is_gone_saves_and_the_next_one_continues(tmp_path):
    """The runs agree with an uninterrupted process bit for bit."""
    # Trains for seconds; a claim reports progress after two.
    study = tiny(seeds=3, steps=24_000, threshold=None, unit=3)
    folder = StudyFolder(tmp_path / "one")
    plan, _ = study.open(folder)
    job = functools.partial(run_plan, folder, wait=False)
    claims = folder.claims
    with run_workers([job]) as workers:
        wait_for(
            lambda: any('"running"' in path.read_text() for path in claims.glob("*.json")), 100
        )
        [process] = workers.processes
        assert process.stdin is not None
        process.stdin.close()  # as if this process had died
        assert process.wait(60) == 130
    assert not read_outcomes(folder.runs).rows
    assert list(folder.checkpoints.glob("*/*.npz"))
    with run_workers([job]) as workers:
        workers.end()
        wait_for(lambda: not workers.at_work(), 200)
    other = StudyFolder(tmp_path / "other")
    study.open(other)
    assert run_plan(other)
    one, two = (
        study_curves(each, plan).sort_values(["identity", "step"], ignore_index=True)
        for each in (folder, other)
    )
    pd.testing.assert_frame_equal(one, two, check_exact=True)
