"""Scalars from event files of TensorBoard, whoever wrote them. Their protocol buffers are taken apart here, within bounds, so
that neither TensorBoard nor its schema has to be installed; fields have the numbers of event.proto, summary.proto and
tensor.proto."""

import os
import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..._errors import InputError
from ..._parquet import check_size
from ..._tables import naming_file
from ._records import Cells, Records
from ._tfrecord import read_records

MOST_FILES = 10_000  # that are looked at in a folder
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 19: "<f2", 22: "<u4", 23: "<u8"}
_PACKED = {5: "<f4", 6: "<f8"}  # of a tensor, fields of numbers of a fixed size


def is_event_file(path: Path) -> bool:
    """By its name: events.out.tfevents.<time>.<host>..."""
    return ".tfevents." in path.name


def event_files(folder: Path) -> dict[str, list[Path]]:
    """The event files in a folder and in those within it, by folder, in the order in which they were begun: a run that is
    continued goes on in another file."""
    runs: dict[str, list[Path]] = {}
    seen = 0
    for inner, folders, files in os.walk(folder):
        folders.sort()
        seen += len(files) + len(folders)
        if seen > MOST_FILES:
            raise InputError(f"{folder}: a folder of over {MOST_FILES:,} files; give the folders of single runs")
        events = [Path(inner, name) for name in files if is_event_file(Path(name))]
        if events:
            runs[os.path.relpath(inner, folder)] = sorted(events, key=_begun)
    return {"" if name == "." else name: files for name, files in runs.items()}


def _begun(path: Path) -> tuple[int, str]:
    time = re.search(r"\.tfevents\.(\d{1,18})", path.name)
    return int(time[1]) if time else 0, path.name


def event_records(files: Sequence[Path], name: str | None) -> Records:
    """All scalars of a run, whose events are in these files."""
    tags: dict[bytes, int] = {}
    steps, codes, values = array("d"), array("q"), array("d")
    for path in files:
        with naming_file(path, "event"):
            for event in read_records(path):
                for step, tag, value in _scalars(event):
                    steps.append(step)
                    codes.append(tags.setdefault(tag, len(tags)))
                    values.append(value)
                check_size(len(steps), 3, 0)
    code, value = np.array(codes), np.array(values)
    order = np.argsort(code, kind="stable")
    parts = np.split(order, np.searchsorted(code[order], np.arange(1, len(tags))))
    cells = {tag.decode("utf-8", "replace"): Cells(rows, value[rows]) for tag, rows in zip(tags, parts, strict=False)}
    return Records(name, np.array(steps), cells, {}, folder=files[0].parent)


def _scalars(event: bytes) -> Iterator[tuple[int, bytes, float]]:
    """Step, tag and value of each scalar of an `Event`."""
    step, summaries = 0, []
    for number, value in _fields(event):
        if number == 2 and type(value) is int:
            step = value - 2**64 if value >= 2**63 else value
        elif number == 5 and type(value) is bytes:
            summaries.append(value)
    for summary in summaries:
        for number, entry in _fields(summary):
            if number != 1 or type(entry) is not bytes:
                continue
            tag, scalar = b"", None
            for field, value in _fields(entry):
                if type(value) is not bytes:
                    continue
                if field == 1:
                    tag = value
                elif field == 2 and len(value) == 4:
                    scalar = struct.unpack("<f", value)[0]
                elif field == 8:
                    scalar = _tensor(value)
            if tag and scalar is not None:
                yield step, tag, scalar


def _tensor(data: bytes) -> float | None:
    """The number in a `TensorProto` that holds one; None for any other tensor."""
    kind, found = None, None
    for number, value in _fields(data):
        if number == 1 and type(value) is int:
            kind = _TYPES.get(value)
        elif number == 2 and type(value) is bytes:  # dimensions, each with its size
            sizes = [size for n, dim in _fields(value) if n == 2 and type(dim) is bytes for m, size in _fields(dim) if m == 1]
            if any(size != 1 for size in sizes):
                return None
        elif number == 4 and type(value) is bytes and kind is not None and len(value) == np.dtype(kind).itemsize:
            found = float(np.frombuffer(value, kind)[0])
        elif number in _PACKED and type(value) is bytes and len(value) == np.dtype(_PACKED[number]).itemsize:
            found = float(np.frombuffer(value, _PACKED[number])[0])
    return found


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a protocol buffer: an integer, or the bytes of anything else."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError("an event is not a protocol buffer")
        if size > end - at:
            raise ValueError("an event is not a protocol buffer")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for byte in data[at : at + 10]:
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("an event is not a protocol buffer")
