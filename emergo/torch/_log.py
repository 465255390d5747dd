"""The log of a run: one file, replaced atomically, so that it is always readable."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ..core.errors import InputError, StorageError
from ..core.files import atomic_write, regular_file
from ..core.parquet import MOST_BYTES, parquet_table
from ..core.terminal import say

FLUSH_SECONDS = 30.0
FLUSH_SHARE = 0.01  # largest share of the time for writing; slow writes are rarer
_NOTE = b"emergo.torch"


class Log:
    """Rows of numbers by step. After a kill the file holds all rows up to the last flush.

    **Arguments:** `path` ends in .parquet or .csv. An existing log is continued at the step
    `start`, and its later rows are dropped; None starts a new log.
    """

    def __init__(self, path: Path | str, start: int | None) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() not in (".parquet", ".csv"):
            raise InputError(f"{self.path}: the log must be a .parquet or .csv file")
        folder = self.path.parent
        if not os.access(folder, os.W_OK):
            why = "cannot write to the folder" if folder.is_dir() else "there is no folder"
            raise InputError(f"{self.path}: {why} {folder}; create it, or choose another one")
        self.layers: list[str] | None = None  # the module of each layer
        self._table: pa.Table | None = None  # rows in the file; newer rows are pending
        self._pending: list[tuple[int, dict[str, float], dict[str, float]]] = []
        self._metrics: list[str] = []
        self._probes: list[str] = []
        self._next_flush = 0.0
        if os.path.lexists(self.path):
            self._resume(start)

    def _resume(self, start: int | None) -> None:
        table, note = _read(self.path)
        if start is None:
            raise InputError(
                f"{self.path}: exists already; start=STEP continues it from a step, or choose "
                f"another name"
            )
        self._metrics = note["metrics"]
        self.layers = note["layers"]
        self._probes = [name for name in table.column_names if name not in ("step", *self._metrics)]
        self._table = table.filter(pc.field("step") < start)

    def check_layers(self, layers: Sequence[str], probes: Mapping[str, float]) -> None:
        """Check that a continued log has the layers and heads of this model."""
        heads = [name for name in probes if name.startswith("entropy_")]
        logged = [name for name in self._probes if name.startswith("entropy_")]
        names = (
            list(layers) if self.layers is None else self.layers
        )  # a CSV file does not name them
        if self._table is not None and (names, logged) != (list(layers), heads):
            raise InputError(
                f"{self.path}: the log belongs to another model, with {len(names)} layers and "
                f"{len(logged)} heads, not {len(layers)} layers and {len(heads)} heads; choose "
                f"another name"
            )
        self.layers = list(layers)

    @property
    def last(self) -> int | None:
        """The step of the last row."""
        if self._pending:
            return self._pending[-1][0]
        return self._table["step"][-1].as_py() if self._table else None

    def append(self, step: int, metrics: Mapping[str, float], probes: Mapping[str, float]) -> None:
        """Add a row, and write the file if the last flush is long enough ago."""
        self._metrics += [name for name in metrics if name not in self._metrics]
        self._probes += [name for name in probes if name not in self._probes]
        self._pending.append((step, dict(metrics), dict(probes)))
        if time.monotonic() >= self._next_flush:
            try:
                self.flush()
            except StorageError as error:  # a full disk must not stop the training
                say(f"{error} (will be tried again)")
                self._next_flush = time.monotonic() + FLUSH_SECONDS

    def flush(self) -> None:
        """Write all rows."""
        if not self._pending:
            return
        begun = time.monotonic()
        table = self._joined()
        sink = pa.BufferOutputStream()
        if self.path.suffix.lower() == ".csv":
            pyarrow.csv.write_csv(table, sink)
        else:
            note = json.dumps({"layers": self.layers, "metrics": self._metrics})
            pq.write_table(table.replace_schema_metadata({_NOTE: note.encode()}), sink)
        atomic_write(self.path, sink.getvalue().to_pybytes())
        self._table = table
        self._pending = []
        took = time.monotonic() - begun
        self._next_flush = time.monotonic() + max(FLUSH_SECONDS, took / FLUSH_SHARE)

    def _joined(self) -> pa.Table:
        """Join all rows in one table: the step, the user's metrics, then the observed values."""
        steps, metrics, probes = zip(*self._pending, strict=True)
        columns = {"step": pa.array(steps, pa.int64())}
        for names, rows, kind in (
            (self._metrics, metrics, pa.float64()),
            (self._probes, probes, pa.float32()),
        ):
            columns |= {name: pa.array([row.get(name) for row in rows], kind) for name in names}
        new = pa.table(columns)
        if self._table is None:
            return new
        both = pa.concat_tables([self._table, new], promote_options="permissive")
        return both.select(new.column_names).combine_chunks()


def _read(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    """Read a log with its metadata; raise an `InputError` for other files."""
    try:
        regular_file(path, MOST_BYTES)
        if path.suffix.lower() == ".csv":
            table = pyarrow.csv.read_csv(path)
            names = table.column_names[1:]
            first = next((i for i, n in enumerate(names) if n.startswith("entropy_")), None)
            note = {"layers": None, "metrics": names[:first]}
        else:
            table = parquet_table(path)
            note = json.loads((table.schema.metadata or {})[_NOTE])
            table = table.replace_schema_metadata(None)
        table = table.set_column(0, "step", table["step"].cast(pa.int64()))
        return table, {"layers": note["layers"], "metrics": list(note["metrics"])}
    except (ValueError, KeyError, TypeError, OSError, pa.ArrowException):
        raise InputError(
            f"{path}: exists already and is not a log of emergo.torch; choose another name"
        ) from None
