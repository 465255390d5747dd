"""Runs for other people's viewers."""

import sys
import types

import pytest

from emergo._errors import InputError
from emergo.studies import StudyFolder, curve_frame, find_writer

from .crowd import made_up, study


def test_nothing_is_written_by_default(tmp_path):
    writer = find_writer("none", StudyFolder(tmp_path))
    writer(made_up(study().runs[0]))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match=r"unknown writer 'tensorbord'; did you mean tensorboard\?"):
        find_writer("tensorbord", StudyFolder(tmp_path))


def test_tensorboard_gets_every_curve(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto import event_pb2
    from tensorboardX.record_writer import masked_crc32c

    result = made_up(study(1, 2).runs[1])
    find_writer("tensorboard", StudyFolder(tmp_path))(result)
    (events,) = (tmp_path / "tensorboard" / result.run.identity).iterdir()
    data, at, values = events.read_bytes(), 0, {}
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        body = data[at + 12 : at + 12 + size]
        assert int.from_bytes(data[at + 12 + size : at + 16 + size], "little") == masked_crc32c(body)
        event = vars(event_pb2)["Event"].FromString(body)
        for value in event.summary.value:
            values.setdefault(value.tag, {})[event.step] = value.simple_value
        at += 16 + size
    curves = curve_frame(result.curves)
    for name in curves.columns.drop("step"):
        assert values[name] == pytest.approx(dict(zip(curves["step"], curves[name], strict=True)))
    assert values["plateau"] == pytest.approx({100: result.plateau.time})


class Tracked:
    """Stands for a run of Weights & Biases."""

    def __init__(self, options):
        self.options, self.logged, self.summary, self.finished = options, [], {}, False

    def log(self, entry, step):
        self.logged.append((step, entry))

    def finish(self):
        self.finished = True


def test_weights_and_biases_gets_every_run_offline(tmp_path, monkeypatch):
    """A stand-in for the package, which tests do not install: what it is asked to do."""
    started = []
    package = types.ModuleType("wandb")
    vars(package)["init"] = lambda **options: started.append(Tracked(options)) or started[-1]
    monkeypatch.setitem(sys.modules, "wandb", package)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    result = made_up(study(1, 2).runs[1])
    find_writer("wandb", StudyFolder(tmp_path / "mine"))(result)
    [run] = started
    assert (run.options["mode"], run.options["id"], run.options["project"]) == ("offline", result.run.identity, "mine")
    assert run.options["config"]["dim"] == 2
    assert [step for step, _ in run.logged] == [0, 25, 50, 75, 100]
    assert run.logged[-1][1]["loss"] == pytest.approx(float((result.curves or {})["loss"][-1]))
    assert run.summary == {"plateau": result.plateau.time, "state": "reached"}
    assert run.finished


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"needs {package}: pip install"):
        find_writer(name, StudyFolder(tmp_path))
