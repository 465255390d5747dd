"""What is found in a folder, and what is not looked at."""

import json
import shutil

import numpy as np
import pytest

import emergo as em
from emergo.view import Catalog
from emergo.view._catalog import _Cache

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
    shutil.copytree(folder, inner, ignore=lambda path, names: ["runs"] if path == str(folder) else [])
    (inner / "runs").symlink_to(folder / "runs")
    (tmp_path / "linked").symlink_to(folder)
    catalog = Catalog(tmp_path)
    assert catalog.sets() == {}
    assert "leads outside of the folder" in catalog.notes[0]


def test_plans_that_are_no_folder_are_named(tmp_path, folder):
    """Their runs are shown without a plan."""
    shutil.copytree(folder, tmp_path / "sent")
    shutil.rmtree(tmp_path / "sent" / "studies")
    (tmp_path / "sent" / "studies").symlink_to(tmp_path)
    catalog = Catalog(tmp_path / "sent")
    assert [runs.kind for runs in catalog.sets().values()] == ["runs"]
    assert catalog.notes == ("studies: not a folder, where plans should be",)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(em.InputError, match="no such folder"):
        Catalog(tmp_path / "none")


def test_an_unknown_set_is_one_line(catalog):
    with pytest.raises(em.InputError, match="no set of runs 'other'"):
        catalog.get("other")


def test_two_studies_of_one_name_have_two_keys(tmp_path):
    for dim in (4, 8):
        study = made_up_study(dims=[dim], lengths=[8], seeds=1)
        study.open(em.studies.StudyFolder(tmp_path))
        finish(study, tmp_path, fail=None)
    keys = list(Catalog(tmp_path).sets())
    assert keys[0] == "made up"
    assert len(set(keys)) == 2


def test_thinned_curves_are_kept_and_forgotten(catalog):
    (runs,) = catalog.sets().values()
    first = catalog.thinned(runs, runs.runs, "loss", 16)
    assert all(len(x) <= 16 for x, _ in first)
    assert catalog.thinned(runs, runs.runs[:1], "loss", 16)[0] is first[0]
    assert [len(x) for x, _ in catalog.thinned(runs, ["../../etc/passwd", "none"], "loss", 16)] == [0, 0]


def test_the_cache_is_bounded():
    cache, curve = _Cache(10_000), (np.zeros(100), np.zeros(100))
    for key in range(50):
        cache.put(key, curve)
        assert cache.size <= 10_000
    assert cache.get(49) is curve
    assert cache.get(0) is None
