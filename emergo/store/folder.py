"""The folder of one or more studies: its layout and its plans. Imports neither JAX nor pandas.

studies/        one plan per study: its runs, and the units in which they are trained
runs/           finished runs, one folder each, or packed
claims/         which process trains which unit, and its progress
failures/       failed attempts, one file each
checkpoints/    units in training
slurm/          a folder for each submission
"""

import contextlib
import os
import re
import time
import uuid
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import InputError, StorageError
from ..core.files import (
    atomic_write,
    is_folder,
    move_aside,
    output_folder,
    own_folder,
    read_regular,
    remove,
)
from ..core.json import parse_json, seal
from .packs import pack_folder
from .reader import (
    CHECKSUM,
    IDENTITY,
    LARGE,
    PLAN,
    UNIT,
    checker,
    count,
    list_names,
    number,
    numbers,
    scalar,
    whole,
    why,
)

SCHEMA = 3  # of a plan, with a checksum from 3 on; raised if older versions cannot read it
RESERVED = ("identity", "seed", "plateau", "plateau_low", "plateau_high", "censored", "state")
"""Columns of every table, which an axis cannot be called."""
WHOLE = ("task", "model", "optimizer", "interventions", "stop", "start")
"""Parts of a config that an axis may replace as a whole. Its values are labels."""


def axis(value: Any) -> bool:
    return isinstance(value, str) and value not in RESERVED


def steps_to_keep(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, list) and all(map(count, value)))


_STUDY = {
    "name?": str,
    "since?": number,
    "plugins?": [str],
    "retries?": count,
    "keep?": steps_to_keep,
    "law?": {"x": [str], "y": str, "fix": numbers},
    "tune?": dict,
    "slurm?": dict,
}
_CHECK_PLAN = checker(
    {
        "schema": count,
        "study": _STUDY,
        "axes": [axis],
        "configs": [dict],
        "units": [{"id": UNIT, "runs": [(IDENTITY, whole, count)]}],
    }
)
# Unfinished files and folders, as `temporary_sibling`, `Store.write` and `pack_runs` name them.
_LEFTOVER = re.compile(r"\.(writing|packed)-[0-9a-f]{16}|\.[\w.-]+\.(json|npz|zip)\.[0-9a-f]{16}")


class Planned(NamedTuple):
    """A run in a plan."""

    identity: str
    config: int  # position in the configs of the plan
    seed: int
    values: list[Any]  # of the axes, in the order of the plan


class Unit(NamedTuple):
    """Runs of one program that one process trains together."""

    id: str
    runs: list[Planned]


class Plan(NamedTuple):
    """The content of a file in `studies/`."""

    study: dict[str, Any]  # the study as plain data; only a name for runs of no study file
    axes: list[str]
    configs: list[dict[str, Any]]  # as `Config.describe` returns them
    units: list[Unit]
    key: str = ""  # the name of its file

    @property
    def runs(self) -> list[Planned]:
        return [run for unit in self.units for run in unit.runs]

    def left(self, finished: Container[str]) -> list[Unit]:
        """Return the units with unfinished runs."""
        return [
            unit for unit in self.units if any(run.identity not in finished for run in unit.runs)
        ]

    @property
    def name(self) -> str:
        return str(self.study.get("name", "study"))

    @property
    def asks(self) -> bool:
        """True if runs must have curves of extra probes, or parameters."""
        return bool(self.study.get("keep")) or any("probes" in config for config in self.configs)

    @property
    def plugins(self) -> list[str]:
        return list(self.study.get("plugins", ()))


class Unreadable(InputError):
    """An error of a plan that cannot be read, such as a plan of a later version of emergo."""

    damaged = False  # a damaged plan may be moved aside


