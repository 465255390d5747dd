"""The outcomes of many runs without their curves, quickly. Needs neither JAX nor pandas, so that `status` answers at once.

What was read is remembered in `.index.json`, a cache: an entry counts only while the files of its run have the sizes and times
they had, and the index may be removed at any time.
"""

import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .._errors import InputError, StorageError
from .._files import atomic_write
from .._json import to_jsonable
from ._version_1 import upgraded_run

SCHEMA = 2
"""Of `run.json`; raised when older versions could not read it."""
STATES = ("reached", "censored", "trained", "failed")
IDENTITY = re.compile("[0-9a-f]{16}")
INDEX = ".index.json"
_VERSION = 2
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


class Outcomes(NamedTuple):
    """What a folder of runs holds."""

    rows: dict[str, dict[str, Any]]
    """By identity, as `outcome_row` makes them."""
    broken: dict[str, str]
    """Folders that should be runs and cannot be read, and why."""


def outcome_numbers(outcome: Mapping[str, Any]) -> dict[str, float]:
    """Time, low and high of an outcome; JSON has null for what is not finite."""
    numbers = {name: float("nan") if outcome[name] is None else float(outcome[name]) for name in ("time", "low", "high")}
    if outcome["state"] == "censored":
        numbers["high"] = float("inf")
    elif outcome["state"] == "reached" and outcome["low"] is None:
        numbers["low"] = float("-inf")
    return numbers


def run_content(
    described: Mapping[str, Any],
    identity: str,
    columns: Mapping[str, Any],
    outcome: Mapping[str, Any],
    curves: Any,
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    """The content of a `run.json`.

    **Arguments:**

    - `described`: the run as the plain data that its identity is a hash of.
    - `columns`: its fields as cells of a table.
    - `curves`: the names of the curves that are kept with it.
    """
    content = {"schema": SCHEMA, "identity": identity, **described, "columns": columns, "outcome": outcome}
    return to_jsonable(content | {"curves": sorted(curves), "provenance": dict(provenance)})


def outcome_row(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a `run.json` as one row of a table: its axes, its seed, its plateau."""
    outcome = content["outcome"]
    numbers, state = outcome_numbers(outcome), outcome["state"]
    if state not in STATES:
        raise ValueError(f"state {state!r}")
    return {
        "identity": content["identity"],
        **content["columns"],
        "seed": content["seed"],
        "plateau": numbers["time"],
        "plateau_low": numbers["low"],
        "plateau_high": numbers["high"],
        "censored": state == "censored",
        "state": state,
        "steps": outcome["steps"],
        "failed_step": outcome["failed_step"],
        "reason": outcome.get("reason"),
        "device": content["provenance"].get("device"),
    }


def read_run(folder: str | Path, identity: str) -> dict[str, Any]:
    """The content of a `run.json`, with a look at the end of the curves, which a cut file lacks."""
    with open(os.path.join(folder, "run.json"), "rb") as file:
        content = json.loads(file.read())
    if content["identity"] != identity:
        raise ValueError(f"it holds the run {content['identity']}")
    with open(os.path.join(folder, "curves.parquet"), "rb") as file:
        head = file.read(4)
        file.seek(-4, os.SEEK_END)
        if head != b"PAR1" or file.read(4) != b"PAR1":
            raise ValueError("curves.parquet is cut short or no Parquet file")
    return content if "schema" in content else upgraded_run(content)


def read_outcomes(folder: Path) -> Outcomes:
    """The outcomes of all runs under a folder. What cannot be read is named and does not hide the rest."""
    known = _read_index(folder / INDEX)
    entries: dict[str, list[Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    broken: dict[str, str] = {}
    fresh = 0
    for name in _identities(folder):
        path = os.path.join(folder, name)
        try:
            stamp = _stamp(path)
            before = known.get(name)
            if isinstance(before, list) and len(before) == 2 and before[0] == stamp and isinstance(before[1], dict):
                row = before[1]
            else:
                row = outcome_row(read_run(path, name))
                fresh += 1
            entries[name], rows[name] = [stamp, row], row
        except _UNREADABLE as error:
            broken[path] = _why(error)
    if fresh and (fresh >= 200 or 10 * fresh >= len(rows)):
        with contextlib.suppress(StorageError):  # a full or read-only disk: it is only a cache
            atomic_write(folder / INDEX, json.dumps({"version": _VERSION, "runs": entries}), durable=False)
    return Outcomes(rows, broken)


def is_finished(folder: Path, identity: str) -> bool:
    """Whether a run is there and can be read."""
    try:
        outcome_row(read_run(os.path.join(folder, identity), identity))
        return True
    except _UNREADABLE:
        return False


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{os.path.basename(str(error.filename))} is missing"
    return f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__


def _identities(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if IDENTITY.fullmatch(e.name) and e.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror}); it should be a folder that you may read") from None


def _stamp(path: str) -> list[int]:
    run, curves = os.stat(os.path.join(path, "run.json")), os.stat(os.path.join(path, "curves.parquet"))
    return [run.st_mtime_ns, run.st_size, curves.st_mtime_ns, curves.st_size]


def _read_index(path: Path) -> dict[str, list[Any]]:
    try:
        content = json.loads(path.read_bytes())
        return content["runs"] if content["version"] == _VERSION and isinstance(content["runs"], dict) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
