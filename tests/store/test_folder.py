"""The folder of studies."""

import json
import os
import time

import pytest

from emergo.core.errors import InputError
from emergo.store import StudyFolder

from ..study.crowd import study
from ..study.tiny import rewrite


def test_a_plan_is_read_as_it_was_written(tmp_path):
    folder = StudyFolder(tmp_path / "new" / "folder")
    assert not folder.exists()
    plan, _ = study(2, 2).open(folder)
    assert folder.exists()
    assert folder.read() == [plan]
    assert (plan.name, plan.plugins, plan.axes) == ("study", [], ["dim"])


def test_plans_are_sorted_by_age(tmp_path):
    folder = StudyFolder(tmp_path)
    names = ["c", "a", "b"]
    for number, name in enumerate(names):
        study(1, 1, name=name, batch=number + 1).open(folder)
    assert [plan.name for plan in folder.read()] == names


def test_a_folder_without_a_study_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file: a file, not the folder of a study"):
        StudyFolder(tmp_path / "file").read()
    for path in (tmp_path, tmp_path / "absent"):
        assert not StudyFolder(path).exists()
        with pytest.raises(
            InputError, match="no study here; a study is put into a folder by running it"
        ):
            StudyFolder(path).read()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda units: units[0].update(runs=[]), "a unit has no runs"),
        (lambda units: units.append(units[0]), "a unit or a run occurs twice"),
        (lambda units: units[0]["runs"][0].pop(), "lacks a config or the value of an axis"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(tmp_path, change, why):
    folder = StudyFolder(tmp_path)
    study(2, 2).open(folder)
    [path] = folder.plans.glob("*.json")
    units = json.loads(path.read_text())["units"]
    change(units)
    rewrite(path, units=units)
    with pytest.raises(InputError, match=why):
        folder.read()


def test_only_old_leftovers_are_removed(tmp_path):
    """Half-written files of killed processes are removed after a day; foreign files stay."""
    folder = StudyFolder(tmp_path)
    study(1, 1).open(folder)
    (folder.checkpoints / "unit.0").mkdir()
    token = "0123456789abcdef"
    old = [
        folder.runs / f".writing-{token}",
        folder.claims / f".a.json.{token}",
        folder.plans / f".b.json.{token}",
    ]
    old += [
        folder.checkpoints / "unit.0" / f".group.npz.{token}",
        folder.failures / f".c.0.json.{token}",
    ]
    kept = [
        folder.runs / ".notes",
        folder.runs / ".writing-mine",
        folder.path / ".git",
        folder.claims / f".young.json.{token}",
    ]
    for path in (*old, *kept):
        path.mkdir() if path.name.startswith((".writing", ".git")) else path.write_text("")
        if "young" not in path.name:
            os.utime(path, (time.time() - 100_000, time.time() - 100_000))
    folder.sweep()
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in kept)
    assert len(folder.read()) == 1
