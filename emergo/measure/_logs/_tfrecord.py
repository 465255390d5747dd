"""The framing of TensorBoard's event files: records with their length, each of the two with a checksum (masked CRC-32C)."""

import functools
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import UInt, UInt8

from ..._files import open_regular
from ..._parquet import MOST_BYTES

_POLYNOMIAL, _STRETCH = 0x82F63B78, 1024  # Castagnoli's, bits reversed; bytes that a checksum takes in at a time
_BLOCK, _LONGEST = 2**23, 2**28  # bytes of a file that are read at a time; bytes of a record
_HEADER = struct.Struct("<QI")  # length and its checksum; then come the data and their checksum, four bytes more


def read_records(path: Path) -> Iterator[bytes]:
    """The data of every record of a file. A last one that is cut off is left out, since it is being written; any other damage
    is a `ValueError` with its place."""
    with open_regular(os.path.realpath(path), MOST_BYTES) as file:
        buffer, place = b"", 0  # what is not taken apart yet, and where in the file it begins
        while block := file.read(_BLOCK):
            buffer += block
            spans, end = _spans(buffer, place)
            bad = _damaged(buffer, spans)
            if bad is not None:
                if end < len(buffer) or bad < len(spans) - 1 or file.peek(1):
                    raise ValueError(f"damaged at byte {place + spans[bad][0]:,}: the checksum of a record does not fit")
                spans = spans[:bad]  # the last of all: its bytes are not all on the disk yet
            for start, size in spans:
                yield buffer[start : start + size]
            buffer, place = buffer[end:], place + end


def _spans(buffer: bytes, place: int) -> tuple[list[tuple[int, int]], int]:
    """Where the data of the whole records in a buffer begin and how long they are; and where the next record begins."""
    at, size, starts, spans = 0, 0, [], []
    while at + _HEADER.size <= len(buffer):
        size, _ = _HEADER.unpack_from(buffer, at)
        starts.append(at)
        if size > len(buffer) - at - _HEADER.size - 4:
            break
        spans.append((at + _HEADER.size, size))
        at += _HEADER.size + size + 4
    if starts:
        heads = np.frombuffer(buffer, np.uint8)[np.add.outer(starts, np.arange(_HEADER.size))]
        wrong = np.flatnonzero(masked_crc32c(heads[:, :8]) != heads[:, 8:].copy().view("<u4")[:, 0])
        if len(wrong):
            raise ValueError(f"damaged at byte {place + starts[wrong[0]]:,}: the checksum of a length does not fit")
        if len(starts) > len(spans) and size > _LONGEST:
            raise ValueError(f"a record of {size:,} bytes at byte {place + at:,}; at most {_LONGEST:,} are read")
    return spans, at


def _damaged(buffer: bytes, spans: list[tuple[int, int]]) -> int | None:
    """The number of the first record whose data do not have their checksum."""
    whole, (starts, sizes) = np.frombuffer(buffer, np.uint8), np.array(spans, np.int64).reshape(-1, 2).T
    wrong = []
    for size in np.unique(sizes):
        own = np.flatnonzero(sizes == size)
        data = whole[np.add.outer(starts[own], np.arange(size + 4))]
        wrong += own[masked_crc32c(data[:, :size]) != data[:, size:].copy().view("<u4")[:, 0]].tolist()
    return min(wrong, default=None)


def masked_crc32c(data: UInt8[np.ndarray, "records bytes"]) -> UInt[np.ndarray, " records"]:
    """The checksum of each row, as records hold it: rotated, with a constant added."""
    crc = crc32c(data)
    return (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(0xA282EAD8)


def crc32c(data: UInt8[np.ndarray, "records bytes"]) -> UInt[np.ndarray, " records"]:
    """The checksum of each row. It is linear over bits: the sum (xor) of what each byte adds by itself, given how many bytes
    follow it; what was taken in before adds like four bytes at the front."""
    count, length = data.shape
    state = np.full(count, 0xFFFFFFFF, np.uint32)
    for start in range(0, length, _STRETCH):
        block = data[:, start : start + _STRETCH].copy()
        size = block.shape[1]
        front = min(4, size)
        block[:, :front] ^= state.astype("<u4").view(np.uint8).reshape(count, 4)[:, :front]
        rest = state >> np.uint32(8 * size) if size < 4 else np.uint32(0)
        state = np.bitwise_xor.reduce(_additions()[np.arange(size)[::-1], block], axis=1) ^ rest
    return state ^ np.uint32(0xFFFFFFFF)


@functools.cache
def _additions() -> UInt[np.ndarray, "distance byte"]:
    """What a byte adds to the checksum when so many bytes follow."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & np.uint32(1), np.uint32(_POLYNOMIAL), np.uint32(0))
    rows = [table]
    for _ in range(_STRETCH - 1):
        rows.append(table[rows[-1] & np.uint32(255)] ^ (rows[-1] >> np.uint32(8)))
    return np.stack(rows)
