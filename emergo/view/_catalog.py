"""The sets of runs in a folder: studies, stores, records and figures, up to two folders below."""

import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ..core.errors import InputError
from ..core.files import is_folder, read_regular
from ..store import StudyFolder
from ..store.packs import read_packs
from ..store.reader import IDENTITY, list_names
from ._answers import describe_set, look_back
from ._logs import LogSource, find_logs
from ._runset import Learned, RunSet, contained, smooth, thin
from ._studies import StudySource, store_set
from ._tables import figure_set, record_set

DEPTH = 2  # levels of subfolders that are searched
FOLDERS = 500  # most folders that are searched
SCAN_SECONDS = 3.0  # between two scans for new studies, tables and figures
SLOW = 1.0  # seconds to read all sets
KEPT_CURVES = 20_000  # thinned curves in the cache; up to 4 kB each
PICTURE = 2**25  # most bytes of the picture of a figure
KEPT_FORECASTS = 64  # runs whose forecasts are cached
PARTS = ("studies", "runs", "claims", "failures", "checkpoints", "slurm")  # folders of a study
_LARGEST = float(np.finfo(np.float32).max)
# The page asks for so few points of each curve if a set has more runs than this.
FEW_RUNS = 2000
FEWEST_POINTS = 64
BATCH = 50  # curves that are read before it is looked whether the server has ended
EMPTY = (np.zeros(0, np.float32), np.zeros(0, np.float32))
Curve = tuple[np.ndarray, np.ndarray]


