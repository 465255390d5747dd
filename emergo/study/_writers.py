"""Export of runs to TensorBoard or Weights & Biases, while they train and afterwards."""

import contextlib
import os
from collections.abc import Iterable, Mapping

import numpy as np

from ..core.errors import InputError, unknown
from ..core.files import move_aside, output_folder, own_folder
from ..core.writers import WRITERS, ScalarWriter, find_opener
from ..store.curves import curve_frame
from ..store.folder import StudyFolder
from ..store.store import Store
from ..training import Progress, Result, Run
from .results import read_result


class RunLog:
    """A log of the curves of runs, of which each is a run of the viewer, named by its identity.

    **Arguments:**

    - `name`: `"tensorboard"` or `"wandb"`.
    - `folder`: the folder of the runs; the log is in its subfolder `name`.
    - `group`: the group of the runs in Weights & Biases.
    """

    def __init__(self, name: str, folder: StudyFolder, group: str = "study") -> None:
        if name not in WRITERS:
            raise unknown("writer", name, ("none", *WRITERS))
        self._open = find_opener(name)
        self._folder = folder
        self.group = group
        self._place = folder.within(name)
        # One empty file per exported run.
        self._exported = self._place / "exported"
        self._writers: dict[str, tuple[ScalarWriter, int]] = {}  # and how many rows are written

    def training(self, now: Progress) -> None:
        """Write the new evaluations of the runs in training."""
        for run, _, _ in now.running:
            curves = now.curves(run)
            if curves is not None:
                self._write(run, curves)

    def ended(self, result: Result) -> None:
        """Write what is missing of a finished run, and its outcome."""
        identity = result.run.identity
        self._write(result.run, result.curves or {"step": np.empty(0, int)})
        writer, _ = self._writers.pop(identity)
        writer.close({"plateau": result.plateau.time, "state": result.state}, result.steps)
        output_folder(self._place)
        own_folder(self._exported)
        if not os.path.lexists(self._exported / identity):
            (self._exported / identity).touch()

    def export(self, runs: Iterable[Run]) -> None:
        """Write the finished runs of the folder that have not been exported."""
        store = Store(self._folder.runs)
        for run in runs:
            if store.has_entry(run.identity) and not (self._exported / run.identity).exists():
                with contextlib.suppress(InputError):  # unreadable runs are reported elsewhere
                    self.ended(read_result(store, run))

    def close(self) -> None:
        """Close the logs of runs that have not ended."""
        for writer, _ in self._writers.values():
            writer.close({}, 0)
        self._writers = {}

    def _write(self, run: Run, curves: Mapping[str, np.ndarray]) -> None:
        if run.identity not in self._writers:
            if (self._place / run.identity).is_symlink():  # events of other runs would be removed
                move_aside(self._place / run.identity)
            settings = {"seed": run.seed, **run.config.columns()}
            opened = self._open(self._folder.path, run.identity, settings, self.group)
            self._writers[run.identity] = opened, 0
        writer, rows = self._writers[run.identity]
        if len(curves["step"]) <= rows:
            return
        frame = curve_frame({name: values[rows:] for name, values in curves.items()})
        for entry in frame.to_dict("records"):
            step = int(entry.pop("step"))
            writer.write({str(name): value for name, value in entry.items()}, step)
        self._writers[run.identity] = writer, len(curves["step"])
