"""Sets of runs from logs of training: those of `emergo.torch.watch`, and any other format.

A log is read again when it has grown. It is one run, or several if it names its runs.
"""

import csv
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..core.errors import InputError
from ..core.files import regular_file
from ..core.json import to_jsonable
from ..forecasting import forecast, forecast_json
from ..logs import CONFIG_NAMES, read_logs
from ..measure import Emergence, emergence, head_classes
from ..store.reader import why
from ._runset import Learned, RunSet, columns_of, contained, varied

LARGEST = 1_000_000_000  # bytes of a log
HEADER = 2**22  # bytes of the first line that are looked at
_INDEXED = re.compile(r"_\d+$")  # ends of columns with one number per layer or head
KEPT = ("state", "at", "step", "why", "intervals", "words")


class LogCurves:
    """The curves of logs by the name of the run."""

    def __init__(self, frames: Mapping[str, tuple[Any, pd.DataFrame]]) -> None:
        self._frames = frames

    def stamp(self, identity: str) -> Any:
        return self._frames[identity][0] if identity in self._frames else None

    def read(self, identity: str, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        if identity not in self._frames:
            return {}
        frame = self._frames[identity][1]
        wanted = [name for name in frame if names is None or name in names]
        columns = {str(name): frame[name].to_numpy(np.float64) for name in wanted}
        return {"step": frame.index.to_numpy(np.float64), **columns}


class _Read(NamedTuple):
    """A log that was read."""

    stamp: tuple[int, int]
    rows: list[dict[str, Any]]
    constants: list[Mapping[str, Any]]
    frames: dict[str, tuple[Any, pd.DataFrame]]
    notes: tuple[str, ...]
    again: float  # the earliest time of the next look at the file


class LogSource:
    """The logs of one folder as a set of runs.

    Reading a long log takes time. A log is read again at the earliest after ten times as long.
    """

    def __init__(self, learned: Learned | None) -> None:
        self.learned = learned
        self._logs: dict[Path, _Read] = {}

    def read(self, name: str, files: Iterable[Path]) -> RunSet:
        """Return the set of these files, read again if they have changed."""
        self._logs = {file: self._read(file, self._logs.get(file)) for file in files}
        logs = self._logs.values()
        constants = [each for log in logs for each in log.constants]
        frames = {name: frame for log in logs for name, frame in log.frames.items()}
        configs = {row["identity"]: c for log in logs for row, c in _with_constants(log)}
        version = str(hash(tuple(log.stamp for log in logs)))
        return RunSet(
            name,
            "log",
            version,
            axes=varied(columns_of(constants)) or ["log"],
            columns=columns_of([row for log in logs for row in log.rows]),
            curves=LogCurves(frames),
            config=configs.__getitem__,
            notes=tuple(note for log in logs for note in log.notes),
            learned=self.learned,
        )

    def _read(self, file: Path, known: _Read | None) -> _Read:
        begun = time.monotonic()
        if known is not None and begun < known.again:
            return known
        stamp = (0, 0)
        rows: list[Any] = []
        constants: list[Any] = []
        frames: Any = {}
        notes: list[str] = []
        with contained(lambda why: notes.append(f"{file.name}: {why}")):
            status = regular_file(file, LARGEST)
            now = status.st_mtime_ns, status.st_size
            if known is not None and known.stamp == now:
                return known
            rows, constants, frames, notes = self._runs(file, status.st_mtime)
            stamp = now
        again = begun + 10 * (time.monotonic() - begun)
        return _Read(stamp, rows, constants, frames, tuple(notes), again)

    def _runs(self, file: Path, written: float) -> tuple[list[Any], list[Any], Any, list[str]]:
        notes: list[str] = []
        rows = []
        constants = []
        frames: dict[str, tuple[Any, pd.DataFrame]] = {}
        linked = any((file.parent / name).is_symlink() for name in CONFIG_NAMES)
        runs = list(read_logs([file], configs=not linked, say=notes.append))
        for run in runs:
            curves, own = self._unchanging(run.curves, run.constants)
            identity = run.name if len(runs) == 1 else f"{file.stem}: {run.name}"
            row = {"identity": identity, "log": identity, **own}
            if len(curves):
                row |= {"steps": float(curves.index[-1]), "rows": len(curves)}
            row |= {"written": written, **self._measured(curves)}
            rows.append(to_jsonable(row))
            constants.append(own)
            frames[identity] = ((str(file), written, len(curves)), curves)
        return rows, constants, frames, notes

    def _unchanging(
        self, curves: pd.DataFrame, constants: Mapping[str, Any]
    ) -> tuple[pd.DataFrame, dict[str, Any]]:
        """Take numbers of heads and layers, and the metric, for curves if they do not change."""
        metric = self.learned.metric if self.learned else "loss"
        fixed = {
            name: float(value)
            for name, value in constants.items()
            if isinstance(value, int | float) and (_INDEXED.search(name) or name == metric)
        }
        rest = {name: value for name, value in constants.items() if name not in fixed}
        return (curves.assign(**fixed) if len(curves) else curves), rest

    def _measured(self, curves: pd.DataFrame) -> dict[str, Any]:
        """Return the plateau of a run if it is known what counts as learned."""
        found = None if self.learned is None else emergence_of(curves, self.learned)
        if found is None:
            return {}
        measured = (found.time, found.low, found.high, found.censored, found.state)
        names = ("plateau", "plateau_low", "plateau_high", "censored", "state")
        return dict(zip(names, measured, strict=True))


def _with_constants(log: _Read) -> Iterable[tuple[dict[str, Any], Mapping[str, Any]]]:
    return zip(log.rows, log.constants, strict=True)


def find_logs(folder: Path, note: Callable[[str], None] = lambda line: None) -> list[Path]:
    """Return the logs of a folder: tables that begin with a column of steps.

    **Arguments:**

    - `note`: receives a line on each file that cannot be read. Symlinks are left out without one.
    """
    found = []
    for file in sorted(folder.glob("*.csv")):
        if file.is_symlink():
            continue
        try:
            regular_file(file, LARGEST)
            with file.open(newline="", errors="replace") as lines:
                names = next(csv.reader([lines.readline(HEADER)]), [])
        except (OSError, ValueError) as error:
            note(f"{file.name}: {why(error)}")
            continue
        except csv.Error:
            continue
        figure = (folder / f"{file.name.partition('.')[0]}.json").exists()
        if names[:1] == ["step"] and len(names) > 1 and not figure:
            found.append(file)
    return found


def emergence_of(curves: pd.DataFrame, learned: Learned) -> Emergence | None:
    """Measure when a run of a log has learned; None without the metric or a threshold."""
    if learned.metric not in curves or (learned.below is None) == (learned.above is None):
        return None
    value = curves[learned.metric].dropna()
    below = learned.below is not None
    threshold = learned.below if below else learned.above
    if not len(value):
        return None
    return emergence(value.index, value, threshold or 0.0, "below" if below else "above")


def classes_of(columns: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the classes of heads in the curves of a run, as plain data."""
    if not any("_head_" in name for name in columns):
        return []
    table = pd.DataFrame(dict(columns)).set_index("step")
    return to_jsonable(head_classes(table).to_dict("records"))


def log_forecasts(
    runs: RunSet, identity: str, learned: Learned | None, moments: int
) -> dict[str, Any]:
    """Forecast a run of a log at earlier rows and at its last one, as in `look_back`.

    The earlier rows stay the same while the log grows, and their forecasts are kept.
    """
    learned = learned or runs.learned or Learned()
    columns = runs.curves.read(identity)
    curves = pd.DataFrame(columns).set_index("step")
    if learned.metric not in curves:
        return {"moments": [], "why": f"this log has no column '{learned.metric}'"}
    rows = np.flatnonzero(curves[learned.metric].notna())
    try:
        found = emergence_of(curves, learned)
        reached = found if found is not None and found.state == "reached" else None
        if reached is not None:
            rows = rows[curves.index[rows] <= reached.high]
        asked = _rows_to_ask(len(rows), moments)
        forecasts = [_forecast(runs, identity, learned, curves, int(rows[i])) for i in asked]
    except InputError as error:
        return {"moments": [], "why": str(error)}
    answer = {
        "came": np.nan if reached is None else reached.time,
        "until": curves.index[-1] if len(curves) else 0,
        "metric": learned.metric,
        "threshold": learned.below if learned.above is None else learned.above,
        "moments": [{name: each[name] for name in KEPT} for each in forecasts],
        "why": None if len(rows) else f"'{learned.metric}' has no value yet",
    }
    return to_jsonable(answer)


def _rows_to_ask(count: int, moments: int) -> list[int]:
    """Return growing row numbers that do not depend on the number of rows, and the last one.

    The rows that are asked reach back by a factor of about e^6, 400.
    """
    growth = 1 + 6 / moments
    found = {count - 1} if count else set()
    row = 1.0
    while row < count - 1:
        found.add(round(row))
        row = max(row * growth, row + 1)
    return sorted(found)[-moments:]


_KNOWN: dict[Any, dict[str, Any]] = {}
_MOST_KNOWN = 20_000


def _forecast(
    runs: RunSet, identity: str, learned: Learned, curves: pd.DataFrame, row: int
) -> dict[str, Any]:
    key = (runs.name, identity, learned, row, tuple(curves.iloc[row].fillna(-1.0)))
    if key not in _KNOWN:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        so_far = curves.iloc[: row + 1].reset_index()
        metric, below, above = learned
        _KNOWN[key] = forecast_json(forecast(so_far, metric, below=below, above=above))
    return _KNOWN[key]
