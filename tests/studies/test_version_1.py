"""What version 1 wrote: readable as it is, and migrated once, so that no run is trained again (promise 8).

What is under `fixtures/version-1` is never written again. `fixtures/version-1-runs.json` holds runs as version 1 described
them, with the identities that they had there.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from emergo._errors import InputError
from emergo._json import digest
from emergo.engine import Config, Optimizer, Run
from emergo.models import ChainTransformer, MinimalAttention, Transformer
from emergo.papers.yuksel2026._contexts import ContextPredictors
from emergo.studies import (
    Failures,
    Study,
    StudyFolder,
    migrate,
    read_outcomes,
    study_curves,
    study_law,
    study_status,
    study_table,
)
from emergo.studies import _executor as executor
from emergo.studies._axes import config_columns
from emergo.studies._version_1 import renamed_curve, upgraded_run, upgraded_study
from emergo.tasks import Groups, MarkovChain, Recall, SingleLocation

FIXTURES = Path(__file__).with_name("fixtures")
FIXTURE = FIXTURES / "version-1"


def configs():
    """The configs of `version-1-runs.json`, in its order, as this version writes them."""
    location = SingleLocation(8, 2)
    fp32: dict[str, Any] = {"precision": "fp32"}
    yield from [Config(SingleLocation(32, 8), **fp32)] * 3
    task = SingleLocation(256, 64, 4, 0.25, "random", True)
    yield Config(task, Transformer(1, 1, 64), Optimizer(learning_rate=5e-4), precision="bf16", steps=5000)
    model, adamw = Transformer(3, 2, 12, mlp_factor=2), Optimizer("adamw", weight_decay=0.01)
    yield Config(SingleLocation(16, 4, position="fixed"), model, adamw, 16, "tf32", 1000, 0.2, 0.5, 64)
    model, optimizer = Transformer(mlp=False, skip=False), Optimizer("adamw", 1e-3, weight_decay=0.1)
    yield Config(SingleLocation(16, 4, repeat=1), model, optimizer, **fp32)
    yield Config(SingleLocation(16, 4), Transformer(), Optimizer("adamw", 1e-4, weight_decay=0.0), threshold=1, **fp32)
    yield Config(location, Transformer(norm="pre"), Optimizer("sgd", 1), **fp32)
    yield Config(location, Transformer(norm="post", mask="causal"), Optimizer("sgd", 0.1, momentum=0.9), **fp32)
    yield Config(location, Transformer(activation="gelu"), Optimizer("adam", 3e-4, b1=0.8, b2=0.95, eps=1e-6), **fp32)
    yield Config(location, Transformer(), Optimizer(clip=1), overtrain=1, **fp32)
    yield Config(location, Transformer(), Optimizer("sgd", 0.5, clip=0.25), threshold=-1.0, **fp32)
    for attention in ("softmax", "linear", "biased", "positional"):
        yield Config(location, Transformer(2, 2, 16, attention=attention), **fp32)
    for initial in ("pytorch", "xavier", "normal"):
        yield Config(location, Transformer(2, 2, 16, initial=initial), **fp32)
    for positions in ("sinusoidal", "learned", "none"):
        yield Config(location, Transformer(2, 2, 16, positions=positions), **fp32)
    for special in ("basis", "draw"):
        yield Config(SingleLocation(8, 2, special=special), **fp32)
    for placement in ("once", "chance", "chance or none"):
        yield Config(Recall(4, 16, 1, 0, placement), Transformer(2, 1, 32, mask="causal"), threshold=0.9, **fp32)
    model, adamw = Transformer(2, 1, 32), Optimizer("adamw", 1e-3, weight_decay=0.01)
    yield Config(Recall(8, 64, 2, 0.5, "chance"), model, adamw, 64, "bf16", 100, 0.95)
    yield Config(Recall(8, 64, 1.5, 1, "chance"), model, adamw, 64, "fp32", 100, 1)
    yield from _chains(fp32)


def _chains(fp32):
    none = fp32 | {"threshold": None}
    yield Config(MarkovChain(), MinimalAttention(), **none)
    yield Config(MarkovChain(), MinimalAttention(2, 2, scale=1e-3, context=3), threshold=0.2, **fp32)
    groups = Groups((1, 2), 2, "far", weights=((1,), (2, 3)))
    yield Config(MarkovChain(groups), MinimalAttention(), n_train=16, **none)
    task = MarkovChain(Groups((1, 2), 2.5, stride=1), 5, 1, 4)
    yield Config(task, MinimalAttention(start="xavier"), Optimizer("sgd", 1), **none)
    task = MarkovChain(generated=7, prefix=8, vocabulary=11)
    yield Config(task, MinimalAttention(scale=0), precision="fp64", threshold=None)
    adamw = Optimizer("adamw", 1e-3, clip=1.0, weight_decay=0.01)
    yield Config(MarkovChain(), ChainTransformer(), adamw, 64, threshold=0.05, steps=300, n_train=9000, **fp32)
    model = ChainTransformer(2, 8, 4, 2, 0, 2)
    yield Config(MarkovChain(vocabulary=9), model, **none)
    model = ChainTransformer(dropout_every=5, start="xavier")
    yield Config(MarkovChain(vocabulary=9), model, n_test=256, **none)
    task = MarkovChain(Groups((1, 1, 1), 3.0), 8)
    yield Config(task, MinimalAttention(), n_train=100, probes=(ContextPredictors((1, 2, 3)),), **none)


def upgraded(old: dict[str, Any]) -> Run:
    """A run of version 1 as a study of one run, which is how a migration finds its identity here."""
    config = dict(old["config"])
    stop = {name: config.pop(name) for name in ("steps", "threshold", "beyond")}
    tables = {"grid": {}, "zip": {}, "tune": {}, "seeds": [old["seed"]], "name": "one"}
    [run] = Study.from_data(upgraded_study({"base": config, "stop": stop, **tables})).runs
    return run


def test_an_upgraded_run_has_the_identity_of_the_same_run_in_this_version():
    """All tasks, models, optimizers and options of that version; the columns of its table are those of this one's."""
    recorded = json.loads((FIXTURES / "version-1-runs.json").read_text())
    assert len({run["identity"] for run in recorded}) == 36  # two write defaults out that others leave out
    outcome = {"state": "censored", "time": 9, "low": 9, "high": None}
    for old, config in zip(recorded, configs(), strict=True):
        run = Run(config, old["seed"])
        now = upgraded(old)
        assert now == run
        assert now.identity == run.identity == digest(run.describe())
        read, here = upgraded_run(old | {"outcome": outcome}), config_columns(config)
        columns = read["columns"]
        assert {name: here.get(name, "no such column") for name in columns} == columns
        assert set(here) - set(columns) <= {"temperature", "window", "top_k", "maps", "dropout_at"}  # options that came later
        assert read["outcome"]["state"] == ("trained" if config.threshold is None else "censored")


