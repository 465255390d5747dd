"""The folder of studies: where things are, and their plans. Needs neither JAX nor pandas.

studies/        one plan per study: which runs there are, and in which units they are trained
runs/           finished runs, one folder each
claims/         which process trains which unit, and how far it is
failures/       why a run failed, one file for each time
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

from .._errors import InputError, StorageError
from .._files import atomic_write, is_folder, move_aside, output_folder, own_folder, remove
from .._json import seal
from ._reader import (
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
    read_json,
    scalar,
    whole,
    why,
)
from ._version_1 import is_version_1, upgraded_plan

SCHEMA = 3  # of a plan: from 3 on it has a checksum; raised when older versions could not read it
RESERVED = ("identity", "seed", "plateau", "plateau_low", "plateau_high", "censored", "state")
"""Columns of every table, which no axis can have the name of."""


def axis(value: Any) -> bool:
    return isinstance(value, str) and value not in RESERVED


def steps_to_keep(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, list) and all(map(count, value)))


_LAW = {"x": [str], "y": str, "fix": numbers}
_STUDY = {"name?": str, "since?": number, "plugins?": [str], "retries?": count, "keep?": steps_to_keep, "law?": _LAW}
_STUDY |= {"tune?": dict, "slurm?": dict}
_UNITS = [{"id": UNIT, "runs": [(IDENTITY, whole, count)]}]
_PLAN = checker({"schema": count, "study": _STUDY, "axes": [axis], "configs": [dict], "units": _UNITS})
_LEFTOVER = re.compile(r"\.writing-[0-9a-f]{16}|\.[\w.-]+\.(json|npz)\.[0-9a-f]{16}")
"""Names that `temporary_sibling` and the store give to what is not finished."""


class Planned(NamedTuple):
    """A run of a plan."""

    identity: str
    config: int  # which of the plan's configs it has
    seed: int
    values: list[Any]  # of the axes, in the order of the plan


class Unit(NamedTuple):
    """Runs of one program that one process trains together."""

    id: str
    runs: list[Planned]


class Plan(NamedTuple):
    """What a file under `studies/` holds."""

    study: dict[str, Any]  # the study as plain data; of runs that no study file describes, its name alone
    axes: list[str]
    configs: list[dict[str, Any]]  # as plain data, see `Config.describe`
    units: list[Unit]
    key: str = ""  # the name of its file

    @property
    def runs(self) -> list[Planned]:
        return [run for unit in self.units for run in unit.runs]

    def left(self, finished: Container[str]) -> list[Unit]:
        """The units with a run that is not finished."""
        return [unit for unit in self.units if any(run.identity not in finished for run in unit.runs)]

    @property
    def name(self) -> str:
        return str(self.study.get("name", "study"))

    @property
    def asks(self) -> bool:
        """Whether it asks for more of a run than every run has: curves of probes, or parameters."""
        return bool(self.study.get("keep")) or any("probes" in config for config in self.configs)

    @property
    def plugins(self) -> list[str]:
        return list(self.study.get("plugins", ()))


class Unreadable(InputError):
    """A plan that cannot be read; `damaged`: whatever it was, it is not a plan any more, and may be moved aside."""

    def __init__(self, message: str, damaged: bool = False) -> None:
        super().__init__(message)
        self.damaged = damaged


class StudyFolder:
    """The folder of one or more studies."""

    def __init__(self, path: Path | str) -> None:
        if str(path) == "":
            raise InputError("the folder of a study has an empty name; give . for the current folder")
        self.path = Path(path)
        self.plans = self.path / "studies"
        self.runs = self.path / "runs"
        self.claims = self.path / "claims"
        self.failures = self.path / "failures"
        self.checkpoints = self.path / "checkpoints"
        self.slurm = self.path / "slurm"

    def _files(self) -> list[Path]:
        first = [self.path / "study.json"] if is_version_1(self.path) else []
        return [self.plans / name for name in list_names(self.plans, PLAN)] or first

    def stamp(self) -> list[tuple[Any, ...]]:
        """What the system knows of the files of plans; another once one was written."""
        found: list[tuple[Any, ...]] = []
        for path in self._files():
            with contextlib.suppress(OSError):
                status = path.lstat()
                found.append((path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        return found

    def exists(self) -> bool:
        return bool(self._files())

    def prepare(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Makes the folder and makes sure that it can be written to. What is in the place of a folder of its own and is none,
        such as a link to elsewhere, is moved aside, and `say` is called with a line on it."""
        output_folder(self.path)
        for folder in (self.plans, self.runs, self.claims, self.failures, self.checkpoints):
            aside = own_folder(folder)
            if aside is not None:
                say(f"{folder}: not a folder; moved to {aside.name}")

    def within(self, name: str) -> Path:
        """A folder of another program's files in this one; an `InputError` where it would lead elsewhere."""
        path = self.path / name
        if os.path.lexists(path) and not is_folder(path):
            raise InputError(f"{path}: a link or a file, where a folder is needed; move it away")
        return path

    def anchor(self) -> Callable[[], None]:
        """A function that raises a `StorageError` once the folder is not where it was: moved, removed or another one."""
        before = self._inode()

        def check() -> None:
            if self._inode() != before:
                advice = "nothing that was finished is lost; `emergo study run` with the new name goes on"
                raise StorageError(f"{self.path}: moved or removed while it was trained; {advice}")

        return check

    def _inode(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def sweep(self, older: float = 86_400.0) -> None:
        """Removes what processes that were killed left half-written, once it is old: no living one writes for so long."""
        units = self.checkpoints.iterdir() if is_folder(self.checkpoints) else ()
        for folder in filter(is_folder, (self.path, self.plans, self.runs, self.claims, self.failures, *units)):
            for path in folder.glob(".*"):
                with contextlib.suppress(OSError):
                    if _LEFTOVER.fullmatch(path.name) and time.time() - path.lstat().st_mtime > older:
                        remove(path)

    def read_plans(self) -> tuple[list[Plan], dict[Path, Unreadable]]:
        """The plans of all studies in the folder, the first made first, and the files that should be plans and are not."""
        plans: list[Plan] = []
        broken: dict[Path, Unreadable] = {}
        for path in self._files():
            try:
                plans.append(_read_plan(path))
            except Unreadable as error:
                broken[path] = error
        if os.path.lexists(self.plans) and not is_folder(self.plans):
            broken[self.plans] = Unreadable(f"{self.plans}: not a folder, where plans should be; move it away")
        return sorted(plans, key=lambda plan: (plan.study.get("since", 0.0), plan.key)), broken

    def read(self, say: Callable[[str], None] = lambda line: None) -> list[Plan]:
        """The plans of all studies in the folder, the first made first. `say` is called with a line on each that cannot be
        read; where no other is there, that is an `InputError`."""
        plans, broken = self.read_plans()
        for error in broken.values():
            if not plans:
                raise error
            say(str(error))
        if not plans and os.path.isfile(self.path):
            raise InputError(f"{self.path}: a file, not the folder of a study")
        if not plans:
            raise InputError(f"{self.path}: no study here; a study is put into a folder by running it")
        return plans

    def move_damaged_plans(self, say: Callable[[str], None]) -> None:
        """Makes way for new plans; one of a later version, or that may not be read, is an error."""
        for path, error in self.read_plans()[1].items():
            if not error.damaged:
                raise error
            say(f"{error}; moved to {move_aside(path).name}")

    def write(self, plan: Plan) -> Plan:
        """Writes a plan, in the place of the one with its key."""
        key = plan.key or uuid.uuid4().hex[:12]
        study = plan.study | ({} if "since" in plan.study else {"since": time.time()})
        units = [{"id": u.id, "runs": [[r.identity, r.config, r.seed, *r.values] for r in u.runs]} for u in plan.units]
        content = {"schema": SCHEMA, "study": study, "axes": plan.axes, "configs": plan.configs, "units": units}
        atomic_write(self.plans / f"{key}.json", seal(content))
        return plan._replace(key=key, study=study)


def _read_plan(path: Path) -> Plan:
    def upgraded(content: Any) -> Any:
        if count(content["schema"]) and content["schema"] > SCHEMA:
            raise Unreadable(f"{path}: written by a later version of emergo (schema {content['schema']:.6g}); update emergo")
        return upgraded_plan(content)

    try:
        content = read_json(path, _PLAN, upgraded, LARGE)
        if content["schema"] >= 3 and not CHECKSUM.fullmatch(str(content.get("checksum"))):
            raise ValueError("its checksum is missing")
        return _plan(content, path.stem)
    except Unreadable:
        raise
    except PermissionError as error:
        raise Unreadable(f"{path}: cannot be read ({error.strerror}); see to its permissions") from None
    except (OSError, ValueError) as error:
        advice = "the runs are kept: move it away and run the study again"
        raise Unreadable(f"{path}: not a plan that can be read ({why(error)}); {advice}", damaged=True) from None


def _plan(content: dict[str, Any], key: str) -> Plan:
    """A `ValueError` for what does not belong together."""
    axes, configs = content["axes"], len(content["configs"])
    units = [Unit(u["id"], [Planned(r[0], r[1], r[2], r[3:]) for r in u["runs"]]) for u in content["units"]]
    runs = [run for unit in units for run in unit.runs]
    if len(set(axes)) < len(axes) or len({unit.id for unit in units}) < len(units):
        raise ValueError("an axis or a unit is there twice")
    if len({run.identity for run in runs}) < len(runs) or not set(content["study"].get("tune", ())) <= set(axes):
        raise ValueError("a run is there twice, or what is tuned is no axis")
    for run in runs:
        if len(run.values) != len(axes) or not all(map(scalar, run.values)) or not -1 <= run.config < max(configs, 1):
            raise ValueError(f"the run {run.identity} has not one value for each axis, or no config")
    return Plan(content["study"], axes, content["configs"], units, key)
