"""Damaged or malicious folders: nothing outside is touched, nothing hangs, damage is named, and the
rest is readable. `fuzz.py` searches for further cases."""

import json
import os
import shutil
import warnings

import pandas as pd
import pytest

from emergo.core.errors import InputError, StorageError
from emergo.core.json import seal
from emergo.store import Store, StudyFolder, read_outcomes, study_status
from emergo.store.outcomes import file_stamp
from emergo.store.packing import pack_runs
from emergo.study import executor, run_plan, study_curves, study_table
from emergo.study.results import write_result
from emergo.training import Clamp, Ramp
from emergo.view import Catalog

from ..study.crowd import made_up, slow_train, study
from ..study.tiny import quiet, rewrite
from .test_claims import ELSEWHERE


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A study with one unfinished run, next to a folder that must not change."""
    monkeypatch.setattr(executor, "train", slow_train)
    folder = StudyFolder(tmp_path / "study")
    study(2, 3).open(folder)
    for run in study(2, 3).runs[1:]:
        write_result(Store(folder.runs), made_up(run))
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").write_text("mine")
    yield folder
    assert [path.name for path in (tmp_path / "victim").iterdir()] == ["precious"]


def plan_file(folder):
    [path] = folder.plans.glob("[!.]*.json")
    return path


def finish(folder):
    lines = []
    study(2, 3).run(folder.path, progress=quiet, say=lines.append, stale=0.0)
    status = study_status(folder)
    assert status.complete
    assert len(study(2, 3).read(folder.path)) == 6
    return lines


# Nothing outside of the folder is removed, moved or written.


@pytest.mark.parametrize(
    "name", ["../../../victim", "../../victim", "/tmp/victim", "0" * 11, "0" * 12 + "/../../victim"]
)
def test_an_id_that_leads_outside_is_refused(folder, name):
    content = json.loads(plan_file(folder).read_text())
    content["units"][0]["id"] = name
    rewrite(plan_file(folder), **content)
    with pytest.raises(InputError, match="id is not of the form"):
        run_plan(folder)
    [line] = finish(folder)
    assert "moved to .broken-" in line


@pytest.mark.parametrize("name", ["studies", "runs", "claims", "failures", "checkpoints"])
def test_a_folder_that_is_a_link_is_never_followed(folder, tmp_path, name):
    path = folder.path / name
    shutil.rmtree(path)
    path.symlink_to(tmp_path / "victim")
    if name != "studies":
        assert str(path) in study_status(folder).broken or name == "checkpoints"
    lines = finish(folder)
    assert any(line.startswith(f"{path}: not a folder; moved to .broken-") for line in lines)
    assert [p.readlink() for p in folder.path.glob(".broken-*")] == [tmp_path / "victim"]


def test_links_in_the_place_of_checkpoints_and_runs_are_moved_aside(folder, tmp_path):
    [plan] = folder.read()
    unit = next(
        unit
        for unit in plan.units
        if study(2, 3).runs[0].identity in {run.identity for run in unit.runs}
    )
    (folder.checkpoints / f"{unit.id}.0").symlink_to(tmp_path / "victim")
    (folder.checkpoints / "mine").symlink_to(tmp_path / "victim")
    (folder.runs / study(2, 3).runs[0].identity).symlink_to(tmp_path / "victim")
    (folder.runs / ".snapshots").symlink_to(tmp_path / "victim")
    lines = finish(folder)
    assert any(f"{unit.id}.0: not a folder; moved to" in line for line in lines)
    assert (folder.checkpoints / "mine").is_symlink()  # not ours


def test_links_are_not_followed_when_leftovers_are_removed(folder, tmp_path):
    (tmp_path / "victim" / f".writing-{'0' * 16}").mkdir()
    os.utime(tmp_path / "victim" / f".writing-{'0' * 16}", (0, 0))
    (folder.checkpoints / "link").symlink_to(tmp_path / "victim")
    folder.sweep()
    (tmp_path / "victim" / f".writing-{'0' * 16}").rmdir()  # fails if it was removed


# Forged and damaged files.


def test_a_forged_run_is_named_and_trained_again(folder):
    """Its checksums are valid, and its seed is that of another run."""
    run = study(2, 3).runs[3]
    place = folder.runs / run.identity
    rewrite(place / "run.json", seed=77)
    status = study_status(folder)
    assert list(status.broken) == [str(place)]
    assert (status.finished, status.waiting) == (4, 2)
    [plan] = folder.read()
    with pytest.warns(UserWarning, match=run.identity):
        assert len(study_table(folder, plan)) == 4
    with pytest.warns(UserWarning, match=run.identity):
        assert len(study_curves(folder, plan)) == 4 * 5
    trained = []
    run_plan(folder, on_end=lambda result: trained.append(result.run.identity))
    assert sorted(trained) == sorted([run.identity, study(2, 3).runs[0].identity])
    assert len(list(folder.runs.glob(f".broken-*-{run.identity}"))) == 1


def test_deeply_nested_files_are_named_and_hide_nothing_else(folder):
    deep = "[" * 100_000 + "]" * 100_000
    for path in (
        folder.runs / study(2, 3).runs[3].identity / "run.json",
        folder.claims / f"{'0' * 12}.json",
    ):
        path.write_text(deep)
    (folder.failures / f"{'0' * 16}.0.json").write_text(deep)
    status = study_status(folder)
    assert status.finished == 4
    assert len(status.broken) == 3
    finish(folder)


@pytest.mark.parametrize("value", ["text", 77, None])
def test_a_plan_does_not_override_the_config_of_a_run(folder, value):
    """The plan was forged with a valid checksum. The identity is a hash of the run's own config."""
    [plan] = folder.read()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = study_table(folder, plan)
    curves = study_curves(folder, plan)
    forged = next(run for run in plan.units[0].runs if run.identity in set(before["identity"]))
    content = json.loads(plan_file(folder).read_text())
    content["units"][0]["runs"][plan.units[0].runs.index(forged)][3] = value
    rewrite(plan_file(folder), **content)
    [plan] = folder.read()
    with pytest.warns(UserWarning, match=r"1 run of this plan has other values than the plan says"):
        pd.testing.assert_frame_equal(study_table(folder, plan), before)
    pd.testing.assert_frame_equal(study_curves(folder, plan), curves)
    shown = next(iter(Catalog(folder.path).sets().values())).columns
    dims = dict(zip(before["identity"], before["dim"], strict=True))
    assert dict(zip(shown["identity"], shown["dim"], strict=True)) == dims


