"""Training what several figures want in several processes at once: one plan for all, which grows as runs follow from others.

This process plans and looks on; it neither trains nor asks JAX for a device, whose memory is the workers'. So what is trained
is decided in one place, a run that two figures want is planned once, and runs of two figures that share a program are trained
together.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .._errors import InputError
from ..engine import TOGETHER, Probe, Run
from ..studies import Plan, Store, StudyFolder, Watcher, open_plan, read_outcomes
from ..studies._executor import terminations
from ..studies._plan import grow_plan
from ..studies._processes import Workers, claims_of, progress_of
from ._figure import Figure, Preset, source_for
from ._source import RunSource

LOOK = 0.5  # seconds between looks at the folder
SHOW = 2.0  # seconds between looks at how far workers are


@dataclasses.dataclass
class Wishes:
    """The runs that figures want of a folder and that are not recorded, each once, whichever figure wanted it first."""

    figures: Sequence[Figure]
    preset: Preset
    sources: Sequence[RunSource]  # of each figure; they train nothing
    runs: dict[str, Run] = dataclasses.field(default_factory=dict, init=False)  # so far, by identity
    figure_of: dict[str, str] = dataclasses.field(default_factory=dict, init=False)
    there: set[str] = dataclasses.field(default_factory=set, init=False)  # runs of the folder at the last question

    def __post_init__(self) -> None:
        self.wanted_by: list[set[str]] = [set() for _ in self.figures]

    def grow(self, there: set[str], ask_all: bool = False) -> bool:
        """Asks the figures what follows from the runs that are there now, and says whether that is more than before. Those are
        asked that had wanted one of the runs which are new there."""
        before, new, self.there = len(self.runs), there - self.there, there
        for figure, source, wanted in zip(self.figures, self.sources, self.wanted_by, strict=True):
            if ask_all or (figure.followup is not None and new & wanted):
                wanted.update(self._ask(figure, source))
        return len(self.runs) > before

    def _ask(self, figure: Figure, source: RunSource) -> list[str]:
        studies = figure.wanted(self.preset, source)
        wanted = figure.missing(studies, dataclasses.replace(source, folder=None))
        for run in source.to_plan(wanted):
            if run.identity not in self.runs:
                self.runs[run.identity], self.figure_of[run.identity] = run, figure.id
        return [run.identity for run in wanted]


def train_figures(
    figures: Sequence[Figure],
    preset: Preset,
    out: Path | str,
    workers: int,
    *,
    seconds: float | None = None,
    probes: Sequence[Probe] = (),
    show: Watcher,
    say: Callable[[str], None],
    **options: Any,
) -> None:
    """Trains what figures want in so many processes, until all is there or the seconds are over; `options` are those of
    [`emergo.papers.source_for`][]."""
    begun = time.monotonic()
    sources = [source_for(figure, out, partial=True, probes=probes, **options) for figure in figures]
    folder, wishes = StudyFolder(out), Wishes(figures, preset, sources)
    wishes.grow(set(), ask_all=True)
    store = Store(folder.runs)
    if all(run in store for run in wishes.runs.values()):
        return
    first, others = figures[0].id, len(figures) - 1
    named = RunSource(f"{first} and {others} more" if others else first, probes=tuple(probes))
    plan, _ = open_plan(folder, list(wishes.runs.values()), study=named.study, unit=TOGETHER, say=say)
    left = None if seconds is None else seconds - (time.monotonic() - begun)
    shown = _Shown(folder, wishes, show)
    with terminations(), Workers(folder, plan, workers, left, say) as processes:
        shown.begin()
        while processes.at_work():
            there = set(os.listdir(folder.runs))
            done = wishes.runs.keys() <= there
            if wishes.grow(there, ask_all=done):
                plan = grow_plan(folder, plan, list(wishes.runs.values()), TOGETHER)
                shown.begin()
            elif done:
                processes.end()
            shown.look(plan, there)
            time.sleep(LOOK)


@dataclasses.dataclass
class _Shown:
    """What a person sees meanwhile: of one figure its cells, of several one row each."""

    folder: StudyFolder
    wishes: Wishes
    show: Watcher
    done: dict[str, str] = dataclasses.field(default_factory=dict)  # states by identity
    last: float = 0.0

    def begin(self) -> None:
        runs, rows = list(self.wishes.runs.values()), read_outcomes(self.folder.runs).rows
        self.done = {identity: row["state"] for identity, row in rows.items() if identity in self.wishes.runs}
        several = {"figure": [self.wishes.figure_of[run.identity] for run in runs]} if len(self.wishes.figures) > 1 else None
        self.show.begin(runs, lambda: rows, several)

    def look(self, plan: Plan, there: set[str]) -> None:
        if time.monotonic() - self.last < SHOW:
            return
        self.last = time.monotonic()
        runs, store = self.wishes.runs, Store(self.folder.runs)
        for identity in (there & runs.keys()) - self.done.keys():
            with contextlib.suppress(InputError):  # it is damaged; a worker sees to it
                result = store.read(runs[identity], curves=False)
                self.done[identity] = result.state
                self.show.ended(result)
        counts = len(runs), len(self.done), sum(state == "failed" for state in self.done.values())
        claims = claims_of(self.folder, plan)
        if any(claim.get("progress") for claim in claims.values()):
            self.show.training(progress_of(claims, runs, counts))
