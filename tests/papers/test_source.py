"""The source of a figure's runs: records, a folder, or training."""

import dataclasses
import signal

import numpy as np
import pandas as pd
import pytest

from emergo.core.errors import InputError
from emergo.models import Transformer
from emergo.papers import FIGURES, RunSource, find_probe, make_figure, seconds_needed, source_for
from emergo.papers._source import curve
from emergo.store import Records, Store, StudyFolder
from emergo.study import Study, Watcher
from emergo.study.results import record_tables, write_result
from emergo.tasks import SingleLocation
from emergo.training import Result

FIG12 = FIGURES["zucchet2025/fig12"]
FIG15 = FIGURES["zucchet2025/fig15"]
CURVES = {
    "step": np.array([0, 25, 50]),
    "loss": np.array([0.5, 0.45, 0.05]),
    "train_loss": np.array([np.nan, 0.5, 0.3]),
    "alignment": np.array([0.0, 0.5, 0.9]),
    "attention": np.full((3, 2, 2), 0.5),
    "entropy": np.full((3, 2, 2), 1.0),
}


def made(runs, where="elsewhere", curves=CURVES):
    return [Result.measured(run, curves, None, where) for run in runs]


def records_of(results, curves=True):
    kept = [result if curves else result._replace(curves=None) for result in results]
    return Records(*record_tables(kept))


def store_runs(folder, results):
    place = StudyFolder(folder)
    place.prepare()
    for result in results:
        write_result(Store(place.runs), result)


def test_a_figure_combines_records_and_stored_runs(tmp_path):
    first, *others = FIG12.runs("smoke")
    store_runs(tmp_path, made(others, "here"))
    source = RunSource(folder=tmp_path, records=records_of(made([first])))
    report = make_figure(FIG12, "smoke", source).report
    assert report["provenance"]["device"] == f"1 runs on elsewhere, {len(others)} runs on here"
    fresh = RunSource(folder=tmp_path)
    assert fresh.missing([first, *others], curves=True) == [first]


def test_records_without_curves_suffice_for_outcomes_only():
    runs = FIG15.runs("smoke")
    source = RunSource(records=records_of(made(runs), curves=False))
    assert seconds_needed(FIG15, "smoke", source) == 0
    parts = source.runs(FIG15.wanted("smoke", source))
    assert sum(len(part) for part in parts.values()) == len(runs)
    with pytest.raises(InputError, match="is there without its curves"):
        curve(parts["sgd"][0], "loss")
    assert source.missing(runs, curves=True) == runs


def test_runs_recorded_without_curves_are_trained_again_for_them(tmp_path):
    """Their recorded outcomes stay."""
    studies = FIG12.studies("smoke")
    runs = FIG12.runs("smoke")
    early = made(runs, curves=CURVES | {"loss": np.array([0.5, 0.05, 0.01])})
    source = RunSource(folder=tmp_path, records=records_of(early, curves=False))
    assert FIG12.missing(studies, source) == runs
    store_runs(tmp_path, made(runs, "here"))
    results = source.runs(studies, curves=True)["runs"]
    assert {result.plateau.time for result in results} == {early[0].plateau.time}
    assert curve(results[0], "loss").tolist() == CURVES["loss"].tolist()
    assert results[0].provenance["curves_device"] == "here"


class Late(Watcher):
    """Interrupts when the longer runs have reached a step, and keeps their steps."""

    def __init__(self, until):
        super().__init__()
        self.steps = []
        self.until = until

    def training(self, now):
        self.steps += [step for run, step, _ in now.running if run.config.steps == 400][:1]
        if self.steps and self.steps[-1] >= self.until:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("probed", [False, True], ids=["plain", "with a probe"])
