"""What became of runs: their outcomes without curves, quickly, and why they failed. Needs neither JAX nor pandas, so that
`status` answers at once.

Outcomes that were read are remembered in `.index.json`, a cache: an entry counts only while the files of its run have the sizes
and times they had, and the index may be removed at any time.
"""

import collections
import contextlib
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .._errors import StorageError
from .._files import as_storage_error, atomic_write
from ._reader import FAILURE, IDENTITY, list_names, read_json
from ._version_1 import upgraded_run

SCHEMA = 2  # of `run.json`; raised when older versions could not read it
STATES = ("reached", "censored", "trained", "failed")
INDEX = ".index.json"
_INDEX_VERSION = 2
_NUMBER = int | float | None
_OUTCOME = {"state": str, "time": _NUMBER, "low": _NUMBER, "high": _NUMBER, "steps": int, "failed_step": int | None}
_RUN = {"identity": str, "seed": int, "columns": dict, "outcome": _OUTCOME, "curves": list, "provenance": dict}


class Outcomes(NamedTuple):
    """What a folder of runs holds."""

    rows: dict[str, dict[str, Any]]  # by identity, as `outcome_row` makes them
    broken: dict[str, str]  # folders that should be runs and cannot be read, and why


def outcome_row(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a `run.json` as one row of a table: axes, seed, plateau. JSON has null for what is not finite."""
    outcome = content["outcome"]
    state = outcome["state"]
    plateau, low, high = (math.nan if outcome[name] is None else float(outcome[name]) for name in ("time", "low", "high"))
    return {
        "identity": content["identity"],
        **content["columns"],
        "seed": content["seed"],
        "plateau": plateau,
        "plateau_low": -math.inf if state == "reached" and outcome["low"] is None else low,
        "plateau_high": math.inf if state == "censored" else high,
        "censored": state == "censored",
        "state": state,
        "steps": outcome["steps"],
        "failed_step": outcome["failed_step"],
        "reason": outcome.get("reason"),
        "device": content["provenance"].get("device"),
    }


def read_run(folder: str | Path, identity: str) -> dict[str, Any]:
    """The content of a `run.json`. Here it is decided what a broken run is; of the curves only their end is looked at, which a
    cut file lacks."""
    content = read_json(os.path.join(folder, "run.json"), _RUN, upgraded_run)
    if content["identity"] != identity:
        raise ValueError(f"it holds the run {content['identity']}")
    if content["outcome"]["state"] not in STATES:
        raise ValueError(f"state {content['outcome']['state']!r}")
    with open(os.path.join(folder, "curves.parquet"), "rb") as file:
        head = file.read(4)
        file.seek(-4, os.SEEK_END)
        if head != b"PAR1" or file.read(4) != b"PAR1":
            raise ValueError("curves.parquet is cut short or no Parquet file")
    return content


def read_outcomes(folder: Path) -> Outcomes:
    """The outcomes of all runs under a folder. What cannot be read is named and does not hide the rest."""
    known = _read_index(folder / INDEX)
    entries: dict[str, list[Any]] = {}
    broken: dict[str, str] = {}
    fresh = 0
    for name in list_names(folder, IDENTITY, folders=True):
        path = os.path.join(folder, name)
        try:
            stamp = _stamp(path)
            if name in known and known[name][0] == stamp:
                entries[name] = known[name]
            else:
                entries[name] = [stamp, outcome_row(read_run(path, name))]
                fresh += 1
        except FileNotFoundError as error:
            broken[path] = f"{os.path.basename(str(error.filename))} is missing"
        except (OSError, ValueError) as error:
            broken[path] = str(error) or type(error).__name__
    if fresh and (fresh >= 200 or 10 * fresh >= len(entries)):
        with contextlib.suppress(StorageError):  # a full or read-only disk: it is only a cache
            atomic_write(folder / INDEX, json.dumps({"version": _INDEX_VERSION, "runs": entries}), durable=False)
    return Outcomes({name: row for name, (_, row) in entries.items()}, broken)


def is_finished(folder: Path, identity: str) -> bool:
    """Whether a run is there and can be read."""
    try:
        return bool(read_run(folder / identity, identity))
    except (OSError, ValueError):
        return False


def _stamp(path: str) -> list[int]:
    run, curves = os.stat(os.path.join(path, "run.json")), os.stat(os.path.join(path, "curves.parquet"))
    return [run.st_mtime_ns, run.st_size, curves.st_mtime_ns, curves.st_size]


def _read_index(path: Path) -> dict[str, list[Any]]:
    try:
        content = read_json(path, {"version": int, "runs": dict})
    except (OSError, ValueError):
        return {}
    runs = content["runs"] if content["version"] == _INDEX_VERSION else {}
    return {name: entry for name, entry in runs.items() if isinstance(entry, list) and len(entry) == 2}


class Failures:
    """Why runs failed: one small file for each time, so that it is known how often. The tries of a run are numbered from 0; one
    that is repeated after an interruption has the number it had, so that an interruption does not count as a failure."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, identity: str, number: int) -> Path:
        return self.folder / f"{identity}.{number}.json"

    def note(self, identity: str, number: int, reason: str, kind: str, **more: Any) -> None:
        """Records that try `number` of a run failed. `kind` is `"loss"` or `"memory"`."""
        content = {"identity": identity, "try": number, "kind": kind, "reason": reason, "when": time.time()} | more
        atomic_write(self._path(identity, number), json.dumps(content) + "\n")

    def recorded(self, identity: str, number: int) -> bool:
        return self._path(identity, number).exists()

    def read(self, identity: str, number: int) -> dict[str, Any]:
        """What was recorded; empty where there is nothing that can be read."""
        try:
            return read_json(self._path(identity, number), dict)
        except (OSError, ValueError):
            return {}

    def counts(self) -> dict[str, int]:
        return collections.Counter(name.partition(".")[0] for name in list_names(self.folder, FAILURE))

    def forget(self, identity: str) -> None:
        """Lets a run begin anew."""
        with as_storage_error(self.folder):
            for path in self.folder.glob(f"{identity}.*.json"):
                path.unlink(missing_ok=True)