def finished_table(tmp_path, change=None, **changes):
    """Return the table of a study of one axis, after a change to the values in its plan."""
    whole = study(1, 1, **changes)
    folder = StudyFolder(tmp_path / f"{change}")
    whole.open(folder)
    for run in whole.runs:
        write_result(Store(folder.runs), made_up(run))
    if change is not None:
        content = json.loads(plan_file(folder).read_text())
        for unit in content["units"]:
            for run in unit["runs"]:
                run[3] = change(run[3])
        rewrite(plan_file(folder), **content)
    [plan] = folder.read()
    return study_table(folder, plan)


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ("position", ["last", "random"]),  # the first one is the default, which no config states
        ("interventions.0.until", [50, 60]),
        ("burst", [1, 2]),
    ],
)
def test_a_plan_overrides_no_field_of_a_run(tmp_path, axis, values):
    """Neither texts, nor fields of interventions, nor fields at their default."""
    asked = {"grid": {axis: values}, "interventions": (Clamp(0, until=30),)}
    before = finished_table(tmp_path, **asked)
    assert sorted(before[axis]) == sorted(values)
    with pytest.warns(UserWarning, match="2 runs of this plan have other values"):
        after = finished_table(tmp_path, lambda value: values[values[0] == value], **asked)
    pd.testing.assert_frame_equal(after, before)


