"""What every format of a log is read into, and how its rows become curves: restarts, steps written twice, runs mixed up."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ..._errors import InputError

ORDERED = 4  # rows per place where steps go back, on average: with fewer a log is out of order, with more it was restarted


class Cells(NamedTuple):
    """Where a metric was evaluated: rows of the log, in its order, and the values there."""

    rows: Int[np.ndarray, " cells"]
    values: Float[np.ndarray, " cells"]


class Records(NamedTuple):
    """One run as its log has it: rows in the order in which they were written."""

    name: str | None  # None: the log does not name its runs, it is one
    steps: Float[np.ndarray, " rows"]
    cells: Mapping[str, Cells]
    constants: dict[str, Any]  # of the run, as the log has them: seed, length, ...
    step: str = "step"  # the column of steps
    labelled: bool = False  # whether the log itself says which rows are of this run
    folder: Path | None = None  # where configs of this run may be; None: beside the log
    hint: str = ""  # which column may tell runs apart
    others: Mapping[str, Int[np.ndarray, " cells"]] = {}  # rows of metrics that were not asked for: they show restarts, too


def to_curves(records: Records, where: str) -> tuple[dict[str, pd.Series], str | None]:
    """The curve of every metric, by increasing steps, and a line about restarts, if there were any.

    Steps that go back within a metric are a restart from a checkpoint: of the rows before it, of all metrics, those at that
    step or later belong to a branch that was given up, and are left out, even where the new branch has not come so far yet.
    Where steps go back more often than at every fourth row the log is merely out of order. Of values of one step the last
    counts.

    Raises `InputError` where this cannot be one run: steps that begin again from the first, or most of them with two values.
    """
    starts: set[tuple[int, float]] = set()
    ordered = bool((records.steps[1:] >= records.steps[:-1]).all())
    for rows in () if ordered else (*records.others.values(), *(cells.rows for cells in records.cells.values())):
        steps = records.steps[rows]
        back = np.flatnonzero(steps[1:] < steps[:-1]) + 1
        if ORDERED * len(back) > len(steps):
            continue
        if not records.labelled and len(back) and steps[back].min() <= steps[0]:
            again = back[np.argmax(steps[back] <= steps[0])]
            raise _mixed(where, f"after step {steps[again - 1]:g} steps begin again at {steps[again]:g}", records.hint)
        starts.update(zip(rows[back].tolist(), steps[back].tolist(), strict=True))
    alive, note = np.ones(len(records.steps), bool), None
    if starts:
        # A row counts if no restart after it is at its step or before: the running minimum of restarts, from the end.
        first = np.full(len(alive), np.inf)
        for row, step in starts:
            first[row - 1] = min(first[row - 1], step)
        alive = records.steps < np.minimum.accumulate(first[::-1])[::-1]
        dropped = sum(int((~alive[rows]).sum()) for rows, _ in records.cells.values())
        run = "it" if records.name is None else f"run '{records.name}'"
        places = ", ".join(f"{step:g}" for step in sorted({step for _, step in starts})[:3])
        more = "" if len(starts) <= 3 else ", ..."
        note = f"{where}: {run} was restarted (steps go back to {places}{more}); {dropped} values from before are left out"
    curves = {name: _curve(records, cells, alive, f"{where}: '{name}'") for name, cells in records.cells.items()}
    return curves, note


def _curve(records: Records, cells: Cells, alive: np.ndarray, where: str) -> pd.Series:
    kept = alive[cells.rows]
    steps, values = records.steps[cells.rows[kept]], cells.values[kept]
    if not (steps[1:] > steps[:-1]).all():
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
        last = np.append(steps[1:] > steps[:-1], True)
        again = ~last[:-1] & (values[1:] != values[:-1])  # the next value is of the same step and another one
        if len(np.unique(steps[1:][again])) * 2 > last.sum() > 1:
            raise _mixed(where, "most steps have several values", records.hint)
        steps, values = steps[last], values[last]
    return pd.Series(values, index=pd.Index(steps, name="step"))


def _mixed(where: str, what: str, hint: str) -> InputError:
    column = f", e.g. run='{hint}'" if hint else ""
    return InputError(
        f"{where}: {what}: more than one run? name the column that tells runs apart{column}, or give each run by itself"
    )
