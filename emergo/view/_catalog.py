"""What a folder holds, as sets of runs: studies, stores, records and figures, in it and up to two folders below."""

import dataclasses
import functools
import math
import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from .._errors import InputError
from .._files import is_folder
from ..studies import StudyFolder
from ..studies._reader import IDENTITY, list_names
from ._look_back import look_back
from ._runset import RunSet
from ._studies import StudySource, store_set
from ._tables import figure_set, record_set
from ._thin import thin

DEPTH = 2  # folders below the one that was named in which is looked
FOLDERS = 500  # the most that are looked into
LOOK_EVERY = 3.0  # seconds between looks for new studies, tables and figures
CACHE = 64_000_000  # bytes of thinned curves that are kept
LOOKED_BACK = 64  # runs whose forecasts are kept
THREADS = 4
PARTS = ("studies", "runs", "claims", "failures", "checkpoints", "slurm")  # folders of a study


class Catalog:
    """The sets of runs of a folder, read when they are asked for and again when files have changed. Nothing outside of the
    folder is read: links that lead there are named in `notes` and not followed."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise InputError(f"{self.path}: no such folder; name one that holds a study, records or figures")
        self.root = self.path.resolve()
        self.notes: tuple[str, ...] = ()
        self._studies: dict[Path, StudySource] = {}
        self._tables: dict[Path, tuple[int, RunSet | None]] = {}
        self._sets: dict[str, RunSet] = {}
        self._looked = -math.inf
        self._look_notes: list[str] = []
        self._lock = Lock()
        self._thinned = _Cache(CACHE)
        self._looked_back = functools.lru_cache(maxsize=LOOKED_BACK)(
            lambda key, identity, stamp: look_back(self.get(key), identity)
        )
        self._pool = ThreadPoolExecutor(THREADS)

    def inside(self, path: Path) -> bool:
        """Whether a path, links followed, is in the folder."""
        try:
            return path.resolve(strict=True).is_relative_to(self.root)
        except (OSError, RuntimeError):
            return False

    def sets(self) -> dict[str, RunSet]:
        """The sets by their keys: the folder below `path` and the name of the study, the figure or the records."""
        with self._lock:
            found, notes = self._collect()
            self.notes = tuple(notes)
            self._sets = found
            return found

    def get(self, key: str) -> RunSet:
        """A set; an `InputError` where there is none of that name."""
        sets = self._sets if key in self._sets else self.sets()
        if key not in sets:
            raise InputError(f"no set of runs '{key[:200]}' in this folder")
        return sets[key]

    def _collect(self) -> tuple[dict[str, RunSet], list[str]]:
        if time.monotonic() - self._looked >= LOOK_EVERY:
            self._look_notes = []
            self._look(self._look_notes)
        notes = list(self._look_notes)
        named: list[tuple[str, RunSet]] = []
        for folder, source in self._studies.items():
            try:
                named += [(self._key(folder, name), runs) for name, runs in source.sets().items()]
            except InputError as error:
                notes.append(str(error))
        for path, (_, runs) in self._tables.items():
            if runs is not None:
                figure = runs.kind == "figure"
                named.append((runs.name if figure else self._key(path if path.is_dir() else path.parent, runs.name), runs))
        figures = {runs.name: runs.figure for _, runs in named if runs.figure is not None}
        sets: dict[str, RunSet] = {}
        for key, runs in named:
            beside = figures.get(runs.name) if runs.kind == "study" else None  # the runs that a figure had trained
            while key in sets:
                key = f"{key} ({runs.kind})"
            sets[key] = dataclasses.replace(runs, figure=beside) if beside else runs
        return sets, notes

    def _key(self, folder: Path, name: str) -> str:
        below = folder.relative_to(self.path)
        return name if below == Path(".") else f"{below}: {name}"

    def _look(self, notes: list[str]) -> None:
        """Looks for studies, stores, records and figures that are new, and for those that have gone."""
        self._looked = time.monotonic()
        studies, tables = {}, {}
        for folder in self._folders(notes):
            below = StudyFolder(folder)
            if os.path.lexists(below.plans) and not is_folder(below.plans):
                notes.append(f"{below.plans.name}: not a folder, where plans should be")
            if below.exists():
                if self._is_ours(below.runs, notes):
                    studies[folder] = self._studies.get(folder) or StudySource(folder)
            elif any(list_names(folder, IDENTITY).values()):
                tables[folder] = self._stamped(folder, lambda path: store_set(path, path.resolve().name), notes)
            for file in sorted(folder.glob("*.runs.parquet")):
                if self._is_ours(file, notes):
                    tables[file] = self._stamped(file, record_set, notes)
            for file in sorted(folder.glob("*.json")):
                if not file.is_symlink() and file.name != "study.json":
                    tables[file] = self._stamped(file, figure_set, notes)
        self._studies, self._tables = studies, tables

    def _folders(self, notes: list[str]) -> Iterator[Path]:
        level, seen = [self.path], 0
        for _ in range(DEPTH + 1):
            below: list[Path] = []
            for folder in level:
                seen += 1
                if seen > FOLDERS:
                    notes.append(f"only the first {FOLDERS} folders were looked into; open a folder further below")
                    return
                yield folder
                if folder == self.path or not StudyFolder(folder).exists():  # a study below holds no further ones
                    inner = (p for p in _subfolders(folder) if p.name not in PARTS or not StudyFolder(folder).exists())
                    below += [p for p in inner if not IDENTITY.fullmatch(p.name)]
            level = below

    def _is_ours(self, path: Path, notes: list[str]) -> bool:
        if path.exists() and not self.inside(path):
            notes.append(f"{path.name}: leads outside of the folder and is not read; open the folder that it leads to")
            return False
        return True

    def _stamped(self, path: Path, read: Any, notes: list[str]) -> tuple[int, RunSet | None]:
        """What a file holds, from the last time if the file and those beside it have not changed."""
        beside = [path, *path.parent.glob(f"{path.name.partition('.')[0]}.*.parquet")] if path.is_file() else [path]
        stamp = hash(tuple((p.name, p.stat().st_mtime_ns) for p in sorted(beside) if p.exists()))
        known = self._tables.get(path)
        if known is not None and known[0] == stamp:
            return known
        try:
            return stamp, read(path)
        except (OSError, ValueError, KeyError) as error:
            notes.append(f"{path.name}: {' '.join(str(error).split())}")
            return stamp, None

    def thinned(self, runs: RunSet, identities: Sequence[str], name: str, points: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Curves with at most `points` points each; empty ones for runs without such a curve, and for what is no run here."""
        known, none = set(runs.runs), (np.zeros(0, np.float32), np.zeros(0, np.float32))

        def one(identity: str) -> tuple[np.ndarray, np.ndarray]:
            if identity not in known:
                return none
            key = (runs.curves.stamp(identity), identity, name, points)
            held = self._thinned.get(key)
            if held is None:
                x, y = thin(*runs.curve(identity, name), points)
                held = (x.astype(np.float32), y.astype(np.float32))
                self._thinned.put(key, held)
            return held

        return list(self._pool.map(one, identities))

    def look_back(self, key: str, identity: str) -> dict[str, Any]:
        """What would have been said of a run; made when it is asked for, and kept for those that were asked for last."""
        return self._looked_back(key, identity, self.get(key).curves.stamp(identity))

    def status(self) -> list[dict[str, Any]]:
        """How far the studies of every folder are, and what they train."""
        self.sets()
        shown = []
        for folder, source in list(self._studies.items()):
            try:
                status = source.status()
                keyed = [run | {"set": self._key(folder, run["set"])} for run in status["training_runs"]]
                shown.append({"folder": str(folder.relative_to(self.path))} | status | {"training_runs": keyed})
            except InputError as error:
                shown.append({"folder": str(folder.relative_to(self.path)), "error": str(error)})
        return shown

    def picture(self, key: str) -> Path | None:
        """The picture of a figure, if it is a file of the folder."""
        name = self.get(key).name
        for path, (_, runs) in self._tables.items():
            if runs is not None and runs.figure is not None and runs.name == name:
                image = path.with_suffix(".png")
                return image if image.is_file() and self.inside(image) else None
        return None


class _Cache:
    """Thinned curves, those last used kept, up to a number of bytes."""

    def __init__(self, most: int) -> None:
        self.most, self.size = most, 0
        self._held: OrderedDict[Any, tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Any) -> tuple[np.ndarray, np.ndarray] | None:
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)

    def put(self, key: Any, curve: tuple[np.ndarray, np.ndarray]) -> None:
        with self._lock:
            if key not in self._held:
                self._held[key] = curve
                self.size += _bytes(curve)
            while self.size > self.most:
                self.size -= _bytes(self._held.popitem(last=False)[1])


def _bytes(curve: tuple[np.ndarray, np.ndarray]) -> int:
    return 400 + sum(part.nbytes for part in curve)  # 400: about what the arrays and the key take beside their numbers


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(e.path) for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith("."))
    except OSError:
        return []
