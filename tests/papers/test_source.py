"""Where the runs of a figure come from: recorded, kept or trained, whole cells of a part, and never without curves."""

import dataclasses
import signal

import numpy as np
import pandas as pd
import pytest

from emergo._errors import InputError
from emergo.engine import Result
from emergo.models import Transformer
from emergo.papers import FIGURES, RunSource, run_figure, seconds_needed, source_for
from emergo.papers._make import find_probe
from emergo.papers._source import curve
from emergo.studies import Records, Study, Watcher, record_tables
from emergo.tasks import SingleLocation

FIG12, FIG15 = FIGURES["zucchet2025/fig12"], FIGURES["zucchet2025/fig15"]
CURVES = {
    "step": np.array([0, 25, 50]),
    "loss": np.array([0.5, 0.45, 0.05]),
    "train_loss": np.array([np.nan, 0.5, 0.3]),
    "alignment": np.array([0.0, 0.5, 0.9]),
    "attention": np.full((3, 2, 2), 0.5),
    "entropy": np.full((3, 2, 2), 1.0),
}


@pytest.fixture
def trained(monkeypatch):
    """The runs that were trained, by a stand-in that takes no time."""
    runs = []

    def train(missing, on_end=lambda result: None, **options):
        runs.extend(missing)
        results = [Result.measured(run, CURVES, None, "here") for run in missing]
        for result in results:
            on_end(result)
        return results

    monkeypatch.setattr("emergo.papers._source.train", train)
    monkeypatch.setattr("emergo.studies._executor.train", train)
    return runs


def elsewhere(runs, curves=True):
    results = [Result.measured(run, CURVES, None, "elsewhere") for run in runs]
    return Records(*record_tables([result if curves else result._replace(curves=None) for result in results]))


def test_records_stand_in_for_training(tmp_path, monkeypatch, trained):
    """Half of a smoke preset recorded: only the other half is trained, and the JSON names both sources."""
    first, *others = FIG12.runs("smoke")
    monkeypatch.setattr("emergo.papers._figure.read_records", lambda: elsewhere([first]))
    report = run_figure(FIG12, "smoke", tmp_path)
    assert [run.identity for run in trained] == [run.identity for run in others]
    assert report["provenance"]["device"] == f"1 runs on elsewhere, {len(others)} runs on here"
    trained.clear()
    assert run_figure(FIG12, "smoke", tmp_path, fresh=True)["provenance"]["device"] == f"{1 + len(others)} runs on here"
    assert [run.identity for run in trained] == [first.identity], "the rest was kept"


def test_records_without_curves_serve_figures_of_outcomes_only(trained):
    runs = FIG15.runs("smoke")
    source = RunSource(records=elsewhere(runs, curves=False))
    assert seconds_needed(FIG15, "smoke", source) == 0
    studies = FIG15.wanted("smoke", source)
    parts = source.runs(studies)
    assert sum(len(part) for part in parts.values()) == len(runs)
    assert trained == []
    with pytest.raises(InputError, match="is there without its curves"):
        curve(parts["sgd"][0], "loss")
    again = source.runs(studies, curves=True)
    assert len(trained) == len(runs)
    assert curve(again["sgd"][0], "loss").tolist() == CURVES["loss"].tolist()


def test_runs_recorded_without_curves_are_trained_for_them(tmp_path, monkeypatch, trained):
    """Those of the parts that are named; their outcomes stay those on record, and probes are measured besides."""
    monkeypatch.setitem(FIG15.presets, "paper", FIG15.presets["smoke"])
    runs, adam = FIG15.runs("smoke"), FIG15.studies("smoke")["adam"].runs
    early = CURVES | {"loss": np.array([0.5, 0.05, 0.01])}
    outcomes = [Result.measured(run, early, None, "elsewhere")._replace(curves=None) for run in runs]
    records = Records(*record_tables(outcomes))
    monkeypatch.setattr("emergo.papers._figure.read_records", lambda: records)
    source = source_for(FIG15, tmp_path, curves=["adam"], probes=[twice])
    assert len(FIG15.missing(FIG15.studies("smoke"), source)) == len(adam)
    parts = source.runs(FIG15.studies("smoke"))
    assert {run.identity for run in trained} == {run.identity for run in adam}
    assert all(run.config.probes == (twice,) for run in trained)
    assert {result.plateau.time for part in parts.values() for result in part} == {outcomes[0].plateau.time}
    assert curve(parts["adam"][0], "loss").tolist() == CURVES["loss"].tolist()
    assert parts["adam"][0].provenance["curves_device"] == "here"
    assert source.missing(runs) == []
    with pytest.raises(InputError, match=r"unknown part of zucchet2025/fig15 'adm'.*adam"):
        source_for(FIG15, tmp_path, curves=["adm"])


