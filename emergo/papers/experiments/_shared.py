"""Helpers that several experiments share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from ...core.plotting import CENSORED, shades
from ...training import Result
from .._source import curve

# Properties of a line.
Look = dict[str, Any]
DOT: Look = {"marker": "o", "ls": "", "ms": 4, "mec": "white", "mew": 0.4}
# The marker of censored runs.
HOLLOW: Look = CENSORED[1]
# The colours of the exponents of d and T, from the palettes of d and T.
TERMS = {"dim": shades(2, "dim")[0], "length": shades(2, "length")[1]}


def entries(colours: Mapping[Any, Any], **look: Any) -> list[tuple[str, Look]]:
    """Create legend entries from colours by name or number."""
    names = [name if isinstance(name, str) else f"{name:g}" for name in colours]
    return [(name, {"color": c} | look) for name, c in zip(names, colours.values(), strict=True)]


def whole_cells(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the runs of those cells in which every run reached its threshold."""
    reached = table["state"] == "reached"
    return table[reached.groupby([table[name] for name in by]).transform("all").astype(bool)]


def geometric_mean(values: ArrayLike) -> float:
    """Return the geometric mean of positive numbers."""
    return float(np.exp(np.mean(np.log(np.asarray(values, np.float64)))))


def draw_curve(axes: Axes, result: Result, name: str, **look: Any) -> None:
    """Draw a curve of a run against step, without step 0."""
    axes.plot(curve(result, "step")[1:], curve(result, name)[1:], **look)


def draw_cells(axes: Axes, table: pd.DataFrame, x: str, y: str, colour: Any) -> None:
    """Draw one dot per row, and a line through the geometric means of cells.

    Censored rows are hollow triangles, and their cells have no mean.
    """
    late = table["censored"].astype(bool)
    for rows, look in ((table[~late], DOT), (table[late], HOLLOW)):
        axes.plot(rows[x], rows[y], color=colour, **look)
    logs = table[y].where(~late).transform("log").groupby(table[x])
    means = logs.agg(lambda cell: np.exp(cell.mean(skipna=False))).dropna()
    axes.plot(means.index, means, color=colour, lw=1.2)


def draw_interval(
    axes: Axes, value: float, ends: Sequence[float], height: float, colour: Any, **look: Any
) -> None:
    """Draw a dot at a value, on a horizontal line that is its interval."""
    axes.plot(ends, [height, height], color=colour, lw=1)
    axes.plot(value, height, color=colour, **(DOT | look))


def name_rows(axes: Axes, names: Sequence[str], **look: Any) -> None:
    """Label the rows of a panel, from top to bottom."""
    axes.set_yticks(range(len(names)), names, **look)
    axes.set_ylim(len(names) - 0.5, -0.5)
