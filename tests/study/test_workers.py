"""Several workers on one folder. A function that makes up curves replaces training."""

import threading

import pytest

from emergo.store import StudyFolder, read_outcomes
from emergo.store.claims import Claims
from emergo.study import run_plan
from emergo.training import OutOfTime

from .crowd import made_up, study
from .tiny import rewrite

STUDY = study(1, 24, unit=2)


@pytest.fixture
def trained(monkeypatch):
    """The seeds that were trained, in order."""
    seeds = []

    def train(runs, *, on_end, **_):
        seeds.extend(run.seed for run in runs)
        for run in runs:
            on_end(made_up(run))

    monkeypatch.setattr("emergo.study.executor.train", train)
    return seeds


@pytest.fixture
def folder(tmp_path):
    STUDY.open(StudyFolder(tmp_path))
    return StudyFolder(tmp_path)


def run_threads(folder, workers, **options):
    """Run several workers at the same time."""
    threads = []
    for number in range(workers):
        more = {"share": (number, workers), "wait": False} | options
        threads.append(threading.Thread(target=run_plan, args=(folder,), kwargs=more))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


def stop(result):
    raise OutOfTime


def test_workers_start_at_different_units(folder, trained):
    order = [run.seed for run in folder.read()[0].runs]
    for number in range(3):
        assert not run_plan(folder, share=(number, 3), wait=False, on_end=stop)
    assert trained == [seed for number in range(3) for seed in order[8 * number : 8 * number + 2]]


def test_workers_continue_where_others_have_not_been(folder, trained):
    run_threads(folder, 8)
    assert sorted(trained) == list(range(24))
    assert len(read_outcomes(folder.runs).rows) == 24


def test_each_worker_checks_its_share_of_the_files(folder, trained):
    assert run_plan(folder)
    units = folder.read()[0].units
    for unit in units[:2]:
        (folder.runs / unit.runs[0].identity / "curves.parquet").write_bytes(b"PAR1")
    for number in (0, 1):
        trained.clear()
        assert run_plan(folder, share=(number, 2), wait=False)
        assert sorted(trained) == sorted(run.seed for run in units[number].runs)
    trained.clear()
    assert run_plan(folder)
    assert not trained
    assert not read_outcomes(folder.runs).broken


def test_a_worker_of_many_takes_what_a_dead_one_held(folder, trained):
    claims = Claims(folder.claims, beat=1e9)
    for unit in folder.read()[0].units:
        assert claims.take(unit.id) is not None
        rewrite(claims.path(unit.id), machine="another")
    assert run_plan(folder, share=(3, 4), wait=False, stale=-1.0)
    assert sorted(trained) == list(range(24))


def test_in_a_growing_plan_the_longest_units_are_taken_first(tmp_path, monkeypatch):
    """Each of several workers compiles ahead what is left for it when the others have taken
    theirs."""
    folder = StudyFolder(tmp_path)
    study(1, 2, unit=2, grid={"steps": [200, 100, 500, 300, 400]}).open(folder)
    ahead = []

    def train(runs, *, then, on_end, **_):
        ahead.append((runs[0].config.steps, [part[0].config.steps for part in then]))
        for run in runs:
            on_end(made_up(run))

    monkeypatch.setattr("emergo.study.executor.train", train)
    assert run_plan(folder, share=(1, 3), growing=lambda: False, wait=False)
    assert ahead == [(500, [200]), (400, [100]), (300, []), (200, []), (100, [])]


def test_a_worker_stays_while_the_plan_may_grow(folder, trained):
    """It sees the last units, planned just before the plan stopped growing."""
    asked = []

    def growing():
        asked.append(len(trained))
        if len(asked) == 2:
            study(1, 30, unit=2).open(folder)
        return len(asked) < 3

    assert run_plan(folder, growing=growing, wait=False, beat=0.01)
    assert sorted(trained) == list(range(30))
    assert asked == [0, 24, 30]


def test_no_worker_waits_for_another_while_something_is_free(folder, monkeypatch):
    others = threading.Event()
    trained = []

    def train(runs, *, on_end, **_):
        if runs[0].seed == 0:
            assert others.wait(20), "the other worker trains all the rest in the meantime"
        for run in runs:
            trained.append(run.seed)
            on_end(made_up(run))
        if len(trained) == 22:
            others.set()

    monkeypatch.setattr("emergo.study.executor.train", train)
    run_threads(folder, 2, growing=lambda: len(trained) < 24, beat=0.01)
    assert sorted(trained) == list(range(24))
