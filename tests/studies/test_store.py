"""Finished runs on disk: whole or not there, the same when read back, and never trained twice. Nothing is trained here."""

import dataclasses
import errno
import json
import math
import os

import numpy as np
import pandas as pd
import pytest

from emergo._errors import InputError, StorageError
from emergo.engine import Config, History, Optimizer, Run, State
from emergo.models import Transformer
from emergo.studies import Records, Result, Store, curve_frame, read_records, result_row, run_all, run_from_json, write_records
from emergo.studies import _run as runner
from emergo.studies._records import provenance_of, record_tables
from emergo.studies._result import curves_from, run_json
from emergo.tasks import SingleLocation

CONFIG = Config(
    SingleLocation(8, 4, 2, 0.25, "random", True),
    Transformer(layers=2, heads=3, width=12),
    Optimizer("adamw", 1e-3),
    precision="fp32",
)
LOSSES = {
    "reached": [1.0, 0.5, 0.05],
    "censored": [1.0, 0.9, 0.8],
    "failed": [1.0, 0.9, math.nan],
    "at once": [0.01, 0.01, 0.01],
}


def result(kind="reached", seed=0):
    """A run that ended in this way; "at once" is past its threshold at the first evaluation."""
    rng = np.random.default_rng(seed)
    curves = {
        "step": np.array([0, 25, 50]),
        "loss": np.array(LOSSES[kind], np.float32),
        "train_loss": np.array([math.nan, 0.7, 0.3], np.float32),
        "attention": rng.random((3, 2, 3)).astype(np.float32),
        "entropy": rng.random((3, 2, 3)).astype(np.float32),
        "alignment": rng.random(3).astype(np.float32),
        "loss_single": rng.random(3).astype(np.float32),
    }
    state: State = "failed" if kind == "failed" else "exhausted" if kind == "censored" else "reached"
    return Result.of(History(Run(CONFIG, seed), state, 41 if kind == "failed" else None, curves, "cpu"))


def same(one, two):
    """Everything but the curves equal, NaN to NaN; curves equal bit for bit, since nothing computes on them."""
    assert one.run == two.run
    assert one.emergence.state == two.emergence.state
    np.testing.assert_array_equal(one.emergence[:3], two.emergence[:3])
    assert (one.steps, one.failed_step, dict(one.provenance)) == (two.steps, two.failed_step, dict(two.provenance))
    assert set(one.curves) == set(two.curves)
    for name, values in one.curves.items():
        assert values.dtype == two.curves[name].dtype
        np.testing.assert_array_equal(values, two.curves[name])


