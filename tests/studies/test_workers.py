"""Many workers on one folder: what each looks at, and how often. A stand-in for the engine trains."""

import os
import threading

import pytest

from emergo.studies import Executor, StudyFolder, read_outcomes
from emergo.studies import _executor as executor
from emergo.studies._worker import longest

from .crowd import made_up, study

STUDY = study(1, 24, unit=2)


@pytest.fixture
def trained(monkeypatch):
    """The seeds that were trained, in order."""
    seeds = []

    def train(runs, *, on_end, **_):
        seeds.extend(run.seed for run in runs)
        for run in runs:
            on_end(made_up(run))

    monkeypatch.setattr(executor, "train", train)
    return seeds


@pytest.fixture
def folder(tmp_path):
    STUDY.open(StudyFolder(tmp_path))
    return StudyFolder(tmp_path)


def test_the_folder_is_listed_a_few_times_however_many_units_there_are(folder, trained, monkeypatch):
    listed, listdir = [], os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or listdir(path))
    plans, read = [], StudyFolder.read
    monkeypatch.setattr(StudyFolder, "read", lambda self, *args: plans.append(self) or read(self, *args))
    assert Executor(folder, share=(1, 3)).run()
    assert sorted(trained) == list(range(24))
    assert listed.count(folder.runs) == 3  # what is there, what is left, that nothing is left
    assert len(plans) == 1


def test_workers_begin_at_different_units(folder, trained):
    order = [seed for unit in folder.read()[0].units for _, _, seed, _ in unit.runs]
    for number in range(3):
        assert not Executor(folder, share=(number, 3), wait=False, on_end=_stop).run()
    assert trained == [seed for number in range(3) for seed in order[8 * number : 8 * number + 2]]


def _stop(result):
    raise executor.OutOfTime


def test_a_worker_goes_on_where_others_have_not_been(folder, trained):
    threads = [threading.Thread(target=Executor(folder, share=(n, 8), wait=False).run) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(trained) == list(range(24))
    assert len(read_outcomes(folder.runs).rows) == 24


def test_each_worker_checks_its_share_of_the_files(folder, trained):
    assert Executor(folder).run()
    units = folder.read()[0].units
    for unit in units[:2]:
        (folder.runs / unit.runs[0].identity / "curves.parquet").write_bytes(b"PAR1")
    for number in (0, 1):
        trained.clear()
        assert Executor(folder, share=(number, 2), wait=False).run()
        assert sorted(trained) == sorted(run.seed for run in units[number].runs)
    trained.clear()
    assert Executor(folder).run()
    assert not trained
    assert not read_outcomes(folder.runs).broken


def test_a_worker_of_many_takes_what_a_dead_one_held(folder, trained):
    claims = executor.Claims(folder.claims, stale=0.0)
    for unit in folder.read()[0].units:
        claim = claims.take(unit.id)
        assert claim is not None
        claim._end.set()  # its owner is gone without releasing it
        claim._content["machine"] = "another"
        executor.atomic_write(claim.path, executor.seal(claim._content))
    assert Executor(folder, share=(3, 4), wait=False, stale=-1.0).run()
    assert sorted(trained) == list(range(24))


def test_what_may_take_longest_is_taken_first(tmp_path, trained, monkeypatch):
    """Also by several workers; each of them compiles ahead what is left for it when the others have taken theirs."""
    longest_first = study(1, 2, unit=2, grid={"steps": [200, 100, 500, 300, 400]})
    folder, ahead = StudyFolder(tmp_path), []
    longest_first.open(folder)
    train = executor.train

    def noting(runs, *, then, **options):
        ahead.append((runs[0].config.steps, [part[0].config.steps for part in then]))
        return train(runs, **options)

    monkeypatch.setattr(executor, "train", noting)
    assert Executor(folder, share=(1, 3), rank=longest, wait=False).run()
    assert ahead == [(500, [200]), (400, [100]), (300, []), (200, []), (100, [])]


def test_a_worker_stays_while_the_plan_may_grow(folder, trained):
    """And sees what was planned before it was told that nothing more comes."""
    asked = []

    def growing():
        asked.append(len(trained))
        if len(asked) == 2:
            study(1, 30, unit=2).open(folder)
        return len(asked) < 3

    assert Executor(folder, growing=growing, wait=False, beat=0.01).run()
    assert sorted(trained) == list(range(30))
    assert asked == [0, 24, 30], "nothing was left when it was asked again"


def test_nobody_waits_for_what_another_trains_while_something_is_free(folder, trained, monkeypatch):
    others, train = threading.Event(), executor.train

    def one_is_long(runs, **options):
        if runs[0].seed == 0:
            assert others.wait(20), "the other worker trains all the rest meanwhile"
        train(runs, **options)
        if len(trained) == 22:
            others.set()

    monkeypatch.setattr(executor, "train", one_is_long)
    options = {"rank": longest, "growing": lambda: len(trained) < 24, "wait": False, "beat": 0.01}
    threads = [threading.Thread(target=Executor(folder, share=(n, 2), **options).run) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(trained) == list(range(24))
