"""Studies whose processes are killed at any write, at random times, or at random steps."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import pytest

from emergo.store import StudyFolder, read_outcomes, study_status
from emergo.store.claims import read_claim
from emergo.study import Watcher, run_plan, study_curves, study_table

from .tiny import STUDY, quiet, same_tables

CROWD = Path(__file__).with_name("crowd.py")


@pytest.fixture
def quick_disk():
    """A folder in memory if possible: flushing thousands of small files to disk takes long."""
    place = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    yield place
    shutil.rmtree(place)


def crowd(*arguments):
    """Run the script and return what it prints."""
    command = [sys.executable, str(CROWD), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_kill_before_any_write_leaves_the_old_or_the_new_state(quick_disk):
    """Promise 2: the plan has 0, 2, or 4 runs, of which 0, 1, or 2 are finished."""
    states = crowd("points", quick_disk)
    assert len(states) > 40
    assert not any(one["broken"] for one in states)
    assert [one["killed"] for one in states] == [True] * (len(states) - 1) + [False]
    assert {one["planned"] for one in states} == {0, 2, 4}
    assert {one["finished"] for one in states} == {0, 1, 2}
    assert {one["checkpoint"] for one in states} == {0, 1, 2}
    end = {"planned": 4, "finished": 2, "readable": 2, "broken": 0, "checkpoint": 2}
    for one in states:
        assert one["readable"] == one["finished"]
        assert one["again"] == 0
        assert one["after"] == end


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_processes_killed_at_random_finish_every_run_once(quick_disk, seed):
    """Promise 4."""
    counts = crowd("crowd", quick_disk, seed)
    assert counts["kills"] >= 10
    folder = StudyFolder(quick_disk)
    [plan] = folder.read()
    status = study_status(folder)
    assert status.complete
    assert not status.workers
    table = study_table(folder, plan)
    assert len(table) == 30
    assert sorted(table["identity"]) == sorted(run.identity for run in plan.runs)
    assert len(study_curves(folder, plan)) == 30 * 5
    assert not list(folder.claims.glob("*.json"))


class Killed(BaseException):
    """The end of a process: nothing catches it."""


class KillAfter(Watcher):
    """Ends training after some chunks."""

    def __init__(self, chunks):
        self.left = chunks

    def training(self, now):
        self.left -= 1
        if self.left <= 0:
            raise Killed


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The tiny study, trained without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    runs = STUDY.run(folder, progress=quiet)
    return runs.table, runs.curves


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_an_interrupted_study_ends_as_an_uninterrupted_one(tmp_path, whole, seed):
    """Promise 3: bit for bit, with interruptions at random steps and checkpoints after every chunk
    or only sometimes."""
    rng = random.Random(seed)
    folder = StudyFolder(tmp_path)
    plan, _ = STUDY.open(folder)
    interruptions = 0
    while True:
        try:
            every = rng.choice([0.0, 0.05, 1e9])
            run_plan(folder, checkpoint_seconds=every, watch=KillAfter(rng.randrange(1, 30)))
            break
        except Killed:
            interruptions += 1
            assert interruptions < 100
    assert interruptions > 0
    same_tables(study_table(folder, plan), whole[0])
    curves, expected = (
        table.sort_values(["identity", "step"], ignore_index=True)
        for table in (study_curves(folder, plan), whole[1])
    )
    pd.testing.assert_frame_equal(curves, expected, check_exact=True)
    assert not list(folder.checkpoints.iterdir())


@pytest.mark.slow
def test_a_killed_command_is_continued_by_the_next_one(tmp_path, whole):
    """The real command, killed in the middle of training, then terminated, then run to its end."""
    STUDY.write_file(tmp_path / "tiny.toml")
    folder = StudyFolder(tmp_path / "out")
    command = [sys.executable, "-m", "emergo", "study", "run", str(tmp_path / "tiny.toml")]
    command += ["--out", str(folder.path)]
    for number, status in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 130)):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        wait_for_claim(folder, process)
        process.send_signal(number)
        _, err = process.communicate(timeout=300)
        assert process.returncode == status, err
    assert b"the same command continues from there" in err
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0, done.stderr
    same_tables(STUDY.read(folder.path).table, whole[0])
    assert not list(folder.claims.glob("*.json"))


def wait_for_claim(folder, process):
    """Wait until a process compiles or trains; the progress in its claim may come too late."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert process.poll() is None, process.stderr.read()
        units = folder.read()[0].units if folder.exists() else []
        claims = [read_claim(folder.claims / f"{unit.id}.json") for unit in units]
        if any(claim and claim.get("pid") == process.pid for claim in claims):
            return
        time.sleep(0.05)
    raise AssertionError("nothing was trained")


@pytest.mark.slow
def test_two_copies_of_a_unit_are_harmless(tmp_path, whole):
    """Slurm may start a job a second time while the first one lives; both write all runs."""
    folder = StudyFolder(tmp_path)
    plan, _ = STUDY.open(folder)
    path = folder.claims / f"{plan.units[0].id}.json"

    class StartSecond(Watcher):
        started = False

        def training(self, now):
            if not self.started:
                self.started = True
                path.unlink()
                run_plan(folder, checkpoint_seconds=0.0)

    first = StartSecond()
    run_plan(folder, checkpoint_seconds=0.0, beat=1e9, watch=first)
    assert first.started
    same_tables(study_table(folder, plan), whole[0])
    assert len(read_outcomes(folder.runs).rows) == 6
