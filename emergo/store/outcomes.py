"""Outcomes of runs without their curves, and records of failures. Imports neither JAX nor pandas,
so that `emergo study status` answers at once.

This module decides which folders are finished runs:

- `run.json` has the form below and is covered by its own checksum,
- it holds the checksum of `curves.parquet`,
- the hash of its config and seed is the name of the folder,
- its state agrees with its numbers.

Runs of schema 2 have no checksums; they must pass all other checks, and count as unverified.

A run is in its own folder, or packed (see `packs.py`). The folder counts if both exist.

`.index.json` caches the outcomes and the checksums of curves. An entry is used only if the inodes,
sizes and times of the run's files, or of its pack, are unchanged. The change time (ctime) cannot be
set by a program and inodes differ between machines, so an index that was copied with its folder is
ignored. It can be deleted at any time.
"""

import collections
import contextlib
import functools
import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..core.files import (
    as_storage_error,
    atomic_write,
    is_folder,
    read_regular,
    regular_file,
)
from ..core.json import digest, parse_json, seal
from .folder import WHOLE
from .index import (
    OUTCOME,
    STATES,
    Entry,
    PackedOutcomes,
    pack_outcomes,
    read_index,
    write_index,
)
from .packs import Pack, packed_file, read_packs
from .reader import (
    CHECKSUM,
    FAILURE,
    IDENTITY,
    LARGE,
    SMALL,
    checker,
    count,
    list_names,
    read_json,
    scalar,
    scalars,
    why,
)

