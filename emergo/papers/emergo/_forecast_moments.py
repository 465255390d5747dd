"""Runs as they were at steps fixed in advance, and which of them the forecast's table was fitted to."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..._contract import Threshold
from ..._json import digest
from ...engine import Ramp, Result, Run, Switch
from ...engine._schedules import schedules_in
from ...measure import emergence
from ...measure._forecast_table import usable
from ...measure._signals import Curves, find_signals, kind_of, read_curves
from ...studies._store import curve_frame
from ...tasks import Recall, SingleLocation

CUTS = tuple(125 * 2**k for k in range(11))
"""The steps at which forecasts are judged."""
FIT_CUTS = tuple(250 * 2 ** (k / 2) for k in range(16))
"""Those that the table is made from: closer together, as more moments of the same runs cost nothing."""
FIT_FIGURES = ("emergo/attention", "emergo/capacity", "emergo/schedule")
CHAIN_GOAL = 0.15
"""The divergence from its teacher at which a chain that was trained without a threshold counts as learned."""


SIZES, LATER, RECALL, CHAIN, TORCH = "other sizes", "later runs", "recall", "chain", "PyTorch"
"""Groups of runs: of the regression that the table is fitted to, each judged by a table that was fitted without its sizes; of
the regression in the first paper's figures, which were not looked at before the method was fixed; of the other two tasks, of
which the table knows nothing; and of the regression, trained in PyTorch."""


class Followed(NamedTuple):
    """A run and what became of it."""

    run: str
    cell: str  # of its config: runs of one cell differ in their seeds
    group: str
    curves: Curves
    plateau: float  # censored: the last step observed
    censored: bool
    sizes: Mapping[str, Any]  # what a law from the config alone knows

    def evaluations(self, cut: float) -> int | None:
        """How many there are up to a step; None where the run has emerged by then, or was not followed so far."""
        if cut >= self.plateau or cut > self.curves.step[-1]:
            return None
        return int(np.searchsorted(self.curves.step, cut, side="right"))


def sizes_of(run: Run) -> dict[str, Any]:
    """What a law from the config alone knows of a run, and what is left out as a whole: forms of attention that hardly differ
    are trained on the same data with the same seeds."""
    config = run.config
    parts = {"dim": config.task, "length": config.task, "width": config.model, "layers": config.model, "heads": config.model}
    sizes = {name: getattr(part, name, None) for name, part in parts.items()}
    return sizes | {"learning_rate": getattr(config.optimizer, "learning_rate", None)}


def block_of(sizes: Mapping[str, Any]) -> str:
    return digest(dict(sizes))


def group_of(run: Run, figure: str) -> str:
    """The group of a run that belongs to a figure."""
    if isinstance(run.config.task, SingleLocation):
        return SIZES if figure in FIT_FIGURES else LATER
    return RECALL if isinstance(run.config.task, Recall) else CHAIN


def follow(result: Result, group: str) -> Followed | None:
    """A run to be forecast; None where its curves were not kept, nothing tells that it has learned, or what it is trained on
    changes on the way, which no forecast can know."""
    config, curves = result.run.config, result.curves
    learned: Threshold | None = config.task.learned
    goal = config.threshold
    if goal is None and curves is not None and "kl_teacher" in curves:
        goal = CHAIN_GOAL
    if curves is None or learned is None or not isinstance(goal, float) or learned.metric not in curves:
        return None
    reached = emergence(curves["step"], curves[learned.metric], goal, learned.direction)
    if reached.state == "failed" or any(_changes(schedule, reached.time) for schedule in schedules_in(config.task)):
        return None
    known = {name: values for name, values in curves.items() if kind_of(name) is not None}
    columns = (curve_frame(known) if known else pd.DataFrame(index=range(len(curves["step"])))).set_index(curves["step"])
    read = read_curves(curves["step"], curves[learned.metric], columns, goal, learned.direction)
    cell = digest(config.describe())
    return Followed(result.run.identity, cell, group, read, reached.time, reached.censored, sizes_of(result.run))


def follow_table(table: pd.DataFrame, group: str, goal: float) -> list[Followed]:
    """The runs of a long table with the columns `run`, `length`, `dim`, `step` and `loss`."""
    followed = []
    for name, rows in table.groupby("run", sort=False):
        curves = rows.set_index("step")
        step, loss = curves.index.to_numpy(np.float64), curves["loss"].to_numpy(np.float64)
        reached = emergence(step, loss, goal)
        sizes = {size: int(rows[size].iloc[0]) for size in ("length", "dim")}
        read = read_curves(step, loss, curves, goal, "below")
        cell = str(name).rpartition("_")[0]
        followed.append(Followed(str(name), cell, group, read, reached.time, reached.censored, sizes))
    return followed


def _changes(schedule: Any, until: float) -> bool:
    """Whether a schedule has another value before the run has emerged."""
    if isinstance(schedule, Switch):
        return schedule.before != schedule.after and 0 < schedule.at < until
    if isinstance(schedule, Ramp):
        return schedule.first != schedule.last and schedule.begin < until
    return True


def fit_moments(runs: Iterable[Followed], cuts: Sequence[float] = FIT_CUTS) -> pd.DataFrame:
    """One row per run, step and usable signal, as [`emergo.measure._forecast_table.fit_table`][] takes them."""
    rows = []
    for run in runs:
        for cut in cuts:
            until = run.evaluations(cut)
            if until is None:
                break
            left = np.log(run.plateau / run.curves.step[until - 1] - 1)
            for signal in filter(usable, find_signals(run.curves, until) or []):
                row = {"run": run.run, "cell": run.cell, "block": block_of(run.sizes), "left": left}
                move = {"kind": signal.kind, "gain": signal.gain, "recent": signal.recent}
                rows.append(row | move | {"censored": run.censored})
    return pd.DataFrame(rows)
