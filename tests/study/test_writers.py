"""Export of runs to other viewers."""

import struct
import sys
import types

import pytest

from emergo.core.errors import InputError
from emergo.store import StudyFolder, curve_frame
from emergo.study import find_writer

from .crowd import made_up, study

RESULT = made_up(study(1, 2).runs[1])


def test_nothing_is_written_by_default(tmp_path):
    find_writer("none", StudyFolder(tmp_path))(RESULT)
    assert list(tmp_path.iterdir()) == []
    words = r"unknown writer 'tensorbord'; did you mean tensorboard\?"
    with pytest.raises(InputError, match=words):
        find_writer("tensorbord", StudyFolder(tmp_path))


def test_tensorboard_gets_every_curve(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto import event_pb2

    find_writer("tensorboard", StudyFolder(tmp_path))(RESULT)
    (events,) = (tmp_path / "tensorboard" / RESULT.run.identity).iterdir()
    data = events.read_bytes()
    values = {}
    while data:  # size, checksum of the size, event, checksum of the event
        (size,) = struct.unpack_from("<Q", data)
        event = vars(event_pb2)["Event"].FromString(data[12 : 12 + size])
        for value in event.summary.value:
            values.setdefault(value.tag, {})[event.step] = value.simple_value
        data = data[16 + size :]
    curves = curve_frame(RESULT.curves)
    for name in curves.columns.drop("step"):
        assert values[name] == pytest.approx(dict(zip(curves["step"], curves[name], strict=True)))
    assert values["plateau"] == pytest.approx({100: RESULT.plateau.time})


class Tracked:
    """A replacement for a run of Weights & Biases."""

    def __init__(self, options):
        self.options = options
        self.logged = {}
        self.summary = {}
        self.finished = False

    def log(self, entry, step):
        self.logged[step] = entry

    def finish(self):
        self.finished = True


def test_weights_and_biases_gets_every_run_offline(tmp_path, monkeypatch):
    """The package is replaced, because tests do not install it."""
    started = []
    package = types.ModuleType("wandb")
    vars(package)["init"] = lambda **options: started.append(Tracked(options)) or started[-1]
    monkeypatch.setitem(sys.modules, "wandb", package)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    find_writer("wandb", StudyFolder(tmp_path / "mine"))(RESULT)
    [run] = started
    expected = {"mode": "offline", "id": RESULT.run.identity, "project": "mine"}
    assert expected.items() <= run.options.items()
    assert run.options["config"]["dim"] == 2
    assert list(run.logged) == [0, 25, 50, 75, 100]
    assert run.logged[100]["loss"] == pytest.approx(float((RESULT.curves or {})["loss"][-1]))
    assert run.summary == {"plateau": RESULT.plateau.time, "state": "reached"}
    assert run.finished


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_package_is_named(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"needs {package}: pip install"):
        find_writer(name, StudyFolder(tmp_path))