SCHEMA = 3  # of `run.json`, with checksums from 3 on; raised if older versions cannot read it
CURVES = "curves.parquet"
_ENDED = ("steps", "failed_step", "reason", "device")  # columns of outcomes that an axis may name
_TRIES = 5  # a pack may be replaced while it is read
_CHECK_RUN = checker(
    {
        "identity": IDENTITY,
        "seed": count,
        "columns": scalars,
        "outcome": OUTCOME,
        "provenance": {"device?": str | None},
        "schema?": count,
        "semantics": count,
        "config": dict,
        "curves": [str],
        "probes?": dict,
        "checksum?": CHECKSUM,
        "files?": {CURVES: CHECKSUM},
    }
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


Read = Callable[[str, int], bytes]  # takes the name of a file of a run, and the most bytes


def run_file(folder: Path, identity: str, name: str, most: int) -> bytes:
    """Return a file of a run, from its folder in `folder` or from a pack."""
    path = f"{folder}/{identity}"
    if os.path.lexists(path):
        if not is_folder(path):
            raise ValueError("it should be a folder")
        try:
            return read_regular(f"{path}/{name}", most)
        except FileNotFoundError:
            if os.path.lexists(path):  # else it has just been packed
                raise
    return packed_file(folder, identity, name, most)


def read_run(
    folder: Path, identity: str, curves: bool = True, form: bool = False
) -> dict[str, Any]:
    """Return the content of `run.json` of a run in `folder`, or in a pack there; see `check_run`.

    Raises `OSError`, or `ValueError` with the reason.
    """
    return check_run(functools.partial(run_file, folder, identity), identity, curves, form)


def check_run(read: Read, identity: str, curves: bool = True, form: bool = False) -> dict[str, Any]:
    """Return the content of `run.json` after all checks.

    **Arguments:**

    - `read`: reads a file of the run.
    - `curves`: also check the file with the curves, which `read_curve_bytes` does otherwise.
    - `form`: also check that this file holds curves. This imports pandas.
    """
    content = parse_json(read("run.json", SMALL))
    _CHECK_RUN(content, "the content")
    if content["identity"] != identity:
        raise ValueError(f"it holds the run {content['identity']}")
    if digest({name: content[name] for name in ("semantics", "config", "seed")}) != identity:
        raise ValueError("its config and seed belong to another run")
    _check_outcome(content)
    if is_verified(content) and not ("checksum" in content and "files" in content):
        raise ValueError("its checksums are missing")
    data = _check_curves(read(CURVES, LARGE), content) if curves else b""
    if form:
        from .curves import check_curve_bytes

        check_curve_bytes(data)
    return content


def is_verified(content: Mapping[str, Any]) -> bool:
    """Return True if the schema of a `run.json` has checksums. Older runs are unverified."""
    return content.get("schema", 1) >= 3


def read_curve_bytes(folder: Path, content: Mapping[str, Any]) -> bytes:
    """Return the bytes of the file with the curves after checking its checksum.

    **Arguments:**

    - `content`: content of the run's `run.json`.
    """
    return _check_curves(run_file(folder, content["identity"], CURVES, LARGE), content)


def _check_curves(data: bytes, content: Mapping[str, Any]) -> bytes:
    if is_verified(content):
        if hashlib.sha256(data).hexdigest() != content["files"][CURVES]:
            raise ValueError(f"{CURVES} has another checksum: it was damaged or changed")
    elif not (data.startswith(b"PAR1") and data.endswith(b"PAR1")):
        raise ValueError(f"{CURVES} is cut short or not a Parquet file")
    return data


def is_finished(folder: Path, identity: str) -> bool:
    """Return True if a run is stored and readable."""
    try:
        return bool(read_run(folder, identity, form=True))
    except (OSError, ValueError):
        return False


def stated_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values in the description of a config by path, such as `task.dim`.

    The identity of a run is a hash of them. Fields at their default are not among them.
    """
    fields: dict[str, Any] = {}
    tables = [("", config)]
    while tables:
        head, table = tables.pop()
        for name, value in table.items():
            if name == "options" and isinstance(value, list):  # of an optimizer: pairs
                pairs = (pair for pair in value if isinstance(pair, list) and len(pair) == 2)
                value = {str(option): number for option, number in pairs}
                tables.append((head, value))
            elif isinstance(value, dict):
                tables.append((f"{head}{name}.", value))
            elif isinstance(value, list) and all(isinstance(part, dict) for part in value):
                parts = {f"{name}.{i}": part for i, part in enumerate(value)}  # interventions
                tables.append((head, parts))
            elif scalar(value) and name not in ("type", "version"):
                fields[f"{head}{name}"] = value
    return fields


def axis_values(
    axes: Sequence[str], planned: Sequence[Any], row: Mapping[str, Any], stated: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of the axes of a finished run.

    A plan may be forged. So its value counts only where the run itself has none, as for the label
    of a whole part, and for lists and schedules, which are text that a plan may write in another
    way.

    **Arguments:**

    - `planned`: the values in the plan.
    - `row`, `stated`: the run in `Outcomes`.
    """
    return {
        axis: _own_value(axis, value, row, stated)
        for axis, value in zip(axes, planned, strict=True)
    }


def _own_value(axis: str, planned: Any, row: Mapping[str, Any], stated: Mapping[str, Any]) -> Any:
    if axis in stated or axis in WHOLE:
        return stated.get(axis, planned)
    # A field of a nested part counts, e.g. task.groups.importance, but no field of a schedule: a
    # schedule has a column, and a nested part has none.
    paths = [
        path
        for path in stated
        if path.rpartition(".")[2] == axis and row.keys().isdisjoint(path.split(".")[1:-1])
    ]
    if len(paths) == 1:
        return stated[paths[0]]
    own = None if paths or axis in _ENDED else row.get(axis)
    plain = isinstance(own, str) and not {"(", "["} & {*own}
    return own if plain or type(own) in (bool, int, float) else planned


class Outcomes(NamedTuple):
    """The finished runs in a folder."""

    rows: dict[str, dict[str, Any]]  # by identity, as `outcome_row` returns them
    broken: dict[str, str]  # unreadable runs and packs with the reason
    stated: dict[str, dict[str, Any]]  # by identity: see `stated_fields`
    checksums: dict[str, str | None]  # of the curves, by identity; None for runs without

    @property
    def unverified(self) -> set[str]:
        """The runs without checksums."""
        return {name for name, checksum in self.checksums.items() if checksum is None}


def read_outcomes(folder: Path, form: bool = False) -> Outcomes:
    """Read the outcomes of all runs in a folder.

    **Arguments:**

    - `form`: also check that every run has curves that can be read. This imports pandas.
    """
    kept, packed, broken = _read_entries(folder, form)
    for pack in packed:
        for name, parts in pack.runs():
            if name not in kept and f"{folder}/{name}" not in broken:
                kept[name] = parts
    rows = {name: outcome_row(kept[name]) for name in sorted(kept)}
    stated = {name: parts["stated"] for name, parts in kept.items()}
    checksums = {name: parts["checksum"] for name, parts in kept.items()}
    return Outcomes(rows, broken, stated, checksums)


class States(NamedTuple):
    """The states of the runs in a folder."""

    states: dict[str, str]  # by identity
    reasons: dict[str, str | None]  # why runs failed
    unverified: set[str]  # runs without checksums
    broken: dict[str, str]  # unreadable runs and packs with the reason


def read_states(folder: Path) -> States:
    """Read the states of runs: a part of `read_outcomes` that is quicker for packed runs."""
    kept, packed, broken = _read_entries(folder, form=False)
    states: dict[str, str] = {}
    reasons: dict[str, str | None] = {}
    checksums: dict[str, str | None] = {}
    for pack in packed:
        for names, state, reason, checksum in pack.ends():
            states |= dict(zip(names, state, strict=True))
            reasons |= dict(zip(names, reason, strict=True))
            checksums |= dict(zip(names, checksum, strict=True))
    for path in broken:
        states.pop(os.path.basename(path), None)
    for name, parts in kept.items():
        states[name] = parts["outcome"]["state"]
        reasons[name] = parts["outcome"].get("reason")
        checksums[name] = parts["checksum"]
    unverified = {name for name in states if checksums[name] is None}
    return States(states, reasons, unverified, broken)


def _read_entries(
    folder: Path, form: bool
) -> tuple[dict[str, dict[str, Any]], list[PackedOutcomes], dict[str, str]]:
    """Return `(kept, packed, broken)`: runs in folders by identity, packs, and unreadable files."""
    known, known_packs = read_index(folder)
    broken: dict[str, str] = {}
    entries: dict[str, Entry] = {}
    for name, is_a_folder in list_names(folder, IDENTITY, broken).items():
        try:
            if not is_a_folder:
                raise ValueError("it should be a folder")
            entries[name] = _read_entry(folder, name, known.get(name), form)
        except (OSError, ValueError) as error:
            if os.path.lexists(f"{folder}/{name}"):  # else it was just packed or moved
                broken[f"{folder}/{name}"] = why(error)
    # Packs come second: a run is packed before its folder is removed.
    packed = _read_packs(folder, known_packs, form, broken)
    unread = {run: reason for pack in packed.values() for run, reason in pack.broken.items()}
    if unread:
        good = set(entries).union(*(pack.names() for pack in packed.values()))
        for run, reason in unread.items():
            if run not in good:
                broken.setdefault(f"{folder}/{run}", reason)
    fresh = sum(entry is not known.get(name) for name, entry in entries.items())
    new_packs = any(pack is not known_packs.get(name) for name, pack in packed.items())
    if new_packs or (fresh and (fresh >= 200 or 10 * fresh >= len(entries))):
        write_index(folder, entries, packed)
    return {name: entry[1] for name, entry in entries.items()}, [*packed.values()], broken


def _read_packs(
    folder: Path, known: Mapping[str, PackedOutcomes], form: bool, broken: dict[str, str]
) -> dict[str, PackedOutcomes]:
    """Return the outcomes in each pack: the known ones of unchanged packs, else from its files."""
    packed: dict[str, PackedOutcomes] = {}
    for _ in range(_TRIES):
        packed = {}
        try:
            for pack in read_packs(folder, broken):
                packed[pack.path.name] = _read_pack(pack, known.get(pack.path.name), form)
            break
        except FileNotFoundError:  # its runs have moved to another pack
            continue
    return packed


def file_stamp(folder: str | Path) -> str:
    """Return inodes, sizes and times of the files of a run in its own folder."""
    files = (regular_file(f"{folder}/run.json", SMALL), regular_file(f"{folder}/{CURVES}", LARGE))
    numbers = [(f.st_ino, f.st_size, f.st_mtime_ns, f.st_ctime_ns) for f in files]
    return " ".join(f"{number}" for file in numbers for number in file)


def _read_entry(folder: Path, name: str, known: Entry | None, form: bool) -> Entry:
    """Return the known entry if the files are unchanged; read them otherwise."""
    stamp = file_stamp(f"{folder}/{name}")
    if known is not None and known[0] == stamp and known[2] >= form:
        with contextlib.suppress(ValueError):  # the index may be forged
            _check_outcome(known[1])
            return known
    return [stamp, kept_parts(read_run(folder, name, form=form)), form]


def kept_parts(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a `run.json` that tables need."""
    return {
        **{key: content[key] for key in ("identity", "seed", "columns", "outcome")},
        "provenance": {"device": content["provenance"].get("device")},
        "stated": stated_fields(content["config"]),
        "checksum": content["files"][CURVES] if is_verified(content) else None,
    }


def _read_pack(pack: Pack, known: PackedOutcomes | None, form: bool) -> PackedOutcomes:
    """Return the known outcomes if the pack is unchanged; check every run of it otherwise.

    Raises `FileNotFoundError` if the pack was removed.
    """
    if known is not None and known.stamp == pack.stamp and known.form >= form:
        return known
    kept = []
    broken = {}
    for identity in pack.files:
        try:
            read = functools.partial(pack.read, identity)
            kept.append(kept_parts(check_run(read, identity, form=form)))
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            broken[identity] = why(error)
    return pack_outcomes(pack.stamp, form, kept, broken)


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
