"""What a figure works with: a place to report progress to, and finished runs for the asking."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .._errors import InputError
from ..engine import Progress as Training
from ..engine import Run
from ..studies import Records, Result, Store, run_all

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done."""


@dataclasses.dataclass(frozen=True)
class Work:
    """Handed to a figure's `make`. Called, it reports progress."""

    progress: Progress = lambda what, share: None
    store: Path | None = None
    """Where runs are kept that had to be trained; None keeps nothing."""
    records: Records | None = None
    """Runs that were trained elsewhere."""
    partial: bool = False
    """Train nothing: give the runs of the cells that are there with all their seeds."""

    def __call__(self, what: str, share: float) -> None:
        self.progress(what, share)

    def results(self, runs: Sequence[Run], curves: bool = False) -> list[Result]:
        """The results of runs, in their order: recorded, stored or trained now (if `partial`: of whole cells only)."""
        if self.partial:
            runs = self.whole(runs)
            if not runs:
                raise InputError("no cell of this figure is there with all its seeds; without --partial they are trained")

        def show(now: Training) -> None:
            left = "" if now.seconds_left is None else f", about {now.seconds_left:.0f} s left"
            self.progress(f"training: {now.done} of {now.total} runs, {now.rate:.0f} steps/s{left}", now.done / now.total)

        return run_all(runs, self.store, records=self.records, curves=curves, progress=show)

    def by_part(self, parts: Mapping[str, Sequence[Run]], curves: bool = False) -> dict[str, list[Result]]:
        """The results of the named parts of a figure, which may share runs; parts without any are left out."""
        unique = {run.identity: run for part in parts.values() for run in part}
        found = {result.run.identity: result for result in self.results(list(unique.values()), curves)}
        named = {name: [found[run.identity] for run in part if run.identity in found] for name, part in parts.items()}
        return {name: results for name, results in named.items() if results}

    def whole(self, runs: Sequence[Run]) -> list[Run]:
        """The runs of those cells (configs) of which no seed is missing."""
        lacking = {run.config for run in self.missing(runs)}
        return [run for run in runs if run.config not in lacking]

    def missing(self, runs: Sequence[Run]) -> list[Run]:
        """Those that would have to be trained (a record without curves counts as there)."""
        kept = Store(self.store) if self.store is not None else ()
        return [run for run in runs if not (self.records is not None and run in self.records) and run not in kept]
