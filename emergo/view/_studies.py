"""Sets of runs from folders of studies, and from stores without a plan. Needs no JAX."""

import math
import os
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import InputError
from ..core.terminal import counted
from ..store import Failures, Plan, StudyFolder, read_outcomes, study_status
from ..store.claims import Claims, Note, notes_of
from ..store.curves import read_known_curves
from ..store.outcomes import CURVES, Outcomes, axis_values, read_run
from ..store.packs import find_pack, pack_folder
from ..store.reader import checker, number, number_or_none
from ._runset import RunSet, columns_of, varied

TRAINING = 100  # most runs in training that the page lists
FAILED = 200  # most failures that the page lists
VALUES = 8  # most values per axis that the page lists for a process
BROKEN = 50  # most unreadable files that the page lists
SETTLED = 2.0  # seconds; a file system's clock may be that coarse

Described = Mapping[str, dict[str, Any]]  # planned runs by identity, with their axes
_ENDS = (number_or_none, number_or_none)
_check_forecast = checker(
    {
        **{"run": str, "state": str, "why": str, "words": str, "metric": str},
        **{"at": number, "step": number_or_none, "threshold": number_or_none},
        "intervals": {"50%?": _ENDS, "80%?": _ENDS},
        "curve": ([number], [number_or_none]),
    }
)


