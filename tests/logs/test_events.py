"""Test event files of tensorboardX and PyTorch."""

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboardX import SummaryWriter
from tensorboardX.crc32c import crc32c as reference_crc32c

from emergo.core.errors import InputError
from emergo.logs import _tfrecord, read_logs
from emergo.logs._events import _fields
from emergo.logs._tfrecord import crc32c, masked_crc32c


def frame(*records):
    """Return records in TensorBoard's format."""
    framed = b""
    for record in records:
        for part in (struct.pack("<Q", len(record)), record):
            framed += part + struct.pack(
                "<I", masked_crc32c(np.frombuffer(part, np.uint8)[None])[0]
            )
    return framed


def event(step, value, tag=b"loss"):
    """Return an `Event` with one scalar."""
    entry = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", value)
    return bytes([16, step]) + bytes([0x2A, len(entry) + 2, 0x0A, len(entry)]) + entry


def curve(path, metric="loss"):
    (run,) = read_logs([path], metrics=[metric])
    return dict(zip(run.curve(metric).index.tolist(), run.curve(metric).tolist(), strict=True))


@given(st.binary(max_size=50))
def test_the_checksum_equals_the_reference(data):
    assert crc32c(np.frombuffer(data, np.uint8)[None]).tolist() == [reference_crc32c(data)]


def test_the_checksum_of_long_records():
    """The checksum processes 1024 bytes at a time."""
    data = np.random.default_rng(0).integers(0, 256, (2, 2050), np.uint8)
    for length in (1023, 1024, 1025, 1027, 1028, 2050):
        assert crc32c(data[:, :length]).tolist() == [
            reference_crc32c(bytes(row[:length])) for row in data
        ]


@pytest.fixture
def written(tmp_path):
    """A folder with a run of tensorboardX, which also holds other kinds of events."""
    with SummaryWriter(str(tmp_path / "tb" / "d4_s0"), write_to_disk=True) as writer:
        for step in range(0, 300, 10):
            writer.add_scalar("train/loss", 1 / (1 + step), step)
            if step % 100 == 0:
                writer.add_scalar("eval/loss", 2.0, step)
        writer.add_histogram("weights", np.arange(1000.0), 3)
        writer.add_text("note", "text", 3)
        writer.add_scalars("both", {"a": 1.0}, 3)
    return tmp_path / "tb"


def test_scalars_of_tensorboardx(written):
    runs = {run.name: run for run in read_logs([written])}
    assert set(runs) == {"tb/d4_s0", "tb/d4_s0/both/a"}
    run = runs["tb/d4_s0"]
    assert run.metrics == ["train/loss", "eval/loss"]
    steps = np.arange(0, 300, 10)
    np.testing.assert_array_equal(run.curve("train/loss"), (1 / (1 + steps)).astype(np.float32))
    assert run.curve("eval/loss").index.tolist() == [0, 100, 200]
    assert run.curves.index.tolist() == steps.tolist()
    (asked,) = read_logs([written], metrics=["train/loss"])  # other folders do not have it
    assert asked.name == "tb/d4_s0"
    (file,) = (written / "d4_s0").glob("events*")
    assert [run.name for run in read_logs([file])] == ["d4_s0"]


@pytest.mark.slow
def test_scalars_of_pytorch(tmp_path):
    """Scalars of old and new style, with 32 and 64 bits."""
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        for step in (0, 5, 2**40):
            writer.add_scalar("old", 0.1, step)
            writer.add_scalar("new", 0.1, step, new_style=True)
            writer.add_scalar("double", 0.1, step, new_style=True, double_precision=True)
            writer.add_image("image", np.zeros((3, 8, 8), np.uint8), step)
            writer.add_pr_curve("curve", np.array([0, 1]), np.array([0.1, 0.9]), step)
    (run,) = read_logs([tmp_path])
    assert run.metrics == ["old", "new", "double"]
    assert run.curves.index.tolist() == [0, 5, 2**40]
    assert run.curve("old").tolist() == run.curve("new").tolist() == [float(np.float32(0.1))] * 3
    assert run.curve("double").tolist() == [0.1] * 3


def test_a_run_in_several_files(tmp_path):
    """Files are sorted by numeric time: 9 is before 10."""
    (tmp_path / "events.out.tfevents.9.a").write_bytes(
        frame(*(event(step, 1.0) for step in range(8)))
    )
    (tmp_path / "events.out.tfevents.10.a").write_bytes(
        frame(*(event(step, 2.0) for step in range(5, 7)))
    )
    assert curve(tmp_path) == dict.fromkeys(range(5), 1.0) | {5: 2.0, 6: 2.0}
    (tmp_path / "events.out.tfevents.11.a").write_bytes(
        frame(*(event(step, 3.0) for step in range(3)))
    )
    with pytest.raises(InputError, match="after step 6 steps begin again at 0: more than one run"):
        curve(tmp_path)


def test_an_incomplete_last_record_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(_tfrecord, "_BLOCK", 64)  # so that records lie across blocks
    path = tmp_path / "events.out.tfevents.1.a"
    whole = frame(*(event(step, 1.0) for step in range(9)))
    size = len(whole) // 9
    for end in range(size, len(whole) + 1):
        path.write_bytes(whole[:end])
        assert len(curve(path)) == end // size
    path.write_bytes(whole[:-10] + b"\0" * 10)  # its bytes are not all on the disk
    assert len(curve(path)) == 8


@pytest.mark.parametrize("block", [64, 2**20])
def test_damage_in_the_middle_is_an_error_with_its_position(tmp_path, monkeypatch, block):
    monkeypatch.setattr(_tfrecord, "_BLOCK", block)
    path = tmp_path / "events.out.tfevents.1.a"
    whole = frame(*(event(step, 1.0) for step in range(9)))
    size = len(whole) // 9
    for at in range(4 * size, 5 * size):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        with pytest.raises(
            InputError, match=r"events\.out\.tfevents\.1\.a: .*damaged at byte (\d+): the checksum"
        ) as caught:
            curve(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "have no scalars"),
        (b"text that is no event file", "damaged at byte 0"),
        (frame(b"\xff\xff\xff"), "not a protocol buffer"),
        (frame(b"\x2a\x7fshort"), "not a protocol buffer"),
        (frame(b"\x2a\x02\x0a\x7f"), "not a protocol buffer"),
        (frame(b"\x07"), "not a protocol buffer"),
        (frame(event(1, 1.0, b"los")), "unknown scalar 'loss'; did you mean los"),
        (
            struct.pack("<Q", 2**40) + frame(struct.pack("<Q", 2**40))[20:24] + b"x",
            "a record of 1,099,511,627,776 bytes",
        ),
    ],
)
def test_files_that_hold_no_curve_are_named(tmp_path, content, message):
    path = tmp_path / "events.out.tfevents.1.a"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        curve(path)
    assert path.name in str(caught.value)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_protocol_buffer_end_with_one_error(data):
    sizes = []
    with contextlib.suppress(ValueError):
        sizes.extend(len(value) if isinstance(value, bytes) else 1 for _, value in _fields(data))
    assert sum(sizes) <= len(data)


def test_a_folder_of_too_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr("emergo.logs._events.MOST_FILES", 3)
    for name in range(4):
        (tmp_path / f"{name}").touch()
    with pytest.raises(InputError, match="over 3 files"):
        curve(tmp_path)
