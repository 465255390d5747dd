"""Training units: growth, failures and tries. A stand-in for the engine trains, but for the run that really diverges."""

import json
import math

import jax
import numpy as np
import pytest

from emergo._errors import InputError
from emergo.engine import CheckpointError, History
from emergo.studies import Failures, Store, Study, StudyFolder, Worker, open_study, run_study, study_status, study_table
from emergo.studies import _work as work

from .crowd import BASE, curves_of, made_up
from .tiny import BASE as REAL

STUDY = Study(BASE, grid={"dim": [2, 3]}, seeds=2, retries=2, unit=4)


class Engine:
    """Stands for `train`: does with each run what `plan` says for its seed, and remembers what it was asked."""

    def __init__(self, plan=lambda run, asked: "reached"):
        self.plan, self.asked, self.widths = plan, [], []

    def __call__(self, runs, *, on_end, width, checkpoint, progress, **_):
        self.asked.append([run.identity for run in runs])
        self.widths.append(width)
        for run in runs:
            how = self.plan(run, sum(run.identity in names for names in self.asked))
            if how == "memory":
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes.\nmore")
            if how == "error":
                raise jax.errors.JaxRuntimeError("INTERNAL: something else")
            if how == "failed":
                curves = curves_of(run)
                curves["loss"][-1] = math.nan
                on_end(History(run, "failed", 77, curves, "cpu"))
            else:
                on_end(made_up(run))


def by_cell(table):
    """Rows of a table by dim and seed."""
    return {(row["dim"], row["seed"]): row for row in table.to_dict("records")}


@pytest.fixture
def engine(monkeypatch):
    def use(plan=lambda run, asked: "reached"):
        made = Engine(plan)
        monkeypatch.setattr(work, "train", made)
        return made

    return use


