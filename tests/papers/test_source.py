"""Where the runs of a figure come from: recorded, kept or trained, whole cells of a part, and never without curves."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from emergo._errors import InputError
from emergo.engine import Result
from emergo.papers import FIGURES, RunSource, run_figure, seconds_needed
from emergo.papers._source import curve
from emergo.studies import Records, record_tables

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
