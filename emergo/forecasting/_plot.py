"""The plot of a forecast: the metric and the signal so far, and the expected emergence."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..core.plotting import BLUE, GREY, ORANGE, RED, WIDTH, Picture, level, step_curve, style

if TYPE_CHECKING:
    from ._forecast import Forecast

BANDS = {95: 0.14, 80: 0.28, 50: 0.5}  # opacity of each interval


def forecast_plot(forecast: "Forecast") -> Picture:
    """Draw the metric above the signal, with the intervals of the forecast.

    Steps are on a logarithmic axis, as in other plots of curves.
    """
    signal = forecast.drop.signal if forecast.drop is not None else ""
    signal = signal if signal in forecast.others else ""
    rows = 2 if signal else 1
    with style():
        plot = Picture(figsize=(0.72 * WIDTH, 1.5 + 1.2 * rows), layout="constrained")
        panels = plot.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
        top = panels[0]
        _draw_column(top, forecast.value, BLUE)
        if np.isfinite(forecast.threshold):
            level(top, forecast.threshold, "threshold", ls="--")
        top.set(ylabel=forecast.metric.replace("_", " "))
        top.set_title(f"{forecast.name}  {forecast}".strip())
        if signal:
            _draw_column(panels[1], forecast.others[signal].dropna(), ORANGE)
            panels[1].set(ylabel=signal)
        for axes in panels:
            _draw_expected(axes, forecast)
        panels[-1].set(xlabel="step")
        top.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return plot


def _draw_column(axes: Axes, column: pd.Series, colour: str) -> None:
    step_curve(axes, column.index.to_numpy(), column.to_numpy(), color=colour)


def _draw_expected(axes: Axes, forecast: "Forecast") -> None:
    """Mark the last step, the forecast and its intervals."""
    if forecast.state in ("forecast", "emerged"):
        axes.axvline(forecast.step, color=RED, lw=1.2, label=forecast.state)
    if forecast.state == "forecast":
        known = [end for ends in forecast.intervals.values() for end in ends if np.isfinite(end)]
        last = 1.05 * max(known)
        for percent, alpha in BANDS.items():
            low, high = forecast.intervals[percent]
            axes.axvspan(low, min(high, last), color=RED, alpha=alpha, lw=0, label=f"{percent}%")
        steps = forecast.value.index
        axes.set_xlim(steps[steps > 0].min(), last)
    if forecast.state != "emerged":
        axes.axvline(forecast.at, color=GREY, lw=0.8, ls=":", label="last step")
