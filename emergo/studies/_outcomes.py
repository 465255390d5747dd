"""What became of runs: their outcomes without curves, quickly, and why they failed. Needs neither JAX nor pandas, so that
`status` answers at once.

Here it is decided what a finished run is. Its `run.json` has the form below and carries a checksum of itself and of the curves
beside it; its config and seed have the hash that its folder is called by; its state fits its numbers. Runs that were written
before there were checksums are held against all the rest.

Outcomes that were read are remembered in `.index.json`, a cache: an entry counts only while the files of its run are those they
were, by inode, size and times. The time of change (ctime) cannot be set, and inodes are another machine's, so that an index
that came with a folder from elsewhere counts for nothing. It may be removed at any time.
"""

import collections
import contextlib
import hashlib
import marshal
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .._errors import StorageError
from .._files import as_storage_error, atomic_write, is_folder, read_regular, regular_file
from .._json import digest, seal
from ._reader import (
    CHECKSUM,
    FAILURE,
    IDENTITY,
    LARGE,
    SMALL,
    checker,
    count,
    count_or_none,
    counts,
    formed_json,
    list_names,
    number_or_none,
    read_json,
    scalars,
    why,
)
from ._version_1 import upgraded_run

SCHEMA = 3  # of `run.json`: from 3 on it has checksums; raised when older versions could not read it
STATES = ("reached", "censored", "trained", "failed")
INDEX = ".index.json"
CURVES = "curves.parquet"
_INDEX_VERSION = 4
_INDEX = checker({"checksum": CHECKSUM, "version": count, "columns": [scalars], "runs": dict})
_OUTCOME = {"state": str, "time": number_or_none, "low": number_or_none, "high": number_or_none, "steps": count}
_OUTCOME |= {"failed_step": count_or_none, "reason?": str | None}
_RUN = {"identity": IDENTITY, "seed": count, "columns": scalars, "outcome": _OUTCOME, "provenance": dict}
_RUN |= {"schema?": count, "semantics": count, "config": dict, "curves": [str], "probes?": counts}
_CHECK = checker(_RUN | {"checksum?": CHECKSUM, "files?": {CURVES: CHECKSUM}})
_TEXT, _NUMBER, _STEP = (str, type(None)), (int, float, type(None)), (int, type(None))
_VALUES = {"state": (str,), "time": _NUMBER, "low": _NUMBER, "high": _NUMBER, "steps": (int,), "failed_step": _STEP}
_VALUES |= {"reason": _TEXT, "seed": (int,), "device": _TEXT}
"""What the index remembers of a run besides its columns, and the types of it."""


