"""What reading a long log takes: made-up logs of one run in every format, each measured by `emergo
measure` as a command.

    python benchmarks/logs.py [ROWS] [FORMAT ...]        by default 5000000 and all of csv, csv.gz,
    parquet, jsonl, tfevents

Prints rows, the size of the file, seconds of CPU time (all cores, start of Python included) and the
most memory that the command had; the first line is that of a log of one thousand rows. Rows have a
step, a loss, an accuracy and a norm; an event file has one scalar per row, of three tags in turn.
"""

import gzip
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from emergo.logs._tfrecord import masked_crc32c

FORMATS = ("csv", "csv.gz", "parquet", "jsonl", "tfevents")
_CHUNK = 100_000


def table(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    steps = np.arange(rows)
    loss = 1 / (1 + np.exp((steps - 0.6 * rows) / (0.02 * rows)))
    names = {"accuracy": 1 - loss, "norm": rng.random(rows)}
    return pd.DataFrame({"step": steps, "loss": loss + 0.01 * rng.random(rows)} | names)


def write_events(frame: pd.DataFrame, path: Path) -> None:
    """Records as TensorBoard's writers make them, a hundred thousand at a time."""
    tags = ("loss", "accuracy", "norm")
    values = frame.to_numpy()
    with path.open("wb") as file:
        for first in range(0, len(frame), _CHUNK):
            rows = range(first, min(first + _CHUNK, len(frame)))
            events = [_event(row, tags[row % 3], values[row, 1 + row % 3]) for row in rows]
            lengths = [struct.pack("<Q", len(event)) for event in events]
            checks = [_checks(lengths), _checks(events)]
            file.writelines(
                b"".join(parts) for parts in zip(lengths, checks[0], events, checks[1], strict=True)
            )


def _event(step: int, tag: str, value: float) -> bytes:
    entry = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(entry)]) + entry
    return (
        b"\x09"
        + struct.pack("<d", 1.7e9)
        + b"\x10"
        + _varint(step)
        + b"\x2a"
        + bytes([len(summary)])
        + summary
    )


def _varint(value: int) -> bytes:
    digits = [value >> shift & 127 for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes(digit | 128 for digit in digits[:-1]) + bytes(digits[-1:])


def _checks(parts: list[bytes]) -> list[bytes]:
    """The checksum of each."""
    checks = [b""] * len(parts)
    lengths = np.array([len(part) for part in parts])
    for length in np.unique(lengths):
        own = np.flatnonzero(lengths == length)
        data = np.frombuffer(b"".join(parts[i] for i in own), np.uint8).reshape(len(own), length)
        for i, crc in zip(own, masked_crc32c(data), strict=True):
            checks[i] = struct.pack("<I", crc)
    return checks


def write(frame: pd.DataFrame, path: Path) -> None:
    if path.name.endswith(".tfevents.0"):
        return write_events(frame, path)
    if path.suffix == ".parquet":
        return frame.to_parquet(path, index=False)
    with gzip.open(path, "wb", 1) if path.suffix == ".gz" else path.open("wb") as file:
        for first in range(0, len(frame), _CHUNK):
            part = frame[first : first + _CHUNK]
            if path.suffix == ".jsonl":
                file.write(part.to_json(orient="records", lines=True).encode())
            else:
                file.write(part.to_csv(index=False, header=first == 0).encode())


def measured(path: Path) -> tuple[float, float]:
    """CPU seconds and megabytes of `emergo measure`."""
    command = [
        sys.executable,
        "-m",
        "emergo",
        "measure",
        str(path),
        "--metric",
        "loss",
        "--below",
        "0.5",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, status
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main(rows: int, formats: list[str]) -> None:
    print("format          rows   file      CPU   memory")
    with tempfile.TemporaryDirectory(prefix="emergo-logs-") as folder:
        for kind, count in [("csv", 1000), *((kind, rows) for kind in formats)]:
            path = Path(folder, "events.out.tfevents.0" if kind == "tfevents" else f"log.{kind}")
            write(table(count), path)
            seconds, memory = measured(path)
            print(
                f"{kind:10} {count:>9,} {path.stat().st_size / 1e6:4.0f} MB {seconds:6.1f} s "
                f"{memory:5.0f} MB",
                flush=True,
            )
            path.unlink()


if __name__ == "__main__":
    words = sys.argv[1:]
    count = int(words.pop(0)) if words and words[0].isdigit() else 5_000_000
    main(count, words or list(FORMATS))
