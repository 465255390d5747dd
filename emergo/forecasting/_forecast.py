"""Forecasts of emergence from a log: a step with intervals, or the reason for not giving one."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from ..core.errors import InputError, unknown
from ..core.json import to_jsonable
from ..core.plotting import Picture, png
from ..logs import read_logs
from ..measure import Direction, emergence
from ..training import Result
from ._signals import KINDS, METRIC, Curves, Signal, find_signals, read_curves
from ._table import KindTable, predict_left, shipped_table, usable

# The largest accepted ratio of the ends of the 80% interval, both as steps; a wider interval is
# reported as no signal.
WIDEST = 5.0
# Fractions of the log at which earlier forecasts are checked.
LOOK_BACK = tuple(2 ** (-k / 2) for k in range(1, 7))
# Positions of the ends of each interval in the quantiles; position 3 is the median.
INTERVALS = {50: (2, 4), 80: (1, 5), 95: (0, 6)}
# Fields that keep their names in JSON.
SAME = ("state", "at", "step", "why", "metric", "threshold")
ForecastState = Literal["forecast", "no signal", "emerged"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """A forecast of the step at which a run emerges.

    - `state`: `"forecast"`; `"no signal"` if nothing in the log predicts emergence; `"emerged"`.
    - `at`: the last step of the log.
    - `step`: the median of the forecast, or the emergence step; NaN without a signal.
    - `intervals`: lower and upper end by per cent (50, 80, 95); unknown ends are infinite.
    - `why`: the reason, in one sentence.
    - `signal`: the column that the forecast is based on.
    - `value`, `others`: the metric and the other columns of the log by step, for the plot.
    """

    state: ForecastState
    at: float
    step: float
    intervals: Mapping[int, tuple[float, float]]
    why: str
    signal: str = ""
    name: str
    metric: str
    threshold: float
    value: pd.Series = dataclasses.field(repr=False, compare=False)
    others: pd.DataFrame = dataclasses.field(repr=False, compare=False)

    def __str__(self) -> str:
        """Summarise in a few words, e.g. `~5,200 (80%: 4,100 to 7,900)`."""
        if self.state != "forecast":
            return f"emerged at {self.step:,.0f}" if self.state == "emerged" else "no signal"
        low, high = (f"{_short(bound):,.0f}" for bound in self.intervals[80])
        return f"~{_short(self.step):,.0f} (80%: {low} to {high})"

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data; numbers that are not finite become None."""
        same = {name: getattr(self, name) for name in SAME}
        ends = {f"{percent}%": list(ends) for percent, ends in self.intervals.items()}
        named = {"run": self.name, "signal": self.signal or None, "intervals": ends}
        return to_jsonable(named | same)

    def plot(self) -> Picture:
        """Plot the metric and the signal so far, and the forecast with its intervals."""
        from ._plot import forecast_plot

        return forecast_plot(self)

    def _repr_png_(self) -> bytes:
        return png(self.plot())


def _short(number: float) -> float:
    """Round to two significant digits."""
    return float(f"{number:.2g}")


