"""A forecast, drawn: the metric and the signal so far, and when it is expected to emerge."""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from .._style import BLUE, GREY, ORANGE, RED, WIDTH, Picture, key, level, style

if TYPE_CHECKING:
    from ._forecast import Forecast

BANDS = {95: 0.14, 80: 0.28, 50: 0.5}  # how dense each interval is


def forecast_plot(forecast: "Forecast") -> Picture:
    """The metric over the signal that the forecast rests on, with the intervals ahead of the last step."""
    drawn = forecast.signal if forecast.signal != forecast.metric else ""
    with style():
        plot = Picture(figsize=(0.72 * WIDTH, 3.9 if drawn else 2.7), layout="constrained")
        top, *below = plot.subplots(2 if drawn else 1, 1, sharex=True, squeeze=False, height_ratios=(3, 2) if drawn else (1,))[
            :, 0
        ]
        top.plot(forecast.value.index, forecast.value, color=BLUE)
        level(top, forecast.threshold, "threshold", ls="--")
        top.set(ylabel=forecast.metric.replace("_", " "))
        top.set_title(f"{forecast.name}  {forecast}".strip())
        for axes in below:
            signal = forecast.others[drawn].dropna()
            axes.plot(signal.index, signal, color=ORANGE)
            axes.set(ylabel=drawn)
        for axes in (top, *below):
            _ahead(axes, forecast)
        (below or [top])[-1].set(xlabel="step")
        _marks(top, forecast)
    return plot


def _ahead(axes: Axes, forecast: "Forecast") -> None:
    """What is expected, on the axis of steps."""
    if forecast.state == "emerged":
        axes.axvline(forecast.step, color=RED, lw=1.2)
        return
    axes.axvline(forecast.at, color=GREY, lw=0.8, ls=":")
    if forecast.state == "forecast":
        known = [end for ends in forecast.intervals.values() for end in ends if np.isfinite(end)]
        last = 1.05 * max(known)
        for share, alpha in BANDS.items():
            low, high = forecast.intervals[share]
            axes.axvspan(low, min(high, last), color=RED, alpha=alpha, lw=0)
        axes.axvline(forecast.step, color=RED, lw=1.2)
        axes.set_xlim(0, last)


def _marks(axes: Axes, forecast: "Forecast") -> None:
    entries: list[tuple[str, dict[str, Any]]] = [("emerged" if forecast.state == "emerged" else "forecast", {"color": RED})]
    if forecast.state == "forecast":
        entries += [(f"{share}%", {"color": RED, "alpha": alpha, "lw": 6}) for share, alpha in sorted(BANDS.items())]
    if forecast.state != "emerged":
        entries.append(("last step", {"ls": ":", "lw": 0.8}))
    key(axes, entries[1:] if forecast.state == "no signal" else entries, loc="upper left", bbox_to_anchor=(1.0, 1.0))
