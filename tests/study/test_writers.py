"""Export of runs to other viewers."""

import logging
import struct
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from emergo.core.errors import InputError
from emergo.store import StudyFolder, curve_frame
from emergo.study import RunLog, Runs
from emergo.training import Progress

from .crowd import made_up, study

STUDY = study(1, 2)
RESULT = made_up(STUDY.runs[1])


def curves_of(result):
    assert result.curves is not None
    return dict(result.curves)


def events(folder):
    """Return the scalars in the only event file of a folder, by tag and step."""
    from tensorboardX.proto import event_pb2

    (file,) = folder.glob("events*")
    data = file.read_bytes()
    values: dict[str, dict[int, float]] = {}
    while data:  # size, checksum of the size, event, checksum of the event
        (size,) = struct.unpack_from("<Q", data)
        event = vars(event_pb2)["Event"].FromString(data[12 : 12 + size])
        for value in event.summary.value:
            assert event.step not in values.setdefault(value.tag, {})
            values[value.tag][event.step] = value.simple_value
        data = data[16 + size :]
    return values


def progress(result, rows):
    """Return the progress of a run after some evaluations."""
    curves = {name: values[:rows] for name, values in result.curves.items()}
    return Progress(1, 0, 0, [(result.run, 0, 0.0)], 0, 0.0, None, 0, lambda run: curves)


def check_events(folder, result, caplog):
    curves = curve_frame(result.curves)
    values = events(folder)
    for name in curves.columns.drop("step"):
        own = curves[["step", name]].dropna()
        assert values[name] == pytest.approx(dict(zip(own["step"], own[name], strict=True)))
    assert values["plateau"] == pytest.approx({result.steps: result.plateau.time})
    assert not caplog.records


def test_an_unknown_viewer_is_named(tmp_path):
    words = r"unknown writer 'tensorbord'; did you mean tensorboard\?"
    with pytest.raises(InputError, match=words):
        RunLog("tensorbord", StudyFolder(tmp_path), "study")
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_gets_every_curve_once_and_warns_of_nothing(tmp_path, caplog):
    """During training, after an interruption, and for a finished run."""
    pytest.importorskip("tensorboardX")
    caplog.set_level(logging.WARNING)
    curves = curves_of(RESULT)
    curves["train_loss"] = np.array([np.nan, *curves["train_loss"][1:]])
    result = RESULT._replace(curves=curves)
    place = tmp_path / "tensorboard" / result.run.identity
    log = RunLog("tensorboard", StudyFolder(tmp_path), "study")
    log.training(progress(result, 1))
    log.training(progress(result, 3))
    log.close()
    assert list(events(place)["loss"]) == curves["step"][:3].tolist()
    log = RunLog("tensorboard", StudyFolder(tmp_path), "study")
    log.training(progress(result, 4))
    log.training(progress(result, 4))
    log.ended(result)
    log.close()
    check_events(place, result, caplog)


def test_runs_are_logged_afterwards(tmp_path, caplog):
    pytest.importorskip("tensorboardX")
    results = [made_up(run) for run in STUDY.runs]
    runs = Runs(results)
    with pytest.raises(InputError, match=r"in no folder; give one: log\('tensorboard', folder\)"):
        runs.log("tensorboard")
    with pytest.raises(InputError, match="read without their curves"):
        Runs([RESULT._replace(curves=None)]).log("tensorboard", tmp_path)
    for _ in range(2):
        runs.log("tensorboard", tmp_path)
    for result in results:
        check_events(tmp_path / "tensorboard" / result.run.identity, result, caplog)


