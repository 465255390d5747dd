"""JSON lines, and `trainer_state.json` of Hugging Face: entries of a log, each with what was logged then."""

import io
import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from ..._errors import InputError
from ..._files import open_regular
from ..._parquet import MOST_BYTES, check_size
from ..._tables import encoding_of, naming_file

JSON = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".json")  # suffixes
TRAINER_STATE = "trainer_state.json"
_CHUNK = 2**17  # entries that become columns at a time
_LONGEST = 2**24  # of a line, in characters
_WHOLE = 2**28  # of a file that is not one of lines, in characters
_decode = json.JSONDecoder(parse_constant=str).decode  # a literal NaN as text: null is not a number that was logged


def read_json(path: Path) -> pd.DataFrame:
    """The entries of a log as a table. The last of JSON lines may be cut off, as in a log that is being written."""
    with naming_file(path, "JSON"), open_regular(os.path.realpath(path), MOST_BYTES) as file:
        chunks, rows, names = [], 0, set()
        entries = _entries(io.TextIOWrapper(file, encoding_of(file)))
        while chunk := [_flat(entry) for entry in itertools.islice(entries, _CHUNK)]:
            rows, names = rows + len(chunk), names.union(*chunk)
            check_size(rows, len(names), 0)
            chunks.append(pd.DataFrame(chunk))
        if not chunks:
            raise InputError(f"{path}: it has no entries")
        return chunks[0] if len(chunks) == 1 else pd.concat(chunks, ignore_index=True)


def trainer_state_in(folder: Path) -> Path:
    """The last `trainer_state.json` in a folder of Hugging Face's Trainer or in its checkpoints."""
    found = [folder / TRAINER_STATE, *folder.glob(f"checkpoint-*/{TRAINER_STATE}")]
    found = [path for path in found if path.is_file()]
    if not found:
        raise InputError(f"{folder}: a folder without event files of TensorBoard or a {TRAINER_STATE}; give its files")

    def steps(path: Path) -> float:
        number = re.fullmatch(r"checkpoint-(\d{1,15})", path.parent.name)
        return float("inf") if path.parent == folder else float(number[1]) if number else -1.0

    return max(found, key=steps)


def _entries(text: io.TextIOWrapper) -> Iterator[Any]:
    """The entries of JSON lines, of a list, or of the `log_history` of a trainer's state."""
    first = text.readline(_LONGEST)
    try:
        content = _decode(first) if first else []
    except ValueError:  # not a line that stands for itself
        content = _decode(first + text.read(_WHOLE))
        if text.read(1):
            raise ValueError(f"over {_WHOLE:,} characters that are not JSON lines") from None
        if not isinstance(content, list) and not (isinstance(content, dict) and "log_history" in content):
            raise ValueError(f"expected JSON lines, a list of entries, or a {TRAINER_STATE} with a log_history") from None
    if isinstance(content, dict) and "log_history" in content:
        content = content["log_history"]
    if isinstance(content, list):
        yield from content
    else:
        yield content
        yield from _lines(text)


def _lines(text: io.TextIOWrapper) -> Iterator[Any]:
    for number in itertools.count(2):
        line = text.readline(_LONGEST)
        if not line:
            return
        if line.isspace():
            continue
        try:
            yield _decode(line)
        except ValueError as error:
            if line.endswith("\n") or len(line) == _LONGEST:
                raise ValueError(f"line {number}: {error}") from None
            return  # it is being written


def _flat(entry: Any, prefix: str = "") -> dict[str, Any]:
    """An entry without levels: names of inner ones have a dot."""
    if not isinstance(entry, dict):
        raise ValueError(f'expected entries such as {{"step": 0, "loss": 1.0}}, got {str(entry)[:40]}')
    if not prefix and dict not in map(type, entry.values()):
        return entry
    flat: dict[str, Any] = {}
    for name, value in entry.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
