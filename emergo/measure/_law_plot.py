"""The picture of a fitted law: one panel per exponent, and the runs against the law."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from ..core.plotting import BLUE, GREY, ORANGE, Picture, panel, plain_ticks
from ._terms import censored_rows, column, usable_rows

if TYPE_CHECKING:
    from ._laws import Law


def law_plot(law: "Law", table: pd.DataFrame) -> Picture:
    """Draw one panel per term and one for the whole law.

    In the panel of a term, runs are divided by the rest of the law, so that the slope is the
    exponent.
    """
    rows = table[usable_rows(table, law.y)]
    y = drawable(column(rows, law.y))
    censored = censored_rows(rows)
    fitted = drawable(law.predict(rows))
    plot = Picture(figsize=(2.6 * (len(law.terms) + 1), 2.9), layout="constrained")
    plot.suptitle(law.formula, x=0.01, ha="left", fontsize=8.5, color=GREY)
    *panels, last = plot.subplots(1, len(law.terms) + 1, squeeze=False)[0]

    def scatter(axes: Axes, x: np.ndarray, values: np.ndarray) -> None:
        axes.plot(x[~censored], values[~censored], "o", color=BLUE, mec="white", mew=0.5)
        axes.plot(x[censored], values[censored], "^", color=ORANGE, mfc="none", label="censored")
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):  # plain numbers, few enough not to overlap
            plain_ticks(axis)
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=6))

    for axes, term in zip(panels, law.terms, strict=True):
        exponent, (low, high) = law.of_term(term)
        x = np.exp(term.log(rows))
        with np.errstate(all="ignore"):
            without_rest = drawable(y / fitted * x**exponent)
        scatter(axes, x, without_rest)
        line = np.geomspace(x.min(), x.max(), 50)
        axes.plot(line, line**exponent, color=GREY, lw=1.2)
        axes.set(xlabel=str(term), ylabel=f"{law.y} / rest of the law")
        interval = f" [{low:.3f}, {high:.3f}]" if np.isfinite(low) else ""
        panel(axes, "", f"exponent of {term}:\n{exponent:.3f}{interval}")
    scatter(last, fitted, y)
    both = np.concatenate([fitted, y])
    span = np.array([np.nanmin(both), np.nanmax(both)])
    last.plot(span, span, color=GREY, lw=1.2)
    last.set(xlabel=f"{law.y} by the law", ylabel=f"{law.y} measured")
    panel(last, "", f"runs against the law:\nR² = {law.r2:.4f}")
    if censored.any():
        last.legend(loc="lower right")
    return plot


def drawable(values: np.ndarray) -> np.ndarray:
    """Replace numbers by NaN that are too large or too small for a logarithmic axis."""
    return np.where((values > 1e-250) & (values < 1e250), values, np.nan)
