"""Folders that were damaged, or that somebody sent who means no good: nothing outside is touched, nothing hangs, what is broken
is named and the rest is there. `fuzz.py` looks for what was not thought of here."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from emergo._errors import InputError, StorageError
from emergo._json import seal
from emergo.studies import Executor, Store, StudyFolder, read_outcomes, study_curves, study_status, study_table
from emergo.studies import _executor as executor
from emergo.studies._claims import Claims
from emergo.studies._outcomes import _stamp, is_finished

from .crowd import made_up, slow_train, study
from .test_claims import ELSEWHERE
from .test_version_1 import FIXTURE
from .tiny import quiet, rewrite

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A study of which one run is missing, beside a folder that nobody may touch."""
    monkeypatch.setattr(executor, "train", slow_train)
    folder = StudyFolder(tmp_path / "study")
    study(2, 3).open(folder)
    for run in study(2, 3).runs[1:]:
        Store(folder.runs).write(made_up(run))
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


# 1. Nothing outside of the folder is removed, moved or written.


@pytest.mark.parametrize("name", ["../../../victim", "../../victim", "/tmp/victim", "0" * 11, "0" * 12 + "/../../victim"])
def test_an_id_that_leads_outside_is_not_a_plan(folder, name):
    content = json.loads(plan_file(folder).read_text())
    content["units"][0]["id"] = name
    rewrite(plan_file(folder), **content)
    with pytest.raises(InputError, match="id is not of the form"):
        Executor(folder).run()
    [line] = finish(folder)
    assert "moved to .broken-" in line


def test_an_id_of_version_1_that_leads_outside_is_not_a_plan(tmp_path):
    shutil.copytree(FIXTURE, tmp_path / "study")
    (tmp_path / "victim").mkdir()
    path = tmp_path / "study" / "study.json"
    content = json.loads(path.read_text())
    content["units"][0]["id"] = "../../../victim"
    path.write_text(json.dumps(content))
    folder = StudyFolder(tmp_path / "study")
    for read in (folder.read, Executor(folder).run, lambda: study(2, 3).open(folder)):
        with pytest.raises(InputError, match=r"study\.json"):
            read()
    assert (tmp_path / "victim").is_dir()


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


def test_what_is_in_training_is_not_a_link(folder, tmp_path):
    [plan] = folder.read()
    unit = next(unit for unit in plan.units if study(2, 3).runs[0].identity in {run.identity for run in unit.runs})
    (folder.checkpoints / f"{unit.id}.0").symlink_to(tmp_path / "victim")
    (folder.checkpoints / "mine").symlink_to(tmp_path / "victim")
    (folder.runs / study(2, 3).runs[0].identity).symlink_to(tmp_path / "victim")
    (folder.runs / ".snapshots").symlink_to(tmp_path / "victim")
    lines = finish(folder)
    assert any(f"{unit.id}.0: not a folder; moved to" in line for line in lines)
    assert (folder.checkpoints / "mine").is_symlink()  # not ours


def test_links_among_leftovers_are_not_followed(folder, tmp_path):
    (tmp_path / "victim" / f".writing-{'0' * 16}").mkdir()
    os.utime(tmp_path / "victim" / f".writing-{'0' * 16}", (0, 0))
    (folder.checkpoints / "link").symlink_to(tmp_path / "victim")
    folder.sweep()
    (tmp_path / "victim" / f".writing-{'0' * 16}").rmdir()  # it is still there


# 2. and 3. What a finished run is, is decided in one place.


CONTENT = {
    "censored without a threshold": {"columns": {"threshold": None}, "outcome": {"state": "censored"}},
    "reached without a time": {"outcome": {"state": "reached", "time": None}},
    "trained with a time": {"outcome": {"state": "trained", "time": 3.0}},
    "a time outside of its interval": {"outcome": {"state": "reached", "time": 50.0, "low": 60.0, "high": 70.0}},
    "a time of 10^400": {"outcome": {"time": 10**400}},
    "a text where a number belongs": {"outcome": {"steps": "many"}},
    "a truth value where a number belongs": {"outcome": {"steps": True}},
    "a list in a column": {"columns": {"dim": [1, 2]}},
    "a seed of another run": {"seed": 77},
    "a config of another run": {"config": {"batch": 33}},
    "no semantics": {"semantics": None},
    "no checksums of files": {"files": {}},
    "another checksum of its curves": {"files": {"curves.parquet": "0" * 64}},
    "a list of curves that is none": {"curves": 3},
}