def test_the_axis_steps_shows_the_steps_of_the_config(tmp_path):
    """Not those that a run has trained, although 50,000 is the default, which no config states."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = finished_table(tmp_path, grid={"steps": [100, 50_000]})
    assert sorted(table["steps"]) == [100, 50_000]


def test_the_fields_of_schedules_are_no_axes(tmp_path):
    rising = Ramp(0.0, 0.4, begin=10, end=90)
    wave = Clamp(0, first=5, until=30)
    asked = {"grid": {"first": [0, 20], "repeat": [rising]}, "interventions": (wave,)}
    assert sorted(finished_table(tmp_path, **asked)["first"]) == [0, 20]


def test_a_string_on_a_numeric_axis_makes_the_column_strings(folder):
    """The axis is unknown to the runs. Columns of a table have one type."""
    content = json.loads(plan_file(folder).read_text())
    content["axes"] = ["label"]
    content["units"][0]["runs"][1][3] = "text"
    rewrite(plan_file(folder), **content)
    [plan] = folder.read()
    curves = study_curves(folder, plan)
    assert len(curves) == 5 * 5
    assert set(curves["label"]) == {"2", "3", "text"}
    assert len(study_table(folder, plan)) == 5


def test_a_run_without_checksums_is_shown_as_unverified(folder, capsys):
    """Whoever writes a `run.json` of an old schema could otherwise hide a changed plateau."""
    from emergo.cli import main

    run = study(2, 3).runs[3]
    path = folder.runs / run.identity / "run.json"
    content = json.loads(path.read_text())
    content.pop("checksum")
    content["schema"] = 2
    path.write_text(json.dumps(content))
    assert study_status(folder).unverified == 1
    [plan] = folder.read()
    table = study_table(folder, plan)
    assert table["identity"][table["unverified"]].tolist() == [run.identity]
    for command in ("status", "show"):
        main(["study", command, str(folder.path)])
        assert "1 run has no checksums: unverified" in capsys.readouterr().out
    with pytest.warns(UserWarning, match="1 run without checksums: unverified"):
        study(2, 3).read(folder.path)
    shown = next(iter(Catalog(folder.path).sets().values()))
    assert "1 run without checksums: unverified" in shown.notes
    assert dict(zip(shown.runs, shown.columns["unverified"], strict=True))[run.identity]
    pack_runs(folder.runs)
    assert study_status(folder).unverified == 1


def test_damage_that_the_index_misses_is_found_by_reading_and_by_run(folder):
    """A disk may lose a bit without changing sizes and times, so that the index stays valid."""
    identity = study(2, 3).runs[3].identity
    place = folder.runs / identity
    index = folder.runs / ".index.json"
    read_outcomes(folder.runs)
    path = place / "curves.parquet"
    data = path.read_bytes()
    changed = bytearray(data)
    changed[100] ^= 1
    path.write_bytes(changed)
    runs = json.loads(index.read_text())["runs"]
    for name, entry in runs.items():
        entry[0] = file_stamp(folder.runs / name)
    rewrite(index, runs=runs)
    assert not study_status(folder).broken
    [plan] = folder.read()
    with pytest.warns(UserWarning, match=r"another checksum"):
        assert len(study_curves(folder, plan)) == 4 * 5
    finish(folder)
    assert len(list(folder.runs.glob(f".broken-*-{identity}"))) == 1


# Claims.


def test_markup_and_escapes_in_a_claim_are_printed_as_text(folder, capsys):
    from emergo.cli import main

    [plan] = folder.read()
    for unit, host in zip(plan.units, ("[/red]", "\x1b[31mred"), strict=True):
        (folder.claims / f"{unit.id}.json").write_bytes(
            seal(ELSEWHERE | {"host": host, "job": "[bold]"})
        )
    main(["study", "status", str(folder.path)])
    out = capsys.readouterr().out
    assert "[/red]" in out or r"\x1b[31mred" in out
    assert "[bold]" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    "content",
    [
        {"pid": "7"},
        {"pid": 10**400},
        {"progress": 3},
        {"progress": {"running": [[1]]}},
        {"host": []},
    ],
)
def test_a_malformed_claim_is_named_and_free_when_it_is_old(folder, content):
    [plan] = folder.read()
    path = folder.claims / f"{plan.units[0].id}.json"
    path.write_text(json.dumps(ELSEWHERE | content))
    assert str(path) in study_status(folder).broken
    os.utime(path, (0, 0))
    finish(folder)


# A folder that disappears.


@pytest.mark.parametrize("how", ["moved", "removed", "replaced"])
def test_a_folder_that_is_moved_during_training_is_not_created_again(folder, tmp_path, how):
    """Training ends with one line and writes nothing to the old place."""

    def gone(result):
        if how == "removed":
            shutil.rmtree(folder.path)
        else:
            folder.path.rename(tmp_path / "elsewhere")
        if how == "replaced":
            folder.path.mkdir()

    for run in study(2, 3).runs[:4]:
        shutil.rmtree(folder.runs / run.identity, ignore_errors=True)
    with pytest.raises(
        StorageError,
        match="moved or removed during training; finished runs are not lost",
    ) as caught:
        run_plan(folder, on_end=gone)
    assert "\n" not in str(caught.value)
    assert folder.path.exists() == (how == "replaced")
    assert not (how == "replaced" and list(folder.path.iterdir()))
    if how != "removed":
        folder = StudyFolder(tmp_path / "elsewhere")
        assert study_status(folder).finished == 3
        for path in folder.claims.iterdir():
            path.unlink()  # a claim of this process, which would have ended
        finish(folder)