def copied(tmp_path):
    return StudyFolder(shutil.copytree(FIXTURE, tmp_path / "copy"))


def content(path):
    """Every file under a folder but the index, which is only a cache."""
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != ".index.json"}


def test_the_status_and_the_tables_can_be_read_without_writing(tmp_path):
    folder = copied(tmp_path)
    before = content(folder.path)
    status = study_status(folder)
    assert (status.name, status.runs, status.reached, status.censored, status.failed) == ("version 1", 12, 4, 4, 4)
    assert status.failures == 8
    assert not status.broken
    [plan] = folder.read()
    table = study_table(folder, plan)
    assert {"dim", "learning_rate", "seed", "plateau", "censored", "state", "reason", "tries", "chosen"} <= set(table.columns)
    by_seed = table.groupby("seed")
    assert list(by_seed["state"].first()) == ["censored", "reached", "failed"]
    np.testing.assert_array_equal(by_seed.get_group(0)["plateau"], 100.0)
    # The crossing of 0.1 on a line from 1 to 0.05 over 100 steps, each value raised by up to 0.01.
    np.testing.assert_allclose(by_seed.get_group(1)["plateau"], 95.26, atol=0.6)
    assert by_seed.get_group(2)["plateau"].isna().all()
    assert set(by_seed.get_group(2)["reason"]) == {"the loss was not finite at step 77, in 2 tries"}
    curves = study_curves(folder, plan)
    assert len(curves) == 12 * 5
    assert {"step", "loss", "train_loss", "alignment", "attention_0_0", "entropy_0_0"} <= set(curves.columns)
    law = study_law(table, plan)
    assert law is not None
    assert law.runs == 2
    assert content(folder.path) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("excess", "kl_teacher"),
        ("divergences_0_1", "kl_references_0_1"),
        ("lags_0_1_2", "attention_by_lag_0_1_2"),
        ("restricted_3", "kl_contexts_3"),
        ("loss", "loss"),
        ("attention_0_0", "attention_0_0"),
        ("excess_loss", "excess_loss"),
    ],
)
def test_curves_have_the_names_of_this_version(old, new):
    assert renamed_curve(old) == new


