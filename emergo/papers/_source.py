"""The source of a figure's runs: the package's records, a folder of stored runs, or training."""

import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core.errors import InputError
from ..store import Plan, Records, Store, StudyFolder, curve_frame
from ..study import Runs, Slurm, Study, Watcher, submit_plan
from ..study.executor import run_plan
from ..study.plan import open_plan
from ..study.results import missing_parts, read_result, with_curves_of
from ..training import TOGETHER, OutOfTime, Probe, Result, Run, groups_of, probe_curves, train


@dataclasses.dataclass(frozen=True)
class RunSource:
    """The source of runs that a figure's `make` receives; see [`emergo.papers.source_for`][].

    - `name`: the name of the plan of its runs.
    - `report`: receives progress.
    - `deadline`: the `time.monotonic()` at which training stops.
    - `with_curves`: identities of runs whose curves are needed although the figure does not plot
      them.
    - `probes`: further probes for the runs that are trained.
    - `handed_out`: the runs that the figure has received, by identity, without their curves.
    """

    name: str = "figure"
    report: Watcher = dataclasses.field(default_factory=Watcher, compare=False)
    folder: Path | None = None
    records: Records | None = None
    partial: bool = False
    deadline: float | None = None
    with_curves: frozenset[str] = frozenset()
    probes: tuple[Probe, ...] = ()
    handed_out: dict[str, Result] = dataclasses.field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def runs(self, studies: Mapping[str, Study], curves: bool = False) -> dict[str, Runs]:
        """Return the finished runs of each study, after training the missing runs.

        A partial source trains nothing and returns complete cells only. Studies without such a cell
        are left out.

        **Arguments:**

        - `studies`: the parts of the figure by name.
        - `curves`: whether the runs need their curves.
        """
        every = distinct(studies)
        if self.partial:
            every = self._complete_cells(every, curves)
        results = self._results(every, curves)
        for identity, result in results.items():
            self.handed_out[identity] = result._replace(curves=None)
        parts = {}
        for name, study in studies.items():
            chosen = [results[run.identity] for run in study.runs if run.identity in results]
            tuned = next(iter(study.tune), None)
            if chosen:
                parts[name] = Runs(chosen, study.axes, study.values_of, self._store, tuned)
        return parts

    def missing(self, runs: Sequence[Run], curves: bool = False) -> list[Run]:
        """Return the runs that have to be trained.

        A run exists if the folder holds it, or if it is recorded, with its curves where they are
        needed.
        """
        store = self._store
        return [
            run
            for run in runs
            if not self._is_recorded(run, curves) and (store is None or run.identity not in store)
        ]

    def complete_cells(self, runs: Sequence[Run], curves: bool = False) -> list[Run]:
        """Return the runs of the cells (configs) of which all seeds exist."""
        lacking = {run.config for run in self.missing(runs, curves)}
        return [run for run in runs if run.config not in lacking]

    def to_plan(self, unrecorded: Sequence[Run]) -> list[Run]:
        """Return the runs to plan if some are missing, with the source's probes.

        Finished runs of the folder are part of the plan, so that the same call later finds the same
        units and resumes their checkpoints. Finished runs that lack curves of the probes are left
        out, because a plan would train them again.
        """
        runs = list(unrecorded)
        if self.probes:
            configs = [run.config.replace(probes=run.config.probes + self.probes) for run in runs]
            runs = [Run(config, run.seed) for config, run in zip(configs, runs, strict=True)]
        store = self._store
        lacking = set[str]()
        if store is not None:
            stored = [run for run in runs if run.config.probes and run.identity in store]
            for group in groups_of(stored):
                curves = probe_curves(group[0].config)
                lacking.update(run.identity for run in group if missing_parts(store, run, curves))
        return [run for run in runs if run.identity not in lacking]

    def submit(self, studies: Mapping[str, Study], asked: Slurm) -> str:
        """Submit the missing runs to Slurm and return a line that reports the job."""
        if self.folder is None:
            raise InputError("runs on Slurm need a folder that all machines see")
        every = distinct(studies)
        missing = self.missing(every)
        if not missing:
            return f"{self.name}: all runs are there"
        planned = self.to_plan([run for run in every if not self._is_recorded(run, curves=False)])
        job = submit_plan(*self._plan(self.folder, planned), asked)
        return (
            f"{self.name}: array job {job.job} with {job.tasks} tasks trains {len(missing)} "
            f"runs, output in {job.folder}"
        )

    @property
    def _store(self) -> Store | None:
        return None if self.folder is None else Store(StudyFolder(self.folder).runs)

    def _is_recorded(self, run: Run, curves: bool) -> bool:
        needed = curves or run.identity in self.with_curves
        return self.records is not None and self.records.holds(run.identity, needed)

    def _complete_cells(self, runs: Sequence[Run], curves: bool) -> list[Run]:
        """Return the runs of complete cells; raise `InputError` without such cells."""
        complete = self.complete_cells(runs, curves)
        if not complete:
            cells = len({run.config for run in runs})
            count = len(runs) - len(self.missing(runs, curves))
            raise InputError(
                f"{self.name}: none of the {cells} cells has all of its seeds yet "
                f"({count} of {len(runs)} runs are there)"
            )
        return complete

    def _results(self, runs: Sequence[Run], curves: bool) -> dict[str, Result]:
        trained: dict[str, Result] = {}
        if not self.partial and self.missing(runs, curves):
            unrecorded = [run for run in runs if not self._is_recorded(run, curves)]
            trained = {result.run.identity: result for result in self._train(unrecorded)}
        return {run.identity: self._result(run, curves, trained.get(run.identity)) for run in runs}

    def _result(self, run: Run, curves: bool, trained: Result | None) -> Result:
        """Return the result of a run: recorded, trained just now, or stored in the folder."""
        recorded = None
        if self.records is not None and run.identity in self.records:
            recorded = read_result(self.records, run)
            if self._is_recorded(run, curves):
                return recorded
        if trained is None and (store := self._store) is not None:
            trained = read_result(store, run, curves or recorded is not None)
        assert trained is not None
        # A recorded outcome stays when the run was trained again for its curves.
        return with_curves_of(recorded, trained) if recorded else trained

    def _train(self, unrecorded: Sequence[Run]) -> list[Result]:
        """Train runs and return their results; with a folder, store them and return nothing."""
        runs = self.to_plan(unrecorded)
        if self.folder is None:
            self.report.begin(runs)
            watch = self.report
            return train(runs, progress=watch.training, on_end=watch.ended, deadline=self.deadline)
        folder, plan = self._plan(self.folder, runs, unit=TOGETHER)
        if not run_plan(folder, [plan.key], runs, watch=self.report, deadline=self.deadline):
            raise OutOfTime(
                f"{self.name}: the time is over; the same call goes on from what is there"
            )
        return []

    def _plan(self, folder: Path, runs: Sequence[Run], unit: int = 64) -> tuple[StudyFolder, Plan]:
        place = StudyFolder(folder)
        plan, _ = open_plan(place, runs, study=plan_of(self.name, self.probes), unit=unit)
        return place, plan


