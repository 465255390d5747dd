"""Worker processes that train one plan: what each gets, how it ends, and what it reports."""

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time

import pandas as pd
import pytest

from emergo.core.errors import InputError, StorageError, WorkerError
from emergo.store import Plan, StudyFolder, read_outcomes
from emergo.study import processes, run_plan, study_curves
from emergo.study.processes import Workers, environment, has_nvidia, mps, progress_of

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
    monkeypatch.setattr(processes, "_has_plugin", lambda: True)


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
            "import os",
            "from emergo.study import processes",
            "processes._has_plugin = lambda: True",
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


def scripted(folder, *scripts, **options):
    """Return workers that run these scripts instead of training."""
    made = Workers(StudyFolder(folder), Plan({}, [], [], [], "key"), len(scripts), **options)
    head = "import json, os, signal, sys, time\n"
    made.commands = [[sys.executable, "-c", f"{head}{script}"] for script in scripts]
    return made


def wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


LISTENS = "assert sys.stdin.readline() == 'end\\n'"
SAVES = (
    "signal.signal(15, lambda *_: (open('saved', 'w').close(), os._exit(130))); "
    "open('begun', 'w').close(); time.sleep(60)"
)
STUBBORN = "signal.signal(15, signal.SIG_IGN); open('begun', 'w').close(); time.sleep(60)"
FAILS = "print(json.dumps({'failed': %r, 'why': 'it is wrong'}), flush=True); sys.exit(1)"


def test_workers_stay_until_they_are_told_that_the_plan_does_not_grow(tmp_path):
    said = []
    tells = "print(json.dumps({'say': 'a line'}), flush=True)"
    with scripted(tmp_path, LISTENS, f"{tells}; {LISTENS}", say=said.append) as workers:
        time.sleep(0.2)
        assert workers.at_work()
        workers.end()
        wait_for(lambda: not workers.at_work())
    assert said == ["a line"]
    assert [process.returncode for process in workers.processes] == [0, 0]


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        (FAILS % "InputError", InputError, "^it is wrong$"),
        (FAILS % "StorageError", StorageError, "^it is wrong$"),
        (FAILS % "", WorkerError, r"^worker 2 of 2 failed: it is wrong \(set EMERGO_TRACEBACK=1"),
        (
            "os.kill(os.getpid(), 9)",
            WorkerError,
            "^worker 2 of 2 was ended by SIGKILL; what was finished is kept, and the same",
        ),
        ("os._exit(3)", WorkerError, "^worker 2 of 2 ended with status 3$"),
    ],
)
def test_if_one_fails_the_others_save_and_end(tmp_path, monkeypatch, script, error, words):
    monkeypatch.chdir(tmp_path)
    waits = "while not os.path.exists('begun'): time.sleep(0.01)"
    with (
        pytest.raises(error, match=words),
        scripted(tmp_path, SAVES, f"{waits}\n{script}") as workers,
    ):
        wait_for(lambda: not workers.at_work())
    assert (tmp_path / "saved").exists()
    assert workers.processes[0].returncode == 130


def test_a_worker_that_does_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(processes, "PATIENCE", 0.2)
    with scripted(tmp_path, STUBBORN) as workers:
        wait_for((tmp_path / "begun").exists)
    assert workers.processes[0].returncode == -9


def test_a_second_interrupt_kills_the_workers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workers = scripted(tmp_path, STUBBORN)
    with contextlib.suppress(KeyboardInterrupt), workers:
        wait_for((tmp_path / "begun").exists)
        threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
        raise KeyboardInterrupt
    assert workers.processes[0].returncode == -9


def test_the_progress_of_several_workers_is_combined():
    first, second, *_ = STUDY.runs
    running = [[first.identity, 50, 0.3], ["0" * 16, 1, 0.1]]
    claims = {
        "a": {"progress": {"running": running, "rate": 10.0, "bytes": 5}},
        "b": {"progress": {"running": [[second.identity, 25, None]], "rate": 20.0}},
        "c": {},
    }
    now = progress_of(claims, {run.identity: run for run in STUDY.runs}, (6, 2, 1))
    assert (now.total, now.done, now.failed, now.rate, now.bytes) == (6, 2, 1, 30.0, 5)
    assert [(run, step) for run, step, _ in now.running] == [(first, 50), (second, 25)]
    assert math.isnan(now.running[1][2])


@pytest.mark.slow
def test_a_worker_whose_parent_is_gone_saves_and_the_next_one_continues(tmp_path):
    """The runs agree with an uninterrupted process bit for bit."""
    # Trains for seconds; a claim reports progress after two.
    study = tiny(seeds=3, steps=24_000, threshold=None, unit=3)
    folder = StudyFolder(tmp_path / "one")
    plan, _ = study.open(folder)
    [command] = Workers(folder, plan, 1).commands

    def start():
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=environment(1), **pipes)

    first = start()
    claims = folder.claims
    wait_for(lambda: any('"running"' in path.read_text() for path in claims.glob("*.json")), 100)
    assert first.communicate(timeout=60)[0] == "", "this closes its standard input"
    assert first.returncode == 130
    assert not read_outcomes(folder.runs).rows
    assert list(folder.checkpoints.glob("*/*.npz"))
    second = start()
    assert second.stdin is not None
    second.stdin.write("end\n")
    second.stdin.flush()
    assert second.wait(200) == 0
    assert second.communicate()[0] == ""
    other = StudyFolder(tmp_path / "other")
    study.open(other)
    assert run_plan(other)
    one, two = (
        study_curves(each, plan).sort_values(["identity", "step"], ignore_index=True)
        for each in (folder, other)
    )
    pd.testing.assert_frame_equal(one, two, check_exact=True)
