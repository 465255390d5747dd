"""Valid files with absurd values: numbers, names, types and lengths that no training writes."""

import contextlib
import csv
import hashlib
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from emergo.core.json import seal

ODD: list[Any] = [None, True, -1, 1.5, "", "text", [], {}, [[]], "../../../victim"]
ODD += ["\x1b]0;owned\x07\x1b[31m", "[/red]", "0" * 16, 10**19, 10**400, -(2**63), 1e300]
ODD += [1e308, -1e308, [1, 2], {"a": 1}, "9" * 5000]
ODD += ["\x00", "x" * 100_000, "\u202e", "NaN"]
DIGITS = "9" * 5000
ABSURD: list[Any] = [1e308, -1e308, float("nan"), float("inf"), 2**62, "text", DIGITS, "\x1b[31m"]
ABSURD += [None, True, [1.0], {"a": 1}, b"\xff", -1, 0]
NAMES = [DIGITS, f"a_{DIGITS}", "a_999999_9999", "", "\x1b[31m", "step", "identity", "plateau"]


def absurd_table(rng: random.Random, path: Path) -> str:
    """Change a column of a Parquet file: its values, its name, or its order."""
    table = pq.read_table(path)
    at = rng.randrange(table.num_columns)
    name = table.column_names[at]
    how = rng.choice(["values", "values", "one value", "name", "drop", "reverse", "rows", "twice"])
    odd = rng.choice(ABSURD)
    values = table.column(at).to_pylist()
    if how == "name":
        odd = rng.choice(NAMES)
        names = [odd if i == at else other for i, other in enumerate(table.column_names)]
        table = table.rename_columns(names)
    elif how == "drop":
        table = table.drop_columns([name])
    elif how == "rows":
        table = table.slice(0, rng.randrange(3))
    elif how == "twice":
        table = pa.concat_tables([table, table])
    elif how == "reverse":
        table = table.set_column(at, name, pa.array(values[::-1]))
    else:
        places = range(len(values)) if how == "values" else [rng.randrange(len(values))]
        for place in places:
            values[place] = odd
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowTypeError):
            table = table.set_column(at, name, pa.array(values))
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(None), buffer)
    path.write_bytes(buffer.getvalue())
    return f"{how} of {name}: {str(odd)[:20]!r}"


def absurd_csv(rng: random.Random, path: Path) -> str:
    """Change a cell, a column or the head of a log."""
    rows = list(csv.reader(path.read_text().splitlines()))
    at = rng.randrange(len(rows[0]))
    odd = str(rng.choice([*ABSURD, *ODD[:16]]))
    how = rng.choice(["cell", "cell", "column", "name", "last row", "steps"])
    if how == "name":
        rows[0][at] = rng.choice(NAMES)
    elif how == "steps":
        for row in rows[1:]:
            row[0] = str(rng.choice([row[0], -1, 1e308, "nan", DIGITS]))
    elif how == "last row":
        rows[-1] = rows[-1][: rng.randrange(len(rows[-1]))]
    else:
        for row in rows[1:] if how == "column" else [rng.choice(rows[1:])]:
            row[at] = odd
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    path.write_text(text.getvalue())
    return f"{how}: {odd[:20]!r}"


def absurd_run(rng: random.Random, folder: Path) -> str:
    """Change a stored run to absurd values, with the checksums that fit; return what changed."""
    content = json.loads((folder / "run.json").read_text())
    del content["checksum"]
    table = pq.read_table(folder / "curves.parquet").to_pydict()
    count = len(table["step"])
    column = rng.choice(list(table))
    number = rng.choice([1e308, -1e308, float("nan"), float("inf"), 0.0, 2**62])
    changes: dict[str, Callable[[], Any]] = {
        "values": lambda: table.update({column: [number] * count}),
        "one value": lambda: table[column].__setitem__(rng.randrange(count), number),
        "texts": lambda: table.update({column: [DIGITS] * count}),
        "lists": lambda: table.update({column: [[1.0]] * count}),
        "name": lambda: table.update({rng.choice(NAMES[:5]): [0.0] * count}),
        "fewer": lambda: table.pop(column),
        "time": lambda: content["outcome"].update(time=rng.choice([1e308, -1.0, 2**62])),
        "steps": lambda: content["outcome"].update(steps=2**62),
        "column": lambda: content["columns"].update({rng.choice(NAMES): rng.choice(ODD)}),
        "reason": lambda: content["outcome"].update(reason=DIGITS),
    }
    how = rng.choice(list(changes))
    changes[how]()
    buffer = io.BytesIO()
    with contextlib.suppress(pa.ArrowInvalid, pa.ArrowTypeError):
        arrays = {name: np.asarray(v) if name == "step" else v for name, v in table.items()}
        pq.write_table(pa.table(arrays), buffer)
        (folder / "curves.parquet").write_bytes(buffer.getvalue())
    checksum = hashlib.sha256((folder / "curves.parquet").read_bytes()).hexdigest()
    content["files"] = {"curves.parquet": checksum}
    (folder / "run.json").write_bytes(seal(content))
    return f"absurd {how}"