class Catalog:
    """The sets of runs in a folder, read on first use and again when files have changed.

    Nothing outside of the folder is read. Links to other places are listed in `notes`, not
    followed.

    **Arguments:**

    - `path`: a folder, or a log of one training.
    - `learned`: what counts as learned in logs.
    """

    def __init__(self, path: Path | str, learned: Learned | None = None) -> None:
        self.path = Path(path)
        self.name = self.path.resolve().name
        # One log instead of a folder.
        self._only = self.path.resolve() if self.path.is_file() else None
        if self._only is not None:
            self.path = self._only.parent
        if not self.path.is_dir():
            raise InputError(
                f"{self.path}: no such file or folder; name a log, or a folder that holds logs, a "
                f"study, records or figures"
            )
        self.root = self.path.resolve()
        self._learned = learned
        self._logs: dict[Path, tuple[LogSource, list[Path]]] = {}
        self.notes: tuple[str, ...] = ()
        self._studies: dict[Path, StudySource] = {}
        self._tables: dict[Path, tuple[int, RunSet | None]] = {}
        self._sets: dict[str, RunSet] = {}
        self._scanned = -math.inf
        self._again = -math.inf
        self._scan_notes: list[str] = []
        self._lock = Lock()
        # Both caches take the stamp of a run's curves as an argument, so that a run whose curves
        # have changed is read again.
        self._thin = functools.lru_cache(KEPT_CURVES)(self._read_thinned)
        self._forecasts = functools.lru_cache(KEPT_FORECASTS)(
            lambda key, identity, stamp, learned: look_back(
                self.get(key), identity, learned=learned
            )
        )

    def inside(self, path: Path) -> bool:
        """Return True if a path lies in the folder after its links are resolved."""
        try:
            return path.resolve(strict=True).is_relative_to(self.root)
        except (OSError, RuntimeError):
            return False

    def sets(self) -> dict[str, RunSet]:
        """Return the sets by key: the subfolder, and the name of the study, figure or records.

        An answer that took longer than `SLOW` to read is reused for as long. The first one checks
        every run and then writes the index, which changes the folder.
        """
        with self._lock:
            begun = time.monotonic()
            if begun >= self._again:
                self._sets, notes = self._collect()
                self.notes = tuple(dict.fromkeys(notes))
                ended = time.monotonic()
                self._again = ended + (ended - begun if ended - begun > SLOW else 0.0)
            return self._sets

    def overview(self) -> dict[str, Any]:
        """List all sets, without their runs."""
        sets = []
        found = self.sets()
        notes = list(self.notes)
        for key, runs in found.items():
            with contained(notes.append, key):
                sets.append({"key": key} | describe_set(runs))
        return {"folder": self.name, "sets": sets, "notes": notes}

    def get(self, key: str) -> RunSet:
        """Return one set; raise an `InputError` for an unknown key."""
        sets = self._sets if key in self._sets else self.sets()
        if key not in sets:
            raise InputError(f"no set of runs '{key[:200]}' in this folder")
        return sets[key]

    def _collect(self) -> tuple[dict[str, RunSet], list[str]]:
        if time.monotonic() - self._scanned >= SCAN_SECONDS:
            self._scan()
        notes = list(self._scan_notes)
        named: list[tuple[str, RunSet]] = []
        for folder, source in self._studies.items():
            with contained(notes.append, self._key(folder, folder.name)):
                named += [(self._key(folder, name), runs) for name, runs in source.sets().items()]
        for path, (_, runs) in self._tables.items():
            if runs is not None:
                folder = path if path.is_dir() else path.parent
                named.append((runs.name if runs.figure else self._key(folder, runs.name), runs))
        for folder, (source, files) in self._logs.items():
            name = files[0].stem if self._only else "logs"
            with contained(notes.append, self._key(folder, name)):
                runs = source.read(name, files)
                notes += runs.notes if not runs.runs else ()
                named.append((self._key(folder, name), runs))
        figures = {runs.name: runs.figure for _, runs in named if runs.figure is not None}
        sets: dict[str, RunSet] = {}
        for key, runs in named:
            while key in sets:
                key = f"{key} ({runs.kind})"
            if runs.kind == "study" and runs.name in figures:  # the runs trained for a figure
                runs = dataclasses.replace(runs, figure=figures[runs.name])
            sets[key] = runs
        return sets, notes

    def _key(self, folder: Path, name: str) -> str:
        below = folder.relative_to(self.path)
        return name if below == Path(".") else f"{below}: {name}"

    def _scan(self) -> None:
        """Find new studies, stores, records and figures, and forget those that are gone."""
        self._scanned = time.monotonic()
        self._scan_notes = []
        studies = {}
        tables = {}
        logs: dict[Path, tuple[LogSource, list[Path]]] = {}
        for folder in [self.path] if self._only else self._folders():
            for link in filter(Path.is_symlink, folder.glob("*.csv")):
                self._is_inside(link)  # names it; links are not followed
            files = find_logs(folder, self._scan_notes.append)
            if files or self._only:
                source = self._logs.get(folder, (LogSource(self._learned), []))[0]
                logs[folder] = (source, [self._only] if self._only else files)
            if self._only:
                continue
            study = StudyFolder(folder)
            if os.path.lexists(study.plans) and not is_folder(study.plans):
                self._scan_notes.append(f"{study.plans.name}: not a folder, where plans should be")
            with contained(self._scan_notes.append, folder.name):  # without permission to list it
                if study.exists():
                    if self._is_inside(study.runs):
                        studies[folder] = self._studies.get(folder) or StudySource(folder)
                elif any(list_names(folder, IDENTITY).values()) or read_packs(folder):
                    tables[folder] = self._read(folder, store_set)
            for file in sorted(folder.glob("*.runs.parquet")):
                # A figure may have a table of this name, which `figure_set` reads.
                figure = file.with_name(f"{file.name.removesuffix('.runs.parquet')}.json")
                if self._is_inside(file) and not os.path.lexists(figure):
                    tables[file] = self._read(file, record_set)
            for file in sorted(folder.glob("*.json")):
                if not file.is_symlink() and file.name != "study.json":
                    tables[file] = self._read(file, figure_set)
        self._logs = logs
        self._studies = studies
        self._tables = tables

    def _folders(self) -> Iterator[Path]:
        for number, (path, names, _) in enumerate(os.walk(self.path)):
            if number == FOLDERS:
                self._scan_notes.append(
                    f"only the first {FOLDERS} folders were searched; open a subfolder instead"
                )
                return
            folder = Path(path)
            yield folder
            is_study = False
            with contained(self._scan_notes.append, folder.name):
                is_study = StudyFolder(folder).exists()
            deepest = len(folder.relative_to(self.path).parts) == DEPTH
            if deepest or (is_study and number > 0):  # studies are not nested
                names.clear()
            names[:] = sorted(
                name
                for name in names
                if not name.startswith(".")
                and not IDENTITY.fullmatch(name)
                and not (is_study and name in PARTS)
            )

    def _is_inside(self, path: Path) -> bool:
        if path.exists() and not self.inside(path):
            self._scan_notes.append(
                f"{path.name}: leads outside of the folder and is not read; open the folder that "
                f"it leads to"
            )
            return False
        return True

    def _read(self, path: Path, read: Callable[[Path], RunSet | None]) -> tuple[int, RunSet | None]:
        """Read a file, or return the previous result if it and its tables have not changed."""
        files = [path]
        if path.is_file():
            files += path.parent.glob(f"{path.name.partition('.')[0]}.*.parquet")
        stamp = hash(tuple((p.name, p.stat().st_mtime_ns) for p in sorted(files) if p.exists()))
        known = self._tables.get(path)
        if known is not None and known[0] == stamp:
            return known
        with contained(self._scan_notes.append, path.name):
            return stamp, read(path)
        return stamp, None

    def warm(self, stopped: Callable[[], bool]) -> None:
        """Read what the page will ask for first: the sets, and the curves of the first one.

        A browser needs about a second to open, in which half of 10,000 curves are read.
        """
        with contained(lambda note: None):
            first = next(one for one in self.overview()["sets"] if one["runs"])
            names = [name for name in ("loss", "kl_teacher") if name in first["curves"]]
            runs = self.get(first["key"]).runs
            for start in range(0, len(runs) if len(runs) > FEW_RUNS else 0, BATCH):
                if stopped():
                    return
                self.thinned(first["key"], runs[start : start + BATCH], names[0], FEWEST_POINTS)

    def thinned(
        self, key: str, identities: Sequence[str], name: str, points: int, smooth: int = 1
    ) -> list[Curve]:
        """Return curves of a set with at most `points` points each.

        Before that, each value becomes the mean of `smooth` evaluations around it. Unknown runs,
        and runs without this curve, have an empty one.
        """
        runs = self.get(key)
        known = set(runs.runs)
        return [
            self._thin(key, identity, runs.curves.stamp(identity), name, points, smooth)
            if identity in known
            else EMPTY
            for identity in identities
        ]

    def _read_thinned(
        self, key: str, identity: str, stamp: Any, name: str, points: int, width: int
    ) -> Curve:
        x, y = thin(*smooth(*self.get(key).curve(identity, name), width), points)
        return _single(x), _single(y)

    def look_back(self, key: str, identity: str, learned: Learned | None = None) -> dict[str, Any]:
        """Return the forecasts of a finished run, or of a log, at earlier steps."""
        return self._forecasts(key, identity, self.get(key).curves.stamp(identity), learned)

    def status(self) -> list[dict[str, Any]]:
        """Return the progress of all studies, with the runs that they train."""
        self.sets()
        answers = []
        for folder, source in list(self._studies.items()):
            answer: dict[str, Any] = {"folder": str(folder.relative_to(self.path))}
            errors: list[str] = []
            with contained(errors.append):
                answer |= source.status()
                answer["training_runs"] = [
                    run | {"set": self._key(folder, run["set"])} for run in answer["training_runs"]
                ]
            if errors:
                answer["error"] = errors[0]
            answers.append(answer)
        return answers

    def picture(self, key: str) -> bytes | None:
        """Return the picture of a figure if it is a file of usual size in the folder."""
        image = self.get(key).picture
        try:
            return read_regular(image, PICTURE) if image and self.inside(image) else None
        except (OSError, ValueError):
            return None


def _single(values: np.ndarray) -> np.ndarray:
    """Return numbers in single precision; larger ones become the largest."""
    return np.clip(values, -_LARGEST, _LARGEST).astype(np.float32)