def outcome_row(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a `run.json` as one row of a table: axes, seed, plateau. JSON has null for what is not finite."""
    outcome = content["outcome"]
    state = outcome["state"]
    plateau, low, high = (math.nan if outcome[name] is None else float(outcome[name]) for name in ("time", "low", "high"))
    ended = {
        "identity": content["identity"],
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
    return {"identity": "", **content["columns"]} | ended  # no column of a config takes the place of what became of the run


def _check_outcome(content: Mapping[str, Any]) -> None:
    """A `ValueError` for numbers that no run of this state has."""
    outcome, threshold = content["outcome"], content["columns"].get("threshold")
    state, time = outcome["state"], outcome["time"]
    if state not in STATES:
        raise ValueError(f"state {state!r:.60}")
    if (time is not None) != (state in ("reached", "censored")):
        raise ValueError(f"its state is {state}, and its plateau {time}")
    if time is not None and threshold is None:
        raise ValueError(f"its state is {state}, and it has no threshold")
    low, high = outcome["low"], outcome["high"]
    if state == "reached" and (high is None or not (low is None or low <= time) or time > high):
        raise ValueError("its plateau is not within its interval")


def read_run(folder: str | Path, identity: str, curves: bool = True) -> dict[str, Any]:
    """The content of a `run.json`, if it and the curves beside it are what was written there, as far as can be told; with
    `curves=False` these are left to `read_curve_bytes`."""
    if not is_folder(folder):
        os.lstat(folder)  # says so where there is nothing
        raise ValueError("it should be a folder")
    content = _read_content(folder, identity)
    if curves:
        read_curve_bytes(folder, content)
    return content


def _read_content(folder: str | Path, identity: str, status: os.stat_result | None = None) -> dict[str, Any]:
    content = formed_json(read_regular(f"{folder}/run.json", SMALL, status), _CHECK, upgraded_run)
    if content["identity"] != identity:
        raise ValueError(f"it holds the run {content['identity']}")
    if digest({name: content[name] for name in ("semantics", "config", "seed")}) != identity:
        raise ValueError("its config and seed are those of another run")
    _check_outcome(content)
    if content.get("schema", 1) >= 3 and not ("checksum" in content and "files" in content):
        raise ValueError("its checksums are missing")
    return content


def read_curve_bytes(folder: str | Path, content: Mapping[str, Any], status: os.stat_result | None = None) -> bytes:
    """The file with the curves of a run with this `run.json`, if it is the one that was written with it."""
    data = read_regular(f"{folder}/{CURVES}", LARGE, status)
    if content.get("schema", 1) >= 3:
        if hashlib.sha256(data).hexdigest() != content["files"][CURVES]:
            raise ValueError(f"{CURVES} has another checksum: it was damaged or changed")
    elif not (data.startswith(b"PAR1") and data.endswith(b"PAR1")):
        raise ValueError(f"{CURVES} is cut short or no Parquet file")
    return data


class _Entry(NamedTuple):
    """What the index remembers of a run."""

    stamp: str
    columns: dict[str, Any]  # one object for all runs of a cell, once they come from the index
    values: dict[str, Any]  # by the names of `_VALUES`

    def content(self, name: str) -> dict[str, Any]:
        """What `outcome_row` needs of the `run.json`."""
        about: dict[str, Any] = {"identity": name, "seed": self.values["seed"], "provenance": self.values}
        return about | {"columns": self.columns, "outcome": self.values}


class Rows(Mapping[str, dict[str, Any]]):
    """The rows of finished runs by identity, as `outcome_row` makes them; each is made when it is asked for."""

    def __init__(self, entries: Mapping[str, _Entry]) -> None:
        self._entries = entries

    def __getitem__(self, identity: str) -> dict[str, Any]:
        return outcome_row(self._entries[identity].content(identity))

    def __contains__(self, identity: object) -> bool:
        return identity in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def states(self) -> dict[str, str]:
        """The states of the runs alone."""
        return {identity: entry.values["state"] for identity, entry in self._entries.items()}


class Outcomes(NamedTuple):
    """What a folder of runs holds."""

    rows: Rows
    broken: dict[str, str]  # folders that should be runs and cannot be read, and why


def read_outcomes(folder: Path, index: bool = True) -> Outcomes:
    """The outcomes of all runs under a folder. What cannot be read is named and does not hide the rest. Without the index every
    file is read and checked again."""
    known = _read_index(folder / INDEX) if index else {}
    broken: dict[str, str] = {}
    entries: dict[str, _Entry] = {}
    for name, is_a_folder in list_names(folder, IDENTITY, broken).items():
        try:
            if not is_a_folder:
                raise ValueError("it should be a folder")
            entries[name] = _read_entry(f"{folder}/{name}", name, known.get(name))
        except (OSError, ValueError) as error:
            broken[f"{folder}/{name}"] = why(error)
    fresh = sum(entry is not known.get(name) for name, entry in entries.items())
    if fresh and (fresh >= 200 or 10 * fresh >= len(entries)):
        with contextlib.suppress(StorageError):  # a full or read-only disk: it is only a cache
            atomic_write(folder / INDEX, _index(entries), durable=False)
    return Outcomes(Rows(entries), broken)


def _read_entry(path: str, name: str, known: _Entry | None) -> _Entry:
    """What is known of a run while its files are as they were, else what they say."""
    run, curves = regular_file(f"{path}/run.json", SMALL), regular_file(f"{path}/{CURVES}", LARGE)
    stamp = _stamp(run, curves)
    if known is not None and known.stamp == stamp:
        return known
    content = _read_content(path, name, run)
    read_curve_bytes(path, content, curves)
    values = content["outcome"] | {"seed": content["seed"], "device": content["provenance"].get("device")}
    return _Entry(stamp, content["columns"], {key: values.get(key) for key in _VALUES})


def is_finished(folder: Path, identity: str) -> bool:
    """Whether a run is there and can be read."""
    try:
        return bool(read_run(folder / identity, identity))
    except (OSError, ValueError):
        return False


def _stamp(run: os.stat_result, curves: os.stat_result) -> str:
    """What the system knows of the files of a run; it is another once they have been touched, or are those of a copy."""
    times = f"{run.st_mtime_ns} {run.st_ctime_ns} {curves.st_mtime_ns} {curves.st_ctime_ns}"
    return f"{run.st_ino} {run.st_size} {curves.st_ino} {curves.st_size} {times}"


def _index(entries: Mapping[str, _Entry]) -> bytes:
    """The runs of a cell differ by their seeds alone: their columns are written, and read, once."""
    numbers: dict[bytes, int] = {}  # by the bytes of columns, which tell 1 from 1.0
    runs = {
        n: [e.stamp, numbers.setdefault(marshal.dumps(e.columns, 2), len(numbers)), [*e.values.values()]]
        for n, e in entries.items()
    }
    columns = {run[1]: entry.columns for run, entry in zip(runs.values(), entries.values(), strict=True)}
    return seal({"version": _INDEX_VERSION, "columns": list(columns.values()), "runs": runs})


def _read_index(path: Path) -> dict[str, _Entry]:
    """The entries of an index whose checksum is right, if they have the form that a run gives them."""
    try:
        content = read_json(path, _INDEX, most=LARGE)
    except (OSError, ValueError):
        return {}
    entries: dict[str, _Entry] = {}
    for name, run in content["runs"].items() if content["version"] == _INDEX_VERSION else ():
        with contextlib.suppress(ValueError, TypeError, IndexError, KeyError):
            stamp, number, values = run
            fits = all(type(value) in kinds for value, kinds in zip(values, _VALUES.values(), strict=True))
            if fits and count(number):
                entry = _Entry(stamp, content["columns"][number], dict(zip(_VALUES, values, strict=True)))
                _check_outcome(entry.content(name))
                entries[name] = entry
    return entries


_FAILURE = checker({"identity": IDENTITY, "try": count, "kind": str, "reason": str})


class Failures:
    """Why runs failed: one small file for each time, so that it is known how often. The tries of a run are numbered from 0; one
    that is repeated after an interruption has the number it had, so that an interruption does not count as a failure. A file
    that cannot be read is none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, identity: str, number: int) -> Path:
        return self.folder / f"{identity}.{number}.json"

    def note(self, identity: str, number: int, reason: str, kind: str, **more: Any) -> None:
        """Records that try `number` of a run failed. `kind` is `"loss"` or `"memory"`."""
        content = {"identity": identity, "try": number, "kind": kind, "reason": reason, "when": time.time()} | more
        atomic_write(self._path(identity, number), seal(content))

    def recorded(self, identity: str, number: int) -> bool:
        return bool(self.read(identity, number))

    def read(self, identity: str, number: int) -> dict[str, Any]:
        """What was recorded; empty where there is nothing that can be read."""
        try:
            return self._read(identity, number)
        except (OSError, ValueError):
            return {}

    def _read(self, identity: str, number: int) -> dict[str, Any]:
        content = read_json(self._path(identity, number), _FAILURE)
        if (content["identity"], content["try"]) != (identity, number):
            raise ValueError(f"it is about try {content['try']} of the run {content['identity']}")
        return content

    def counts(self) -> tuple[dict[str, int], dict[str, str]]:
        """How often each run has failed, and the files that should say so and cannot be read, with the reason."""
        failed: collections.Counter[str] = collections.Counter()
        broken: dict[str, str] = {}
        for name in list_names(self.folder, FAILURE, broken):
            identity, number, _ = name.split(".")
            try:
                self._read(identity, int(number))
                failed[identity] += 1
            except (OSError, ValueError) as error:
                broken[str(self.folder / name)] = why(error)
        return failed, broken

    def forget(self, identity: str) -> None:
        """Lets a run begin anew."""
        with as_storage_error(self.folder):
            for name in list_names(self.folder, FAILURE):
                if name.startswith(identity):
                    (self.folder / name).unlink(missing_ok=True)
