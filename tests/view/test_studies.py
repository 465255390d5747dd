"""Folders of studies: read when they change, live, and not beyond links."""

import hashlib
import os
import shutil
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emergo._parquet import MOST_ROWS
from emergo.studies import Failures
from emergo.studies._claims import Claims
from emergo.view._studies import FolderCurves, StudySource, store_set

from ..studies.tiny import rewrite
from .made_up import finish, made_up_study, told_of


def test_a_study_is_a_set_with_its_axes_and_configs(folder):
    (runs,) = StudySource(folder).sets().values()
    assert (runs.name, runs.axes, runs.planned, len(runs.runs)) == ("made up", ["dim", "length"], 18, 18)
    states = runs.columns["state"]
    assert states.count("failed") == 1
    assert set(states) <= {"reached", "censored", "failed"}
    assert runs.config(runs.runs[0])["task"]["type"] == "SingleLocation"
    assert runs.law is not None
    assert runs.law["x"] == ["dim", "length"]


def test_a_run_that_ends_is_seen(tmp_path):
    study = made_up_study(dims=[4], lengths=[8])
    finish(study, tmp_path, runs=[0])
    source = StudySource(tmp_path)
    before = source.sets()["made up"]
    finish(study, tmp_path, runs=[1])
    after = source.sets()["made up"]
    assert (len(before.runs), len(after.runs), after.planned) == (1, 2, 3)
    assert before.version != after.version


def test_an_unchanged_folder_is_not_read_again(folder, monkeypatch):
    monkeypatch.setattr("emergo.view._studies.SETTLED", -1e9)
    source = StudySource(folder)
    assert source.sets() is source.sets()


def test_status_says_what_trains_and_what_failed(tmp_path):
    study = made_up_study(dims=[4], lengths=[8])
    plan = finish(study, tmp_path, runs=[0], fail=None).read()[0]
    source = StudySource(tmp_path)
    Failures(source.folder.failures).note(plan.runs[1].identity, 0, "no memory", "memory")
    told = told_of(study.runs[2])
    with Claims(source.folder.claims, beat=0.01).take(plan.units[0].id) or pytest.fail("not free") as claim:
        running = [[plan.runs[1].identity, 40, 0.5], [plan.runs[2].identity, 2000, 0.6]]
        progress = {"running": running, "forecasts": [told], "rate": 7.0, "done": 1, "total": 3, "seconds_left": 9.0}
        claim.tell(progress)
        while not (source._read_status()["workers"] or [{}])[0].get("rate"):  # renewed by a thread
            time.sleep(0.02)
        status = source.status()
    (worker,) = status["workers"]
    assert (worker["study"], worker["axes"], worker["loss"], worker["rate"]) == (
        "made up",
        {"dim": [4], "length": [8]},
        0.6,
        7.0,
    )
    assert worker["forecast"] == f"1 of 2, first {told['words']}"
    soon, later = status["training_runs"]  # the soonest to emerge first
    assert (soon["identity"], soon["set"], soon["axes"], soon["seed"]) == (told["run"], "made up", {"dim": 4, "length": 8}, 2)
    assert (soon["forecast"], later["forecast"]) == (told, None)
    (failure,) = status["failed_runs"]
    assert (failure["reason"], failure["axes"], failure["tries"]) == ("no memory", {"dim": 4, "length": 8}, 1)


def test_links_out_of_a_store_are_not_followed(tmp_path, folder):
    runs = tmp_path / "runs"
    runs.mkdir()
    first, second = sorted(path.name for path in (folder / "runs").iterdir() if not path.name.startswith("."))[:2]
    (runs / first).symlink_to(folder / "runs" / first)
    (runs / second).mkdir()
    for name in ("run.json", "curves.parquet"):
        os.link(folder / "runs" / second / name, runs / second / name)
    held = store_set(runs, "runs")
    assert held.runs == [second]
    assert held.notes == (f"{first}: it should be a folder",)
    (runs / second / "curves.parquet").unlink()
    (runs / second / "curves.parquet").symlink_to(folder / "runs" / second / "curves.parquet")
    assert FolderCurves(runs).read(second) == {}
    assert FolderCurves(runs).names(second) == []


@pytest.mark.parametrize("kind", ["damaged", "text", "huge"])
def test_curves_that_cannot_be_read_are_empty(tmp_path, folder, kind):
    """What was damaged, and what somebody has put there with the checksum that fits: words, or numbers without end."""
    identity = next(path.name for path in (folder / "runs").iterdir() if not path.name.startswith("."))
    shutil.copytree(folder / "runs" / identity, tmp_path / identity)
    path, curves = tmp_path / identity / "curves.parquet", FolderCurves(tmp_path)
    assert curves.names(identity)
    assert set(curves.read(identity, ["loss"])) == {"step", "loss"}
    if kind == "damaged":
        changed = bytearray(path.read_bytes())
        changed[100] ^= 1
        path.write_bytes(changed)
    else:
        values = pa.array(["\x1b[31m"]) if kind == "text" else pa.repeat(pa.scalar(0.0), MOST_ROWS + 1)
        pq.write_table(pa.table({"step": pa.repeat(pa.scalar(1), len(values)), "loss": values}), path)
        rewrite(path.with_name("run.json"), files={path.name: hashlib.sha256(path.read_bytes()).hexdigest()})
    assert curves.read(identity) == curves.read(identity, ["loss"]) == {}
    path.write_bytes(b"PAR1 nothing PAR1")
    assert curves.names(identity) == []
    assert curves.read("none") == {}
