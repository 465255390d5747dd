"""Claims: one owner at a time, free when the owner is gone."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from emergo._errors import InputError
from emergo.studies import _claims
from emergo.studies._claims import ClaimLost, Claims, alive, machine, owner, process_start, read_claim

ELSEWHERE = {"machine": "another", "host": "node7", "pid": 1, "start": "1", "job": None, "restarts": 0, "token": "theirs"}


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


def test_what_the_owner_tells_can_be_read(claims):
    with claims.take("a") as claim:
        claim.tell({"done": 3})
        _wait(lambda: claims.live()["a"].get("progress") == {"done": 3})
        assert claims.live()["a"]["pid"] == os.getpid()


def _wait(condition):
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def _write(claims, content, age=0.0):
    path = claims.path("a")
    path.write_text(json.dumps(content) if isinstance(content, dict) else content)
    os.utime(path, (time.time() - age, time.time() - age))


@pytest.mark.parametrize(("age", "free"), [(0, False), (50, False), (70, True)])
def test_elsewhere_a_claim_is_free_when_it_is_old(claims, age, free):
    _write(claims, ELSEWHERE, age)
    taken = claims.take("a")
    assert (taken is not None) == free
    assert ("a" in claims.live()) == (not free or taken is not None)
    if taken:
        taken.release()


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"token": 3}'])
def test_a_claim_that_cannot_be_read_is_free_when_it_is_old(claims, content):
    _write(claims, content)
    assert claims.take("a") is None
    _write(claims, content, age=70)
    taken = claims.take("a")
    assert taken is not None
    taken.release()


def test_here_a_claim_is_free_when_its_process_is_gone(claims):
    """At once, whether or not its parent has noticed, and also when the number is used again."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = owner() | {"pid": process.pid, "start": process_start(process.pid), "token": "theirs"}
    _write(claims, theirs, age=1000)
    assert claims.take("a") is None  # old, but its owner can be seen at work
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


def test_a_requeued_job_takes_what_its_former_self_held(claims, monkeypatch):
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    for restarts, theirs, free in (("0", 0, False), ("1", 0, True), ("1", 1, False), ("1", 2, False)):
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
        assert alive(ELSEWHERE | {"job": "12_3", "restarts": theirs}, 0.0, 60.0) == (not free)
    assert alive(ELSEWHERE | {"job": "12_4"}, 0.0, 60.0)


def test_who_has_lost_a_claim_learns_of_it_and_leaves_it_alone(claims):
    claim = claims.take("a")
    _write(claims, ELSEWHERE)
    with pytest.raises(ClaimLost) as lost:
        _wait(lambda: claim.tell({}))
    assert not lost.value.same_job
    claim.release()
    assert (read_claim(claims.path("a")) or {})["token"] == "theirs"


def test_of_those_who_ask_at_once_one_gets_it(tmp_path):
    """Sixteen processes that all want the same claim, which a dead one holds."""
    _write(Claims(tmp_path), owner() | {"pid": 2**22 + 1, "token": "theirs"})
    code = (
        "import sys, time; from pathlib import Path; from emergo.studies._claims import Claims\n"
        "claims = Claims(Path(sys.argv[1]), beat=0.02); claim = claims.take('a')\n"
        "time.sleep(1.0 if claim else 0); lost = bool(claim and claim._taker)\n"
        "print(int(claim is not None and not lost)); claim and claim.release()"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) for _ in range(16)]
    kept = [int(process.communicate()[0]) for process in processes]
    assert 1 <= sum(kept) < 16
    assert os.listdir(tmp_path) == []


def test_a_lock_that_is_held_says_by_whom(claims):
    _write(claims, ELSEWHERE)
    with pytest.raises(InputError, match=r"held by node7, process 1"), claims.hold("a", patience=0.1):
        pass
    with claims.hold("b"):
        assert claims.take("b") is None
    assert machine() in owner()["machine"]


def test_a_claim_that_an_interrupt_left_behind_is_free_for_the_same_process(claims, monkeypatch):
    """As in a notebook, where the process lives on."""
    _write(claims, ELSEWHERE, 70)
    monkeypatch.setattr(_claims.time, "sleep", lambda seconds: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        claims.take("a")
    monkeypatch.undo()
    assert json.loads(claims.path("a").read_text())["pid"] == os.getpid()
    assert claims.live() == {}
    with claims.take("a"):
        assert claims.take("a") is None
