"""Train the runs of several figures in several processes, from one plan.

The plan contains each run once, even if several figures need it, and runs of two figures that share
a compiled program are trained together. The plan grows while workers train, because some runs of a
figure depend on the results of others.

The process that plans does not train. It also asks JAX for no device, because that would reserve
GPU memory that the workers need.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..store import Plan, Store, StudyFolder, read_outcomes
from ..store.packs import stored_names
from ..study import Watcher
from ..study.executor import run_plan, terminations
from ..study.plan import grow_plan, open_plan
from ..study.processes import progress_of, run_workers
from ..study.results import read_result
from ..training import TOGETHER, Run
from ._figure import Figure, Preset, source_for
from ._source import RunSource, plan_of

POLL_SECONDS = 0.5  # between two looks at the folder
SHOW_SECONDS = 2.0  # between two updates of the progress display


@dataclasses.dataclass
class FigureDemand:
    """The unrecorded runs that figures need from a folder.

    - `sources`: the source of each figure; they do not train.
    - `runs`: the runs so far, by identity.
    - `figure_of`: the first figure that needed each run.
    - `finished`: the finished runs of the folder at the last call of `grow`.
    """

    figures: Sequence[Figure]
    preset: Preset
    sources: Sequence[RunSource]
    runs: dict[str, Run] = dataclasses.field(default_factory=dict, init=False)
    figure_of: dict[str, str] = dataclasses.field(default_factory=dict, init=False)
    finished: set[str] = dataclasses.field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.needed_by: list[set[str]] = [set() for _ in self.figures]

    def grow(self, finished: set[str], ask_all: bool = False) -> bool:
        """Add the runs that follow from finished ones; return True if this adds any.

        By default only figures that need a newly finished run can add some.
        """
        before = len(self.runs)
        new = finished - self.finished
        self.finished = finished
        for figure, source, needed in zip(self.figures, self.sources, self.needed_by, strict=True):
            if ask_all or (figure.followup is not None and new & needed):
                needed.update(self._ask(figure, source))
        return len(self.runs) > before

    def _ask(self, figure: Figure, source: RunSource) -> list[str]:
        studies = figure.wanted(self.preset, source)
        needed = figure.missing(studies, dataclasses.replace(source, folder=None))
        for run in source.to_plan(needed):
            if run.identity not in self.runs:
                self.runs[run.identity] = run
                self.figure_of[run.identity] = figure.id
        return [run.identity for run in needed]


def train_figures(
    figures: Sequence[Figure],
    preset: Preset,
    out: Path | str,
    workers: int,
    *,
    seconds: float | None = None,
    show: Watcher,
    say: Callable[[str], None],
    **options: Any,
) -> None:
    """Train the missing runs of figures in several processes.

    **Arguments:**

    - `workers`: the number of processes.
    - `seconds`: when to stop; None trains all runs.
    - `show`, `say`: receive progress, and lines about unusual events.
    - `options`: other arguments of [`emergo.papers.source_for`][].
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    sources = [source_for(figure, out, partial=True, **options) for figure in figures]
    folder = StudyFolder(out)
    demand = FigureDemand(figures, preset, sources)
    demand.grow(set(), ask_all=True)
    store = Store(folder.runs)
    if all(identity in store for identity in demand.runs):
        return
    first = figures[0].id
    others = len(figures) - 1
    name = f"{first} and {others} more" if others else first
    study = plan_of(name, sources[0].probes)
    runs = list(demand.runs.values())
    plan, _ = open_plan(folder, runs, study=study, unit=TOGETHER, say=say)
    display = _Display(folder, demand, show)
    train = functools.partial(
        run_plan, folder, [plan.key], watch=Watcher(show.forecaster), wait=False, deadline=deadline
    )
    jobs = [functools.partial(train, share=(number, workers)) for number in range(workers)]
    with terminations(), run_workers(jobs, say) as processes:
        display.begin()
        while processes.at_work():
            finished = stored_names(folder.runs)
            done = demand.runs.keys() <= finished
            if demand.grow(finished, ask_all=done):
                plan = grow_plan(folder, plan, list(demand.runs.values()), TOGETHER)
                display.begin()
            elif done:
                processes.end()
            display.update(plan, finished)
            time.sleep(POLL_SECONDS)


@dataclasses.dataclass
class _Display:
    """Progress of the workers, as read from the folder.

    A single figure is shown by its cells, several figures with one row each.
    """

    folder: StudyFolder
    demand: FigureDemand
    show: Watcher
    states: dict[str, str] = dataclasses.field(default_factory=dict)  # of finished runs
    last: float = 0.0

    def begin(self) -> None:
        """Announce all runs of the plan."""
        runs = self.demand.runs
        rows = read_outcomes(self.folder.runs).rows
        self.states = {name: row["state"] for name, row in rows.items() if name in runs}
        columns = None
        if len(self.demand.figures) > 1:
            columns = {"figure": [self.demand.figure_of[identity] for identity in runs]}
        self.show.begin(list(runs.values()), rows, columns)

    def update(self, plan: Plan, finished: set[str]) -> None:
        """Report the newly finished runs, and the progress that workers write into their claims."""
        if time.monotonic() - self.last < SHOW_SECONDS:
            return
        self.last = time.monotonic()
        runs = self.demand.runs
        store = Store(self.folder.runs)
        for identity in (finished & runs.keys()) - self.states.keys():
            with contextlib.suppress(InputError):  # damaged; a worker trains it again
                result = read_result(store, runs[identity], curves=False)
                self.states[identity] = result.state
                self.show.ended(result)
        failed = sum(state == "failed" for state in self.states.values())
        now = progress_of(self.folder, plan, runs, len(self.states), failed)
        if now is not None:
            self.show.training(now)
