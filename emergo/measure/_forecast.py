"""When will it emerge? From the log so far: a step with intervals, or that nothing in it tells."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from .._errors import InputError, unknown
from .._json import to_jsonable
from .._style import Picture, png
from ._emergence import Direction, as_curve, emergence
from ._forecast_table import KindTable, shipped_table, usable
from ._logs import read_logs
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
    value: pd.Series = dataclasses.field(default_factory=lambda: pd.Series(dtype=float), repr=False, compare=False)
    others: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame, repr=False, compare=False)
    """The metric and the other columns of the log, by step, for the picture."""

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


def forecast(
    log: pd.DataFrame | Path | str,
    metric: str = "loss",
    *,
    below: float | None = None,
    above: float | None = None,
    probes: bool = False,
    **reading: Any,
) -> Forecast:
    """When a run will emerge, from its log so far; or that nothing in the log tells.

    **Arguments:**

    - `log`: of one run: a table with a column `step`, or a file or folder as [`emergo.measure.read_logs`][] takes it.
    - `metric`, and `below` or `above`: emergence is this column falling or rising to that number.
    - `probes`: whether to read columns of attention too, named as our engine and `emergo.torch.watch` do. They move long before
      the metric. Their intervals hold what they say where one token is to be found, and less elsewhere (docs/forecast.md).
    - `reading`: further options of [`emergo.measure.read_logs`][].

    **Returns:**

    A [`emergo.measure.Forecast`][]: `state`, `step`, `intervals`, `why`, `plot()`, `to_json()`; drawn in a notebook.

    ```python
    >>> import numpy as np, pandas as pd
    >>> steps = np.arange(0, 2001, 25)
    >>> loss = 0.5 - 0.4 / (1 + np.exp((2000 - steps) / 60))  # its fall has begun, and not ended
    >>> fall = em.forecast(pd.DataFrame({"step": steps, "loss": loss}), below=0.2)
    >>> print(fall, "by", fall.signal)
    ~2,200 (80%: 2,100 to 2,800) by loss
    >>> print(em.forecast(pd.DataFrame({"step": steps, "loss": 0.5}), below=0.2))
    no signal

    ```
    """
    if isinstance(log, pd.DataFrame):
        curves = _sorted(log, reading.pop("step", "step"), metric)
        if reading:
            raise InputError(f"a table has no option '{next(iter(reading))}'; rename its columns instead")
        return forecast_curves(curves.pop(metric).dropna(), curves, *threshold_of(below, above), probes=probes)
    found = forecast_logs([log], metric, *threshold_of(below, above), probes=probes, **reading)
    if len(found) > 1:
        raise InputError(f"{log}: holds {len(found)} runs; emergo.measure.forecast_logs forecasts them all")
    return found[0]


def forecast_logs(
    paths: Sequence[Path | str],
    metric: str,
    threshold: float,
    direction: Direction = "below",
    *,
    probes: bool = False,
    **reading: Any,
) -> list[Forecast]:
    """The forecasts of all runs in some logs; `reading` as in [`emergo.measure.read_logs`][]."""
    found = []
    for run in read_logs(paths, **reading):
        value = run.curve(metric).rename(metric)
        others = run.curves.drop(columns=metric)
        found.append(forecast_curves(value, others, threshold, direction, probes=probes, name=run.name))
    return found


def threshold_of(below: float | None, above: float | None, dashes: str = "") -> tuple[float, Direction]:
    """The one threshold that was given, and its direction."""
    if (below is None) == (above is None):
        raise InputError(f"give one threshold: {dashes}below (the metric falls to it) or {dashes}above (it rises to it)")
    return (float(below), "below") if below is not None else (float(above or 0.0), "above")


def _sorted(table: pd.DataFrame, step: str, metric: str) -> pd.DataFrame:
    """A table of one run by increasing steps; of rows that repeat a step the last counts."""
    for name in (step, metric):
        if name not in table:
            raise unknown("column", name, map(str, table.columns))
    for name in ("run", "identity"):
        runs = set(table[name]) if name in table else set()
        if len(runs) > 1:
            raise InputError(f"the table holds {len(runs)} runs; give one: table[table['{name}'] == …]")
    try:
        numbers = table.select_dtypes("number").assign(**{name: table[name].astype(np.float64) for name in (step, metric)})
    except (TypeError, ValueError):
        raise InputError(f"the columns '{step}' and '{metric}' must hold numbers") from None
    return numbers.dropna(subset=[step]).drop_duplicates(step, keep="last").set_index(step).sort_index()


def forecast_curves(
    value: pd.Series,
    others: pd.DataFrame,
    threshold: float,
    direction: Direction = "below",
    *,
    probes: bool = False,
    name: str = "",
) -> Forecast:
    """The forecast of one run.

    - `value`: the metric, by increasing steps as its index; one that is not finite has diverged.
    - `others`: the other columns of the log, by increasing steps; NaN where one was not evaluated.
    """
    metric = str(value.name)
    step, values = as_curve(value.index, value)
    about: dict[str, Any] = {"name": name, "metric": metric, "threshold": threshold, "value": value, "others": others}
    reached, at = emergence(step, values, threshold, direction), float(step[-1])
    if reached.state == "failed":
        return Forecast("no signal", at, math.nan, {}, f"{metric} is not finite any more", **about)
    if reached.state == "reached":
        ends = dict.fromkeys(INTERVALS, (max(reached.low, float(step[0])), reached.high))
        words = f"{metric} came to {threshold:g} by step {reached.high:,.0f}"
        return Forecast("emerged", at, reached.time, ends, words, **about)
    read = read_curves(step, values, others, threshold, direction)
    answer = predict(read, () if probes else (METRIC,))
    if isinstance(answer, str):
        return Forecast("no signal", at, math.nan, {}, answer, **about)
    steps, signal = answer
    ends = {share: (float(steps[low]), float(steps[high])) for share, (low, high) in INTERVALS.items()}
    column = signal.name or metric
    return Forecast("forecast", at, float(steps[3]), ends, f"{column} {_moved(signal, threshold)}", column, **about)


def predict(
    curves: Curves, kinds: Collection[str] = (), until: int | None = None, table: Mapping[str, KindTable] | None = None
) -> tuple[np.ndarray, Signal] | str:
    """Quantiles of the step of emergence, at the levels of the table, and the signal that they rest on; or why there are none.

    - `kinds`: of signals to look at; by default all that are in the table.
    - `until`: how many evaluations of the metric are known; by default all.
    - `table`: what became of other runs; by default the package's.

    Of several signals the one that is known to leave least doubt counts. The rule is also asked of the past of the same log: if
    what it said there is refuted by now, it cannot read this log.
    """
    table = shipped_table() if table is None else table
    table = {kind: table[kind] for kind in table if not kinds or kind in kinds}
    answer = _read(curves, until, table)
    if isinstance(answer, str):
        return answer
    step = curves.step[:until]
    for share in LOOK_BACK:
        earlier = _read(curves, int(np.searchsorted(step, share * step[-1], side="right")), table)
        if not isinstance(earlier, str) and earlier[0][INTERVALS[80][1]] < step[-1]:
            by = f"by step {_short(float(earlier[0][INTERVALS[80][1]])):,.0f}"
            return f"by step {share * step[-1]:,.0f} this log said that it would emerge {by}, and it has not"
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
    late = f"{min(signal.recent, 1):.0%} of it after half of the time"
    since = f"since steps {signal.since[0]:,.0f} to {signal.since[1]:,.0f}, {late}"
    if signal.kind == METRIC:
        return f"has gone {signal.gain:.0%} of its way to {threshold:g} {since}"
    numbers = {"factor": f"{math.exp(signal.gain):.2f}", "gain": f"{signal.gain:.2f}"}
    return f"{KINDS[signal.kind].words.format(**numbers)} {since}"
