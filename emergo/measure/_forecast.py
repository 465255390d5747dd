"""When will it emerge? From the log so far: a step with intervals, or that nothing in it tells."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd

from .._errors import InputError
from .._json import to_jsonable
from .._style import Picture, png
from ._emergence import Direction, as_curve, emergence
from ._forecast_table import KindTable, shipped_table, usable
from ._signals import KINDS, METRIC, Curves, Signal, find_signals, read_curves

WIDEST = 5.0
"""The upper end of the 80% interval over the lower one, both as steps; what is known less well is no forecast."""
LOOK_BACK = tuple(2 ** (-k / 2) for k in range(1, 7))
"""Shares of the log at which the same rule is asked of the past."""
INTERVALS = {50: (2, 4), 80: (1, 5), 95: (0, 6)}  # positions in the quantiles
ForecastState = Literal["forecast", "no signal", "emerged"]


@dataclasses.dataclass(frozen=True)
class Forecast:
    """When a run will emerge.

    - `state`: `"forecast"`; `"no signal"`: nothing in the log tells, and `why` says what was looked for; `"emerged"`.
    - `at`: the last step of the log.
    - `step`: the middle of the forecast, or when it emerged; NaN where there is neither.
    - `intervals`: by per cent (50, 80, 95), the lower and the upper end; an end that is not known is infinite.
    - `why`: in one sentence.
    - `signal`: the column that the forecast rests on.
    """

    state: ForecastState
    at: float
    step: float
    intervals: Mapping[int, tuple[float, float]]
    why: str
    signal: str = ""
    name: str = ""
    metric: str = "loss"
    threshold: float = math.nan
    curves: pd.DataFrame | None = dataclasses.field(default=None, repr=False, compare=False)
    """The log, for the picture."""

    def __str__(self) -> str:
        """In a few words, e.g. `~5,200 (80%: 4,100 to 7,900)`."""
        if self.state != "forecast":
            return f"emerged at {self.step:,.0f}" if self.state == "emerged" else "no signal"
        low, high = (f"{_short(bound):,.0f}" for bound in self.intervals[80])
        return f"~{_short(self.step):,.0f} (80%: {low} to {high})"

    def to_json(self) -> dict[str, Any]:
        """As plain data; a number that is not finite is None."""
        data = {"state": self.state, "at": self.at, "step": self.step, "why": self.why, "signal": self.signal or None}
        ends = {f"{share}%": list(ends) for share, ends in self.intervals.items()}
        return to_jsonable({"run": self.name} | data | {"intervals": ends, "metric": self.metric, "threshold": self.threshold})

    def plot(self) -> Picture:
        """The metric and the signal so far, and the forecast with its intervals."""
        from ._forecast_plot import forecast_plot

        return forecast_plot(self)

    def _repr_png_(self) -> bytes:
        return png(self.plot())


def _short(number: float) -> float:
    """Two digits: more are not known."""
    return float(f"{number:.2g}")


def threshold_of(below: float | None, above: float | None) -> tuple[float, Direction]:
    """The one threshold that was given, and its direction."""
    if (below is None) == (above is None):
        raise InputError("give one threshold: below (the metric falls to it) or above (it rises to it)")
    return (float(below), "below") if below is not None else (float(above or 0.0), "above")


def forecast_curves(
    curves: pd.DataFrame,
    metric: str,
    threshold: float,
    direction: Direction = "below",
    *,
    name: str = "",
    table: Mapping[str, KindTable] | None = None,
) -> Forecast:
    """The forecast of one run.

    - `curves`: one row per evaluation, with the column `step` (finite, increasing) and the metric; columns named like those of
      our probes or of `emergo.torch.watch` are looked at as well.
    - `table`: what became of other runs; by default the package's.
    """
    step, values = as_curve(curves["step"], curves[metric])
    about: dict[str, Any] = {"name": name, "metric": metric, "threshold": threshold, "curves": curves}
    reached = emergence(step, values, threshold, direction)
    at = float(step[-1])
    if reached.state == "failed":
        return Forecast("no signal", at, math.nan, {}, f"{metric} is not a number any more", **about)
    if reached.state == "reached":
        ends = dict.fromkeys(INTERVALS, (max(reached.low, float(step[0])), reached.high))
        words = f"{metric} is at {threshold:g} or past it from step {reached.high:,.0f} on"
        return Forecast("emerged", at, reached.time, ends, words, **about)
    others = curves.drop(columns=["step", metric])
    answer = predict(read_curves(step, values, others, threshold, direction), table=table)
    if isinstance(answer, str):
        return Forecast("no signal", at, math.nan, {}, answer, **about)
    steps, signal = answer
    ends = {share: (float(steps[low]), float(steps[high])) for share, (low, high) in INTERVALS.items()}
    column = signal.name or metric
    return Forecast("forecast", at, float(steps[3]), ends, f"{column} {_moved(signal, threshold)}", column, **about)


def predict(
    curves: Curves, until: int | None = None, table: Mapping[str, KindTable] | None = None
) -> tuple[np.ndarray, Signal] | str:
    """Quantiles of the step of emergence, at the levels of the table, and the signal that they rest on; or why there are none.

    Of several signals the one that is known to leave least doubt counts. The rule is first asked of the past of the same log: if
    what it said there is refuted by now, this log is not of a kind that it can read.
    """
    table = shipped_table() if table is None else table
    answer = _read(curves, until, table)
    if isinstance(answer, str):
        return answer
    step = curves.step[:until]
    for share in LOOK_BACK:
        earlier = _read(curves, int(np.searchsorted(step, share * step[-1], side="right")), table)
        if not isinstance(earlier, str) and earlier[0][INTERVALS[80][1]] < step[-1]:
            by = f"by step {_short(float(earlier[0][INTERVALS[80][1]])):,.0f}"
            return f"at step {share * step[-1]:,.0f} this log said that it would emerge {by}, and it has not"
    return answer


def _read(curves: Curves, until: int | None, table: Mapping[str, KindTable]) -> tuple[np.ndarray, Signal] | str:
    signals = find_signals(curves, until)
    if signals is None:
        return "there are too few evaluations so far, or they begin too late"
    now, readings = curves.step[:until][-1], []
    for signal in signals:
        quantiles = table[signal.kind].quantiles(signal) if signal.kind in table and usable(signal) else None
        if quantiles is not None:
            readings.append((now * (1 + np.exp(quantiles)), signal))
    if not readings:
        return f"nothing has surely moved, and kept moving, since step {signals[0].since[0]:,.0f}"
    low, high = INTERVALS[80]
    steps, signal = min(readings, key=lambda reading: reading[0][high] / reading[0][low])
    if steps[high] > WIDEST * steps[low]:
        return f"{signal.name or 'the metric'} moves, but has not moved far enough to tell when"
    return steps, signal


def _moved(signal: Signal, threshold: float) -> str:
    """How a signal has moved, in words."""
    since = f"since steps {signal.since[0]:,.0f} to {signal.since[1]:,.0f}, {min(signal.recent, 1):.0%} of it after half of the time"
    if signal.kind == METRIC:
        return f"has gone {signal.gain:.0%} of its way to {threshold:g} {since}"
    numbers = {"factor": f"{math.exp(signal.gain):.2f}", "gain": f"{signal.gain:.2f}"}
    return f"{KINDS[signal.kind].words.format(**numbers)} {since}"
