"""The runs that forecasts are judged on, and the steps at which their logs are cut."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ...core.contract import Threshold
from ...core.json import digest
from ...measure import Direction, emergence
from ...store import curve_frame
from ...tasks import Recall, SingleLocation
from ...training import Ramp, Result, Run, Switch, schedules_in
from .._signals import Curves, find_signals, kind_of, read_curves
from .._table import usable

# The steps at which forecasts are judged.
CUTS = tuple(125 * 2**k for k in range(11))
# The steps that the table is fitted to; denser, because more moments of the same runs are free.
FIT_CUTS = tuple(250 * 2 ** (k / 2) for k in range(16))
FIT_FIGURES = ("emergo/attention", "emergo/capacity", "emergo/schedule")
# The KL from the teacher at which chains that were trained without a threshold have learned.
CHAIN_GOAL = 0.15

# Groups of runs. The table is fitted to the first, which is judged by cross-validation over sizes.
# Runs of the regression from the first paper's figures were not examined before the method was
# fixed. The table has seen no run of the other groups.
SIZES = "other sizes"
LATER = "later runs"
RECALL = "recall"
CHAIN = "chain"
TORCH = "PyTorch"


class Followed(NamedTuple):
    """A run and its outcome.

    - `cell`: identifies the config; runs of one cell differ in their seed.
    - `plateau`: the emergence step, or the last step if `censored`.
    - `sizes`: the features of a law that knows only the config.
    """

    run: str
    cell: str
    group: str
    curves: Curves
    plateau: float
    censored: bool
    sizes: Mapping[str, Any]

    def evaluations(self, cut: float) -> int | None:
        """Count the evaluations up to a step; None if the run has emerged or ended by then."""
        if cut >= self.plateau or cut > self.curves.step[-1]:
            return None
        return int(np.searchsorted(self.curves.step, cut, side="right"))

    @property
    def block(self) -> str:
        """The sizes as one text; cross-validation holds out whole blocks.

        Cells that differ only in the form of attention were trained on the same data with the same
        seeds, so they belong to the same block.
        """
        return digest(dict(self.sizes))


def sizes_of(run: Run) -> dict[str, Any]:
    """Return the sizes of the task and the model, and the learning rate."""
    config = run.config
    return {
        name: getattr(part, name, None)
        for part, names in (
            (config.task, ("dim", "length")),
            (config.model, ("width", "layers", "heads")),
            (config.optimizer, ("learning_rate",)),
        )
        for name in names
    }


def group_of(run: Run, figure: str) -> str:
    """Return the group of a run of a figure."""
    if isinstance(run.config.task, SingleLocation):
        return SIZES if figure in FIT_FIGURES else LATER
    return RECALL if isinstance(run.config.task, Recall) else CHAIN


def follow(result: Result, group: str) -> Followed | None:
    """Prepare a run to be forecast.

    Returns None if curves or criterion are missing, if it diverged, or if its data distribution
    changes before it emerges, which a forecast cannot know.
    """
    config = result.run.config
    curves = result.curves
    learned: Threshold | None = config.task.learned
    if curves is None or learned is None or learned.metric not in curves:
        return None
    goal = CHAIN_GOAL if config.threshold is None and "kl_teacher" in curves else config.threshold
    if not isinstance(goal, float):
        return None
    columns = curve_frame({n: v for n, v in curves.items() if n == "step" or kind_of(n)})
    metric = pd.Series(curves[learned.metric], curves["step"])
    names = result.run.identity, digest(config.describe()), group
    run = _followed(names, metric, columns, goal, learned.direction, sizes_of(result.run))
    if any(changes(schedule, run.plateau) for schedule in schedules_in(config.task)):
        return None
    return run if np.isfinite(run.plateau) else None


def _followed(
    names: tuple[str, str, str],
    metric: pd.Series,
    columns: pd.DataFrame,
    goal: float,
    direction: Direction,
    sizes: Mapping[str, Any],
) -> Followed:
    step = metric.index.to_numpy()
    reached = emergence(step, metric, goal, direction)
    columns = columns.set_index(step)
    read = read_curves(step, metric.to_numpy(), columns, goal, direction)
    return Followed(*names, read, reached.time, reached.censored, sizes)


def follow_table(table: pd.DataFrame, group: str, goal: float) -> list[Followed]:
    """Prepare the runs of a table with the columns `run`, `length`, `dim`, `step` and `loss`."""
    followed = []
    for name, rows in table.groupby("run", sort=False):
        sizes = {size: int(rows[size].iloc[0]) for size in ("length", "dim")}
        names = str(name), str(name).rpartition("_")[0], group
        loss = rows.set_index("step")["loss"].astype(np.float64)
        followed.append(_followed(names, loss, rows, goal, "below", sizes))
    return followed


def changes(schedule: Any, until: float) -> bool:
    """Return True if the value of a schedule changes before a step."""
    if isinstance(schedule, Switch):
        return schedule.before != schedule.after and 0 < schedule.at < until
    if isinstance(schedule, Ramp):
        return schedule.first != schedule.last and schedule.begin < until
    return True


def fit_moments(runs: Iterable[Followed]) -> pd.DataFrame:
    """Build the rows for `fit_table`: one per run, step of `FIT_CUTS` and usable signal."""
    rows = []
    for run in runs:
        about = {name: getattr(run, name) for name in ("run", "cell", "block", "censored")}
        for cut in FIT_CUTS:
            until = run.evaluations(cut)
            if until is None:
                break
            left = np.log(run.plateau / run.curves.step[until - 1] - 1)
            signals = filter(usable, find_signals(run.curves, until) or [])
            rows += [about | signal._asdict() | {"left": left} for signal in signals]
    return pd.DataFrame(rows)
