"""Outcomes of runs without their curves, and records of failures. Imports neither JAX nor pandas,
so that `emergo study status` answers at once.

This module decides which folders are finished runs:

- `run.json` has the form below and is covered by its own checksum,
- it holds the checksum of `curves.parquet`,
- the hash of its config and seed is the name of the folder,
- its state agrees with its numbers.

Runs of schema 2 have no checksums; they must pass all other checks.

`.index.json` caches the outcomes. An entry is used only if the inodes, sizes and times of the run's
files are unchanged. The change time (ctime) cannot be set by a program and inodes differ between
machines, so an index that was copied with its folder is ignored. It can be deleted at any time.
"""

import collections
import contextlib
import hashlib
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import StorageError
from ..core.files import as_storage_error, atomic_write, is_folder, read_regular, regular_file
from ..core.json import digest, seal
from .reader import (
    CHECKSUM,
    FAILURE,
    IDENTITY,
    LARGE,
    SMALL,
    checker,
    count,
    count_or_none,
    list_names,
    number_or_none,
    read_json,
    scalars,
    why,
)

SCHEMA = 3  # of `run.json`, with checksums from 3 on; raised if older versions cannot read it
STATES = ("reached", "censored", "trained", "failed")
INDEX = ".index.json"
CURVES = "curves.parquet"
_INDEX_VERSION = 7
_OUTCOME = {
    "state": str,
    "time": number_or_none,
    "low": number_or_none,
    "high": number_or_none,
    "steps": count,
    "failed_step": count_or_none,
    "reason?": str | None,
}
_CHECK_RUN = checker(
    {
        "identity": IDENTITY,
        "seed": count,
        "columns": scalars,
        "outcome": _OUTCOME,
        "provenance": dict,
        "schema?": count,
        "semantics": count,
        "config": dict,
        "curves": [str],
        "probes?": dict,
        "checksum?": CHECKSUM,
        "files?": {CURVES: CHECKSUM},
    }
)
_CHECK_INDEX = checker({"checksum": CHECKSUM, "version": count, "runs": dict})
_CHECK_ENTRY = checker(
    (
        str,
        {
            "seed": count,
            "columns": scalars,
            "outcome": _OUTCOME,
            "provenance": {"device": str | None},
        },
        bool,
    )
)
_CHECK_FAILURE = checker({"identity": IDENTITY, "try": count, "kind": str, "reason": str})


