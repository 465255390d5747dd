"""The folder of studies: where things are, and their plans. Needs neither JAX nor pandas.

studies/        one plan per study: which runs there are, and in which units they are trained
runs/           finished runs, one folder each
claims/         which process trains which unit, and how far it is
failures/       why a run failed, one file for each time
checkpoints/    units in training
slurm/          a folder for each submission
"""

import contextlib
import json
import re
import shutil
import time
import uuid
from collections.abc import Container
from pathlib import Path
from typing import Any, NamedTuple

from .._errors import InputError
from .._files import as_storage_error, atomic_write, output_folder
from ._reader import IDENTITY, JSON, UNIT, list_names, read_json
from ._version_1 import is_version_1, upgraded_plan

SCHEMA = 2  # of a plan; raised when older versions could not read it
_UNITS = [{"id": UNIT, "runs": [(IDENTITY, int, int)]}]
_PLAN = {"schema": int, "study": dict, "axes": list, "configs": list, "units": _UNITS}
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


class StudyFolder:
    """The folder of one or more studies."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.plans = self.path / "studies"
        self.runs = self.path / "runs"
        self.claims = self.path / "claims"
        self.failures = self.path / "failures"
        self.checkpoints = self.path / "checkpoints"
        self.slurm = self.path / "slurm"

    def _files(self) -> list[Path]:
        first = [self.path / "study.json"] if is_version_1(self.path) else []
        return [self.plans / name for name in list_names(self.plans, JSON)] or first

    def exists(self) -> bool:
        return bool(self._files())

    def prepare(self) -> None:
        """Makes the folder and makes sure that it can be written to."""
        output_folder(self.path)
        with as_storage_error(self.path):
            for folder in (self.plans, self.runs, self.claims, self.failures, self.checkpoints):
                folder.mkdir(exist_ok=True)

    def sweep(self, older: float = 86_400.0) -> None:
        """Removes what processes that were killed left half-written, once it is old: no living one writes for so long."""
        for folder in (self.path, self.plans, self.runs, self.claims, self.failures, *self.checkpoints.glob("*")):
            for path in folder.glob(".*"):
                with contextlib.suppress(OSError):
                    if _LEFTOVER.fullmatch(path.name) and time.time() - path.stat().st_mtime > older:
                        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def read(self) -> list[Plan]:
        """The plans of all studies in the folder, the first made first."""
        files = self._files()
        if not files and self.path.is_file():
            raise InputError(f"{self.path}: a file, not the folder of a study")
        if not files:
            raise InputError(f"{self.path}: no study here; a study is put into a folder by running it")
        return sorted(map(_read_plan, files), key=lambda plan: (plan.study.get("since", 0.0), plan.key))

    def write(self, plan: Plan) -> Plan:
        """Writes a plan, in the place of the one with its key."""
        key = plan.key or uuid.uuid4().hex[:12]
        study = plan.study | ({} if "since" in plan.study else {"since": time.time()})
        units = [{"id": u.id, "runs": [[r.identity, r.config, r.seed, *r.values] for r in u.runs]} for u in plan.units]
        content = {"schema": SCHEMA, "study": study, "axes": plan.axes, "configs": plan.configs, "units": units}
        atomic_write(self.plans / f"{key}.json", json.dumps(content) + "\n")
        return plan._replace(key=key, study=study)


def _read_plan(path: Path) -> Plan:
    def upgraded(content: Any) -> Any:
        if content["schema"] > SCHEMA:
            raise InputError(f"{path}: written by a later version of emergo (schema {content['schema']}); update emergo")
        return upgraded_plan(content)

    try:
        content = read_json(path, _PLAN, upgraded)
    except InputError:
        raise
    except PermissionError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); see to its permissions") from None
    except (OSError, ValueError) as error:
        advice = "the runs are kept: move it away and run the study again"
        raise InputError(f"{path}: not a plan that can be read ({error}); {advice}") from None
    units = [Unit(u["id"], [Planned(r[0], r[1], r[2], r[3:]) for r in u["runs"]]) for u in content["units"]]
    return Plan(content["study"], content["axes"], content["configs"], units, path.stem)
