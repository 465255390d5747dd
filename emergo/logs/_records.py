"""Convert the rows of a log to curves, with restarts, repeated steps and mixed-up runs."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ..core.errors import InputError

# If steps go back more often than once in this many rows, the rows are merely out of order.
# Otherwise the run was restarted.
ORDERED = 4


class Cells(NamedTuple):
    """The rows of a log in which a metric was evaluated, and the values there."""

    rows: Int[np.ndarray, " cells"]
    values: Float[np.ndarray, " cells"]


class Records(NamedTuple):
    """One run of a log, with rows in the order in which they were written."""

    name: str | None  # None if the log does not name its runs
    steps: Float[np.ndarray, " rows"]
    cells: Mapping[str, Cells]
    constants: dict[str, Any]  # seed, length, ...
    step: str = "step"  # the column of steps
    labelled: bool = False  # True if the log assigns its rows to runs
    folder: Path | None = None  # folder of config files; None: the folder of the log
    wanted: Collection[str] | None = None  # metrics to return; the others only show restarts
    gaps: Collection[
        str
    ] = ()  # requested metrics with blank cells that count as nan before numbers


def to_curves(records: Records, where: str) -> tuple[dict[str, pd.Series], str | None]:
    """Return the curve of every metric by increasing steps, and a line about restarts.

    If steps go back within a metric, the run was restarted from a checkpoint. Earlier rows (of all
    metrics) at that step or later belong to an abandoned branch. They are left out, even if the new
    branch has not come so far yet. If one step has several values, the last one counts.

    Raises `InputError` if the rows cannot be one run: steps begin again from the first step, or
    most steps have two values.
    """
    wanted = records.cells if records.wanted is None else records.wanted
    restarts = _restarts(records, where)
    alive = np.ones(len(records.steps), bool)
    note = None
    if restarts:
        # A row is alive if no later restart is at its step or before. The running minimum of the
        # restarts, taken from the end, is the earliest of these.
        first = np.full(len(alive), np.inf)
        for row, step in restarts:
            first[row - 1] = min(first[row - 1], step)
        alive = records.steps < np.minimum.accumulate(first[::-1])[::-1]
        dropped = sum(int((~alive[records.cells[name].rows]).sum()) for name in wanted)
        run = "it" if records.name is None else f"run '{records.name}'"
        steps = [f"{step:g}" for step in sorted({step for _, step in restarts})]
        places = ", ".join(steps[:3]) + (", ..." if len(restarts) > 3 else "")
        note = (
            f"{where}: {run} was restarted (steps go back to {places}); {dropped} "
            f"values from before are left out"
        )
    curves = {
        name: _curve(records, records.cells[name], alive, f"{where}: '{name}'") for name in wanted
    }
    return curves, note


def _restarts(records: Records, where: str) -> set[tuple[int, float]]:
    """Find the restarts: the first row of each new branch, and its step."""
    restarts: set[tuple[int, float]] = set()
    if (records.steps[1:] >= records.steps[:-1]).all():
        return restarts
    for rows, _ in records.cells.values():
        steps = records.steps[rows]
        back = np.flatnonzero(steps[1:] < steps[:-1]) + 1
        if ORDERED * len(back) > len(steps):
            continue
        again = back[steps[back] <= steps[:1]]
        if len(again) and not records.labelled:
            first = again[0]
            what = f"after step {steps[first - 1]:g} steps begin again at {steps[first]:g}"
            raise _mixed(where, what)
        restarts.update(zip(rows[back].tolist(), steps[back].tolist(), strict=True))
    return restarts


def _curve(records: Records, cells: Cells, alive: np.ndarray, where: str) -> pd.Series:
    """Sort the values that are alive, and keep the last value of each step."""
    kept = alive[cells.rows]
    steps = records.steps[cells.rows[kept]]
    values = cells.values[kept]
    if not (steps[1:] > steps[:-1]).all():
        order = np.argsort(steps, kind="stable")
        steps = steps[order]
        values = values[order]
        last = np.append(steps[1:] > steps[:-1], True)
        conflict = ~last[:-1] & (values[1:] != values[:-1])  # the next value has the same step
        if len(np.unique(steps[1:][conflict])) * 2 > last.sum() > 1:
            raise _mixed(where, "most steps have several values")
        steps = steps[last]
        values = values[last]
    return pd.Series(values, index=pd.Index(steps, name="step"))


def _mixed(where: str, what: str) -> InputError:
    return InputError(
        f"{where}: {what}: more than one run? name the column that tells runs apart with run=, or "
        f"use one file per run"
    )