class Late(Watcher):
    """Presses Ctrl-C when the longer runs have come to a step; `steps` are theirs."""

    def __init__(self, until):
        super().__init__()
        self.steps, self.until = [], until

    def training(self, now):
        self.steps += [step for run, step, _ in now.running if run.config.steps == 400][:1]
        if self.steps and self.steps[-1] >= self.until:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("probed", [False, True], ids=["plain", "with a probe"])
def test_what_was_in_training_goes_on_where_it_was(tmp_path, probed):
    """Although some runs of its unit have ended and are no longer missing."""
    model, few = Transformer(layers=1, heads=1, width=4, mlp=False), {"batch": 8, "n_test": 16, "precision": "fp32"}
    study = Study(SingleLocation(4, 2), model, grid={"steps": [50, 400]}, seeds=2, threshold=None, **few)
    before, after = Late(100), Late(1000)
    first, second = (RunSource("figure", seen, tmp_path, probes=(twice,) * probed) for seen in (before, after))
    with pytest.raises(KeyboardInterrupt):
        first.runs({"all": study})
    assert len(first.missing(study.runs)) == 2
    assert len(second.runs({"all": study})["all"]) == 4
    assert after.steps[0] > before.steps[-1] >= 100
    assert len(list((tmp_path / "studies").iterdir())) == 1
    assert not any((tmp_path / "checkpoints").iterdir())


def twice(params, output, batch, truth, step):
    """A probe."""
    return {"twice": 2.0 * step}


def test_probes_are_found_by_name():
    assert find_probe(f"{__name__}:twice") is twice
    for name in ("emergo.papers:absent", "no_such_module:probe", "twice", ":"):
        with pytest.raises(InputError, match="give one as MODULE:NAME"):
            find_probe(name)
    with pytest.raises(InputError, match="is a str; a probe is a function"):
        find_probe("emergo:__version__")


def test_a_partial_figure_trains_nothing_and_shows_whole_cells(tmp_path, monkeypatch, trained):
    smoke = {name: study.replace(seeds=2) for name, study in FIG15.presets["smoke"].items()}
    figure = dataclasses.replace(FIG15, presets={**FIG15.presets, "smoke": smoke})
    studies = figure.wanted("smoke", RunSource())
    adam = studies["adam"].runs
    losses = [CURVES | {"loss": np.array([0.5, 0.5, 0.05 / run.config.task.spec.outputs])} for run in adam]
    results = [Result.measured(run, curves, None, "elsewhere") for run, curves in zip(adam, losses, strict=True)]
    monkeypatch.setattr("emergo.papers._figure.read_records", lambda: Records(*record_tables(results[:-1])))
    report = run_figure(figure, "smoke", tmp_path, partial=True)
    every = len(adam) + len(studies["sgd"].runs)
    assert report["partial"] == f"{len(adam) - 2} of {every} runs: cells that lack a seed are left out"
    assert [law["name"] for law in report["laws"]] == ["adam"]
    assert report["laws"][0]["runs"] == len(adam) - 2
    assert report["checks"] == [], "they compare with SGD"
    monkeypatch.setattr("emergo.papers._figure.read_records", lambda: Records(pd.DataFrame()))
    with pytest.raises(InputError, match=rf"none of the 8 cells has all of its seeds yet \(0 of {every} runs are there\)"):
        run_figure(figure, "smoke", tmp_path, partial=True)
    assert trained == []
