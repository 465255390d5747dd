"""Where the runs of a figure come from: recorded, kept in a folder, or trained now."""

import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .._errors import InputError
from ..engine import TOGETHER, OutOfTime, Probe, Result, Run, groups_of, probe_curves, train
from ..studies import (
    Executor,
    Plan,
    Records,
    Runs,
    Slurm,
    Store,
    Study,
    StudyFolder,
    Watcher,
    beside,
    curve_frame,
    open_plan,
    read_outcomes,
    submit_plan,
)


@dataclasses.dataclass(frozen=True)
class RunSource:
    """Handed to a figure's `make`; see [`emergo.papers.source_for`][]."""

    name: str = "figure"  # its runs are planned under
    report: Watcher = dataclasses.field(default_factory=Watcher, compare=False)  # is told how far it is
    folder: Path | None = None
    records: Records | None = None
    partial: bool = False
    deadline: float | None = None  # of `time.monotonic()`
    with_curves: frozenset[str] = frozenset()
    """Identities of runs whose curves are needed, though the figure may draw none."""
    probes: tuple[Probe, ...] = ()  # measured besides their own of runs that are trained
    handed_out: dict[str, Result] = dataclasses.field(default_factory=dict, init=False, compare=False, repr=False)
    """The runs that the figure got so far, by identity, without their curves."""

    @property
    def _store(self) -> Store | None:
        return None if self.folder is None else Store(StudyFolder(self.folder).runs)

    def missing(self, runs: Sequence[Run], curves: bool = False) -> list[Run]:
        """Those that would have to be trained: neither recorded (with their curves, if these are needed) nor in the folder."""
        store = self._store
        return [run for run in runs if not self._recorded(run, curves) and (store is None or run not in store)]

    def _recorded(self, run: Run, curves: bool) -> bool:
        return self.records is not None and self.records.holds(run.identity, self._with_curves(run, curves))

    def _with_curves(self, run: Run, curves: bool) -> bool:
        return curves or run.identity in self.with_curves

    def whole(self, runs: Sequence[Run], curves: bool = False) -> list[Run]:
        """The runs of those cells (configs) of which no seed is missing."""
        lacking = {run.config for run in self.missing(runs, curves)}
        return [run for run in runs if run.config not in lacking]

    def runs(self, studies: Mapping[str, Study], curves: bool = False) -> dict[str, Runs]:
        """The finished runs (`partial`: of whole cells) of the named parts of a figure, without parts that have none."""
        every = distinct(studies)
        if self.partial:
            whole = self.whole(every, curves)
            if not whole:
                cells, there = len({run.config for run in every}), len(every) - len(self.missing(every, curves))
                have = f"{there} of {len(every)} runs are there"
                raise InputError(f"{self.name}: none of the {cells} cells has all of its seeds yet ({have})")
            every = whole
        results = self._results(every, curves)
        self.handed_out.update({identity: result._replace(curves=None) for identity, result in results.items()})
        parts = {}
        for name, study in studies.items():
            chosen = [results[run.identity] for run in study.runs if run.identity in results]
            if chosen:
                parts[name] = Runs(chosen, study.axes, study.values_of, self._store, next(iter(study.tune), None))
        return parts

    def _results(self, runs: Sequence[Run], curves: bool) -> dict[str, Result]:
        """What is recorded stays what it is: of a run that was trained again for its curves, only these are new."""
        results = {}
        if not self.partial and self.missing(runs, curves):
            unrecorded = [run for run in runs if not self._recorded(run, curves)]
            results = {result.run.identity: result for result in self._train(unrecorded)}
        store, records = self._store, self.records
        for run in runs:
            if records is not None and self._recorded(run, curves):
                results[run.identity] = records.read(run)
                continue
            if run.identity not in results and store is not None:
                results[run.identity] = store.read(run, self._with_curves(run, curves))
            if records is not None and run in records:
                results[run.identity] = beside(records.read(run), results[run.identity])
        return results

    def _train(self, runs: Sequence[Run]) -> list[Result]:
        watch: dict[str, Any] = {"progress": self.report.training, "on_end": self.report.ended, "deadline": self.deadline}
        runs, store = self.to_plan(runs), self._store
        self.report.begin(runs, dict if store is None else lambda: read_outcomes(store.folder).rows)
        if self.folder is None:
            return train(runs, **watch)
        folder, plan = self._plan(self.folder, runs, unit=TOGETHER)
        known = {run.identity: run for run in runs}
        if not Executor(folder, [plan.key], known, **watch).run():
            raise OutOfTime(f"{self.name}: the time is over; the same call goes on from what is there")
        return []

    def to_plan(self, unrecorded: Sequence[Run]) -> list[Run]:
        """What to plan where something is missing, with the source's probes. What is finished in the folder is planned too, so
        that the same call finds the same units later and goes on with what was in training; but not what lacks the curves of
        these probes, which would be trained again."""
        runs, store = self._with_probes(unrecorded), self._store
        if store is None:
            return runs
        lacking = set[str]()
        for group in groups_of([run for run in runs if run.config.probes and run in store]):
            curves = probe_curves(group[0].config)
            lacking.update(run.identity for run in group if store.lacks(run, curves))
        return [run for run in runs if run.identity not in lacking]

    def _with_probes(self, runs: Sequence[Run]) -> list[Run]:
        if not self.probes:
            return list(runs)
        return [Run(run.config.replace(probes=(*run.config.probes, *self.probes)), run.seed) for run in runs]

    @property
    def study(self) -> dict[str, Any]:
        """What a plan says of its runs: other processes find the types of these in this room."""
        plugins = [__package__, *dict.fromkeys(_module_of(probe) for probe in self.probes)]
        return {"name": self.name, "plugins": plugins}

    def _plan(self, folder: Path, runs: Sequence[Run], unit: int = 64) -> tuple[StudyFolder, Plan]:
        """The plan to train some runs."""
        plan, _ = open_plan(StudyFolder(folder), runs, study=self.study, unit=unit)
        return StudyFolder(folder), plan

    def submit(self, studies: Mapping[str, Study], asked: Slurm) -> str:
        """Submits what is missing to Slurm; returns a line that says what was done."""
        if self.folder is None:
            raise InputError("runs on Slurm need a folder that all machines see")
        every = distinct(studies)
        missing = self.missing(every)
        if not missing:
            return f"{self.name}: all runs are there"
        planned = self.to_plan([run for run in every if not self._recorded(run, curves=False)])
        job = submit_plan(*self._plan(self.folder, planned), asked)
        return f"{self.name}: array job {job.job} with {job.tasks} tasks trains {len(missing)} runs, output in {job.folder}"


def _module_of(probe: Probe) -> str:
    """The module that a probe, a function or an object, is defined in."""
    return probe.__module__ if inspect.isfunction(probe) else type(probe).__module__


def distinct(studies: Mapping[str, Study]) -> list[Run]:
    """The runs of the parts of a figure, each once, in the order of the parts."""
    return list({run.identity: run for study in studies.values() for run in study.runs}.values())


def distinct_results(parts: Mapping[str, Iterable[Result]]) -> list[Result]:
    """The results of the parts of a figure, each once."""
    return list({result.run.identity: result for part in parts.values() for result in part}.values())


def curve(result: Result, name: str) -> np.ndarray:
    """A curve of a run that was asked for with its curves."""
    if result.curves is None:
        raise InputError(f"the run {result.run.identity} is there without its curves, which this figure draws")
    return result.curves[name]


def curve_table(results: Iterable[Result], columns: Sequence[str]) -> pd.DataFrame:
    """All curves, one row per evaluation, with these fields of the task."""
    frames = [pd.DataFrame()]
    for result in results:
        sizes = {name: getattr(result.run.config.task, name) for name in columns}
        frames.append(curve_frame(result.curves).assign(**sizes, seed=result.run.seed))
    return pd.concat(frames, ignore_index=True)
