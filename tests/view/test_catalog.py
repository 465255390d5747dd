"""Test which sets of runs a catalog finds in a folder."""

import itertools
import json
import shutil
import types

import pytest

import emergo as em
from emergo.view import Catalog, _catalog

from .made_up import finish, made_up_study


def test_studies_stores_records_and_figures_are_found_below_a_folder(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "deep" / "study")
    shutil.copytree(folder / "runs", tmp_path / "store")
    (tmp_path / "paper").mkdir()
    report = {"figure": "paper/fig", "title": "", "laws": [], "checks": []}
    (tmp_path / "paper" / "fig.json").write_text(json.dumps(report))
    sets = Catalog(tmp_path).sets()
    assert {key: (runs.kind, len(runs.runs)) for key, runs in sets.items()} == {
        "deep/study: made up": ("study", 18),
        "store: store": ("runs", 18),
        "paper/fig": ("figure", 0),
    }


def test_a_link_that_leads_outside_is_named_and_not_read(tmp_path, folder):
    inner = tmp_path / "study"
    shutil.copytree(
        folder, inner, ignore=lambda path, names: ["runs"] if path == str(folder) else []
    )
    (inner / "runs").symlink_to(folder / "runs")
    (tmp_path / "linked").symlink_to(folder)
    catalog = Catalog(tmp_path)
    assert catalog.sets() == {}
    assert "leads outside of the folder" in catalog.notes[0]


def test_runs_are_shown_without_a_plan_if_plans_are_not_a_folder(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "sent")
    shutil.rmtree(tmp_path / "sent" / "studies")
    (tmp_path / "sent" / "studies").symlink_to(tmp_path)
    catalog = Catalog(tmp_path / "sent")
    assert [runs.kind for runs in catalog.sets().values()] == ["runs"]
    assert catalog.notes == ("studies: not a folder, where plans should be",)


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(em.InputError, match="no such file or folder"):
        Catalog(tmp_path / "none")


def test_an_unknown_set_is_one_line(catalog):
    with pytest.raises(em.InputError, match="no set of runs 'other'"):
        catalog.get("other")


def test_two_studies_of_one_name_have_two_keys(tmp_path):
    for dim in (4, 8):
        study = made_up_study(dims=[dim], lengths=[8], seeds=1)
        study.open(em.store.StudyFolder(tmp_path))
        finish(study, tmp_path, fail=None)
    keys = list(Catalog(tmp_path).sets())
    assert keys[0] == "made up"
    assert len(set(keys)) == 2


def test_thinned_curves_are_cached(catalog):
    runs = catalog.get("made up").runs
    first = catalog.thinned("made up", runs, "loss", 16)
    assert all(0 < len(x) <= 16 for x, _ in first)
    assert catalog.thinned("made up", runs[:1], "loss", 16)[0] is first[0]
    unknown = catalog.thinned("made up", ["../../etc/passwd", "none"], "loss", 16)
    assert [len(x) for x, _ in unknown] == [0, 0]


def test_sets_that_are_slow_to_read_are_reused_for_as_long(tmp_path, monkeypatch):
    """The clock advances by four seconds whenever it is read."""
    seconds = itertools.count(0.0, 4.0)
    study = made_up_study(dims=[4], lengths=[8])
    finish(study, tmp_path, runs=[0])
    catalog = Catalog(tmp_path)
    clock = types.SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr(_catalog, "time", clock)
    before = catalog.sets()
    finish(study, tmp_path, runs=[1])
    assert catalog.sets() is before
    while catalog.sets() is before:
        assert next(seconds) < 100
    assert len(catalog.sets()["made up"].runs) == 2


def test_a_folder_without_runs_is_warmed_without_an_error(tmp_path):
    Catalog(tmp_path).warm(lambda: False)
