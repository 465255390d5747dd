"""Finished runs on disk: whole or not there, the same when read back. Nothing is trained here."""

import dataclasses
import json
import math
import os
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from emergo._errors import InputError, StorageError
from emergo.engine import Config, Optimizer, Result, Run, probe
from emergo.models import Transformer
from emergo.studies import Store, curve_frame, read_outcomes, result_row
from emergo.studies._curves import curves_from
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


def result(kind: str = "reached", seed: int = 0, config: Config = CONFIG) -> Result:
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
    return Result.measured(Run(config, seed), curves, 41 if kind == "failed" else None, "cpu")


def same(one: Result, two: Result) -> None:
    """Everything but the curves equal, NaN to NaN; curves equal bit for bit, since nothing computes on them."""
    assert one.run == two.run
    assert one.state == one.plateau.state == two.state == two.plateau.state
    np.testing.assert_array_equal(one.plateau[:3], two.plateau[:3])
    assert (one.steps, one.failed_step, dict(one.provenance)) == (two.steps, two.failed_step, dict(two.provenance))
    assert one.reason == two.reason
    first, second = one.curves or {}, two.curves or {}
    assert set(first) == set(second)
    for name, values in first.items():
        assert values.dtype == second[name].dtype
        np.testing.assert_array_equal(values, second[name])