def test_links_in_a_folder_of_events_are_moved_aside(tmp_path):
    """Earlier events of a run are removed, and a link could lead to those of another study."""
    pytest.importorskip("tensorboardX")
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "events.out.tfevents.1").write_text("mine")
    place = tmp_path / "study" / "tensorboard"
    place.mkdir(parents=True)
    (place / "exported").symlink_to(victim)
    (place / RESULT.run.identity).symlink_to(victim)
    log = RunLog("tensorboard", StudyFolder(tmp_path / "study"), "study")
    log.training(progress(RESULT, 2))
    log.ended(RESULT)
    assert [path.name for path in victim.iterdir()] == ["events.out.tfevents.1"]
    assert len(list((place / RESULT.run.identity).glob("events*"))) == 1
    (place / "exported" / RESULT.run.identity).unlink()
    (place / "exported" / RESULT.run.identity).symlink_to(victim / "new")
    RunLog("tensorboard", StudyFolder(tmp_path / "study"), "study").ended(RESULT)
    assert not (victim / "new").exists()


class FakeWandB:
    """Weights & Biases as documented: with `create_new`, several runs are open at once."""

    def __init__(self):
        self.runs = {}

    def init(self, *, id, name, reinit, **given):
        assert reinit == "create_new"
        assert name == id
        run = SimpleNamespace(given=given, rows=[], summary={}, open=True)

        def log(values, step):
            assert run.open
            assert all(map(np.isfinite, values.values()))
            assert not run.rows or step > run.rows[-1][0], "W&B drops earlier steps"
            run.rows.append((step, values))

        run.log = log
        run.finish = lambda: setattr(run, "open", False)
        self.runs[id] = run
        return run


def test_runs_of_a_process_are_separate_runs_of_a_group(tmp_path, monkeypatch):
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    results = [made_up(run) for run in STUDY.runs]
    log = RunLog("wandb", StudyFolder(tmp_path), "mine")
    for result in results:  # all are open at once
        log.training(progress(result, 2))
    assert all(run.open for run in fake.runs.values())
    for result in results:
        log.ended(result)
    assert len(fake.runs) == len(results) == 2
    for result in results:
        run = fake.runs[result.run.identity]
        assert run.given["group"] == "mine"
        assert run.given["config"]["seed"] == result.run.seed
        assert run.given["config"]["dim"] == result.run.config.columns()["dim"]
        assert [step for step, _ in run.rows] == curves_of(result)["step"].tolist()
        assert run.summary["state"] == result.state
        assert not run.open


def test_weights_and_biases_keeps_several_open_runs_offline(tmp_path, monkeypatch):
    """With the real package, where it is installed (extra `log`)."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    results = [made_up(run) for run in STUDY.runs]
    log = RunLog("wandb", StudyFolder(tmp_path), "my-group")
    for result in results:
        log.training(progress(result, 2))
    for result in results:
        log.ended(result)
    for result in results:
        (file,) = tmp_path.glob(f"wandb/offline-run-*-{result.run.identity}/*.wandb")
        content = file.read_bytes()
        assert result.curves is not None
        assert b"my-group" in content
        assert content.count(b"train_loss") >= len(result.curves["step"]), "a row per evaluation"


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_package_is_named(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"needs {package}: pip install"):
        RunLog(name, StudyFolder(tmp_path), "study")


def test_a_finished_folder_is_exported(tmp_path):
    """With `log`, `run` also writes the runs that it finds finished, once."""
    pytest.importorskip("tensorboardX")
    with pytest.raises(InputError, match="log='tensorboard' needs a folder"):
        STUDY.run(log="tensorboard")
    small = study(1, 2, steps=25, batch=4, n_test=4)
    runs = small.run(tmp_path)
    assert not (tmp_path / "tensorboard").exists()
    small.run(tmp_path, log="tensorboard")
    files = {}
    for result in runs:
        place = tmp_path / "tensorboard" / result.run.identity
        assert list(events(place)["loss"]) == [0, 25]
        files |= {file: file.stat().st_mtime_ns for file in place.iterdir()}
    small.grown({}, seeds=3).run(tmp_path, log="tensorboard")  # the third is logged as it trains
    assert len(list((tmp_path / "tensorboard").glob("*/events*"))) == 3
    assert {file: file.stat().st_mtime_ns for file in files} == files
