"""A study that version 1 of the store wrote, with runs of every outcome: it must stay readable (promise 8).

What is under `fixtures/version-1` is never written again. A later format gets a folder of its own beside it.
"""

import shutil
from pathlib import Path

import numpy as np

from emergo.studies import Store, Study, StudyFolder, make_plan, run_study, study_curves, study_law, study_status, study_table
from emergo.studies import _work as work

FIXTURE = Path(__file__).with_name("fixtures") / "version-1"


def copied(tmp_path):
    return StudyFolder(shutil.copytree(FIXTURE, tmp_path / "copy"))


def test_the_status_and_the_tables_can_be_read(tmp_path):
    folder = copied(tmp_path)
    status = study_status(folder)
    assert (status.name, status.runs, status.reached, status.censored, status.failed) == ("version 1", 12, 4, 4, 4)
    assert status.failures == 8
    assert not status.broken
    table = study_table(folder)
    assert {"dim", "learning_rate", "seed", "plateau", "censored", "state", "reason", "tries", "chosen"} <= set(table.columns)
    by_seed = table.groupby("seed")
    assert list(by_seed["state"].first()) == ["censored", "reached", "failed"]
    np.testing.assert_array_equal(by_seed.get_group(0)["plateau"], 100.0)
    # The crossing of 0.1 on a line from 1 to 0.05 over 100 steps, each value raised by up to 0.01.
    np.testing.assert_allclose(by_seed.get_group(1)["plateau"], 95.26, atol=0.6)
    assert by_seed.get_group(2)["plateau"].isna().all()
    assert set(by_seed.get_group(2)["reason"]) == {"the loss was not finite at step 77, in 2 tries"}
    curves = study_curves(folder)
    assert len(curves) == 12 * 5
    assert {"step", "loss", "train_loss", "alignment", "attention_0_0", "entropy_0_0"} <= set(curves.columns)


def test_every_run_can_be_read_with_its_curves():
    store = Store(FIXTURE / "runs")
    assert len(list(store)) == 12
    for identity in store:
        result = store.read(identity)
        assert result.run.identity == identity  # the identity of a config must not change
        assert result.curves is not None


def test_its_study_is_still_the_same_study(tmp_path, monkeypatch):
    """The plan is what this version would make, so that the study can go on and grow."""
    folder = copied(tmp_path)
    plan = folder.read()
    study = Study.of(plan.study)
    assert make_plan(study) == plan
    asked = []
    monkeypatch.setattr(work, "train", lambda runs, **_: asked.append(runs))
    run_study(study, folder.path)
    assert not asked
    law = study_law(study_table(folder), plan)
    assert law is not None
    assert law.runs == 2
