"""The folder of a study: where things are, and the plan. Needs neither JAX nor pandas.

study.json      the study and its plan: which runs there are, and in which units they are trained
runs/           finished runs, one folder each
claims/         who trains which unit, and how far it is
failures/       why a run failed, a file a time
checkpoints/    units in training
slurm/          a folder for each submission
"""

import contextlib
import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

from .._errors import InputError
from .._files import named_disk, output_folder, write_whole

SCHEMA = 1
"""Of `study.json`; raised when older versions could not read it."""


_LEFTOVER = re.compile(r"\.writing-[0-9a-f]{16}|\.[\w.-]+\.(json|npz)\.[0-9a-f]{16}")
"""Names that `spare_name` and the store give to what is not finished."""


class Planned(NamedTuple):
    """A run of the plan."""

    identity: str
    seed: int
    values: list[Any]
    """Of the axes, in the order of the plan."""


class Unit(NamedTuple):
    """Runs of one shape that one process trains together."""

    id: str
    runs: list[Planned]


class Plan(NamedTuple):
    """What `study.json` holds."""

    study: dict[str, Any]
    """The study as plain data."""
    axes: list[str]
    units: list[Unit]

    @property
    def runs(self) -> list[Planned]:
        return [run for unit in self.units for run in unit.runs]


class StudyFolder:
    """The folder of a study."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.file = self.path / "study.json"
        self.runs = self.path / "runs"
        self.claims = self.path / "claims"
        self.failures = self.path / "failures"
        self.checkpoints = self.path / "checkpoints"
        self.slurm = self.path / "slurm"

    def exists(self) -> bool:
        return os.path.exists(self.file)

    def prepare(self) -> None:
        """Makes the folder and makes sure that it can be written to."""
        output_folder(self.path)
        with named_disk(self.path):
            for folder in (self.runs, self.claims, self.failures, self.checkpoints):
                folder.mkdir(exist_ok=True)

    def sweep(self, older: float = 86_400.0) -> None:
        """Removes what processes that were killed left half-written, once it is old: no living one writes for so long."""
        now = time.time()
        for folder in (self.path, self.runs, self.claims, self.failures, *self.checkpoints.glob("*")):
            for path in folder.glob(".*"):
                if not _LEFTOVER.fullmatch(path.name):
                    continue
                with contextlib.suppress(OSError):
                    if now - path.stat().st_mtime > older:
                        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def read(self) -> Plan:
        """The plan."""
        try:
            content = json.loads(self.file.read_bytes())
            if content["schema"] > SCHEMA:
                raise InputError(
                    f"{self.file}: written by a later version of emergo (schema {content['schema']}); update emergo"
                )
            units = [Unit(u["id"], [Planned(run[0], run[1], run[2:]) for run in u["runs"]]) for u in content["units"]]
            return Plan(content["study"], content["axes"], units)
        except FileNotFoundError:
            raise InputError(f"{self.path}: no study here; emergo study run FILE --out {self.path} makes one") from None
        except NotADirectoryError:
            raise InputError(f"{self.path}: a file, not the folder of a study") from None
        except PermissionError as error:
            raise InputError(
                f"{self.file}: cannot be read ({error.strerror}); ask for the right to read it, or see to its permissions"
            ) from None
        except InputError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self.file}: not a plan that can be read ({error}); the runs beside it are kept: move it away and give "
                f"the study file again"
            ) from None

    def write(self, plan: Plan) -> None:
        """Replaces the plan."""
        units = [{"id": u.id, "runs": [[r.identity, r.seed, *r.values] for r in u.runs]} for u in plan.units]
        content = {"schema": SCHEMA, "study": plan.study, "axes": plan.axes, "units": units}
        write_whole(self.file, json.dumps(content) + "\n")
