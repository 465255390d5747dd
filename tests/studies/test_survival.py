"""Studies and what happens to processes: killed at any write, in a crowd, at random steps. What was finished stays."""

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

import numpy as np
import pandas as pd
import pytest

from emergo.engine import Progress
from emergo.studies import Executor, StudyFolder, read_outcomes, study_curves, study_status, study_table
from emergo.studies._claims import read_claim

from .tiny import STUDY, quiet, same_tables

CROWD = Path(__file__).with_name("crowd.py")


@pytest.fixture
def quick_disk():
    """A folder in memory where there is one: thousands of small files are brought to the disk one by one."""
    place = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    yield place
    shutil.rmtree(place)


def crowd(*arguments):
    """What the script prints."""
    done = subprocess.run([sys.executable, str(CROWD), *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_killed_before_any_write_it_leaves_the_old_or_the_new(quick_disk):
    """Promise 2. The plan has 0, then 2, then 4 runs; of runs there are 0, 1, then 2; never anything between."""
    states = crowd("points", quick_disk)
    assert len(states) > 40
    assert not any(one["broken"] for one in states)
    assert [one["killed"] for one in states] == [True] * (len(states) - 1) + [False]
    assert {one["planned"] for one in states} == {0, 2, 4}
    assert {one["finished"] for one in states} == {0, 1, 2}
    for one in states:
        assert one["readable"] == one["finished"]
        assert one["again"] == 0
        assert one["after"] == {"planned": 4, "finished": 2, "readable": 2, "broken": 0, "checkpoint": 2}
    assert {one["checkpoint"] for one in states} == {0, 1, 2}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_many_processes_killed_at_random_finish_every_run_once(quick_disk, seed):
    """Promise 4."""
    counts = crowd("crowd", quick_disk, seed)
    assert counts["kills"] >= 10
    folder = StudyFolder(quick_disk)
    [plan] = folder.read()
    status, table = study_status(folder), study_table(folder, plan)
    assert status.complete
    assert not status.workers
    assert sorted(table["identity"]) == sorted(run.identity for run in plan.runs)
    assert table["identity"].is_unique
    assert len(table) == 30
    assert len(study_curves(folder, plan)) == 30 * 5
    assert not list(folder.claims.glob("*.json"))


class Killed(BaseException):
    """Stands for the end of a process: nothing of ours catches it."""


class KillAfter:
    """Ends training after some chunks."""

    def __init__(self, chunks):
        self.left = chunks

    def __call__(self, now: Progress):
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
    """Promise 3: at random steps, with a checkpoint after every chunk or only sometimes; bit for bit, curves included."""
    rng = random.Random(seed)
    folder = StudyFolder(tmp_path)
    plan, _ = STUDY.open(folder)
    interruptions = 0
    while True:
        try:
            every = rng.choice([0.0, 0.05, 1e9])
            Executor(folder, checkpoint_seconds=every, progress=KillAfter(rng.randrange(1, 30))).run()
            break
        except Killed:
            interruptions += 1
            assert interruptions < 100
    assert interruptions > 0
    table, curves = whole
    same_tables(study_table(folder, plan), table)
    pd.testing.assert_frame_equal(_sorted(study_curves(folder, plan)), _sorted(curves), check_exact=True)
    assert not list(folder.checkpoints.iterdir())


def _sorted(curves):
    return curves.sort_values(["identity", "step"]).reset_index(drop=True)


@pytest.mark.slow
def test_other_groups_give_the_same_emergence_times(tmp_path, whole):
    """Trained one at a time the sums are rounded differently: the same times within the step between evaluations."""
    alone = STUDY.run(tmp_path, progress=quiet, n_parallel=1).table.sort_values("identity")
    table = whole[0].sort_values("identity")
    np.testing.assert_allclose(alone["plateau"], table["plateau"], atol=25)
    assert list(alone["state"]) == list(table["state"])


@pytest.mark.slow
def test_a_killed_command_is_followed_by_one_that_goes_on(tmp_path, whole):
    """The real command, killed without a word in the middle of training, and asked to end."""
    STUDY.write_file(tmp_path / "tiny.toml")
    folder = StudyFolder(tmp_path / "out")
    command = [sys.executable, "-m", "emergo", "study", "run", str(tmp_path / "tiny.toml"), "--out", str(folder.path)]
    for number, status in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 130)):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        _wait_for_training(folder, process)
        process.send_signal(number)
        _, err = process.communicate(timeout=300)
        assert process.returncode == status, err
    assert b"the same command goes on from there" in err
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0, done.stderr
    same_tables(STUDY.read(folder.path).table, whole[0])
    assert not list(folder.claims.glob("*.json"))


def _wait_for_training(folder, process):
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert process.poll() is None, process.stderr.read()
        units = [] if not folder.exists() else folder.read()[0].units
        claims = [read_claim(folder.claims / f"{unit.id}.json") for unit in units]
        if any(
            claim and claim.get("pid") == process.pid for claim in claims
        ):  # it compiles or trains; what a claim says of progress may come too late for so short a training
            return
        time.sleep(0.05)
    raise AssertionError("nothing was trained")


@pytest.mark.slow
def test_two_copies_of_a_unit_are_harmless(tmp_path, whole):
    """Slurm may start a job a second time while the first lives. Neither knows of the other; both write all."""
    folder = StudyFolder(tmp_path)
    plan, _ = STUDY.open(folder)
    unit = plan.units[0]
    other = []

    def begin_a_second(now: Progress):
        if not other:
            other.append(True)
            folder.claims.joinpath(f"{unit.id}.json").unlink()
            Executor(folder, checkpoint_seconds=0.0).run()

    Executor(folder, checkpoint_seconds=0.0, beat=1e9, progress=begin_a_second).run()
    assert other
    same_tables(study_table(folder, plan), whole[0])
    assert len(read_outcomes(folder.runs).rows) == 6
