"""Results of runs in and out of stores and records. Nothing is trained here."""

import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.core.errors import InputError
from emergo.models import Transformer
from emergo.store import Store, read_records
from emergo.store.records import write_records
from emergo.study.description import build_run
from emergo.study.results import (
    add_records,
    missing_parts,
    read_parameters,
    read_result,
    record_tables,
    save_snapshot,
    write_result,
)
from emergo.tasks import SingleLocation
from emergo.training import Config, Optimizer, Result, Run, probe

CONFIG = Config(
    SingleLocation(8, 4, 2, 0.25, "random", True),
    Transformer(layers=2, heads=3, width=12),
    Optimizer("adamw", 1e-3),
    precision="fp32",
)
LOSSES = {
    "reached": [1.0, 0.5, 0.05],
    "at once": [0.01, 0.01, 0.01],
    "censored": [1.0, 0.9, 0.8],
    "failed": [1.0, 0.9, math.nan],
}


def result(kind: str = "reached", seed: int = 0, config: Config = CONFIG) -> Result:
    """Return a run that ended in this way; "at once" starts below its threshold."""
    rng = np.random.default_rng(seed)
    curves = {
        "step": np.array([0, 25, 50]),
        "loss": np.array(LOSSES[kind], np.float32),
        "attention": rng.integers(0, 256, (3, 2, 3)).astype(np.float32) / 256,
    }
    return Result.measured(Run(config, seed), curves, 41 if kind == "failed" else None, "cpu")


def same(one: Result, two: Result) -> None:
    """Assert that two results are equal, bit for bit."""
    assert one.run == two.run
    assert one.content() == two.content()
    assert repr(one.plateau) == repr(two.plateau)
    first = one.curves or {}
    second = two.curves or {}
    assert set(first) == set(second)
    for name, values in first.items():
        assert values.dtype == second[name].dtype
        np.testing.assert_array_equal(values, second[name])


RESULTS = [result(kind, seed) for seed, kind in enumerate(LOSSES)]
RESULTS += [result("censored", 4, CONFIG.replace(threshold=None))]
RESULTS += [Result.untrained(Run(CONFIG, 5), "out of memory", "cpu")]


@pytest.mark.parametrize("written", RESULTS, ids=lambda one: f"{one.state}-{one.run.seed}")
def test_a_result_returns_from_a_store_and_from_records(tmp_path, written):
    store = Store(tmp_path / "runs")
    write_result(store, written)
    same(read_result(store, written.run), written)
    assert read_result(store, written.run, curves=False).curves is None
    runs, curves = record_tables([written])
    write_records(runs, curves, tmp_path / "records", "fig")
    same(read_result(read_records(tmp_path / "records"), written.run), written)
    assert build_run(json.loads(runs["run"][0])) == written.run


def test_parameters_are_part_of_a_stored_run(tmp_path):
    store = Store(tmp_path)
    written = result()
    params: Any = CONFIG.model.init(jax.random.key(7), CONFIG.task.spec)
    save_snapshot(store, written.run, 0, jax.tree.map(jnp.zeros_like, params))
    save_snapshot(store, written.run, 50, params)
    write_result(store, written)
    last = read_parameters(store, written.run)
    assert last.step == 50
    jax.tree.map(np.testing.assert_array_equal, last.params, params)
    first = read_parameters(store, written.run, 0)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(first.params))
    with store.parameters(written.run.identity) as path:
        pass
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=f"{path}: cannot be read as parameters"):
        read_parameters(store, written.run)


def test_missing_parts_of_a_stored_run(tmp_path):
    """Parameters are kept at the first evaluation at or after each step; the last step is 50."""
    store = Store(tmp_path)
    written = result(seed=0)
    failed = result("failed", 1)
    params = CONFIG.model.init(jax.random.key(0), CONFIG.task.spec)
    for step in (25, 50):
        save_snapshot(store, written.run, step, params)
    write_result(store, written)
    write_result(store, failed)
    assert missing_parts(store, written.run, ["attention", "loss"]) == []
    assert missing_parts(store, written.run, ["attention", "norm"]) == ["norm"]
    assert missing_parts(store, written.run, keep=[1, 25, 26, 50, 10_000]) == []
    assert missing_parts(store, written.run, ["norm"], keep=[0]) == ["norm", "parameters"]
    assert missing_parts(store, failed.run, ["norm"], keep=[0]) == []
    with store.parameters(written.run.identity) as path:
        path.write_bytes(b"")
    assert missing_parts(store, written.run, keep=[50]) == ["parameters"]


def test_a_probe_of_another_version_is_missing(tmp_path):
    def curvature(params, output, batch, truth, step):
        return {"curvature": step}

    store = Store(tmp_path)
    written = result()
    run = Run(CONFIG.replace(probes=(curvature,)), 0)
    write_result(store, written._replace(run=run))
    assert missing_parts(store, run) == []
    probe(version=2)(curvature)
    (missing,) = missing_parts(store, run)
    assert missing.endswith("curvature 2")


def test_stored_runs_become_records(tmp_path):
    store = Store(tmp_path / "runs")
    for seed in range(2):
        write_result(store, result(seed=seed))
    runs = [Run(CONFIG, seed) for seed in range(3)]
    assert add_records(runs, store, "fig", tmp_path / "records") == 2
    assert add_records(runs, store, "fig", tmp_path / "records") == 0
    records = read_records(tmp_path / "records")
    assert [run.identity in records for run in runs] == [True, True, False]
    same(read_result(records, runs[1]), result(seed=1))


def test_curves_of_a_second_training_join_the_recorded_outcome(tmp_path):
    """The outcome and the name of the records stay; the provenance tells of the second training."""
    first = result("reached")
    steps = np.arange(0, 7500, 25)
    losses = np.linspace(0.5, 0.1, len(steps), dtype=np.float32)
    second = result("censored")._replace(curves={"step": steps, "loss": losses})
    folder = tmp_path / "records"
    write_records(*record_tables([first._replace(curves=None)]), folder, "fig")
    store = Store(tmp_path / "runs")
    write_result(store, second)
    assert add_records([first.run], store, "other", folder, thin=True) == 1
    assert not (folder / "other.runs.parquet").exists()
    read = read_result(read_records(folder), first.run)
    assert (read.state, read.plateau, read.steps) == (first.state, first.plateau, first.steps)
    assert read.provenance["device"] == first.provenance["device"]
    assert read.provenance["curves_state"] == "censored"
    assert float(read.provenance["curves_plateau"]) == second.plateau.time
    assert read.curves is not None
    assert (len(read.curves["step"]), read.curves["step"][-1]) == (100, 7475)
