"""Forecasts of emergence from a log: a step with intervals, or the reason for not giving one."""

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from ..core.errors import InputError, unknown
from ..core.json import to_jsonable
from ..core.plotting import Picture, png
from ..logs import LoggedRun, read_logs
from ..measure import Direction, emergence
from ..training import Result
from ._drift import BLOCKS, look, read_curves
from ._table import Drop, drop_of, emergence_steps, shipped_table

# Positions of the ends of each interval in the quantiles; position 3 is the median.
INTERVALS = {50: (2, 4), 80: (1, 5), 95: (0, 6)}
# Fields that keep their names in JSON.
SAME = ("state", "at", "step", "why", "metric", "threshold")
ForecastState = Literal["forecast", "coming", "no signal", "emerged"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """A forecast of the step at which a run emerges.

    - `state`: `"forecast"` with a step; `"coming"` if a drop is likely, but not its step;
      `"no signal"`; `"emerged"`.
    - `at`: the last step of the log.
    - `step`: the median of the forecast, or the emergence step; otherwise NaN.
    - `intervals`: lower and upper end by per cent (50, 80, 95); unknown ends are infinite.
    - `why`: the reason, in one sentence.
    - `drop`: the chance that the metric falls by a fifth before twice the steps so far, with the
      lead and the rate of false alarms; None if nothing moves.
    - `threshold`: NaN if none was given.
    - `value`, `others`: the metric and the other columns of the log by step, for the plot.
    """

    state: ForecastState
    at: float
    step: float
    intervals: Mapping[int, tuple[float, float]]
    why: str
    drop: Drop | None = None
    name: str
    metric: str
    threshold: float
    value: pd.Series = dataclasses.field(repr=False, compare=False)
    others: pd.DataFrame = dataclasses.field(repr=False, compare=False)

    def __str__(self) -> str:
        """Summarise in a few words, e.g. `~5,200 (80%: 4,100 to 7,900)`."""
        if self.state == "emerged":
            return f"emerged at {self.step:,.0f}"
        if self.state == "coming" and self.drop is not None:
            return f"a drop is coming ({self.drop.probability:.0%})"
        if self.state != "forecast":
            return "no signal"
        low, high = (f"{_short(bound):,.0f}" for bound in self.intervals[80])
        return f"~{_short(self.step):,.0f} (80%: {low} to {high})"

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data; numbers that are not finite become None."""
        same = {name: getattr(self, name) for name in SAME}
        ends = {f"{percent}%": list(ends) for percent, ends in self.intervals.items()}
        drop = None if self.drop is None else self.drop._asdict()
        named = {"run": self.name, "intervals": ends, "drop": drop}
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
    twin: pd.DataFrame | Path | str | None = None,
    **reading: Any,
) -> Any:
    """Forecast when a run emerges, from its log so far.

    **Arguments:**

    - `log`: the log of one run: a table with a column `step`, or a file or folder that
      [`emergo.logs.read_logs`][] reads. Also an `em.Runs` or a list of results; these are forecast
      by the metric and threshold of their tasks, and take no further arguments.
    - `metric`, and `below` or `above`: emergence is this column falling or rising to that number.
      Without a number, the answer is only whether a drop of the metric is coming.
    - `twin`: the log of the same model trained on shuffled labels. Its attention drifts without
      learning, and such drift is then not taken for a signal.
    - `reading`: further options of [`emergo.logs.read_logs`][].

    **Returns:**

    A [`emergo.forecasting.Forecast`][]: `state`, `step`, `intervals`, `drop`, `why`, `plot()`,
    `to_json()`; drawn in a notebook. For results: a list of them, without the runs that have no
    curves or no threshold.

    ```python
    >>> import numpy as np, pandas as pd
    >>> steps = np.arange(0, 2001, 25)
    >>> loss = 0.5 - 0.4 / (1 + np.exp((2000 - steps) / 250))  # has begun to fall
    >>> print(em.forecast(pd.DataFrame({"step": steps, "loss": loss}), below=0.2))
    ~2,300 (80%: 2,100 to 2,600)
    >>> print(em.forecast(pd.DataFrame({"step": steps, "loss": 0.5}), below=0.2))
    no signal

    ```
    """
    if isinstance(log, Sequence) and not isinstance(log, str):
        from ._runs import forecast_run

        if (below, above, twin) != (None, None, None):
            raise InputError("runs are forecast by the threshold of their task; give no other")
        found = [forecast_run(r.run, r.curves) for r in log if r.curves is not None]
        return [one for one in found if one is not None]
    threshold, direction = threshold_of(below, above)
    name, value, others = _read_one(log, metric, reading)
    compared = None if twin is None else _read_one(twin, metric, reading)[1:]
    return forecast_curves(value, others, threshold, direction, twin=compared, name=name)


def _read_one(
    log: pd.DataFrame | Path | str, metric: str, reading: Mapping[str, Any]
) -> tuple[str, pd.Series, pd.DataFrame]:
    """Read the log of one run: its name, the metric and the other columns by step."""
    if isinstance(log, pd.DataFrame):
        curves = _sorted(log, reading.get("step", "step"), metric)
        for option in reading.keys() - {"step"}:
            raise InputError(f"a table has no option '{option}'; rename its columns instead")
        return "", curves.pop(metric).dropna(), curves
    runs = list(read_logs([log], **reading))
    if len(runs) > 1:
        raise InputError(
            f"{log}: holds {len(runs)} runs; emergo.forecasting.forecast_logs forecasts them all"
        )
    return runs[0].name, *_parts(runs[0], metric)


def _parts(run: LoggedRun, metric: str) -> tuple[pd.Series, pd.DataFrame]:
    constant = run.constants.get(metric)
    if isinstance(constant, numbers.Real):  # an accuracy that is still 0, for example
        return pd.Series(float(constant), run.curves.index, name=metric), run.curves
    return run.curve(metric).rename(metric), run.curves.drop(columns=metric)


def forecast_logs(
    paths: Sequence[Path | str],
    metric: str,
    threshold: float | None,
    direction: Direction = "below",
    *,
    twin: Path | str | None = None,
    **reading: Any,
) -> list[Forecast]:
    """Forecast all runs in some logs; `reading` as in [`emergo.logs.read_logs`][]."""
    compared = None if twin is None else _read_one(twin, metric, reading)[1:]
    return [
        forecast_curves(*_parts(run, metric), threshold, direction, twin=compared, name=run.name)
        for run in read_logs(paths, **reading)
    ]


def threshold_of(below: float | None, above: float | None) -> tuple[float | None, Direction]:
    """Return the threshold and its direction from two options, of which one at most is set."""
    if below is not None and above is not None:
        raise InputError(
            "give one threshold: below (the metric falls to it) or above (it rises to it)"
        )
    return (below, "below") if above is None else (above, "above")


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
    threshold: float | None,
    direction: Direction = "below",
    *,
    twin: tuple[pd.Series, pd.DataFrame] | None = None,
    name: str = "",
) -> Forecast:
    """Forecast one run.

    **Arguments:**

    - `value`: the metric, indexed by increasing steps. A value that is not finite means that the
      run has diverged.
    - `others`: the other columns of the log, indexed by increasing steps; NaN for missing values.
    - `threshold`, `direction`: as in [`emergo.forecasting.forecast`][].
    - `twin`: the metric and the other columns of a run with shuffled labels.
    - `name`: the name of the run.
    """
    metric = str(value.name)
    step = value.index.to_numpy(np.float64)
    about: dict[str, Any] = {"name": name, "metric": metric}
    about |= {"threshold": math.nan if threshold is None else float(threshold)}
    about |= {"at": float(step[-1]) if len(step) else math.nan, "value": value, "others": others}

    def answer(state: ForecastState, why: str, at: float = math.nan, ends: Any = None) -> Forecast:
        return Forecast(state=state, step=at, intervals=ends or {}, why=why, **about)

    if threshold is not None and len(value):
        reached = emergence(value.index, value, threshold, direction)
        if reached.state == "reached":
            ends = dict.fromkeys(INTERVALS, (max(reached.low, float(step[0])), reached.high))
            why = f"{metric} came to {threshold:g} by step {reached.high:,.0f}"
            return answer("emerged", why, reached.time, ends)
    if not np.isfinite(value).all():
        return answer("no signal", f"{metric} is not finite any more")
    curves = read_curves(value, others, threshold, direction)
    seen = look(curves, twin=None if twin is None else read_curves(*twin, threshold, direction))
    if seen is None:
        return answer(
            "no signal",
            f"there are too few evaluations: at least {BLOCKS} are needed, over all steps so far",
        )
    table = shipped_table()
    drop = drop_of(seen, metric, table) if curves.relative else None
    about["drop"] = drop
    if np.isfinite(seen.ahead) and not curves.rising:
        steps = emergence_steps(seen, table)
        ends = {
            percent: (float(steps[i]), float(steps[j])) for percent, (i, j) in INTERVALS.items()
        }
        why = f"{metric} has gone {seen.gain:.0%} of its way to {threshold:g}, and speeds up"
        return answer("forecast", why, float(steps[3]), ends)
    if drop is None:
        return answer("no signal", "nothing moves much faster than it did in the first half")
    why = f"{drop.signal} moves much faster than it did in the first half"
    if threshold is not None:
        why += (
            "; no step is named for a metric that rises"
            if curves.rising
            else "; too early to name a step"
        )
    return answer("coming", why)
