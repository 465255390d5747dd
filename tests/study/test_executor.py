"""Training units: growth, failures and tries, and several studies in one folder. A function that
makes up curves replaces training, unless a test says otherwise."""

import math
import time

import jax
import pandas as pd
import pytest

from emergo.core.errors import InputError
from emergo.store import Failures, Store, StudyFolder, read_outcomes, study_status
from emergo.store.claims import Claims, read_claim
from emergo.study import Watcher, check_platform, run_plan, study_table
from emergo.study.results import read_result
from emergo.training import CheckpointError, Progress, Result

from .crowd import curves_of, made_up, study
from .test_live import Oracle
from .tiny import quiet, tiny

STUDY = study(2, 2, retries=2, unit=4)
LACK_OF_MEMORY = "RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes.\nmore"


class Training:
    """A replacement for `train`, which does with each run what `plan` says.

    It records the runs of each call and how many were to be trained at once.
    """

    def __init__(self, plan):
        self.plan = plan
        self.asked = []
        self.n_parallel = []

    def __call__(self, runs, *, on_end, n_parallel, **_):
        self.asked.append([run.identity for run in runs])
        self.n_parallel.append(n_parallel)
        for run in runs:
            how = self.plan(run, sum(run.identity in names for names in self.asked))
            if how == "memory":
                raise jax.errors.JaxRuntimeError(LACK_OF_MEMORY)
            if how == "error":
                raise jax.errors.JaxRuntimeError("INTERNAL: something else")
            if how == "failed":
                curves = curves_of(run)
                curves["loss"][1:] = math.nan
                on_end(Result.measured(run, curves, 77, "cpu"))
            else:
                on_end(made_up(run))


@pytest.fixture
def replace_training(monkeypatch):
    def use(train):
        monkeypatch.setattr("emergo.study.executor.train", train)

    return use


@pytest.fixture
def training(replace_training):
    def use(plan=lambda run, asked: "reached"):
        made = Training(plan)
        replace_training(made)
        return made

    return use


def table_of(study, path):
    """Run a study in a folder and return its table."""
    study.run(path, progress=quiet)
    folder = StudyFolder(path)
    return study_table(folder, study.open(folder)[0])


def read_back(folder, identity):
    """Return a stored run of the study above."""
    [run] = [run for run in STUDY.runs if run.identity == identity]
    return read_result(Store(folder / "runs"), run)


def by_cell(table):
    """Return the rows of a table by dim and seed."""
    return {(row["dim"], row["seed"]): row for row in table.to_dict("records")}


