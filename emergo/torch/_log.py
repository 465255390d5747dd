"""The log of a run: a CSV file to which rows are appended, so that it is never stale."""

import atexit
import contextlib
import csv
import errno
import io
import math
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..core.errors import InputError, StorageError
from ..core.files import as_storage_error, atomic_write, flush, read_regular
from ..core.parquet import MOST_BYTES
from ..core.terminal import say

SECONDS = 5.0  # the longest time after which a row is in the file and on the disk
PAUSE = 1.0  # seconds between two appends, which cost more than a row
MOST_ROWS = 20  # rows that wait for an append


class Log:
    """Rows of numbers by step.

    The last row stays open for further metrics of its step. When the next row comes, it is written
    with other rows that wait: once per second, or 20 rows at once. After `SECONDS` at the latest,
    all rows are written, and the file is flushed to the disk. A timer does this, so that a long
    evaluation delays no row.

    **Arguments:**

    - `path`: a .csv file.
    - `start`: continue an existing log at this step, and drop its later rows.
    - `overwrite`: replace an existing log when the first row is written.
    """

    def __init__(self, path: Path | str, start: int | None, overwrite: bool = False) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() != ".csv":
            raise InputError(f"{self.path}: the log must be a .csv file, to which rows are added")
        folder = self.path.parent
        if not os.access(folder, os.W_OK):
            why = "cannot write to the folder" if folder.is_dir() else "there is no folder"
            raise InputError(f"{self.path}: {why} {folder}; create it, or choose another one")
        self.columns: list[str] = ["step"]
        self.continued = False
        self.last: int | None = None  # the step of the last row
        self._open: dict[str, str] | None = None  # the row of that step
        self._closed: list[dict[str, str]] = []  # rows that are complete and not yet written
        # The rows of the file if it has to be written as a whole, otherwise None.
        self._body: list[str] | None = []
        self._written = -math.inf  # the time of the last append
        self._reported = False  # True after a message about a failed write
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        if os.path.lexists(self.path):
            self._existing(start, overwrite)

    def _existing(self, start: int | None, overwrite: bool) -> None:
        columns, rows = _read(self.path)
        if overwrite:
            return
        if start is None:
            raise InputError(
                f"{self.path}: exists already; start=STEP continues it from a step, overwrite=True "
                f"replaces it"
            )
        kept = [row for row in rows if _step(row) < start]
        self.columns = columns
        self.continued = bool(kept)
        self.last = _step(kept[-1]) if kept else None
        self._body = kept

    def check_heads(self, probes: Iterable[str]) -> None:
        """Check that a continued log has the heads of this model."""
        heads = {name for name in probes if name.startswith("entropy_")}
        logged = {name for name in self.columns if name.startswith("entropy_")}
        if self.continued and heads != logged:
            raise InputError(
                f"{self.path}: the log belongs to another model, with {len(logged)} heads, not "
                f"{len(heads)} heads; choose another name"
            )

    def append(self, step: int, metrics: Mapping[str, float], probes: Mapping[str, float]) -> None:
        """Add a row, or further values to the last row.

        A probe that is not a number has not been measured, and its cell stays blank. A metric that
        is not a number has diverged, and is written as nan.
        """
        row = {name: repr(float(value)) for name, value in metrics.items()}
        row |= {n: "" if math.isnan(value) else f"{value:.6g}" for n, value in probes.items()}
        with self._lock:
            if self._open is not None and step == self.last:
                self._open |= row
                return
            if self._open is not None:
                self._closed.append(self._open)
            self._open = {"step": str(step)} | row
            self.last = step
            if len(self._closed) >= MOST_ROWS or time.monotonic() - self._written >= PAUSE:
                self._try()
            if self._timer is None:
                atexit.register(self._late)
                self._start_timer()

    def _start_timer(self) -> None:
        self._timer = threading.Timer(SECONDS, self._late)
        self._timer.daemon = True
        self._timer.start()

    def _late(self) -> None:
        """Write all rows when the timer has run out, or at the end of the process."""
        with self._lock:
            self._close_row()
            self._timer = None
            if not self._try():
                self._start_timer()
        with contextlib.suppress(OSError):
            flush(self.path)

    def _close_row(self) -> None:
        if self._open is not None:
            self._closed.append(self._open)
            self._open = None

    def _try(self) -> bool:
        """Write the complete rows; report a failure once, because training must go on."""
        try:
            self._write()
        except StorageError as error:
            if not self._reported:
                say(f"{error} (will be tried again)")
            self._reported = True
            return False
        self._reported = False
        return True

    def flush(self) -> None:
        """Write all rows to the disk."""
        with self._lock:
            atexit.unregister(self._late)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._close_row()
            self._write()
        if self.last is not None and self.path.exists():
            flush(self.path)

    def _write(self) -> None:
        if not self._closed:
            return
        self._written = time.monotonic()
        known = set(self.columns)
        added = list(dict.fromkeys(n for row in self._closed for n in row if n not in known))
        columns = self.columns + added
        rows = [",".join([row.get(name, "") for name in columns]) for row in self._closed]
        with as_storage_error(self.path):
            body = self._body
            if body is None and not self.path.exists():  # it was removed during training
                body = []
            if body is None and added:
                body = _read(self.path)[1]
            if body is None:
                _append(self.path, "".join(f"{row}\n" for row in rows))
            else:
                blanks = "," * len(added)
                lines = [_header(columns), *(row + blanks for row in body), *rows]
                atomic_write(self.path, "".join(f"{line}\n" for line in lines), durable=False)
        self.columns = columns
        self._body = None
        self._closed = []


def _append(path: Path, text: str) -> None:
    """Append to a file in one piece, or leave it as it was."""
    content = text.encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        size = os.fstat(descriptor).st_size
        if os.write(descriptor, content) < len(content):
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def _header(columns: list[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(columns)
    return line.getvalue()


def _step(row: str) -> int:
    return int(row.partition(",")[0])


def _read(path: Path) -> tuple[list[str], list[str]]:
    """Return the columns and the rows of a log, without a row that a kill cut short.

    Raises `InputError` for a file that is not a log.
    """
    try:
        lines = read_regular(path, MOST_BYTES).decode().split("\n")[:-1]
        (columns,) = csv.reader(lines[:1])
        if columns[0] != "step":
            raise ValueError
        for row in lines[1:]:
            _step(row)
    except (ValueError, IndexError, OSError, csv.Error):
        raise InputError(
            f"{path}: exists already and is not a log of emergo.torch; choose another name"
        ) from None
    return columns, lines[1:]
