"""The index of a folder of runs, `.index.json`, so that tables need not read every run.

It is only a cache, and may be damaged or forged: entries of another form are ignored. The runs of a
pack are kept column by column, and a column of equal values as one value, which is small and quick
to read. Imports neither JAX nor pandas.
"""

import collections
import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import StorageError
from ..core.files import atomic_write
from ..core.json import seal
from .reader import (
    CHECKSUM,
    IDENTITY,
    LARGE,
    checker,
    count,
    count_or_none,
    number_or_none,
    read_json,
    scalar,
    scalars,
)

INDEX = ".index.json"
STATES = ("reached", "censored", "trained", "failed")
OUTCOME = {
    "state": str,
    "time": number_or_none,
    "low": number_or_none,
    "high": number_or_none,
    "steps": count,
    "failed_step": count_or_none,
    "reason?": str | None,
}
_VERSION = 10


def text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def checksum_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, str) and bool(CHECKSUM.fullmatch(value)))


_CHECK_INDEX = checker({"checksum": CHECKSUM, "version": count, "runs": dict, "packs": dict})
_CHECK_ENTRY = checker(
    (
        str,
        {
            "seed": count,
            "columns": scalars,
            "outcome": OUTCOME,
            "provenance": {"device": str | None},
            "stated": scalars,
            "checksum": checksum_or_none,
        },
        bool,
    )
)
_CHECK_PACK = checker(
    {
        "stamp": str,
        "form": bool,
        "groups": [{"names": [IDENTITY], "columns": dict}],
        "broken": scalars,
    }
)
_TABLES = ("columns", "outcome", "provenance", "stated")  # the tables in the parts of a run
_ENDS = ("outcome/state", "outcome/reason", "checksum")
_FIELDS = {
    "seed": count,
    "checksum": checksum_or_none,
    "provenance/device": text_or_none,
    "outcome/reason": text_or_none,
    "outcome/state": STATES.__contains__,
    "outcome/time": number_or_none,
    "outcome/low": number_or_none,
    "outcome/high": number_or_none,
    "outcome/steps": count,
    "outcome/failed_step": count_or_none,
}

Entry = list[Any]
"""Of a run in its folder: the stamp of its files, `kept_parts`, and whether the form of its curves
was checked."""


class PackedOutcomes(NamedTuple):
    """The parts of the runs of a pack that tables need."""

    stamp: str  # of the pack
    form: bool  # whether the form of the curves was checked
    groups: list[dict[str, Any]]  # runs with the same fields: `names`, and `columns` by field
    broken: dict[str, str]  # unreadable runs with the reason

    def names(self) -> Iterator[str]:
        """Yield the readable runs."""
        for group in self.groups:
            yield from group["names"]

    def runs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each run with its `kept_parts`."""
        for group in self.groups:
            names = group["names"]
            columns = {tuple(field.split("/", 1)): c for field, c in group["columns"].items()}
            for i, name in enumerate(names):
                kept: dict[str, Any] = {"identity": name} | {table: {} for table in _TABLES}
                for (table, *field), column in columns.items():
                    value = column[0 if len(column) == 1 else i]
                    if field:
                        kept[table][field[0]] = value
                    else:
                        kept[table] = value
                yield name, kept

    def ends(self) -> Iterator[tuple[list[str], list[Any], list[Any], list[Any]]]:
        """Yield the names of runs with their states, reasons, and checksums of curves."""
        for group in self.groups:
            names = group["names"]
            columns = [group["columns"].get(field, [None]) for field in _ENDS]
            yield names, *(c * len(names) if len(c) == 1 else c for c in columns)


def pack_outcomes(
    stamp: str, form: bool, runs: Collection[Mapping[str, Any]], broken: dict[str, str]
) -> PackedOutcomes:
    """Return the `kept_parts` of the runs of a pack, column by column."""
    flat = collections.defaultdict(list)
    for kept in runs:
        fields: dict[str, Any] = {}
        for name, value in kept.items():
            if name in _TABLES:
                fields |= {f"{name}/{field}": inner for field, inner in value.items()}
            elif name != "identity":
                fields[name] = value
        flat[tuple(fields)].append((kept["identity"], tuple(fields.values())))
    groups = []
    for fields, members in flat.items():
        columns = [_squeezed(column) for column in zip(*(v for _, v in members), strict=True)]
        names = [name for name, _ in members]
        groups.append({"names": names, "columns": dict(zip(fields, columns, strict=True))})
    return PackedOutcomes(stamp, form, groups, broken)


def _squeezed(column: Sequence[Any]) -> list[Any]:
    """Return one value if all are the same; 1, 1.0 and True are not."""
    return [column[0]] if len(set(map(repr, column))) == 1 else [*column]


def read_index(folder: Path) -> tuple[dict[str, Entry], dict[str, PackedOutcomes]]:
    """Return the entries of runs and of packs; none of those that are damaged."""
    try:
        index = read_json(folder / INDEX, _CHECK_INDEX, LARGE)
    except (OSError, ValueError):
        return {}, {}
    if index["version"] != _VERSION:
        return {}, {}
    entries: dict[str, Entry] = {}
    for name, entry in index["runs"].items():
        with contextlib.suppress(ValueError):
            _CHECK_ENTRY(entry, name)
            entries[name] = [entry[0], entry[1] | {"identity": name}, entry[2]]
    packs = {}
    for name, content in index["packs"].items():
        with contextlib.suppress(ValueError):
            packs[name] = _parse_pack(name, content)
    return entries, packs


def _parse_pack(name: str, content: Any) -> PackedOutcomes:
    """Return the entry of a pack. Raises `ValueError` for any other form."""
    _CHECK_PACK(content, name)
    pack = PackedOutcomes(*(content[field] for field in PackedOutcomes._fields))
    for group in pack.groups:
        columns = group["columns"]
        if not _FIELDS.keys() - {"outcome/reason"} <= columns.keys():
            raise ValueError("a field is missing")
        for field, column in columns.items():
            table, inner, _ = field.partition("/")
            if not (isinstance(column, list) and len(column) in (1, len(group["names"]))):
                raise ValueError("a column of another length")
            known = field in _FIELDS or (inner and table in ("columns", "stated"))
            if not (known and all(map(_FIELDS.get(field, scalar), column))):
                raise ValueError("a column of another kind")
    return pack


def write_index(
    folder: Path, entries: Mapping[str, Entry], packs: Mapping[str, PackedOutcomes]
) -> None:
    """Write the index, unless the disk is full or read-only."""
    content = {
        "version": _VERSION,
        "runs": entries,
        "packs": {name: pack._asdict() for name, pack in packs.items()},
    }
    with contextlib.suppress(StorageError):
        atomic_write(folder / INDEX, seal(content), durable=False)
