"""Scalars from event files of TensorBoard.

The protocol buffers are decoded here, within bounds, so that neither TensorBoard nor its schema has
to be installed. The field numbers come from event.proto, summary.proto and tensor.proto.
"""

import os
import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..core.errors import InputError
from ..core.parquet import check_size
from ..core.tables import naming_file
from ._records import Cells, Records
from ._tfrecord import read_records

MOST_FILES = 10_000  # files and folders that are searched
_TYPES = {
    1: "<f4",
    2: "<f8",
    3: "<i4",
    4: "u1",
    5: "<i2",
    6: "i1",
    9: "<i8",
    19: "<f2",
    22: "<u4",
    23: "<u8",
}
_PACKED = {5: "<f4", 6: "<f8"}  # fields of a tensor that hold packed numbers


def is_event_file(path: Path) -> bool:
    """Return True for the names of event files: events.out.tfevents.<time>.<host>..."""
    return ".tfevents." in path.name


def event_files(folder: Path) -> dict[str, list[Path]]:
    """Find event files by subfolder, ordered by the time at which they were started.

    A run that was continued has several files.
    """
    runs: dict[str, list[Path]] = {}
    seen = 0
    for inner, folders, files in os.walk(folder):
        folders.sort()
        seen += len(files) + len(folders)
        if seen > MOST_FILES:
            raise InputError(
                f"{folder}: a folder of over {MOST_FILES:,} files; give the folders of single runs"
            )
        events = [path for path in map(Path(inner).joinpath, files) if is_event_file(path)]
        if events:
            name = os.path.relpath(inner, folder)
            runs["" if name == "." else name] = sorted(events, key=_start_time)
    return runs


def _start_time(path: Path) -> tuple[int, str]:
    time = re.search(r"\.tfevents\.(\d{1,18})", path.name)
    return int(time[1]) if time else 0, path.name


def event_records(files: Sequence[Path], name: str | None) -> Records:
    """Read all scalars of a run from its event files."""
    tags: dict[bytes, int] = {}
    steps = array("d")
    codes = array("q")
    values = array("d")
    for path in files:
        with naming_file(path, "event"):
            for event in read_records(path):
                for step, tag, value in _scalars(event):
                    steps.append(step)
                    codes.append(tags.setdefault(tag, len(tags)))
                    values.append(value)
                check_size(len(steps), 3, 0)
    code = np.array(codes)
    value = np.array(values)
    order = np.argsort(code, kind="stable")
    parts = np.split(order, np.searchsorted(code[order], np.arange(1, len(tags))))
    cells = {
        tag.decode("utf-8", "replace"): Cells(rows, value[rows])
        for tag, rows in zip(tags, parts, strict=False)
    }
    return Records(name, np.array(steps), cells, {}, folder=files[0].parent)


def _scalars(event: bytes) -> Iterator[tuple[int, bytes, float]]:
    """Yield step, tag and value of each scalar of an `Event`."""
    step = 0
    summaries = []
    for number, value in _fields(event):
        if number == 2 and isinstance(value, int):
            step = value - 2**64 if value >= 2**63 else value
        elif number == 5:
            summaries.append(value)
    for summary in summaries:
        for entry in _messages(summary, 1):
            tag = b"".join([*_messages(entry, 1)][-1:])
            scalar = None
            for number, value in _fields(entry):
                if number == 2 and isinstance(value, bytes) and len(value) == 4:
                    scalar = struct.unpack("<f", value)[0]
                elif number == 8 and isinstance(value, bytes):
                    scalar = _tensor(value)
            if tag and scalar is not None:
                yield step, tag, scalar


def _tensor(data: bytes) -> float | None:
    """Return the number in a `TensorProto` with one element; None for any other tensor."""
    kind = None
    found = None
    for number, value in _fields(data):
        if isinstance(value, int):
            kind = _TYPES.get(value) if number == 1 else kind
        elif number == 2:  # the shape: dimensions, each with its size
            for dimension in _messages(value, 2):
                if any(key == 1 and size != 1 for key, size in _fields(dimension)):
                    return None
        else:
            packed = kind if number == 4 else _PACKED.get(number)
            if packed is not None and len(value) == np.dtype(packed).itemsize:
                found = float(np.frombuffer(value, packed)[0])
    return found


def _messages(data: int | bytes, wanted: int) -> Iterator[bytes]:
    """Yield the fields with one number that hold bytes, such as inner messages."""
    if isinstance(data, bytes):
        for number, value in _fields(data):
            if number == wanted and isinstance(value, bytes):
                yield value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protocol buffer.

    A field starts with a varint: its number, and in the lowest three bits its wire type. Type 0 is
    a varint, types 1 and 5 are 8 and 4 bytes, and type 2 is a length with so many bytes.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(wire)
        if wire == 2:
            size, at = _varint(data, at)
        if size is None or size > len(data) - at:
            raise ValueError("an event is not a protocol buffer")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode an integer, stored as groups of 7 bits; return it and the position after it."""
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            return value, at + i + 1
    raise ValueError("an event is not a protocol buffer")