def test_growing_reruns_nothing_finished(tmp_path, engine):
    """Promise 5: neither trained again nor written again."""
    used = engine()
    run_study(STUDY, tmp_path)
    first = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/*")}
    before = set(used.asked[0])
    assert len(first) == 8
    grown = STUDY.grown({"dim": [4]}, seeds=3)
    table = run_study(grown, tmp_path)
    assert len(table) == 9
    assert table["identity"].is_unique
    assert not before & {identity for names in used.asked[1:] for identity in names}
    assert {path: path.stat().st_mtime_ns for path in first} == first
    run_study(grown, tmp_path)
    assert sum(map(len, used.asked)) == 9
    with pytest.raises(InputError, match="a study can grow, not shrink"):
        run_study(STUDY, tmp_path)
    assert len(study_table(StudyFolder(tmp_path))) == 9


def test_a_study_that_grows_while_it_is_trained_is_trained_whole(tmp_path, engine):
    folder = StudyFolder(tmp_path)
    used = engine()
    open_study(folder, STUDY)
    Worker(folder, on_end=lambda result: open_study(folder, STUDY.grown({"dim": [7]})) and None).run()
    assert len(study_table(folder)) == 6
    assert sum(map(len, used.asked)) == 6


def test_a_failed_run_is_tried_again_and_kept_with_its_reason(tmp_path, engine):
    """Promise 6: seed 1 always fails, and is tried 1 + 2 times; seed 0 of dim 3 fails once."""

    def plan(run, asked):
        if run.seed == 1:
            return "failed"
        return "failed" if run.config.task.dim == 3 and asked == 1 else "reached"

    used = engine(plan)
    rows = by_cell(run_study(STUDY, tmp_path))
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
    run_study(STUDY, tmp_path)
    assert len(used.asked) == 3  # never again
    curves = Store(tmp_path / "runs").read(rows[2, 1]["identity"]).curves
    assert curves is not None
    assert math.isnan(curves["loss"][-1])


def test_without_memory_fewer_are_trained_at_once(tmp_path, engine):
    """Promise 6: at once, then a quarter, at last one by one."""
    study = Study(BASE, grid={"dim": [2]}, seeds=16, retries=2, unit=16)
    used = engine(lambda run, asked: "memory" if used.widths[-1] != 1 and run.seed == 2 else "reached")
    table = run_study(study, tmp_path)
    assert used.widths == [None, 3, 1]  # of 14 that are left, a quarter
    assert set(table["state"]) == {"reached", "censored"}
    assert sorted(used.asked[1]) == sorted(used.asked[2])
    assert len(used.asked[1]) == 14  # two had ended before
    said = Failures(tmp_path / "failures").read(used.asked[1][0], 0)
    assert said["kind"] == "memory"
    assert said["reason"].startswith("out of memory with as many as planned together: RESOURCE_EXHAUSTED")


def test_a_run_that_never_fits_fails_with_its_reason(tmp_path, engine):
    used = engine(lambda run, asked: "memory" if run.config.task.dim == 3 else "reached")
    rows = by_cell(run_study(STUDY, tmp_path))
    assert used.widths == [None, 1, 1]
    assert [rows[3, seed]["state"] for seed in (0, 1)] == ["failed", "failed"]
    assert rows[3, 0]["reason"].startswith("out of memory with 1 together")
    found = Store(tmp_path / "runs").read(rows[3, 0]["identity"])
    assert found.curves is None
    assert found.reason == rows[3, 0]["reason"]


def test_no_retries_means_one_try(tmp_path, engine):
    used = engine(lambda run, asked: "failed")
    run_study(Study(BASE, seeds=2, retries=0), tmp_path)
    assert len(used.asked) == 1


def test_an_interruption_is_not_a_try(tmp_path, engine):
    """A failure that is seen a second time after a restart is the same failure."""
    used = engine(lambda run, asked: "error" if run.seed == 1 and asked < 3 else "failed" if run.seed == 0 else "reached")
    study = Study(BASE, seeds=2, retries=1)
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
            run_study(study, tmp_path)
    table = run_study(study, tmp_path).set_index("seed")
    assert list(table.loc[0, ["state", "tries"]]) == ["failed", 2]
    assert len(used.asked) == 4
    assert not list((tmp_path / "claims").glob("*.json"))


def test_a_lost_or_broken_checkpoint_costs_only_its_own_runs(tmp_path, engine, monkeypatch):
    """What is finished is not trained again for the sake of a checkpoint that is gone."""
    used = engine(lambda run, asked: "error" if run.seed == 1 and run.config.task.dim == 2 and asked < 3 else "reached")
    folder, told = StudyFolder(tmp_path), []
    with pytest.raises(jax.errors.JaxRuntimeError):
        run_study(STUDY, tmp_path)
    (kept,) = folder.checkpoints.iterdir()
    finished = {run.identity for run in STUDY.runs} & set(Store(folder.runs))
    assert len(finished) == 3
    broken = kept / "abc.npz"
    broken.write_text("not a checkpoint")

    def stumble(runs, **options):
        if broken.exists():
            raise CheckpointError(broken, "it is text")
        return used(runs, **options)

    monkeypatch.setattr(work, "train", stumble)
    with pytest.raises(jax.errors.JaxRuntimeError):
        Worker(folder, say=told.append).run()
    assert "abc.npz: cannot be read; moved to" in told[0]
    assert len(list(kept.glob(".broken-abc.npz.*"))) == 1
    assert not set(used.asked[-1]) & finished
    Worker(folder).run()
    assert not set(used.asked[-1]) & finished
    assert study_status(folder).complete


def test_a_removed_checkpoint_costs_only_its_own_runs(tmp_path, engine):
    used = engine(lambda run, asked: "error" if run.seed == 1 and run.config.task.dim == 2 and asked == 1 else "reached")
    with pytest.raises(jax.errors.JaxRuntimeError):
        run_study(STUDY, tmp_path)
    (kept,) = (tmp_path / "checkpoints").iterdir()
    kept.rmdir()
    run_study(STUDY, tmp_path)
    assert [len(names) for names in used.asked] == [4, 1]


@pytest.mark.slow
def test_a_run_that_really_diverges(tmp_path):
    """Without a stand-in: a learning rate that no loss survives, beside one that works."""
    study = Study(REAL, grid={"learning_rate": [2e-3, 1e30]}, seeds=2, retries=1)
    table = run_study(study, tmp_path)
    failed = table[table["learning_rate"] == 1e30]
    assert list(failed["state"]) == ["failed"] * 2
    assert list(failed["tries"]) == [2, 2]
    assert all(reason.startswith("the loss was not finite at step") for reason in failed["reason"])
    assert list(table[table["learning_rate"] == 2e-3]["state"]) == ["reached"] * 2
    assert np.isnan(failed["plateau"]).all()
    record = json.loads((tmp_path / "failures" / f"{failed['identity'].iloc[0]}.0.json").read_text())
    assert record["kind"] == "loss"