def outcome_row(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of `run.json` as one row of a table: config, seed, plateau.

    JSON holds null for numbers that are not finite; the state tells which number it was.
    """
    outcome = content["outcome"]
    state = outcome["state"]
    times = {name: outcome[name] for name in ("time", "low", "high")}
    plateau, low, high = (math.nan if time is None else float(time) for time in times.values())
    if state == "reached" and times["low"] is None:
        low = -math.inf
    if state == "censored":
        high = math.inf
    ended = {
        "identity": content["identity"],
        "seed": content["seed"],
        "plateau": plateau,
        "plateau_low": low,
        "plateau_high": high,
        "censored": state == "censored",
        "state": state,
        "steps": outcome["steps"],
        "failed_step": outcome["failed_step"],
        "reason": outcome.get("reason"),
        "device": content["provenance"].get("device"),
    }
    # The identity comes first. A column of the config never replaces a part of the outcome.
    return {"identity": "", **content["columns"]} | ended


def _check_outcome(content: Mapping[str, Any]) -> None:
    """Raise `ValueError` if the numbers do not agree with the state."""
    outcome = content["outcome"]
    state = outcome["state"]
    time = outcome["time"]
    low = outcome["low"]
    high = outcome["high"]
    if state not in STATES:
        raise ValueError(f"state {state!r:.60}")
    if (time is not None) != (state in ("reached", "censored")):
        raise ValueError(f"its state is {state}, and its plateau {time}")
    if time is not None and content["columns"].get("threshold") is None:
        raise ValueError(f"its state is {state}, without a threshold")
    if state == "reached" and (high is None or time > high or (low is not None and low > time)):
        raise ValueError("its plateau is not within its interval")
    if time is not None and not 0 <= time <= outcome["steps"]:
        raise ValueError(
            f"its plateau is {time:g}, and it was trained for {outcome['steps']} steps"
        )


def read_run(
    folder: str | Path, identity: str, curves: bool = True, form: bool = False
) -> dict[str, Any]:
    """Return the content of `run.json` after all checks.

    **Arguments:**

    - `curves`: also check the file with the curves, which `read_curve_bytes` does otherwise.
    - `form`: also check that this file holds curves. This imports pandas.

    Raises `OSError`, or `ValueError` with the reason.
    """
    if os.path.lexists(folder) and not is_folder(folder):
        raise ValueError("it should be a folder")
    content = read_json(f"{folder}/run.json", _CHECK_RUN)
    if content["identity"] != identity:
        raise ValueError(f"it holds the run {content['identity']}")
    if digest({name: content[name] for name in ("semantics", "config", "seed")}) != identity:
        raise ValueError("its config and seed belong to another run")
    _check_outcome(content)
    if content.get("schema", 1) >= 3 and not ("checksum" in content and "files" in content):
        raise ValueError("its checksums are missing")
    data = read_curve_bytes(folder, content) if curves else b""
    if form:
        from .curves import check_curve_bytes

        check_curve_bytes(data)
    return content


def read_curve_bytes(folder: str | Path, content: Mapping[str, Any]) -> bytes:
    """Return the bytes of the file with the curves after checking its checksum.

    **Arguments:**

    - `content`: content of the run's `run.json`.
    """
    data = read_regular(f"{folder}/{CURVES}", LARGE)
    if content.get("schema", 1) >= 3:
        if hashlib.sha256(data).hexdigest() != content["files"][CURVES]:
            raise ValueError(f"{CURVES} has another checksum: it was damaged or changed")
    elif not (data.startswith(b"PAR1") and data.endswith(b"PAR1")):
        raise ValueError(f"{CURVES} is cut short or not a Parquet file")
    return data


def is_finished(folder: Path, identity: str) -> bool:
    """Return True if a run is stored and readable."""
    try:
        return bool(read_run(folder / identity, identity, form=True))
    except (OSError, ValueError):
        return False


# Of the index: `file_stamp`, the parts of `run.json` for `outcome_row`, and whether the form of the
# curves was checked.
_Entry = list[Any]


class Outcomes(NamedTuple):
    """The finished runs in a folder."""

    rows: dict[str, dict[str, Any]]  # by identity, as `outcome_row` returns them
    broken: dict[str, str]  # unreadable runs with the reason


def read_outcomes(folder: Path, form: bool = False) -> Outcomes:
    """Read the outcomes of all runs in a folder.

    **Arguments:**

    - `form`: also check that every run has curves that can be read. This imports pandas.
    """
    known = _read_index(folder / INDEX)
    broken: dict[str, str] = {}
    entries: dict[str, _Entry] = {}
    for name, is_a_folder in list_names(folder, IDENTITY, broken).items():
        try:
            if not is_a_folder:
                raise ValueError("it should be a folder")
            entries[name] = _read_entry(f"{folder}/{name}", name, known.get(name), form)
        except (OSError, ValueError) as error:
            broken[f"{folder}/{name}"] = why(error)
    fresh = sum(entry is not known.get(name) for name, entry in entries.items())
    if fresh and (fresh >= 200 or 10 * fresh >= len(entries)):
        with contextlib.suppress(StorageError):  # a full or read-only disk: it is only a cache
            index = seal({"version": _INDEX_VERSION, "runs": entries})
            atomic_write(folder / INDEX, index, durable=False)
    return Outcomes({name: outcome_row(entry[1]) for name, entry in entries.items()}, broken)


def file_stamp(folder: str | Path) -> str:
    """Return inodes, sizes and times of the files of a run."""
    files = (regular_file(f"{folder}/run.json", SMALL), regular_file(f"{folder}/{CURVES}", LARGE))
    numbers = [(f.st_ino, f.st_size, f.st_mtime_ns, f.st_ctime_ns) for f in files]
    return " ".join(f"{number}" for file in numbers for number in file)


def _read_entry(path: str, name: str, known: _Entry | None, form: bool) -> _Entry:
    """Return the known entry if the files are unchanged; read them otherwise."""
    stamp = file_stamp(path)
    if known is not None and known[0] == stamp and known[2] >= form:
        return known
    content = read_run(path, name, form=form)
    kept = {key: content[key] for key in ("identity", "seed", "columns", "outcome")}
    return [stamp, kept | {"provenance": {"device": content["provenance"].get("device")}}, form]


def _read_index(path: Path) -> dict[str, _Entry]:
    """Read the index; empty if it is missing or damaged, without entries that are malformed."""
    try:
        index = read_json(path, _CHECK_INDEX, LARGE)
    except (OSError, ValueError):
        return {}
    entries: dict[str, _Entry] = {}
    for name, entry in index["runs"].items() if index["version"] == _INDEX_VERSION else ():
        with contextlib.suppress(ValueError):
            _CHECK_ENTRY(entry, name)
            _check_outcome(entry[1])
            entries[name] = [entry[0], entry[1] | {"identity": name}, entry[2]]
    return entries


class Failures:
    """Records of failed attempts: one small file per attempt.

    The attempts of a run are numbered from 0. An attempt that is repeated after an interruption
    keeps its number, so interruptions do not count as failures. Unreadable files do not count.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, identity: str, number: int) -> Path:
        return self.folder / f"{identity}.{number}.json"

    def note(self, identity: str, number: int, reason: str, kind: str, **more: Any) -> None:
        """Record that attempt `number` of a run failed.

        **Arguments:**

        - `kind`: `"loss"` (not finite) or `"memory"`.
        - `more`: further plain data, such as the device.
        """
        content = {"identity": identity, "try": number, "kind": kind, "reason": reason}
        content |= {"when": time.time()} | more
        atomic_write(self._path(identity, number), seal(content))

    def recorded(self, identity: str, number: int) -> bool:
        """Return True if the attempt failed."""
        return bool(self.read(identity, number))

    def read(self, identity: str, number: int) -> dict[str, Any]:
        """Return the record of an attempt; empty if it is missing or unreadable."""
        try:
            return self._read(identity, number)
        except (OSError, ValueError):
            return {}

    def _read(self, identity: str, number: int) -> dict[str, Any]:
        content = read_json(self._path(identity, number), _CHECK_FAILURE)
        if (content["identity"], content["try"]) != (identity, number):
            raise ValueError(f"it is about try {content['try']} of the run {content['identity']}")
        return content

    def counts(self) -> tuple[dict[str, int], dict[str, str]]:
        """Return `(failures, broken)`: failed attempts by run, and unreadable files with reason."""
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
        """Delete the records of a run, so that it is trained again."""
        with as_storage_error(self.folder):
            for name in list_names(self.folder, FAILURE):
                if name.startswith(identity):
                    (self.folder / name).unlink(missing_ok=True)