@pytest.mark.parametrize("case", CONTENT)
def test_a_run_that_no_training_gives_is_named_and_trained_once_again(folder, case):
    run = study(2, 3).runs[3]
    path = folder.runs / run.identity / "run.json"
    content = json.loads(path.read_text())
    changes = {
        k: content[k] | v if isinstance(v, dict) and isinstance(content[k], dict) else v for k, v in CONTENT[case].items()
    }
    rewrite(path, **({"files": {}} if case == "no checksums of files" else changes))
    status = study_status(folder)
    assert list(status.broken) == [str(path.parent)]
    assert (status.finished, status.waiting) == (4, 2)
    [plan] = folder.read()
    with pytest.warns(UserWarning, match=run.identity):
        assert len(study_table(folder, plan)) == 4
    assert len(study_curves(folder, plan)) == 4 * 5
    trained = []
    Executor(folder, on_end=lambda result: trained.append(result.run.identity)).run()
    assert sorted(trained) == sorted([run.identity, study(2, 3).runs[0].identity])
    assert len(list(folder.runs.glob(f".broken-*-{run.identity}"))) == 1


def test_a_file_that_is_nested_deeply_hides_nothing_else(folder):
    deep = "[" * 100_000 + "]" * 100_000
    for path in (folder.runs / study(2, 3).runs[3].identity / "run.json", folder.claims / f"{'0' * 12}.json"):
        path.write_text(deep)
    (folder.failures / f"{'0' * 16}.0.json").write_text(deep)
    status = study_status(folder)
    assert status.finished == 4
    assert len(status.broken) == 3
    finish(folder)


def test_a_text_among_the_numbers_of_an_axis_makes_texts_of_them(folder):
    """In a plan that somebody wrote, with the checksum that fits: tables have one type per column."""
    content = json.loads(plan_file(folder).read_text())
    content["units"][0]["runs"][1][3] = "text"
    rewrite(plan_file(folder), **content)
    [plan] = folder.read()
    curves = study_curves(folder, plan)
    assert len(curves) == 5 * 5
    assert set(curves["dim"]) == {"2", "3", "text"}
    assert len(study_table(folder, plan)) == 5


# 4. Silent corruption.


def test_no_single_bit_of_a_run_changes_unnoticed(folder):
    run = study(2, 3).runs[3]
    place, rng = folder.runs / run.identity, random.Random(0)
    for name in ("run.json", "curves.parquet"):
        data = (place / name).read_bytes()
        for _ in range(200):
            changed = bytearray(data)
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            (place / name).write_bytes(changed)
            assert not is_finished(folder.runs, run.identity)
        (place / name).write_bytes(data)
        assert is_finished(folder.runs, run.identity)


def test_runs_from_before_there_were_checksums_stay_readable_and_are_held_against_the_rest(folder):
    run = study(2, 3).runs[3]
    path = folder.runs / run.identity / "run.json"
    content = {k: v for k, v in json.loads(path.read_text()).items() if k not in ("checksum", "files")} | {"schema": 2}
    path.write_text(json.dumps(content))
    assert is_finished(folder.runs, run.identity)
    path.write_text(json.dumps(content | {"seed": 5}))
    assert not is_finished(folder.runs, run.identity)
    path.write_text(json.dumps(content | {"schema": 3}))  # it says that it has one
    assert not is_finished(folder.runs, run.identity)


