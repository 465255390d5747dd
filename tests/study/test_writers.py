"""Export of runs to other viewers."""

import struct
import sys

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


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_package_is_named(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"needs {package}: pip install"):
        find_writer(name, StudyFolder(tmp_path))