@pytest.mark.parametrize("kind", LOSSES)
def test_what_is_written_is_read(tmp_path, kind):
    store, written = Store(tmp_path / "new" / "store"), result(kind)
    assert written.run not in store
    place = store.write(written)
    assert written.run in store
    same(store.read(written.run), written)
    assert store.read(written.run, curves=False).curves is None
    assert sorted(p.name for p in place.iterdir()) == ["curves.parquet", "run.json"]
    content = json.loads((place / "run.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert content["curves"] == sorted(written.curves or {})
    assert list(read_outcomes(store.folder).rows) == [written.run.identity]


def test_a_run_without_curves_and_one_without_a_threshold(tmp_path):
    store = Store(tmp_path)
    untrained = Result.untrained(Run(CONFIG, 0), "out of memory", "cpu")
    trained = result("censored", 1, CONFIG.replace(threshold=None))
    assert (trained.state, math.isnan(trained.plateau.time)) == ("trained", True)
    for one in (untrained, trained):
        store.write(one)
        same(store.read(one.run), one)
    assert store.read(untrained.run).curves is None
    rows = read_outcomes(tmp_path).rows
    assert [rows[one.run.identity]["state"] for one in (untrained, trained)] == ["failed", "trained"]


def test_the_table_has_one_row_per_run(tmp_path):
    store = Store(tmp_path)
    assert read_outcomes(tmp_path) == read_outcomes(tmp_path / "absent") == ({}, {})
    written = [result(kind, seed) for seed, kind in enumerate(LOSSES)]
    for one in written:
        store.write(one)
    table = read_outcomes(tmp_path).rows
    assert len(table) == len(written)
    for one in written:
        row = table[one.run.identity]
        assert row["seed"] == one.run.seed
        assert row["state"] == one.state
        assert row["censored"] == (one.state == "censored")
        assert (row["burst"], row["repeat"], row["heads"], row["optimizer"]) == (2, 0.25, 3, "adamw")


def test_a_crash_before_the_rename_leaves_nothing(tmp_path, monkeypatch):
    store, written = Store(tmp_path), result()

    def crash(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(os, "rename", crash)
    with pytest.raises(StorageError, match="the disk is gone"):
        store.write(written)
    monkeypatch.undo()
    assert written.run not in store
    assert not read_outcomes(tmp_path).rows
    with pytest.raises(InputError, match=written.run.identity):
        store.read(written.run)
    store.write(written)
    same(store.read(written.run), written)


def test_a_crash_while_writing_leaves_nothing(tmp_path, monkeypatch):
    """A process that is killed cannot tidy up: its unfinished folder stays, and is not taken for a run."""
    store, written = Store(tmp_path), result()

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", killed)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        store.write(written)
    monkeypatch.undo()
    assert [p.name.startswith(".writing-") for p in tmp_path.iterdir()] == [True]
    assert written.run not in store
    assert not read_outcomes(tmp_path).rows


def test_a_second_write_leaves_the_first(tmp_path):
    """Both processes computed the same; here they differ so that one can tell."""
    store = Store(tmp_path)
    store.write(result("censored"))
    store.write(result("reached"))
    same(store.read(Run(CONFIG, 0)), result("censored"))
    assert [p.name for p in tmp_path.iterdir()] == [Run(CONFIG, 0).identity]


def test_many_who_write_the_same_run_at_once_leave_one(tmp_path):
    store, begin, errors = Store(tmp_path), threading.Barrier(8), []

    def write():
        begin.wait()
        try:
            store.write(result())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [p.name for p in tmp_path.iterdir()] == [Run(CONFIG, 0).identity]
    same(store.read(Run(CONFIG, 0)), result())


def test_a_run_that_cannot_be_read_is_moved_aside(tmp_path):
    store = Store(tmp_path)
    place = store.write(result("censored"))
    (place / "run.json").write_text("{")
    store.write(result("reached"))
    same(store.read(Run(CONFIG, 0)), result("reached"))
    assert len(list(tmp_path.glob(".broken-*/run.json"))) == 1


def test_what_is_not_a_run_is_passed_over(tmp_path):
    store, written = Store(tmp_path), result()
    store.write(written)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".writing-abc").mkdir()
    (tmp_path / ".writing-abc" / "run.json").write_text("{}")
    assert list(read_outcomes(tmp_path).rows) == [written.run.identity]


@pytest.mark.parametrize("damage", ["cut", "empty", "a list", "no outcome", "no curves", "cut curves", "another run"])
def test_a_damaged_run_is_named(tmp_path, damage):
    store, written = Store(tmp_path), result()
    place = store.write(written)
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
            "another run": json.dumps(content | {"config": content["config"] | {"batch": 33}}),
        }
        file.write_text(text[damage])
    with pytest.raises(InputError, match=written.run.identity):
        store.read(written.run)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        Store(tmp_path / "file").write(result())


def test_what_is_set_aside_is_kept_under_another_name(tmp_path):
    store, written = Store(tmp_path), result()
    store.write(written)
    store.set_aside(written.run.identity)
    assert written.run not in store
    assert not read_outcomes(tmp_path).rows
    [aside] = tmp_path.glob(".aside*")
    assert (aside / "run.json").exists()
    store.write(written)
    assert written.run in store


def test_what_a_stored_run_lacks(tmp_path):
    """Curves by name, parameters at the evaluations that follow the steps asked for; a run that failed lacks nothing."""
    store, written, failed = Store(tmp_path), result(seed=0), result("failed", 1)
    params = CONFIG.model.init(jax.random.key(0), CONFIG.task.spec)
    for step in (25, 50):
        store.snapshot(written.run, step, params)
    store.write(written)
    store.write(failed)
    assert store.lacks(written.run) == []
    assert store.lacks(written.run, ["alignment", "loss"]) == []
    assert store.lacks(written.run, ["alignment", "curvature"]) == ["curvature"]
    assert store.lacks(written.run, keep=[1, 25, 26, 50, 10_000]) == []  # later than its end: its end is kept
    assert store.lacks(written.run, ["curvature"], keep=[0]) == ["curvature", "parameters"]
    assert store.lacks(failed.run, ["curvature"], keep=[0]) == []


def test_a_probe_of_another_version_is_lacking(tmp_path):
    """What it measured is something else under the same name; the version that is there is not."""

    def curvature(params, output, batch, truth, step):
        return {"curvature": step}

    store, written = Store(tmp_path), result()
    probed = written._replace(run=Run(written.run.config.replace(probes=(curvature,)), written.run.seed))
    store.write(probed)
    assert store.lacks(probed.run) == []
    probe(version=2)(curvature)
    (lacking,) = store.lacks(probed.run)
    assert lacking.endswith("curvature 2")


def test_parameters_are_part_of_a_finished_run(tmp_path):
    store, written = Store(tmp_path), result()
    params: Any = CONFIG.model.init(jax.random.key(7), CONFIG.task.spec)
    store.snapshot(written.run, 0, jax.tree.map(jnp.zeros_like, params))
    store.snapshot(written.run, 50, params)
    assert store.steps(written.run) == []  # not before it is finished
    store.write(written)
    assert store.steps(written.run) == [0, 50]
    last = store.parameters(written.run)
    assert last.step == 50
    jax.tree.map(np.testing.assert_array_equal, last.params, params)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(store.parameters(written.run, 0).params))
    with pytest.raises(InputError, match="no parameters of step 25; kept are 0, 50"):
        store.parameters(written.run, 25)
    store.write(result(seed=1))
    with pytest.raises(InputError, match="no parameters were kept; train the study with keep=True"):
        store.parameters(Run(CONFIG, 1))


def test_curves_as_a_table_and_back():
    written = result()
    frame = curve_frame(written.curves)
    assert {"step", "loss", "attention_0_0", "attention_1_2", "entropy_1_0"} <= set(frame.columns)
    back = curves_from(frame)
    assert set(back) == set(written.curves or {})
    for name, values in (written.curves or {}).items():
        np.testing.assert_array_equal(back[name], values)
    assert curve_frame(None).empty


def test_a_row_holds_all_axes():
    row = result_row(result())
    for part in (CONFIG.task, CONFIG.model):
        for field in dataclasses.fields(part):
            assert row[field.name] == getattr(part, field.name)
    assert pd.DataFrame([row])["learning_rate"].item() == 1e-3
