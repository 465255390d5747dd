"""The record format of TensorBoard's event files.

A record is its length (8 bytes), a checksum of the length, the data, and a checksum of the data.
The checksums are masked CRC-32C.
"""

import functools
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import UInt, UInt8

from ..core.files import open_regular
from ..core.parquet import MOST_BYTES

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, with reversed bits
_STRETCH = 1024  # bytes that the checksum processes at a time
_BLOCK = 2**23  # bytes of a file that are read at a time
_LONGEST = 2**28  # bytes of a record
_HEADER = struct.Struct("<QI")
_FOOTER = 4  # bytes


def read_records(path: Path) -> Iterator[bytes]:
    """Yield the data of every record of a file.

    An incomplete last record is left out, because it is being written. Any other damage is a
    `ValueError` with its position.
    """
    with open_regular(os.path.realpath(path), MOST_BYTES) as file:
        buffer = b""  # bytes that are not decoded yet
        start = 0  # of the buffer in the file
        while block := file.read(_BLOCK):
            buffer += block
            spans, end = _spans(buffer, start)
            bad = _first_damaged(buffer, spans)
            if bad is not None:
                if end < len(buffer) or bad < len(spans) - 1 or file.peek(1):
                    raise ValueError(
                        f"damaged at byte {start + spans[bad][0]:,}: the checksum of a record "
                        f"does not fit"
                    )
                spans = spans[:bad]  # the last record of the file is not completely on the disk
            for at, size in spans:
                yield buffer[at : at + size]
            buffer = buffer[end:]
            start += end


def _spans(buffer: bytes, start: int) -> tuple[list[tuple[int, int]], int]:
    """Return position and size of the data of complete records, and the end of the last one."""
    at = 0
    size = 0
    headers = []
    spans = []
    while at + _HEADER.size <= len(buffer):
        size, _ = _HEADER.unpack_from(buffer, at)
        headers.append(at)
        if size > len(buffer) - at - _HEADER.size - _FOOTER:
            break
        spans.append((at + _HEADER.size, size))
        at += _HEADER.size + size + _FOOTER
    wrong = _mismatches(buffer, np.array(headers, np.int64), 8)
    if len(wrong):
        raise ValueError(
            f"damaged at byte {start + headers[wrong[0]]:,}: the checksum of a length does not fit"
        )
    if len(headers) > len(spans) and size > _LONGEST:
        raise ValueError(
            f"a record of {size:,} bytes at byte {start + at:,}; at most {_LONGEST:,} are read"
        )
    return spans, at


def _first_damaged(buffer: bytes, spans: list[tuple[int, int]]) -> int | None:
    """Return the number of the first record whose checksum does not fit."""
    starts, sizes = np.array(spans, np.int64).reshape(-1, 2).T
    wrong = []
    for size in np.unique(sizes):  # records of one size are checked together
        same = np.flatnonzero(sizes == size)
        wrong += same[_mismatches(buffer, starts[same], size)].tolist()
    return min(wrong, default=None)


def _mismatches(buffer: bytes, starts: np.ndarray, size: int) -> np.ndarray:
    """Return which of several stretches of bytes differ from the checksums that follow them."""
    if not len(starts):
        return starts
    rows = np.frombuffer(buffer, np.uint8)[np.add.outer(starts, np.arange(size + 4))]
    return np.flatnonzero(masked_crc32c(rows[:, :size]) != rows[:, size:].copy().view("<u4")[:, 0])


def masked_crc32c(data: UInt8[np.ndarray, "records bytes"]) -> UInt[np.ndarray, " records"]:
    """Return the checksum of each row as records store it: rotated, plus a constant."""
    crc = crc32c(data)
    return (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(0xA282EAD8)


def crc32c(data: UInt8[np.ndarray, "records bytes"]) -> UInt[np.ndarray, " records"]:
    """Return the checksum of each row.

    A CRC is linear over bits. It is the sum (xor) of the contributions of all bytes, which depend
    only on the byte and on the number of bytes after it. So a table of contributions replaces a
    loop over bytes. The state from earlier stretches acts like four more bytes, which are added to
    the first four of the next stretch.
    """
    count, length = data.shape
    state = np.full(count, 0xFFFFFFFF, np.uint32)
    for start in range(0, length, _STRETCH):
        block = data[:, start : start + _STRETCH].copy()
        size = block.shape[1]
        front = min(4, size)
        block[:, :front] ^= state.astype("<u4").view(np.uint8).reshape(count, 4)[:, :front]
        rest = state >> np.uint32(8 * size) if size < 4 else np.uint32(0)
        terms = _contributions()[np.arange(size)[::-1], block]
        state = np.bitwise_xor.reduce(terms, axis=1) ^ rest
    return state ^ np.uint32(0xFFFFFFFF)


@functools.cache
def _contributions() -> UInt[np.ndarray, "distance byte"]:
    """Tabulate the contribution of each byte by the number of bytes after it."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        odd = table & np.uint32(1)
        table = (table >> np.uint32(1)) ^ odd * np.uint32(_POLYNOMIAL)
    rows = [table]
    for _ in range(_STRETCH - 1):
        rows.append(table[rows[-1] & np.uint32(255)] ^ (rows[-1] >> np.uint32(8)))
    return np.stack(rows)
