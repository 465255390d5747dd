"""Sets of runs from folders of studies, and from stores without a plan. Needs no JAX."""

import functools
import math
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .._errors import InputError
from .._files import read_regular
from ..studies import Failures, Plan, StudyFolder, read_outcomes, study_status
from ..studies._claims import Claims
from ..studies._curves import read_curves
from ..studies._outcomes import read_run
from ..studies._reader import LARGE
from ..studies._status import expected
from ..studies._version_1 import renamed_curve
from ._runset import RunSet, columns_of, varied

TRAINING = 100  # runs in training that the page is told of
SETTLED = 2.0  # seconds after which a folder whose time did not change has not changed


class FolderCurves:
    """The curves of runs in a store, one Parquet file each. Links are not followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._schemas = functools.lru_cache(maxsize=512)(self._schema)

    def _path(self, identity: str) -> Path:
        return self.folder / identity / "curves.parquet"

    def stamp(self, identity: str) -> Any:
        try:
            held = os.lstat(self._path(identity))
        except OSError:
            return None
        return (str(self.folder), held.st_mtime_ns, held.st_size) if stat.S_ISREG(held.st_mode) else None

    def _schema(self, identity: str, stamp: Any) -> list[str]:
        return pq.read_schema(pa.BufferReader(read_regular(self._path(identity), LARGE))).names

    def names(self, identity: str) -> list[str]:
        stamp = self.stamp(identity)
        try:
            columns = self._schemas(identity, stamp) if stamp else []
        except (OSError, ValueError, pa.ArrowException):
            return []
        return [renamed_curve(name) for name in columns if name != "step"]

    def read(self, identity: str, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        path = self.folder / identity
        try:
            content = read_run(path, identity, curves=False)
            table = read_curves(path, content, lambda name: names is None or renamed_curve(name) in names)
        except (OSError, ValueError):
            return {}
        return {renamed_curve(name): table[name].to_numpy() for name in table.column_names}


class StudySource:
    """A folder of studies: one set per plan."""

    def __init__(self, path: Path) -> None:
        self.folder = StudyFolder(path)
        self._curves = FolderCurves(self.folder.runs)
        self._read: tuple[Any, dict[str, RunSet]] | None = None
        self._status: tuple[float, float, dict[str, Any]] | None = None

    def sets(self) -> dict[str, RunSet]:
        """The sets by the names of the studies; read again when the folder has changed."""
        stamp, settled = _stamp(self.folder.path, self.folder.runs, self.folder.plans, self.folder.failures)
        if self._read is None or self._read[0] != stamp:
            self._read = (stamp if settled else None, self._read_sets(stamp))
        return self._read[1]

    def _read_sets(self, stamp: Any) -> dict[str, RunSet]:
        plans = self.folder.read()
        rows, notes = outcomes(self.folder.runs)
        tries, _ = Failures(self.folder.failures).counts()
        rows = {identity: row | {"tries": tries.get(identity, 0)} for identity, row in rows.items()}
        more = {"version": f"{hash(stamp)}.{len(rows)}", "notes": notes}
        return {name: self._set(name, plan, rows, dict(more)) for name, plan in _named(plans).items()}

    def _set(self, name: str, plan: Plan, rows: Mapping[str, Any], more: dict[str, Any]) -> RunSet:
        planned = {run.identity: run for run in plan.runs}
        held = [rows[id] | dict(zip(plan.axes, run.values, strict=False)) for id, run in planned.items() if id in rows]
        law, tune = plan.study.get("law"), plan.study.get("tune")

        def config(identity: str) -> Mapping[str, Any]:
            return plan.configs[planned[identity].config]

        more |= {"planned": len(planned), "law": law if isinstance(law, dict) else None, "tune": next(iter(tune or {}), None)}
        axes = [axis for axis in plan.axes if axis != "seed"]
        return RunSet(name, "study", axes=axes, columns=columns_of(held), curves=self._curves, config=config, **more)

    def status(self) -> dict[str, Any]:
        """How far the folder is: `study_status`, what each process trains, and the latest failures. Reading it anew costs time
        in large folders, so that an answer is good for ten times as long as it took, and at least a second."""
        now = time.monotonic()
        if self._status is None or now > self._status[0] + max(1.0, 10 * self._status[1]):
            status = self._read_status()
            self._status = (now, time.monotonic() - now, status)
        return self._status[2]

    def _read_status(self) -> dict[str, Any]:
        status = study_status(self.folder).data()
        plans = self.folder.read()
        units = {unit.id: (plan, unit.runs) for plan in plans for unit in plan.units}
        for worker in status["workers"]:
            plan, runs = units[worker["unit"]]
            values = list(zip(*(run.values for run in runs), strict=True))
            shown = {axis: list(dict.fromkeys(column)) for axis, column in zip(plan.axes, values, strict=False)}
            worker |= {"study": plan.name, "axes": {axis: column[:8] for axis, column in shown.items()}}
        return status | {"failed_runs": self._failed(plans), "training_runs": self._training(plans)}

    def _training(self, plans: Sequence[Plan]) -> list[dict[str, Any]]:
        """The runs in training, those first that are expected to emerge first, with what their processes said last of them."""
        planned = {run.identity: (name, plan, run) for name, plan in _named(plans).items() for run in plan.runs}
        shown = []
        for claim in Claims(self.folder.claims).live().values():
            progress = claim.get("progress") or {}
            told = {forecast["run"]: forecast for forecast in progress.get("forecasts") or ()}
            for identity, step, loss in progress.get("running") or ():
                if identity in planned:
                    name, plan, run = planned[identity]
                    which = {"identity": identity, "set": name, "axes": dict(zip(plan.axes, run.values, strict=False))}
                    shown.append(which | {"seed": run.seed, "step": step, "loss": loss, "forecast": told.get(identity)})
        return sorted(shown, key=_soon)[:TRAINING]

    def _failed(self, plans: Sequence[Plan]) -> list[dict[str, Any]]:
        """The runs that failed, those last that failed last; runs that were tried again with success are among them."""
        failures, told = Failures(self.folder.failures), {}
        for runs in self.sets().values():
            ended = zip(runs.runs, runs.columns.get("state", ()), runs.columns.get("reason", ()), strict=False)
            told |= {identity: {"tries": 1, "reason": reason} for identity, state, reason in ended if state == "failed"}
        for identity, tries in failures.counts()[0].items():
            told[identity] = {"tries": tries} | failures.read(identity, tries - 1)
        shown = []
        planned = {run.identity: (plan, run) for plan in plans for run in plan.runs}
        for identity, (plan, run) in planned.items():
            if identity in told:
                which = {"identity": identity, "study": plan.name, "seed": run.seed}
                which |= {"axes": dict(zip(plan.axes, run.values, strict=False))}
                shown.append(which | {name: told[identity].get(name) for name in ("tries", "reason", "when")})
        return sorted(shown, key=lambda failure: failure["when"] or 0)[-200:]


def _named(plans: Sequence[Plan]) -> dict[str, Plan]:
    """Plans by the names of their sets: of two of one name the second has its key too."""
    named: dict[str, Plan] = {}
    for plan in plans:
        named[plan.name if plan.name not in named else f"{plan.name} ({plan.key})"] = plan
    return named


def _soon(run: Mapping[str, Any]) -> float:
    step = expected(run["forecast"]) if run["forecast"] else None
    return math.inf if step is None else step


def store_set(folder: Path, name: str) -> RunSet:
    """The finished runs of a store that no plan describes."""
    rows, notes = outcomes(folder)
    columns, curves = columns_of(rows.values()), FolderCurves(folder)
    more: dict[str, Any] = {"version": f"{hash(_stamp(folder)[0])}.{len(rows)}", "notes": notes}
    return RunSet(name, "runs", axes=varied(columns), columns=columns, curves=curves, config=_held_config(folder), **more)


def _held_config(folder: Path) -> Callable[[str], Mapping[str, Any]]:
    def config(identity: str) -> Mapping[str, Any]:
        try:
            content = read_run(folder / identity, identity, curves=False)
        except (OSError, ValueError):
            return {}
        return content.get("config") or {}

    return config


def outcomes(folder: Path) -> tuple[Mapping[str, dict[str, Any]], tuple[str, ...]]:
    """The outcomes of a store, and what cannot be read, links to elsewhere among it."""
    try:
        rows, broken = read_outcomes(folder)
    except InputError as error:
        return {}, (str(error),)
    return rows, tuple(f"{Path(path).name}: {why}" for path, why in list(broken.items())[:50])


def _stamp(*folders: Path) -> tuple[tuple[int, ...], bool]:
    """The times at which folders changed, and whether the last is long enough ago that no change can hide behind it."""
    times = []
    for folder in folders:
        try:
            times.append(folder.stat().st_mtime_ns)
        except OSError:
            times.append(0)
    return tuple(times), time.time() - max(times) / 1e9 > SETTLED