def forecast(
    log: pd.DataFrame | Path | str | Sequence[Result],
    metric: str = "loss",
    *,
    below: float | None = None,
    above: float | None = None,
    probes: bool = False,
    **reading: Any,
) -> Any:
    """Forecast when a run emerges, from its log so far.

    **Arguments:**

    - `log`: the log of one run: a table with a column `step`, or a file or folder that
      [`emergo.logs.read_logs`][] reads. Also an `em.Runs` or a list of results; these are forecast
      by the metric and threshold of their tasks, and take no further arguments.
    - `metric`, and `below` or `above`: emergence is this column falling or rising to that number.
    - `probes`: also read columns of attention, named as by emergo's probes and
      `emergo.torch.watch`. They move long before the metric. Their intervals are calibrated for
      tasks in which one token is to be found (docs/forecast.md).
    - `reading`: further options of [`emergo.logs.read_logs`][].

    **Returns:**

    A [`emergo.forecasting.Forecast`][]: `state`, `step`, `intervals`, `why`, `plot()`,
    `to_json()`; drawn in a notebook. For results: a list of them, without the runs that have no
    curves or no threshold.

    ```python
    >>> import numpy as np, pandas as pd
    >>> steps = np.arange(0, 2001, 25)
    >>> loss = 0.5 - 0.4 / (1 + np.exp((2000 - steps) / 60))  # has begun to fall
    >>> fall = em.forecast(pd.DataFrame({"step": steps, "loss": loss}), below=0.2)
    >>> print(fall, "by", fall.signal)
    ~2,200 (80%: 2,100 to 2,800) by loss
    >>> print(em.forecast(pd.DataFrame({"step": steps, "loss": 0.5}), below=0.2))
    no signal

    ```
    """
    if isinstance(log, Sequence) and not isinstance(log, str):
        from ._runs import forecast_run

        if (below, above) != (None, None):
            raise InputError("runs are forecast by the threshold of their task; give no other")
        found = [forecast_run(r.run, r.curves) for r in log if r.curves is not None]
        return [one for one in found if one is not None]
    threshold = threshold_of(below, above)
    if isinstance(log, pd.DataFrame):
        curves = _sorted(log, reading.pop("step", "step"), metric)
        if reading:
            raise InputError(
                f"a table has no option '{next(iter(reading))}'; rename its columns instead"
            )
        return forecast_curves(curves.pop(metric).dropna(), curves, *threshold, probes=probes)
    found = forecast_logs([log], metric, *threshold, probes=probes, **reading)
    if len(found) > 1:
        raise InputError(
            f"{log}: holds {len(found)} runs; emergo.forecasting.forecast_logs forecasts them all"
        )
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
    """Forecast all runs in some logs; `reading` as in [`emergo.logs.read_logs`][]."""
    found = []
    for run in read_logs(paths, **reading):
        value = run.curve(metric).rename(metric)
        others = run.curves.drop(columns=metric)
        found.append(
            forecast_curves(value, others, threshold, direction, probes=probes, name=run.name)
        )
    return found


def threshold_of(below: float | None, above: float | None) -> tuple[float, Direction]:
    """Return the threshold and its direction from two options; exactly one must be set."""
    if (below is None) == (above is None):
        raise InputError(
            "give one threshold: below (the metric falls to it) or above (it rises to it)"
        )
    return (float(below), "below") if below is not None else (float(above or 0.0), "above")


def _sorted(table: pd.DataFrame, step: str, metric: str) -> pd.DataFrame:
    """Sort a table of one run by step; the last of repeated steps wins."""
    for name in (step, metric):
        if name not in table:
            raise unknown("column", name, map(str, table.columns))
    for name in {"run", "identity"} & {*table}:
        runs = set(table[name])
        if len(runs) > 1:
            raise InputError(
                f"the table holds {len(runs)} runs; give one: table[table['{name}'] == …]"
            )
    try:
        floats = {name: table[name].astype(np.float64) for name in (step, metric)}
    except (TypeError, ValueError):
        raise InputError(f"the columns '{step}' and '{metric}' must hold numbers") from None
    numbers = table.select_dtypes("number").assign(**floats).dropna(subset=[step])
    return numbers.drop_duplicates(step, keep="last").set_index(step).sort_index()