def plan_of(name: str, probes: Sequence[Probe]) -> dict[str, Any]:
    """Return the description of a plan: its name, and the plugins that define the runs' types."""
    named = [probe if inspect.isfunction(probe) else type(probe) for probe in probes]
    return {
        "name": name,
        "plugins": [*dict.fromkeys([__package__, *(p.__module__ for p in named)])],
    }


def distinct(studies: Mapping[str, Study]) -> list[Run]:
    """Return the runs of all studies, without repetitions, in the order of the studies."""
    return list({run.identity: run for study in studies.values() for run in study.runs}.values())


def distinct_results(parts: Mapping[str, Iterable[Result]]) -> list[Result]:
    """Return the results of all parts of a figure, without repetitions."""
    every = (result for part in parts.values() for result in part)
    return list({result.run.identity: result for result in every}.values())


def curve(result: Result, name: str) -> np.ndarray:
    """Return a curve of a run; raises `InputError` if the run was recorded without curves."""
    if result.curves is None:
        raise InputError(
            f"the run {result.run.identity} is there without its curves, which this figure draws"
        )
    return result.curves[name]


def curve_table(results: Iterable[Result], columns: Sequence[str]) -> pd.DataFrame:
    """Return all curves, one row per evaluation, with these fields of the task."""
    frames = [pd.DataFrame()]
    for result in results:
        sizes = {name: getattr(result.run.config.task, name) for name in columns}
        frames.append(curve_frame(result.curves).assign(**sizes, seed=result.run.seed))
    return pd.concat(frames, ignore_index=True)