def test_renamed_columns_are_read(tmp_path):
    folder = copied(tmp_path)
    [plan] = folder.read()
    path = folder.runs / plan.runs[0].identity / "curves.parquet"
    frame = pd.read_parquet(path).assign(excess=0.5, lags_0_1=0.25)
    frame.to_parquet(path, index=False)
    curves = study_curves(folder, plan)
    assert (curves[curves["identity"] == plan.runs[0].identity]["kl_teacher"] == 0.5).all()
    migrate(folder.path)
    study = Study.from_data(folder.read()[0].study)
    read = {result.run.identity: result for result in study.read(folder.path)}
    [(identity, curves)] = [(name, r.curves) for name, r in read.items() if r.curves and "kl_teacher" in r.curves]
    np.testing.assert_array_equal(curves["attention_by_lag"], np.tile([[np.nan, 0.25]], (5, 1, 1)))
    recorded = json.loads((folder.runs / identity / "run.json").read_text())["curves"]
    assert {"kl_teacher", "attention_by_lag", "loss"} <= set(recorded)


STUDY = Study(
    SingleLocation(8, 2, position="random", indicator=True),
    Transformer(layers=1, heads=1, width=8),
    Optimizer(learning_rate=1e-3),
    grid={"dim": [2, 4]},
    tune={"learning_rate": [1e-3, 3e-3]},
    steps=100,
    precision="fp32",
    name="version 1",
    unit=4,
)
"""The study of the fixture, as this version writes it."""


@pytest.fixture
def untrained(monkeypatch):
    """Which runs are trained, if any."""
    asked = []
    monkeypatch.setattr(executor, "train", lambda runs, **_: asked.extend(runs))
    return asked


def test_the_same_study_finds_every_run_in_the_migrated_folder(tmp_path, untrained):
    folder = copied(tmp_path)
    before = study_table(folder, folder.read()[0]).drop(columns=["identity", "unit"])
    runs = STUDY.run(folder.path, progress=lambda now: None)
    assert not untrained
    assert len(runs) == STUDY.count == 12
    identities = {run.identity for run in STUDY.runs}
    assert {result.run.identity for result in runs} == identities == set(read_outcomes(folder.runs).rows)
    assert all(result.curves is not None and len(result.curves["step"]) == 5 for result in runs)
    after = study_table(folder, folder.read()[0])
    names = ["dim", "learning_rate", "seed"]
    one, two = (table.sort_values(names).reset_index(drop=True)[list(before.columns)] for table in (before, after))
    pd.testing.assert_frame_equal(one, two)
    status = study_status(folder)
    assert (status.failures, status.broken, status.complete) == (8, {}, True)
    assert not (folder.path / "study.json").exists()
    assert len(folder.read()) == 1
    grown = STUDY.grown({"dim": [8]})
    grown.open(folder)
    assert study_status(folder).runs == 18


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 5, 20, 31, 32, 33, 34])
def test_an_interrupted_migration_goes_on(tmp_path, monkeypatch, untrained, calls):
    """Killed at a rename: of a file that was just written, of a run, of a failure, of the plan."""
    folder, left, replace = copied(tmp_path), [calls], os.replace

    def killed(*arguments):
        left[0] -= 1
        if left[0] <= 0:
            raise KeyboardInterrupt
        replace(*arguments)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        migrate(folder.path)
    monkeypatch.setattr(os, "replace", replace)
    STUDY.run(folder.path, progress=lambda now: None)
    assert not untrained
    assert study_status(folder).complete
    assert not read_outcomes(folder.runs).broken
    assert sum(Failures(folder.failures).counts()[0].values()) == 8
    assert set(read_outcomes(folder.runs).rows) == {run.identity for run in STUDY.runs}
    assert (folder.path / "study-version-1.json").exists()


def test_a_damaged_run_of_that_version_is_trained_again(tmp_path, untrained):
    folder = copied(tmp_path)
    first = folder.read()[0].runs[0].identity
    (folder.runs / first / "run.json").write_text("{")
    STUDY.open(folder)
    assert study_status(folder).finished == 11
    assert (folder.runs / first / "run.json").read_text() == "{"


@pytest.mark.parametrize("damage", ["{", "[]", '{"schema": 1, "study": {}}'])
def test_a_damaged_study_of_that_version_is_named(tmp_path, damage):
    folder = copied(tmp_path)
    (folder.path / "study.json").write_text(damage)
    with pytest.raises(InputError, match=r"study\.json: not a plan that can be read"):
        folder.read()
    with pytest.raises(InputError, match=r"study\.json: not a study of the first version"):
        migrate(folder.path)


def test_a_study_with_windows_has_the_probe_of_this_version():
    assert upgraded(json.loads((FIXTURES / "version-1-runs.json").read_text())[-1]).config.probes == (
        ContextPredictors((1, 2, 3)),
    )