def test_growing_reruns_nothing_finished(tmp_path, training):
    """Promise 5: finished runs are neither trained nor written again."""
    used = training()
    STUDY.run(tmp_path, progress=quiet)
    first = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/*")}
    before = set(used.asked[0])
    assert len(first) == 8
    grown = STUDY.grown({"dim": [4]}, seeds=3)
    table = table_of(grown, tmp_path)
    assert len(table) == 9
    assert table["identity"].is_unique
    assert not before & {identity for names in used.asked[1:] for identity in names}
    assert {path: path.stat().st_mtime_ns for path in first} == first
    table_of(grown, tmp_path)
    assert len(StudyFolder(tmp_path).read()) == 1
    # A part of the study is another study, of which nothing has to be trained.
    assert len(table_of(STUDY, tmp_path)) == 4
    assert sum(map(len, used.asked)) == 9
    assert len(StudyFolder(tmp_path).read()) == 2


def test_a_study_that_grows_while_it_is_trained_is_trained_whole(tmp_path, training):
    folder = StudyFolder(tmp_path)
    used = training()
    STUDY.open(folder)
    run_plan(folder, on_end=lambda result: STUDY.grown({"dim": [7]}).open(folder) and None)
    [plan] = folder.read()
    assert len(study_table(folder, plan)) == 6
    assert sum(map(len, used.asked)) == 6


def test_a_failed_run_is_tried_again_and_kept_with_its_reason(tmp_path, training):
    """Promise 6: seed 1 always fails, and is tried 1 + 2 times; seed 0 of dim 3 fails once."""

    def plan(run, asked):
        fails_once = run.config.task.dim == 3 and asked == 1
        return "failed" if run.seed == 1 or fails_once else "reached"

    used = training(plan)
    rows = by_cell(table_of(STUDY, tmp_path))
    assert [len(names) for names in used.asked] == [4, 3, 2]
    for dim in (2, 3):
        row = rows[dim, 1]
        assert (row["state"], row["tries"], row["failed_step"]) == ("failed", 3, 77)
        assert row["reason"] == "the loss was not finite at step 77, in 3 tries"
        assert math.isnan(row["plateau"])
        assert not row["censored"]
    assert (rows[3, 0]["state"], rows[3, 0]["tries"]) == ("censored", 2)
    assert (rows[2, 0]["state"], rows[2, 0]["tries"]) == ("censored", 1)
    status = study_status(StudyFolder(tmp_path))
    assert (status.failed, status.failures, status.complete) == (2, 7, True)
    STUDY.run(tmp_path, progress=quiet)
    assert len(used.asked) == 3
    curves = read_back(tmp_path, rows[2, 1]["identity"]).curves
    assert curves is not None
    assert math.isnan(curves["loss"][-1])


def test_without_memory_fewer_are_trained_at_once(tmp_path, training):
    """Promise 6: all at once, then a quarter of the remaining runs, then one by one."""
    wide = study(1, 16, retries=2, unit=16)
    used = training(
        lambda run, asked: "memory" if used.n_parallel[-1] != 1 and run.seed == 2 else "reached"
    )
    table = table_of(wide, tmp_path)
    assert used.n_parallel == [None, 3, 1]
    assert set(table["state"]) == {"reached", "censored"}
    assert sorted(used.asked[1]) == sorted(used.asked[2])
    assert len(used.asked[1]) == 14
    record = Failures(tmp_path / "failures").read(used.asked[1][0], 0)
    assert record["kind"] == "memory"
    words = "out of memory with as many as planned together: RESOURCE_EXHAUSTED"
    assert record["reason"].startswith(words)


def test_a_run_that_never_fits_fails_with_its_reason(tmp_path, training):
    used = training(lambda run, asked: "memory" if run.config.task.dim == 3 else "reached")
    rows = by_cell(table_of(STUDY, tmp_path))
    assert used.n_parallel == [None, 1, 1]
    assert [rows[3, seed]["state"] for seed in (0, 1)] == ["failed", "failed"]
    assert rows[3, 0]["reason"].startswith("out of memory with 1 together")
    result = read_back(tmp_path, rows[3, 0]["identity"])
    assert result.curves is None
    assert result.reason == rows[3, 0]["reason"]


def test_an_interruption_is_not_a_try(tmp_path, training):
    """A failure that is seen a second time after a restart is the same failure."""

    def plan(run, asked):
        if run.seed == 1 and asked < 3:
            return "error"
        return "failed" if run.seed == 0 else "reached"

    used = training(plan)
    two = study(1, 2, retries=1)
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
            two.run(tmp_path, progress=quiet)
    table = table_of(two, tmp_path).set_index("seed")
    assert list(table.loc[0, ["state", "tries"]]) == ["failed", 2]
    assert len(used.asked) == 4
    assert not list((tmp_path / "claims").glob("*.json"))


def interrupted(times):
    """Return a plan by which training is interrupted this often at the last run."""
    last = STUDY.runs[-1]
    return lambda run, asked: "error" if run == last and asked <= times else "reached"


def test_a_damaged_checkpoint_costs_only_its_own_runs(tmp_path, training, replace_training):
    used = training(interrupted(2))
    folder = StudyFolder(tmp_path)
    lines = []
    with pytest.raises(jax.errors.JaxRuntimeError):
        STUDY.run(tmp_path, progress=quiet)
    (kept,) = folder.checkpoints.iterdir()
    finished = {run.identity for run in STUDY.runs} & set(read_outcomes(folder.runs).rows)
    assert len(finished) == 3
    damaged = kept / "abc.npz"
    damaged.write_text("not a checkpoint")

    def stumble(runs, **options):
        if damaged.exists():
            raise CheckpointError(damaged, "it is text")
        return used(runs, **options)

    replace_training(stumble)
    with pytest.raises(jax.errors.JaxRuntimeError):
        run_plan(folder, say=lines.append)
    assert "abc.npz: cannot be read (it is text); moved to" in lines[0]
    assert len(list(kept.glob(".broken-*-abc.npz"))) == 1
    assert not set(used.asked[-1]) & finished
    run_plan(folder)
    assert not set(used.asked[-1]) & finished
    assert study_status(folder).complete


def test_a_removed_checkpoint_costs_only_its_own_runs(tmp_path, training):
    used = training(interrupted(1))
    with pytest.raises(jax.errors.JaxRuntimeError):
        STUDY.run(tmp_path, progress=quiet)
    (kept,) = (tmp_path / "checkpoints").iterdir()
    kept.rmdir()
    STUDY.run(tmp_path, progress=quiet)
    assert [len(names) for names in used.asked] == [4, 1]


def test_studies_in_one_folder_share_their_runs(tmp_path, training):
    """One differs in the task, and one shares a cell; the status counts a shared run once."""
    used = training()
    other = STUDY.replace(task__repeat=0.5)
    shared = STUDY.replace(grid={"dim": [3, 5]}, name="shared")
    for one in (STUDY, other, shared):
        assert len(table_of(one, tmp_path)) == 4
    assert [len(names) for names in used.asked] == [4, 4, 2]
    folder = StudyFolder(tmp_path)
    status = study_status(folder)
    assert (status.runs, status.finished, status.name) == (10, 10, "study, shared")
    assert len(folder.read()) == 3
    for one in (STUDY, other, shared):
        one.run(tmp_path, progress=quiet)
    assert run_plan(folder)
    assert len(used.asked) == 3
    tables = [one.read(tmp_path).table for one in (STUDY, other)]
    assert not set(tables[0]["identity"]) & set(tables[1]["identity"])


def test_a_study_that_ends_removes_only_checkpoints_that_no_study_needs(tmp_path, training):
    training(
        lambda run, asked: "error" if run.config.task.repeat == 0.5 and run.seed == 1 else "reached"
    )
    other = STUDY.replace(task__repeat=0.5, name="other")
    with pytest.raises(jax.errors.JaxRuntimeError):
        other.run(tmp_path, progress=quiet)
    (kept,) = (tmp_path / "checkpoints").iterdir()
    (tmp_path / "checkpoints" / "0123456789ab.0").mkdir()
    STUDY.run(tmp_path, progress=quiet)
    assert list((tmp_path / "checkpoints").iterdir()) == [kept]


def test_a_file_that_a_task_does_not_find_is_not_taken_for_the_folder(tmp_path, replace_training):
    def missing(runs, **_):
        raise FileNotFoundError(2, "No such file or directory", "words.txt")

    replace_training(missing)
    words = r"a task, model or probe of the unit \w+ cannot use a file: .*words.txt"
    with pytest.raises(InputError, match=words) as error:
        STUDY.run(tmp_path, progress=quiet)
    assert isinstance(error.value.__cause__, FileNotFoundError)


def test_forecasts_of_runs_in_training_are_in_the_claim(tmp_path, replace_training):
    """Other processes show them from there."""
    folder = StudyFolder(tmp_path)
    plan, _ = STUDY.open(folder)
    path = folder.claims / f"{plan.units[0].id}.json"
    claims = []

    def train(runs, *, on_end, progress, **_):
        progress(Progress(4, 0, 0, [(runs[0], 25, 0.5)], 100, 1.0, None, 1))
        until = time.monotonic() + 10
        while "progress" not in (claim := read_claim(path) or {}) and time.monotonic() < until:
            time.sleep(0.01)
        claims.append(claim["progress"])
        for run in runs:
            on_end(made_up(run))

    replace_training(train)
    assert run_plan(folder, watch=Watcher(Oracle()), beat=0.01)
    assert claims[0]["running"] == [[STUDY.runs[0].identity, 25, 0.5]]
    note = {"run": STUDY.runs[0].identity, "text": "step 100", "step": 100.0, "data": {}}
    assert claims[0]["notes"] == [note]


@pytest.mark.slow
def test_a_study_stops_after_some_seconds_and_the_next_call_continues(tmp_path):
    """The results agree with an uninterrupted study bit for bit."""
    long = tiny(grid={"learning_rate": [5e-4, 1e-3]}, seeds=2, threshold=None, steps=400)
    expected = long.run(tmp_path / "whole", progress=quiet)
    calls = 0
    while len(runs := long.run(tmp_path / "parts", progress=quiet, seconds=0.0)) < 4:
        assert list((tmp_path / "parts" / "checkpoints").glob("*/*.npz"))
        calls += 1
        assert calls < 100
    assert calls > 5
    pd.testing.assert_frame_equal(runs.table, expected.table)
    pd.testing.assert_frame_equal(runs.curves, expected.curves, check_exact=True)
    assert not list((tmp_path / "parts" / "checkpoints").iterdir())
    # Unfinished runs are lost if nothing is stored.
    assert len(long.run(progress=quiet, seconds=0.0)) == 0


def test_a_deadline_also_ends_waiting_for_others(tmp_path, training):
    training()
    folder = StudyFolder(tmp_path)
    plan, _ = STUDY.open(folder)
    with Claims(folder.claims).hold(plan.units[0].id):
        assert not run_plan(folder, beat=0.01, deadline=time.monotonic())
        assert not run_plan(folder, wait=False)
    assert run_plan(folder)


def test_what_cannot_be_trained_here_is_refused_before_anything_is_written(tmp_path):
    fast = tiny(precision="tf32")
    words = "tf32 products need a GPU; on a CPU choose precision fp32"
    with pytest.raises(InputError, match=words):
        fast.run(tmp_path / "out", progress=quiet)
    assert not (tmp_path / "out").exists()
    check_platform(tiny().runs)
