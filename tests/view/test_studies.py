"""Test folders of studies: changes, live status, links and damaged curves."""

import hashlib
import os
import shutil
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emergo.core.parquet import MOST_ROWS
from emergo.store import Failures, StudyFolder, read_outcomes
from emergo.store.claims import Claims
from emergo.store.index import INDEX
from emergo.view._studies import FolderCurves, StudySource, store_set

from ..study.tiny import rewrite
from .made_up import finish, made_up_study, note_on


def test_a_study_is_a_set_with_its_axes_and_configs(folder):
    (runs,) = StudySource(folder).sets().values()
    assert (runs.name, runs.axes) == ("made up", ["dim", "length"])
    assert runs.planned == len(runs.runs) == 18
    states = runs.columns["state"]
    assert states.count("failed") == 1
    assert set(states) <= {"reached", "censored", "failed"}
    assert runs.config(runs.runs[0])["task"]["type"] == "SingleLocation"
    assert runs.law is not None
    assert runs.law["x"] == ["dim", "length"]


def test_a_new_finished_run_appears(tmp_path):
    study = made_up_study(dims=[4], lengths=[8])
    finish(study, tmp_path, runs=[0])
    source = StudySource(tmp_path)
    before = source.sets()["made up"]
    finish(study, tmp_path, runs=[1])
    after = source.sets()["made up"]
    assert (len(before.runs), len(after.runs), after.planned) == (1, 2, 3)
    assert before.version != after.version


def test_an_unchanged_folder_is_not_read_again(tmp_path):
    finish(made_up_study(dims=[4], lengths=[8]), tmp_path)
    source = StudySource(tmp_path)
    source.sets()  # writes an index
    for path in (tmp_path, *tmp_path.iterdir()):
        os.utime(path, (0, 0))  # no recent change
    unchanged = source.sets()
    assert source.sets() is unchanged


def test_status_shows_workers_training_runs_and_failures(tmp_path):
    study = made_up_study(dims=[4], lengths=[8])
    plan = finish(study, tmp_path, runs=[0], fail=None).read()[0]
    folder = StudyFolder(tmp_path)
    Failures(folder.failures).note(plan.runs[1].identity, 0, "no memory", "memory")
    note = note_on(study.runs[2])
    progress = {
        "running": [[plan.runs[1].identity, 40, 0.5], [plan.runs[2].identity, 2000, 0.6]],
        "notes": [note, {"run": plan.runs[1].identity, "text": "", "step": 1.0, "data": {"at": 0}}],
        "rate": 7.0,
        "done": 1,
        "total": 3,
        "seconds_left": 9.0,
    }
    with Claims(folder.claims, beat=0.01).take(plan.units[0].id) or pytest.fail("taken") as claim:
        claim.tell(progress)
        deadline = time.monotonic() + 30
        while not StudySource(tmp_path).status()["workers"][0].get("rate"):
            assert time.monotonic() < deadline
            time.sleep(0.02)  # a thread writes the claim
        status = StudySource(tmp_path).status()
    (worker,) = status["workers"]
    assert (worker["study"], worker["loss"], worker["rate"]) == ("made up", 0.6, 7.0)
    assert worker["axes"] == {"dim": [4], "length": [8]}
    soon, later = status["training_runs"]  # the soonest to emerge first
    assert (soon["identity"], soon["set"], soon["seed"]) == (note["run"], "made up", 2)
    assert soon["axes"] == {"dim": 4, "length": 8}
    assert soon["forecast"] == note["data"]
    assert later["forecast"] is None  # its note holds no forecast
    (failure,) = status["failed_runs"]
    assert (failure["reason"], failure["tries"]) == ("no memory", 1)
    assert failure["axes"] == {"dim": 4, "length": 8}


def test_the_version_of_a_set_does_not_change_with_the_index(tmp_path):
    folder = finish(made_up_study(dims=[4], lengths=[8]), tmp_path)
    before = StudySource(tmp_path).sets()["made up"].version
    (folder.runs / INDEX).unlink()
    assert StudySource(tmp_path).sets()["made up"].version == before
    (folder.runs / identities(tmp_path)[0] / "run.json").write_text("{}")
    assert StudySource(tmp_path).sets()["made up"].version != before


def identities(folder):
    return sorted(path.name for path in (folder / "runs").glob("[0-9a-f]*"))


def test_links_out_of_a_store_are_not_followed(tmp_path, folder):
    runs = tmp_path / "runs"
    runs.mkdir()
    first, second = identities(folder)[:2]
    (runs / first).symlink_to(folder / "runs" / first)
    (runs / second).mkdir()
    for name in ("run.json", "curves.parquet"):
        os.link(folder / "runs" / second / name, runs / second / name)
    found = store_set(runs)
    assert (found.name, found.runs) == ("runs", [second])
    assert found.notes == (f"{first}: it should be a folder",)
    (runs / second / "curves.parquet").unlink()
    (runs / second / "curves.parquet").symlink_to(folder / "runs" / second / "curves.parquet")
    assert FolderCurves(runs, read_outcomes(runs).checksums).read(second) == {}
    assert found.curves.read(second) == {}


@pytest.mark.parametrize("kind", ["damaged", "text", "huge"])
def test_curves_that_cannot_be_read_are_empty(tmp_path, folder, kind):
    """Damaged bytes, and forged files with a correct checksum: text, or too many numbers.

    The checksum that the index gives may be missing, outdated or forged, too.
    """
    identity = identities(folder)[0]
    shutil.copytree(folder / "runs" / identity, tmp_path / identity)
    path = tmp_path / identity / "curves.parquet"
    checksums = read_outcomes(tmp_path).checksums
    readers = [FolderCurves(tmp_path, {}), FolderCurves(tmp_path, checksums)]
    for curves in readers:
        assert set(curves.read(identity, ["loss"])) == {"step", "loss"}
    if kind == "damaged":
        changed = bytearray(path.read_bytes())
        changed[100] ^= 1
        path.write_bytes(changed)
    else:
        values = pa.array(["\x1b[31m"])
        if kind == "huge":
            values = pa.repeat(pa.scalar(0.0), MOST_ROWS + 1)
        pq.write_table(
            pa.table({"step": pa.repeat(pa.scalar(1), len(values)), "loss": values}), path
        )
        forged = hashlib.sha256(path.read_bytes()).hexdigest()
        rewrite(path.with_name("run.json"), files={path.name: forged})
        readers.append(FolderCurves(tmp_path, {identity: forged}))
    for curves in readers:
        assert curves.read(identity) == curves.read(identity, ["loss"]) == {}
    path.write_bytes(b"PAR1 nothing PAR1")
    for curves in readers:
        assert curves.read(identity) == {}
        assert curves.read("none") == {}


def test_curves_of_a_replaced_run_are_read_again(tmp_path, folder):
    """Until the outcomes are read again, their checksum is that of the old curves."""
    identity = identities(folder)[0]
    shutil.copytree(folder / "runs" / identity, tmp_path / identity)
    curves = FolderCurves(tmp_path, read_outcomes(tmp_path).checksums)
    before = curves.read(identity)
    path = tmp_path / identity / "curves.parquet"
    table = pa.table({name: values[:-1] for name, values in before.items()})
    pq.write_table(table, path)
    assert curves.read(identity) == {}
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    rewrite(path.with_name("run.json"), files={path.name: checksum})
    assert len(curves.read(identity)["step"]) == len(before["step"]) - 1
