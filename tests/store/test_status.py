"""Progress of studies, from their files alone."""

import json
import time

import pytest

from emergo.store import Failures, Store, StudyFolder, study_status
from emergo.store.claims import Claims, Note
from emergo.study.results import write_result

from ..study.crowd import made_up, study


@pytest.fixture
def folder(tmp_path):
    """A study of six runs in two units; four runs are finished."""
    folder = StudyFolder(tmp_path)
    study(2, 3, name="mine").open(folder)
    for run in study(2, 3).runs[:4]:
        write_result(Store(folder.runs), made_up(run))
    return folder


def test_runs_are_counted_by_state(folder):
    Failures(folder.failures).note(study(2, 3).runs[4].identity, 0, "why", "loss")
    Failures(folder.failures).note("f" * 16, 0, "a run of another study", "loss")
    write_result(Store(folder.runs), made_up(study(1, 1, batch=7).runs[0]))  # of another study
    status = study_status(folder)
    assert (status.name, status.runs) == ("mine", 6)
    assert (status.units, status.units_finished) == (2, 1)
    assert (status.reached, status.censored, status.trained, status.failed) == (2, 2, 0, 0)
    assert (status.training, status.waiting, status.failures) == (0, 2, 1)
    assert not status.complete
    assert json.loads(json.dumps(status.data()))["finished"] == 4


def test_active_processes_are_shown(folder):
    [plan] = folder.read()
    unit = plan.units[1].id
    claims = Claims(folder.claims, beat=0.01)
    progress = {
        "running": [["a", 25, 0.5], ["b", 50, 0.7], ["c", 30, None]],
        "rate": 9.0,
        "done": 1,
        "total": 3,
        "notes": [{"run": "b", **Note("~900", 900.0, {"why": "it falls"})._asdict()}],
    }
    with claims.hold(unit) as claim, claims.hold("plan"):
        claim.tell(progress)
        while not claims.live()[unit].get("progress"):
            time.sleep(0.01)
        status = study_status(folder)
    assert (status.training, status.waiting) == (2, 0)
    [worker] = status.workers
    assert (worker["unit"], worker["running"]) == (unit, 3)
    assert (worker["step_min"], worker["step_max"]) == (25, 50)
    assert (worker["loss"], worker["rate"], worker["done"]) == (0.7, 9.0, 1)
    assert worker["note"] == "1 of 3, first ~900"
    assert worker["notes"] == [["b", "~900", 900.0]]