def test_interrupted_training_resumes_from_its_checkpoint(tmp_path, probed):
    """Although other runs of the same unit have finished and are no longer missing."""
    model = Transformer(layers=1, heads=1, width=4, mlp=False)
    few = {"batch": 8, "n_test": 16, "precision": "fp32"}
    study = Study(
        SingleLocation(4, 2), model, grid={"steps": [50, 400]}, seeds=2, threshold=None, **few
    )
    before = Late(100)
    after = Late(1000)
    first, second = (
        RunSource("figure", seen, tmp_path, probes=(twice,) * probed) for seen in (before, after)
    )
    with pytest.raises(KeyboardInterrupt):
        first.runs({"all": study})
    assert len(first.missing(study.runs)) == 2
    assert len(second.runs({"all": study})["all"]) == 4
    assert after.steps[0] > before.steps[-1] >= 100
    assert len(list((tmp_path / "studies").iterdir())) == 1
    assert not any((tmp_path / "checkpoints").iterdir())


def test_a_partial_figure_shows_complete_cells_and_trains_nothing():
    smoke = {name: study.replace(seeds=2) for name, study in FIG15.presets["smoke"].items()}
    figure = dataclasses.replace(FIG15, presets={**FIG15.presets, "smoke": smoke})
    runs = figure.runs("smoke")
    adam = smoke["adam"].runs
    results = []
    for run in adam:
        loss = np.array([0.5, 0.5, 0.05 / run.config.task.spec.outputs])
        results += made([run], curves=CURVES | {"loss": loss})
    source = RunSource(records=records_of(results[:-1]), partial=True)
    report = make_figure(figure, "smoke", source).report
    shown = len(adam) - 2
    assert report["partial"] == f"{shown} of {len(runs)} runs: cells that lack a seed are left out"
    assert [law["name"] for law in report["laws"]] == ["adam"]
    assert report["laws"][0]["runs"] == shown
    assert report["checks"] == [], "they compare Adam with SGD"
    empty = RunSource(records=Records(pd.DataFrame()), partial=True)
    words = rf"none of the 8 cells has all of its seeds yet \(0 of {len(runs)} runs are there\)"
    with pytest.raises(InputError, match=words):
        make_figure(figure, "smoke", empty)


def twice(params, output, batch, truth, step):
    """Return twice the step, as a probe."""
    return {"twice": 2.0 * step}


def test_a_part_is_trained_again_for_its_curves_and_probes(tmp_path):
    """The recorded outcomes stay."""
    studies = FIG15.studies("smoke")
    adam = studies["adam"].runs
    early = made(FIG15.runs("smoke"), curves=CURVES | {"loss": np.array([0.5, 0.05, 0.01])})
    source = RunSource(
        folder=tmp_path,
        records=records_of(early, curves=False),
        with_curves=frozenset(run.identity for run in adam),
        probes=(twice,),
    )
    assert {run.identity for run in FIG15.missing(studies, source)} == {
        run.identity for run in adam
    }
    assert all(run.config.probes == (twice,) for run in source.to_plan(adam))
    store_runs(tmp_path, made(adam, "here"))
    parts = source.runs(studies)
    times = {result.plateau.time for part in parts.values() for result in part}
    assert times == {early[0].plateau.time}
    assert curve(parts["adam"][0], "loss").tolist() == CURVES["loss"].tolist()
    assert parts["adam"][0].provenance["curves_device"] == "here"


def test_curves_are_asked_for_by_part(tmp_path):
    adam = source_for(FIG15, tmp_path, curves=["adam"])
    assert adam.with_curves == {run.identity for run in FIG15.studies()["adam"].runs}
    every = source_for(FIG15, tmp_path, curves=[])
    assert every.with_curves == {run.identity for run in FIG15.runs()}
    with pytest.raises(InputError, match=r"unknown part of zucchet2025/fig15 'adm'.*adam"):
        source_for(FIG15, tmp_path, curves=["adm"])


def test_probes_are_found_by_name():
    assert find_probe(f"{__name__}:twice") is twice
    for name in ("emergo.papers:absent", "no_such_module:probe", "twice", ":"):
        with pytest.raises(InputError, match="give one as MODULE:NAME"):
            find_probe(name)
    with pytest.raises(InputError, match="is a str; a probe is a function"):
        find_probe("emergo:__version__")
