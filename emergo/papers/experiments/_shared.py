"""Helpers that several experiments share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from ...training import Result
from .._source import curve

# Properties of a line.
Look = dict[str, Any]
DOT: Look = {"marker": "o", "ls": "", "mec": "white", "mew": 0.4}
# The marker of censored runs.
HOLLOW: Look = {"marker": "^", "ls": "", "mfc": "none"}


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


def dots_and_means(axes: Axes, table: pd.DataFrame, x: str, y: str, colour: Any) -> None:
    """Draw one dot per row, and a line through the means at each x."""
    axes.plot(table[x], table[y], "o", color=colour, ms=3, alpha=0.6, mew=0)
    means = table.groupby(x)[y].mean()
    axes.plot(means.index, means, color=colour, lw=1.2)