@pytest.mark.parametrize("kind", LOSSES)
def test_what_is_written_is_read(tmp_path, kind):
    store, made = Store(tmp_path / "new" / "store"), result(kind)
    assert made.run not in store
    place = store.write(made)
    assert made.run in store
    same(store.read(made.run), made)
    same(store.read(made.run.identity), made)
    assert store.read(made.run, curves=False).curves is None
    assert sorted(p.name for p in place.iterdir()) == ["curves.parquet", "run.json"]
    json.loads((place / "run.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert list(store) == [made.run.identity]


def test_the_ends_of_a_run():
    """What a curve says, and what the engine says, make one outcome."""
    assert result("reached").emergence.state == "reached"
    censored = result("censored").emergence
    assert (censored.time, censored.low, censored.high, censored.state) == (50, 50, math.inf, "censored")
    failed = result("failed")
    assert failed.emergence.state == "failed"
    assert math.isnan(failed.emergence.time)
    assert failed.failed_step == 41
    assert result("at once").emergence.low == -math.inf


def test_a_run_that_fails_after_its_emergence_has_emerged():
    history = History(Run(CONFIG, 0), "failed", 60, {"step": np.array([0, 25, 50]), "loss": np.array([1, 0.05, np.nan])}, "cpu")
    assert Result.of(history).emergence.state == "reached"


def test_the_table_has_a_row_a_run(tmp_path):
    store = Store(tmp_path)
    assert store.table().empty
    assert list(Store(tmp_path / "absent")) == []
    made = [result(kind, seed) for seed, kind in enumerate(LOSSES)]
    for one in made:
        store.write(one)
    table = {row["identity"]: row for row in store.table().to_dict("records")}
    assert len(table) == len(made)
    for one in made:
        row = table[one.run.identity]
        assert row["seed"] == one.run.seed
        assert row["state"] == one.emergence.state
        assert row["censored"] == one.emergence.censored
        assert (row["burst"], row["repeat"], row["heads"], row["optimizer"]) == (2, 0.25, 3, "adamw")


def test_a_crash_before_the_rename_leaves_nothing(tmp_path, monkeypatch):
    store, made = Store(tmp_path), result()

    def crash(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(os, "rename", crash)
    with pytest.raises(StorageError, match="the disk is gone"):
        store.write(made)
    monkeypatch.undo()
    assert made.run not in store
    assert list(store) == []
    with pytest.raises(InputError, match=made.run.identity):
        store.read(made.run)
    store.write(made)
    same(store.read(made.run), made)


def test_a_crash_while_writing_leaves_nothing(tmp_path, monkeypatch):
    """A process that is killed cannot tidy up: its unfinished folder stays, and is not taken for a run."""
    store, made = Store(tmp_path), result()

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", killed)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        store.write(made)
    monkeypatch.undo()
    assert [p.name.startswith(".writing-") for p in tmp_path.iterdir()] == [True]
    assert made.run not in store
    assert list(store) == []


def test_a_second_write_leaves_the_first(tmp_path):
    """Both processes computed the same; here they differ so that one can tell."""
    store = Store(tmp_path)
    store.write(result("censored"))
    store.write(result("reached"))
    same(store.read(Run(CONFIG, 0)), result("censored"))
    assert [p.name for p in tmp_path.iterdir()] == [Run(CONFIG, 0).identity]


def test_a_run_that_cannot_be_read_is_moved_aside(tmp_path):
    store = Store(tmp_path)
    place = store.write(result("censored"))
    (place / "run.json").write_text("{")
    store.write(result("reached"))
    same(store.read(Run(CONFIG, 0)), result("reached"))
    assert len(list(tmp_path.glob(".broken-*/run.json"))) == 1


def test_what_is_not_a_run_is_passed_over(tmp_path):
    store, made = Store(tmp_path), result()
    store.write(made)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".checkpoints").mkdir()
    (tmp_path / ".writing-abc").mkdir()
    (tmp_path / ".writing-abc" / "run.json").write_text("{}")
    assert list(store) == [made.run.identity]
    assert len(store.table()) == 1


@pytest.mark.parametrize("damage", ["cut", "empty", "a list", "no outcome", "no curves", "cut curves", "another state"])
def test_a_damaged_run_is_named(tmp_path, damage):
    store, made = Store(tmp_path), result()
    place = store.write(made)
    file, curves = place / "run.json", place / "curves.parquet"
    content = json.loads(file.read_text())
    if damage in ("no curves", "cut curves"):
        curves.unlink() if damage == "no curves" else curves.write_bytes(curves.read_bytes()[:100])
    else:
        text = {
            "cut": file.read_text()[:-40],
            "empty": "",
            "a list": "[]",
            "no outcome": json.dumps({k: v for k, v in content.items() if k != "outcome"}),
            "another state": json.dumps(content | {"config": content["config"] | {"colour": "blue"}}),
        }
        file.write_text(text[damage])
    with pytest.raises(InputError, match=made.run.identity):
        store.read(made.run)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        Store(tmp_path / "file").write(result())


class Trainer:
    """Stands for the engine: ends each run at once and remembers which it was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, runs, *, on_end, checkpoint, **_):
        self.asked.append([run.seed for run in runs])
        self.checkpoint = checkpoint
        for run in runs:
            made = result("censored", run.seed)
            on_end(History(made.run, "exhausted", None, dict(made.curves or {}), "cpu"))


@pytest.fixture
def trainer(monkeypatch):
    made = Trainer()
    monkeypatch.setattr(runner, "train", made)
    return made


def runs_of(*seeds):
    return [Run(CONFIG, seed) for seed in seeds]


def test_only_what_is_missing_is_trained(tmp_path, trainer):
    found = run_all(runs_of(0, 1), tmp_path)
    again = run_all(runs_of(2, 1, 0, 2), tmp_path)
    assert [r.run.seed for r in found] == [0, 1]
    assert [r.run.seed for r in again] == [2, 1, 0, 2]
    assert [sorted(set(seeds)) for seeds in trainer.asked] == [[0, 1], [2]]
    assert trainer.checkpoint == tmp_path / ".checkpoints"
    run_all(runs_of(0, 1, 2), Store(tmp_path))
    assert len(trainer.asked) == 2
    same(again[2], found[0])


@pytest.mark.parametrize("damage", ["cut", "no run", "a folder", "another's", "cut curves"])
def test_a_damaged_run_is_named_kept_and_trained_again(tmp_path, trainer, damage, capsys):
    """As in a study. No line where all can be read."""
    first = run_all(runs_of(0, 1), tmp_path)
    place = tmp_path / first[0].run.identity
    if damage in ("no run", "a folder"):
        (place / "run.json").unlink()
        (place / ("run.json" if damage == "a folder" else "empty")).mkdir()
    elif damage == "another's":
        (place / "run.json").write_bytes((tmp_path / first[1].run.identity / "run.json").read_bytes())
    else:
        (place / ("run.json" if damage == "cut" else "curves.parquet")).write_text("{")
    assert first[0].run not in Store(tmp_path)
    again = run_all(runs_of(0, 1, 0), tmp_path)
    assert trainer.asked[1:] == [[0, 0]]
    same(again[0], first[0])
    said = capsys.readouterr().err
    assert said.startswith(f"emergo: {place}: not a finished run that can be read (")
    assert said.endswith("; it is moved aside and trained again\n")
    assert said.count("\n") == 1
    assert len(list(tmp_path.glob(".broken-*"))) == 1
    run_all(runs_of(0, 1), tmp_path)
    assert len(trainer.asked) == 2
    assert capsys.readouterr().err == ""


def test_a_full_disk_is_named_where_a_checkpoint_is_written(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runner, "train", full)
    with pytest.raises(StorageError, match=r"No space left on device.*free some space"):
        run_all(runs_of(0), tmp_path)
    with pytest.raises(OSError, match="No space left"):  # without a store it is not the store's
        run_all(runs_of(0))


def test_without_a_store_nothing_is_kept(trainer):
    run_all(runs_of(0))
    run_all(runs_of(0))
    assert trainer.asked == [[0], [0]]
    assert trainer.checkpoint is None


def test_records_come_first(tmp_path, trainer):
    """A record with curves is used; one without them only where no curves are asked for."""
    records = Records(*record_tables([result("reached", 0), result("reached", 1)], [Run(CONFIG, 0).identity]))
    found = run_all(runs_of(0, 1, 2), tmp_path, records=records)
    assert trainer.asked == [[1, 2]]
    assert [r.emergence.state for r in found] == ["reached", "censored", "censored"]
    outcomes = run_all(runs_of(0, 1, 2), tmp_path, records=records, curves=False)
    assert [r.emergence.state for r in outcomes] == ["reached", "reached", "censored"]
    assert len(trainer.asked) == 1


def test_records_through_parquet(tmp_path):
    made = [result(kind, seed) for seed, kind in enumerate(LOSSES)]
    runs, curves = record_tables(made, [r.run.identity for r in made[:3]])
    runs.to_parquet(tmp_path / "fig.runs.parquet")
    curves.to_parquet(tmp_path / "fig.curves.parquet")
    more = result("reached", 99)
    record_tables([more])[0].to_parquet(tmp_path / "other.runs.parquet")
    records = read_records(tmp_path)
    for one in made[:3]:
        assert one.run in records
        assert records.has_curves(one.run)
        same(records.read(one.run), one)
    for one in (made[3], more):
        assert not records.has_curves(one.run)
        found = records.read(one.run)
        assert found.curves is None
        assert found.emergence == one.emergence
    assert Run(CONFIG, 1234) not in records
    assert run_from_json(json.loads(runs["run"][0])) == made[0].run


def test_records_are_added_to_those_that_are_there(tmp_path):
    """Other runs are kept, the same ones replaced with their curves, and numbers are those that were written."""
    first, second, again = result("reached", 0), result("reached", 1), result("censored", 0)
    for made, shown in (([first], [first]), ([second, again], [again]), ([], [])):
        write_records(*record_tables(made, [r.run.identity for r in shown]), tmp_path, "fig")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fig.curves.parquet", "fig.runs.parquet"]
    records = read_records(tmp_path)
    same(records.read(again.run), again)
    assert records.read(second.run).emergence == second.emergence
    assert not records.has_curves(second.run)


def test_no_records_are_no_error(tmp_path):
    assert Run(CONFIG, 0) not in read_records(tmp_path / "absent")


def test_records_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "fig.runs.parquet").write_text("not a table")
    with pytest.raises(InputError, match=r"fig\.runs\.parquet"):
        read_records(tmp_path)


def test_provenance_in_words():
    made = [result("reached", seed) for seed in range(3)]
    made[0] = made[0]._replace(provenance={"device": "NVIDIA H200"})
    assert provenance_of({"all": made, "again": made[:1]}) == "1 runs on NVIDIA H200, 2 runs on cpu"


def test_curves_as_a_table_and_back():
    made = result()
    frame = curve_frame(made)
    assert {"step", "loss", "attention_0_0", "attention_1_2", "entropy_1_0"} <= set(frame.columns)
    back = curves_from(frame)
    for name, values in (made.curves or {}).items():
        np.testing.assert_array_equal(back[name], values)
    assert curve_frame(made._replace(curves=None)).empty


def test_a_row_holds_all_axes():
    row = result_row(result())
    for part in (CONFIG.task, CONFIG.model):
        for field in dataclasses.fields(part):
            assert row[field.name] == getattr(part, field.name)
    assert pd.DataFrame([row])["learning_rate"].item() == 1e-3


def test_a_run_as_data_and_back():
    run = Run(CONFIG, 5)
    back = run_from_json(json.loads(json.dumps(run_json(run))))
    assert back == run
    assert back.identity == run.identity


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("seed"),
        lambda data: data.pop("config"),
        lambda data: data["config"].pop("task"),
        lambda data: data["config"].update(colour="blue"),
        lambda data: data["config"]["task"].update(colour="blue"),
        lambda data: data["config"]["task"].update(dim=0),
        lambda data: data["config"].update(model=None),
        lambda data: data["config"].update(precision="fp8"),
        lambda data: data.update(config=3),
        lambda data: data.update(seed="five"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_data_is_not_a_run(change):
    data = json.loads(json.dumps(run_json(Run(CONFIG, 5))))
    change(data)
    with pytest.raises(InputError):
        run_from_json(data)
