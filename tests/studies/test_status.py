"""How far studies are, from their files alone."""

import json
import subprocess
import sys
import time

import pytest

from emergo.studies import Failures, Store, StudyFolder, study_status
from emergo.studies._claims import Claims

from .crowd import made_up, study


@pytest.fixture
def folder(tmp_path):
    """A study of six runs in two units, of which four runs are finished."""
    folder = StudyFolder(tmp_path)
    study(2, 3, name="mine").open(folder)
    store = Store(folder.runs)
    for run in study(2, 3).runs[:4]:
        store.write(made_up(run))
    return folder


def test_runs_are_counted_by_state(folder):
    Failures(folder.failures).note(study(2, 3).runs[4].identity, 0, "why", "loss")
    Failures(folder.failures).note("f" * 16, 0, "of no study here", "loss")
    status = study_status(folder)
    assert (status.name, status.axes, status.runs, status.units, status.units_finished) == ("mine", ["dim"], 6, 2, 1)
    assert (status.reached, status.censored, status.trained, status.failed, status.finished) == (2, 2, 0, 0, 4)
    assert (status.training, status.waiting, status.failures, status.complete) == (0, 2, 1, False)
    assert json.loads(json.dumps(status.data()))["finished"] == 4


def test_who_is_at_work_is_shown(folder):
    [plan] = folder.read()
    claims = Claims(folder.claims, beat=0.01)
    with claims.hold(plan.units[1].id) as claim, claims.hold("plan"):
        claim.tell({"running": [["a", 25, 0.5], ["b", 50, 0.7], ["c", 30, None]], "rate": 9.0, "done": 1, "total": 3})
        while not claims.live()[plan.units[1].id].get("progress"):
            time.sleep(0.01)
        status = study_status(folder)
    assert (status.training, status.waiting) == (2, 0)
    [worker] = status.workers
    assert (worker["unit"], worker["running"], worker["step_min"], worker["step_max"]) == (plan.units[1].id, 3, 25, 50)
    assert (worker["loss"], worker["rate"], worker["done"]) == (0.7, 9.0, 1)


def test_runs_of_no_study_are_not_counted(folder):
    Store(folder.runs).write(made_up(study(1, 1, batch=7).runs[0]))
    assert study_status(folder).finished == 4


def test_every_public_name_is_there():
    code = "import emergo.studies as s; print([name for name in s.__all__ if getattr(s, name).__name__ != name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "[]", done.stderr