class StudyFolder:
    """The folder of one or more studies."""

    def __init__(self, path: Path | str) -> None:
        if str(path) == "":
            raise InputError(
                "the folder of a study has an empty name; give . for the current folder"
            )
        self.path = Path(path)
        self.plans = self.path / "studies"
        self.runs = self.path / "runs"
        self.claims = self.path / "claims"
        self.failures = self.path / "failures"
        self.checkpoints = self.path / "checkpoints"
        self.slurm = self.path / "slurm"

    def _files(self) -> list[Path]:
        return [self.plans / name for name in list_names(self.plans, PLAN)]

    def stamp(self) -> list[tuple[Any, ...]]:
        """Return inodes and times of the plans, which change when a plan is written."""
        found: list[tuple[Any, ...]] = []
        for path in self._files():
            with contextlib.suppress(OSError):
                status = path.lstat()
                found.append((path, status.st_ino, status.st_ctime_ns))
        return found

    def exists(self) -> bool:
        """Return True if the folder holds a plan, readable or not."""
        return bool(self._files())

    def prepare(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Create the folder and its subfolders, and check that they are writable.

        A file or symlink in the place of a subfolder is moved aside; `say` receives a line on it.
        """
        output_folder(self.path)
        for folder in (self.plans, self.runs, self.claims, self.failures, self.checkpoints):
            aside = own_folder(folder)
            if aside is not None:
                say(f"{folder}: not a folder; moved to {aside.name}")

    def within(self, name: str) -> Path:
        """Return the subfolder of another program, such as Slurm.

        Raises `InputError` if it is a symlink, which may lead out of the folder.
        """
        path = self.path / name
        if os.path.lexists(path) and not is_folder(path):
            raise InputError(f"{path}: it should be a folder; move it away")
        return path

    def anchor(self) -> Callable[[], None]:
        """Return a function that raises `StorageError` once the folder was moved or removed."""
        before = self._inode()

        def check() -> None:
            if self._inode() != before:
                raise StorageError(
                    f"{self.path}: moved or removed during training; finished runs are not lost; "
                    f"continue with `emergo study run` and the new name"
                )

        return check

    def _inode(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def sweep(self) -> None:
        """Remove half-written files of killed processes after a day."""
        units = self.checkpoints.iterdir() if is_folder(self.checkpoints) else ()
        own = (self.path, self.plans, self.runs, pack_folder(self.runs), self.claims, self.failures)
        folders = (*own, *units)
        for folder in filter(is_folder, folders):
            for path in folder.glob(".*"):
                with contextlib.suppress(OSError):
                    old = path.lstat().st_mtime < time.time() - 86_400
                    if old and _LEFTOVER.fullmatch(path.name):
                        remove(path)

    def read_plans(self) -> tuple[list[Plan], dict[Path, Unreadable]]:
        """Return `(plans, unreadable)`: the plans by age, and the errors of unreadable files."""
        plans: list[Plan] = []
        broken: dict[Path, Unreadable] = {}
        for path in self._files():
            try:
                plans.append(_read_plan(path))
            except Unreadable as error:
                broken[path] = error
        if os.path.lexists(self.plans) and not is_folder(self.plans):
            broken[self.plans] = Unreadable(f"{self.plans}: it should be a folder; move it away")
        return sorted(plans, key=lambda plan: (plan.study.get("since", 0.0), plan.key)), broken

    def read(self, say: Callable[[str], None] = lambda line: None) -> list[Plan]:
        """Return the plans by age.

        `say` receives a line on each unreadable plan. Raises `InputError` if no plan is readable.
        """
        plans, broken = self.read_plans()
        for error in broken.values():
            if not plans:
                raise error
            say(str(error))
        if not plans:
            what = "no study here; a study is put into a folder by running it"
            if os.path.isfile(self.path):
                what = "a file, not the folder of a study"
            raise InputError(f"{self.path}: {what}")
        return plans

    def move_damaged_plans(self, say: Callable[[str], None]) -> None:
        """Move damaged plans aside. Raises for plans of a later version or without permission."""
        for path, error in self.read_plans()[1].items():
            if not error.damaged:
                raise error
            say(f"{error}; moved to {move_aside(path).name}")

    def write(self, plan: Plan) -> Plan:
        """Write a plan, replacing the one with its key; return it with its key and time."""
        key = plan.key or uuid.uuid4().hex[:12]
        study = {"since": time.time()} | plan.study
        units = [
            {"id": unit.id, "runs": [[r.identity, r.config, r.seed, *r.values] for r in unit.runs]}
            for unit in plan.units
        ]
        content = {
            "schema": SCHEMA,
            "study": study,
            "axes": plan.axes,
            "configs": plan.configs,
            "units": units,
        }
        atomic_write(self.plans / f"{key}.json", seal(content))
        return plan._replace(key=key, study=study)


def _read_plan(path: Path) -> Plan:
    try:
        content = parse_json(read_regular(path, LARGE))
        schema = content.get("schema") if isinstance(content, dict) else None
        if isinstance(schema, int) and schema > SCHEMA:
            raise Unreadable(
                f"{path}: written by a later version of emergo (schema {schema:.6g}); update emergo"
            )
        _CHECK_PLAN(content, "the content")
        if content["schema"] >= 3 and not CHECKSUM.fullmatch(str(content.get("checksum"))):
            raise ValueError("its checksum is missing")
        return _parse_plan(content, path.stem)
    except Unreadable:
        raise
    except (OSError, ValueError) as error:
        unreadable = Unreadable(
            f"{path}: not a plan that can be read ({why(error)}); the runs are kept: move it away "
            f"and run the study again"
        )
        unreadable.damaged = not isinstance(error, PermissionError)
        raise unreadable from None


def _parse_plan(content: dict[str, Any], key: str) -> Plan:
    """Return the plan. Raises `ValueError` for contradictory content."""
    axes = content["axes"]
    configs = len(content["configs"])
    units = [
        Unit(unit["id"], [Planned(run[0], run[1], run[2], run[3:]) for run in unit["runs"]])
        for unit in content["units"]
    ]
    plan = Plan(content["study"], axes, content["configs"], units, key)
    runs = plan.runs
    for names in (axes, [unit.id for unit in units], [run.identity for run in runs]):
        if len(set(names)) < len(names):
            raise ValueError("an axis, a unit or a run occurs twice")
    if not all(unit.runs for unit in units):
        raise ValueError("a unit has no runs")
    if not set(plan.study.get("tune", ())) <= set(axes):
        raise ValueError("the tuned parameter is not an axis")
    for run in runs:
        complete = len(run.values) == len(axes) and all(map(scalar, run.values))
        if not complete or not -1 <= run.config < max(configs, 1):
            raise ValueError(f"the run {run.identity} lacks a config or the value of an axis")
    return plan
