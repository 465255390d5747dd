"""Tables from JSON lines, and from `trainer_state.json` of Hugging Face."""

import io
import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from ..core.errors import InputError
from ..core.files import open_regular
from ..core.parquet import MOST_BYTES, check_size
from ..core.tables import encoding_of, naming_file

JSON = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".json")  # suffixes
TRAINER_STATE = "trainer_state.json"


class RepeatedName(Exception):
    """An object has a name twice. Not a `ValueError`, which is an incomplete line."""


_CHUNK = 2**17  # most entries that become a table at a time
_CELLS = 2**21  # cells from which no further entry becomes part of it
_LONGEST_LINE = 2**24  # characters
_LONGEST_FILE = 2**28  # characters of a file that is not JSON lines
# A literal NaN is kept as text, because null means that a number was not logged.


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; raise `ValueError` if it has a name twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise RepeatedName(f"an entry has the name '{name}' twice")
    return content


_decode = json.JSONDecoder(parse_constant=str, object_pairs_hook=_once).decode


def read_json(path: Path) -> pd.DataFrame:
    """Read the entries of a log; an incomplete last line is left out, as in a growing log."""
    with naming_file(path, "JSON"), open_regular(os.path.realpath(path), MOST_BYTES) as file:
        chunks = []
        rows = 0
        names = set()
        entries = _entries(io.TextIOWrapper(file, encoding_of(file)))
        while chunk := _next_chunk(entries):
            rows += len(chunk)
            names.update(*chunk)
            check_size(rows, len(names), 0)
            chunks.append(pd.DataFrame(chunk))
        if not chunks:
            raise InputError(f"{path}: it has no entries")
        return chunks[0] if len(chunks) == 1 else pd.concat(chunks, ignore_index=True)


def _next_chunk(entries: Iterator[Any]) -> list[dict[str, Any]]:
    """Return the next entries, flattened; none at the end."""
    chunk = []
    cells = 0
    for entry in itertools.islice(entries, _CHUNK):
        chunk.append(flatten(entry))
        cells += len(chunk[-1])
        if cells >= _CELLS:
            break
    return chunk


def trainer_state_in(folder: Path) -> Path:
    """Return the `trainer_state.json` of a folder, or else of its last checkpoint."""
    path = folder / TRAINER_STATE
    if path.is_file():
        return path
    checkpoints = [found for found in folder.glob(f"checkpoint-*/{path.name}") if found.is_file()]
    if not checkpoints:
        raise InputError(
            f"{folder}: a folder without event files of TensorBoard or a {TRAINER_STATE}; give "
            f"its files"
        )
    steps = re.compile(r"checkpoint-\d{1,15}")
    numbered = [p for p in checkpoints if steps.fullmatch(p.parent.name)]
    return max(numbered, key=lambda p: int(p.parent.name.partition("-")[2]), default=checkpoints[0])


def _entries(text: io.TextIOWrapper) -> Iterator[Any]:
    """Yield the entries of JSON lines, of a list, or of the `log_history` of a trainer's state."""
    first = text.readline(_LONGEST_LINE)
    is_lines = True
    try:
        content = _decode(first) if first else []
    except ValueError:  # the first line is only a part of the JSON
        is_lines = False
        content = _decode(first + text.read(_LONGEST_FILE))
        if text.read(1):
            raise ValueError(f"over {_LONGEST_FILE:,} characters that are not JSON lines") from None
    if isinstance(content, dict):
        content = content.get("log_history", content)
    if isinstance(content, list):
        yield from content
    elif is_lines:
        yield content
        yield from _lines(text)
    else:
        raise ValueError(
            f"expected JSON lines, a list of entries, or a {TRAINER_STATE} with a log_history"
        )


def _lines(text: io.TextIOWrapper) -> Iterator[Any]:
    for number in itertools.count(2):
        line = text.readline(_LONGEST_LINE)
        if not line:
            return
        if line.isspace():
            continue
        try:
            yield _decode(line)
        except ValueError as error:
            if line.endswith("\n") or len(line) == _LONGEST_LINE:
                raise ValueError(f"line {number}: {error}") from None
            return  # the line is still being written


def flatten(entry: Any) -> dict[str, Any]:
    """Flatten an entry; the names of inner levels are joined by dots."""
    if not isinstance(entry, dict):
        raise ValueError(
            f'expected entries such as {{"step": 0, "loss": 1.0}}, got {str(entry)[:40]}'
        )
    if dict not in map(type, entry.values()):
        return entry
    flat: dict[str, Any] = {}
    for name, value in entry.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": each for inner, each in flatten(value).items()}
        else:
            flat[str(name)] = value
    return flat
