"""Claims: one owner at a time, and free once the owner is gone."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from emergo.core.errors import InputError, StorageError
from emergo.core.json import seal
from emergo.store.claims import (
    ClaimLost,
    Claims,
    Note,
    alive,
    notes_of,
    owner,
    process_start,
    read_claim,
)

ELSEWHERE = {
    "machine": "another",
    "host": "node7",
    "pid": 1,
    "start": "1",
    "job": None,
    "restarts": 0,
    "token": "theirs",
}


@pytest.fixture
def claims(tmp_path):
    return Claims(tmp_path, stale=60.0, beat=0.02)


def test_a_unit_has_one_owner(claims):
    first = claims.take("a")
    assert first is not None
    assert claims.take("a") is None
    second = claims.take("b")
    assert second is not None
    assert set(claims.live()) == {"a", "b"}
    first.release()
    assert set(claims.live()) == {"b"}
    again = claims.take("a")
    assert again is not None
    again.release()
    second.release()
    assert os.listdir(claims.folder) == []


def test_progress_and_notes_can_be_read(claims):
    note = Note("~5,000", 5000.0, {"why": "the loss falls"})
    progress = {"done": 3, "notes": [{"run": "a", **note._asdict()}]}
    with claims.take("a") as claim:
        claim.tell(progress)
        _wait(lambda: claims.live()["a"].get("progress"))
        assert claims.live()["a"]["pid"] == os.getpid()
        assert claims.live()["a"]["progress"] == progress
        assert notes_of(progress) == {"a": note}


@pytest.mark.parametrize(
    ("notes", "valid"),
    [
        ([{"run": "a", "text": "no signal", "step": None, "data": {"any": [1, {}]}}], True),
        ([{"run": "a", "text": "no signal", "step": "soon", "data": {}}], False),
        ([{"run": "a", "text": 3, "step": None, "data": {}}], False),
        ([{"run": "a", "text": "", "step": 3, "data": []}], False),
        ([{"text": "", "step": 3, "data": {}}], False),
        ({}, False),
    ],
)
def test_malformed_notes_make_a_claim_unreadable(claims, notes, valid):
    claims.path("a").write_bytes(seal(ELSEWHERE | {"progress": {"notes": notes}}))
    assert ("wrong" not in claims.live()["a"]) == valid


def test_claims_of_older_versions_are_readable(claims):
    """Their progress has `forecasts` in place of notes."""
    claims.path("a").write_bytes(seal(ELSEWHERE | {"progress": {"forecasts": [3], "done": 1}}))
    claim = claims.live()["a"]
    assert "wrong" not in claim
    assert notes_of(claim["progress"]) == {}


def _wait(condition):
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def _write(claims, content, age=0.0):
    path = claims.path("a")
    path.write_text(json.dumps(content) if isinstance(content, dict) else content)
    os.utime(path, (time.time() - age, time.time() - age))


@pytest.mark.parametrize(
    ("age", "free"),
    [(0, False), (50, False), (70, True), (-30, False), (-100, True), (-(10**9), True)],
)
def test_a_claim_of_another_machine_is_free_when_it_is_old(claims, age, free):
    _write(claims, ELSEWHERE, age)
    taken = claims.take("a")
    assert (taken is not None) == free
    assert ("a" in claims.live()) == (not free or taken is not None)
    if taken:
        taken.release()


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"token": 3}'])
def test_an_unreadable_claim_is_free_when_it_is_old(claims, content):
    _write(claims, content)
    assert claims.take("a") is None
    _write(claims, content, age=70)
    taken = claims.take("a")
    assert taken is not None
    taken.release()


def test_a_claim_of_this_machine_is_free_when_its_process_is_gone(claims):
    """Also if the process is a zombie, and if another process has the same id now."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = owner() | {"pid": process.pid, "start": process_start(process.pid), "token": "theirs"}
    _write(claims, theirs, age=1000)
    assert claims.take("a") is None  # old, but its owner is running
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # not yet reaped: a zombie
    taken = claims.take("a")
    assert taken is not None
    taken.release()
    process.communicate()
    assert process_start(process.pid) is None
    _write(claims, owner() | {"start": "another time", "token": "theirs"})
    taken = claims.take("a")
    assert taken is not None
    taken.release()


def test_a_requeued_job_takes_the_claims_of_its_previous_start(claims, monkeypatch):
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    for restarts, theirs, free in (
        ("0", 0, False),
        ("1", 0, True),
        ("1", 1, False),
        ("1", 2, False),
    ):
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
        assert alive(ELSEWHERE | {"job": "12_3", "restarts": theirs}, 0.0, 60.0) == (not free)
    assert alive(ELSEWHERE | {"job": "12_4"}, 0.0, 60.0)


def test_the_previous_owner_learns_of_its_loss_and_leaves_the_claim_alone(claims):
    claim = claims.take("a")
    _write(claims, ELSEWHERE)
    with pytest.raises(ClaimLost) as lost:
        _wait(lambda: claim.tell({}))
    assert not lost.value.same_job
    claim.release()
    assert (read_claim(claims.path("a")) or {})["token"] == "theirs"


def test_one_of_many_processes_gets_a_claim(tmp_path):
    """Sixteen processes want the claim of a process that is gone."""
    _write(Claims(tmp_path), owner() | {"pid": 2**22 + 1, "token": "theirs"})
    code = """
import sys, time
from pathlib import Path
from emergo.store.claims import ClaimLost, Claims
claim = Claims(Path(sys.argv[1]), beat=0.02).take("a")
if claim is not None:
    time.sleep(1.0)
    try:
        claim.tell({})
        print("kept")
    except ClaimLost:
        pass
    claim.release()
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        for _ in range(16)
    ]
    kept = [process.communicate()[0] for process in processes].count(b"kept\n")
    assert 1 <= kept < 16
    assert os.listdir(tmp_path) == []


def test_waiting_for_a_lock_names_its_owner(claims):
    _write(claims, ELSEWHERE)
    with (
        pytest.raises(InputError, match=r"held by node7, process 1"),
        claims.hold("a", patience=0.1),
    ):
        pass
    with claims.hold("b"):
        assert claims.take("b") is None


def test_a_claim_that_an_interrupt_left_is_free_for_the_same_process(claims, monkeypatch):
    """In a notebook, the process continues after the interrupt."""
    _write(claims, ELSEWHERE, 70)
    monkeypatch.setattr(time, "sleep", lambda seconds: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        claims.take("a")
    monkeypatch.undo()
    assert json.loads(claims.path("a").read_text())["pid"] == os.getpid()
    assert claims.live() == {}
    with claims.take("a"):
        assert claims.take("a") is None


def test_claims_that_cannot_be_written_are_named(tmp_path):
    """Neither the temporary file nor its removal is possible."""
    (tmp_path / "claims").write_text("a file")
    with pytest.raises(StorageError, match=str(tmp_path)):
        Claims(tmp_path / "claims").take("0" * 12)