def forecast_curves(
    value: pd.Series,
    others: pd.DataFrame,
    threshold: float,
    direction: Direction = "below",
    *,
    probes: bool = False,
    name: str = "",
) -> Forecast:
    """Forecast one run.

    **Arguments:**

    - `value`: the metric, indexed by increasing steps. A value that is not finite means that the
      run has diverged.
    - `others`: the other columns of the log, indexed by increasing steps; NaN for missing values.
    - `threshold`, `direction`, `probes`: as in [`emergo.forecasting.forecast`][].
    - `name`: the name of the run.
    """
    metric = str(value.name)
    reached = emergence(value.index, value, threshold, direction)
    step = value.index.to_numpy(np.float64)
    values = value.to_numpy(np.float64)
    about: dict[str, Any] = {"name": name, "metric": metric, "threshold": threshold}
    about |= {"at": float(step[-1]), "value": value, "others": others}

    def no_signal(why: str) -> Forecast:
        return Forecast(state="no signal", step=math.nan, intervals={}, why=why, **about)

    if reached.state == "failed":
        return no_signal(f"{metric} is not finite any more")
    if reached.state == "reached":
        ends = dict.fromkeys(INTERVALS, (max(reached.low, float(step[0])), reached.high))
        why = f"{metric} came to {threshold:g} by step {reached.high:,.0f}"
        return Forecast(state="emerged", step=reached.time, intervals=ends, why=why, **about)
    curves = read_curves(step, values, others, threshold, direction)
    answer = predict(curves, () if probes else (METRIC,))
    if isinstance(answer, str):
        return no_signal(answer)
    steps, signal = answer
    ends = {percent: (float(steps[i]), float(steps[j])) for percent, (i, j) in INTERVALS.items()}
    column = signal.name or metric
    return Forecast(
        state="forecast",
        step=float(steps[3]),
        intervals=ends,
        why=f"{column} {_movement(signal, threshold)}",
        signal=column,
        **about,
    )


def predict(
    curves: Curves,
    kinds: Collection[str] = (),
    until: int | None = None,
    table: Mapping[str, KindTable] | None = None,
) -> tuple[np.ndarray, Signal] | str:
    """Predict the emergence step.

    If several signals are usable, the narrowest interval wins. The same rule is then applied to the
    past of the log: if an earlier forecast turned out wrong, the log counts as unpredictable.

    **Arguments:**

    - `kinds`: the kinds of signals to use (default: all in the table).
    - `until`: the number of evaluations of the metric to use (default: all).
    - `table`: the calibration (default: the package's).

    **Returns:**

    Quantiles of the step, at the levels of the table, and the signal that they are based on; or,
    without a usable signal, the reason.
    """
    table = shipped_table() if table is None else table
    table = {kind: table[kind] for kind in table if not kinds or kind in kinds}
    answer = _read(curves, until, table)
    if isinstance(answer, str):
        return answer
    step = curves.step[:until]
    for fraction in LOOK_BACK:
        past = fraction * step[-1]
        earlier = _read(curves, int(np.searchsorted(step, past, side="right")), table)
        if isinstance(earlier, str):
            continue
        latest = float(earlier[0][INTERVALS[80][1]])
        if latest < step[-1]:
            return (
                f"by step {past:,.0f} this log said that it would emerge by step "
                f"{_short(latest):,.0f}, and it has not"
            )
    return answer


def _read(
    curves: Curves, until: int | None, table: Mapping[str, KindTable]
) -> tuple[np.ndarray, Signal] | str:
    """Predict from the log up to `until`, without checking its past."""
    signals = find_signals(curves, until)
    if signals is None:
        return "there are too few evaluations so far, or they begin too late"
    now = curves.step[:until][-1]
    readings = []
    for signal in signals:
        if signal.kind in table and usable(signal):
            quantiles = predict_left(table[signal.kind], signal)
            if quantiles is not None:
                readings.append((now * (1 + np.exp(quantiles)), signal))
    if not readings:
        return f"nothing has surely moved, and kept moving, since step {signals[0].since[0]:,.0f}"
    low, high = INTERVALS[80]
    steps, signal = min(readings, key=lambda reading: reading[0][high] / reading[0][low])
    if steps[high] > WIDEST * steps[low]:
        return f"{signal.name or 'the metric'} moves, but has not moved far enough to tell when"
    return steps, signal


def _movement(signal: Signal, threshold: float) -> str:
    """Describe the movement of a signal in words."""
    late = f"{min(signal.recent, 1):.0%} of it after half of the time"
    since = f"since steps {signal.since[0]:,.0f} to {signal.since[1]:,.0f}, {late}"
    if signal.kind == METRIC:
        return f"has gone {signal.gain:.0%} of its way to {threshold:g} {since}"
    return f"has {KINDS[signal.kind].verb} by a factor of {math.exp(signal.gain):.2f} {since}"