def test_damage_that_left_no_trace_is_found_by_run(folder):
    """A bit that a disk lost: sizes and times are as they were, so that the index counts; `run` reads every file again."""
    identity = study(2, 3).runs[3].identity
    read_outcomes(folder.runs)
    index = json.loads((folder.runs / ".index.json").read_text())["runs"]
    path = folder.runs / identity / "curves.parquet"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    stamps = {name: _stamp(*(os.stat(folder.runs / name / file) for file in ("run.json", "curves.parquet"))) for name in index}
    rewrite(folder.runs / ".index.json", runs={name: [stamps[name], *entry[1:]] for name, entry in index.items()})
    assert not study_status(folder).broken
    [plan] = folder.read()
    with pytest.warns(UserWarning, match=r"another checksum"):
        assert len(study_curves(folder, plan)) == 4 * 5
    finish(folder)
    assert len(list(folder.runs.glob(f".broken-*-{identity}"))) == 1


# 6. Claims.


@pytest.mark.parametrize(("ahead", "free"), [(30, False), (100, True), (10**9, True)])
def test_a_claim_from_the_future_is_not_waited_for(tmp_path, ahead, free):
    claims = Claims(tmp_path, stale=60.0)
    claims.path("a").write_bytes(seal(ELSEWHERE))
    os.utime(claims.path("a"), (time.time() + ahead, time.time() + ahead))
    taken = claims.take("a")
    assert (taken is not None) == free
    if taken:
        taken.release()


def test_the_words_of_a_claim_are_only_words(folder, capsys):
    from emergo.cli import main

    [plan] = folder.read()
    for unit, host in zip(plan.units, ("[/red]", "\x1b[31mred"), strict=True):
        (folder.claims / f"{unit.id}.json").write_bytes(seal(ELSEWHERE | {"host": host, "job": "[bold]"}))
    main(["study", "status", str(folder.path)])
    out = capsys.readouterr().out
    assert "[/red]" in out or r"\x1b[31mred" in out
    assert "[bold]" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    "content", [{"pid": "7"}, {"pid": 10**400}, {"progress": 3}, {"progress": {"running": [[1]]}}, {"host": []}]
)
def test_a_claim_of_another_form_is_named_and_free_when_it_is_old(folder, content):
    [plan] = folder.read()
    path = folder.claims / f"{plan.units[0].id}.json"
    path.write_text(json.dumps(ELSEWHERE | content))
    assert str(path) in study_status(folder).broken
    os.utime(path, (0, 0))
    finish(folder)


# 7. Requests to end, in a script's background.


SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
import time
from emergo.studies import _executor as executor, StudyFolder
from tests.studies.crowd import study
def train(runs, *, progress, **_):
    print("training", flush=True)
    while True:
        time.sleep(0.01)
executor.train = train
study(1, 1).open(StudyFolder(sys.argv[1]))
try:
    executor.Executor(StudyFolder(sys.argv[1])).run()
except KeyboardInterrupt:
    print("saved", flush=True)
"""


def test_a_request_to_end_is_heard_where_interrupts_are_ignored(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == "training\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=300)[0] == "saved\n"


# A folder that goes away.


@pytest.mark.parametrize("how", ["moved", "removed", "replaced"])
def test_a_folder_that_is_moved_while_it_trains_is_not_made_again(folder, tmp_path, how):
    """It ends with one line, and nothing is at the old place that was not put there."""

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
        StorageError, match="moved or removed while it was trained; nothing that was finished is lost"
    ) as caught:
        Executor(folder, on_end=gone).run()
    assert "\n" not in str(caught.value)
    assert folder.path.exists() == (how == "replaced")
    assert not (how == "replaced" and list(folder.path.iterdir()))
    if how != "removed":
        folder = StudyFolder(tmp_path / "elsewhere")
        assert study_status(folder).finished == 3
        for path in folder.claims.iterdir():
            path.unlink()  # of this process, which would be gone
        finish(folder)


def test_nothing_is_left_running(folder):
    """Claims are renewed by threads, which end with what they are about."""
    finish(folder)
    assert not [thread for thread in threading.enumerate() if "_renew" in str(thread)]