class FolderCurves:
    """The curves of runs in a store, one Parquet file per run. Links are not followed."""

    def __init__(self, folder: Path, checksums: Mapping[str, str | None]) -> None:
        self.folder = folder
        self._checksums = checksums

    def stamp(self, identity: str) -> Any:
        path = f"{self.folder}/{identity}"
        try:
            status = os.lstat(f"{path}/{CURVES}")
        except OSError:
            pack = None if os.path.lexists(path) else find_pack(self.folder, identity)
            return pack and (str(pack.path), pack.stamp)
        if not stat.S_ISREG(status.st_mode):
            return None
        return str(self.folder), status.st_mtime_ns, status.st_size

    def read(self, identity: str, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        try:
            table = read_known_curves(
                self.folder,
                identity,
                self._checksums.get(identity),
                lambda name: names is None or name in names,
            )
        except (OSError, ValueError):
            return {}
        return {name: table[name].to_numpy() for name in table.column_names}


class StudySource:
    """A folder of studies: one set per plan."""

    def __init__(self, path: Path) -> None:
        self.folder = StudyFolder(path)
        self._read: tuple[Any, dict[str, RunSet]] | None = None
        self._status: tuple[float, dict[str, Any]] | None = None

    def sets(self) -> dict[str, RunSet]:
        """Return the sets by study name; read them again when the folder has changed."""
        folder = self.folder
        places = (folder.path, folder.runs, pack_folder(folder.runs))
        stamp, settled = _stamp(*places, folder.plans, folder.failures)
        if self._read is None or self._read[0] != stamp:
            # A stamp that is too recent is not kept: a later change could have the same time.
            self._read = (stamp if settled else None, self._read_sets(stamp))
        return self._read[1]

    def _read_sets(self, stamp: Any) -> dict[str, RunSet]:
        plans = self.folder.read()
        found, notes = outcomes(self.folder.runs)
        rows = found.rows
        tries, _ = Failures(self.folder.failures).counts()
        curves = FolderCurves(self.folder.runs, found.checksums)

        # The time of the folder of runs changes when the index is written, so it does not count.
        version = hash((stamp[0], *stamp[3:], *notes, *found.checksums.items()))

        sets = {}
        for name, plan in _named(plans).items():
            planned = {run.identity: run for run in plan.runs}
            law = plan.study.get("law")
            ended = [
                rows[identity]
                | {"tries": tries.get(identity, 0)}
                | axis_values(plan.axes, run.values, rows[identity], found.stated[identity])
                for identity, run in planned.items()
                if identity in rows
            ]
            sets[name] = RunSet(
                name,
                "study",
                f"{version}.{len(rows)}",
                axes=[axis for axis in plan.axes if axis != "seed"],
                columns=columns_of(ended),
                curves=curves,
                config={one: plan.configs[run.config] for one, run in planned.items()}.__getitem__,
                planned=len(planned),
                law=law if isinstance(law, dict) else None,
                tune=next(iter(plan.study.get("tune") or {}), None),
                notes=notes,
            )
        return sets

    def status(self) -> dict[str, Any]:
        """Return the progress, what each process trains, and the latest failures.

        Reading takes time in large folders. An answer is reused for ten times as long as it took
        to read, and for at least one second.
        """
        begun = time.monotonic()
        if self._status is None or begun > self._status[0]:
            status = self._read_status()
            took = time.monotonic() - begun
            self._status = (begun + max(1.0, 11 * took), status)
        return self._status[1]

    def _read_status(self) -> dict[str, Any]:
        plans = self.folder.read()
        planned = {
            run.identity: {
                "identity": run.identity,
                "set": name,
                "study": plan.name,
                "seed": run.seed,
                "axes": dict(zip(plan.axes, run.values, strict=False)),
            }
            for name, plan in _named(plans).items()
            for run in plan.runs
        }
        units = {unit.id: unit.runs for plan in plans for unit in plan.units}
        status = study_status(self.folder).data()
        for worker in status["workers"]:
            runs = [planned[run.identity] for run in units[worker["unit"]]]
            worker["study"] = runs[0]["study"]
            worker["axes"] = {
                axis: list(dict.fromkeys(run["axes"].get(axis) for run in runs))[:VALUES]
                for axis in runs[0]["axes"]
            }
        return status | {
            "failed_runs": self._failed(planned),
            "training_runs": self._training(planned),
        }

    def _training(self, planned: Described) -> list[dict[str, Any]]:
        """List the runs in training with their latest forecasts, soonest to emerge first."""
        training = []
        for claim in Claims(self.folder.claims).live().values():
            progress = claim.get("progress") or {}
            notes = notes_of(progress)
            for identity, step, loss in progress.get("running") or ():
                if identity in planned:
                    forecast = _forecast(notes.get(identity))
                    training.append(
                        planned[identity] | {"step": step, "loss": loss, "forecast": forecast}
                    )
        return sorted(training, key=_expected_step)[:TRAINING]

    def _failed(self, planned: Described) -> list[dict[str, Any]]:
        """List the runs that failed at least once, latest failure last."""
        failures = Failures(self.folder.failures)
        ends = [runs.columns for runs in self.sets().values() if runs.runs]
        found = {
            identity: {"tries": 1, "reason": reason}
            for columns in ends
            for identity, state, reason in zip(
                *(columns[name] for name in ("identity", "state", "reason")), strict=True
            )
            if state == "failed"
        }
        for identity, tries in failures.counts()[0].items():
            found[identity] = {"tries": tries} | failures.read(identity, tries - 1)
        failed = [
            run | {name: found[identity].get(name) for name in ("tries", "reason", "when")}
            for identity, run in planned.items()
            if identity in found
        ]
        return sorted(failed, key=lambda failure: failure["when"] or 0)[-FAILED:]


def _named(plans: Sequence[Plan]) -> dict[str, Plan]:
    """Return the plans by the name of their set; a second plan of one name adds its key."""
    named: dict[str, Plan] = {}
    for plan in plans:
        named[plan.name if plan.name not in named else f"{plan.name} ({plan.key})"] = plan
    return named


def _forecast(note: Note | None) -> Mapping[str, Any] | None:
    """Return the forecast in a note of a worker, if the note holds one."""
    try:
        _check_forecast(note and note.data, "forecast")
    except ValueError:
        return None
    return note and note.data


def _expected_step(run: Mapping[str, Any]) -> float:
    forecast = run["forecast"] or {}
    return forecast["step"] if forecast.get("state") == "forecast" else math.inf


def store_set(folder: Path) -> RunSet:
    """Return the finished runs of a store that no plan describes."""
    found, notes = outcomes(folder)
    rows = found.rows
    columns = columns_of(rows.values())

    def config(identity: str) -> Mapping[str, Any]:
        try:
            return read_run(folder, identity, curves=False).get("config") or {}
        except (OSError, ValueError):
            return {}

    return RunSet(
        folder.resolve().name,
        "runs",
        f"{hash(_stamp(folder, pack_folder(folder))[0])}.{len(rows)}",
        axes=varied(columns),
        columns=columns,
        curves=FolderCurves(folder, found.checksums),
        config=config,
        notes=notes,
    )


def outcomes(folder: Path) -> tuple[Outcomes, tuple[str, ...]]:
    """Return the outcomes of a store, and one line per file that cannot be read.

    If there are runs without checksums, the column `unverified` marks them.
    """
    try:
        found = read_outcomes(folder, form=True)
    except InputError as error:
        return Outcomes({}, {}, {}, {}), (str(error),)
    notes = [f"{Path(path).name}: {why}" for path, why in [*found.broken.items()][:BROKEN]]
    if unverified := found.unverified:
        notes += [f"{counted(len(unverified), 'run')} without checksums: unverified"]
        for identity, row in found.rows.items():
            row["unverified"] = identity in unverified
    return found, tuple(notes)


def _stamp(*folders: Path) -> tuple[tuple[int, ...], bool]:
    """Return when the folders changed, and True if the last change was long enough ago."""
    times = []
    for folder in folders:
        try:
            times.append(folder.stat().st_mtime_ns)
        except OSError:
            times.append(0)
    return tuple(times), time.time() - max(times) / 1e9 > SETTLED
