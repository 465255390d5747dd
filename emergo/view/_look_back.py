"""Forecasts of a finished run at earlier steps, next to what happened."""

import math
from typing import Any

import numpy as np

from ..core.errors import InputError
from ..core.json import to_jsonable
from ._runset import RunSet

MOMENTS = 120  # steps at which a run is forecast
_KEPT = ("state", "at", "step", "why", "intervals", "words")


def look_back(runs: RunSet, identity: str, moments: int = MOMENTS) -> dict[str, Any]:
    """Forecast one run at evenly spaced evaluations until it emerged.

    Each forecast sees only the part of the log up to its step.

    **Returns:** the forecasts as `moments`, and the step at which the run emerged as `came`. If
    the run cannot be forecast, `moments` is empty and `why` says the reason.
    """
    if identity not in runs.runs:
        raise InputError(f"no run '{identity[:40]}' in this set")
    import pandas as pd

    from ..forecasting import described_goal, forecast_frame, forecast_json
    from ..measure import emergence

    goal = described_goal(runs.config(identity))
    if isinstance(goal, str):
        return {"moments": [], "why": goal}
    columns = runs.curves.read(identity)
    step = np.asarray(columns.pop("step", ()), np.float64)
    if not len(step) or goal.metric not in columns:
        return {"moments": [], "why": f"the curve of {goal.metric} was not kept for this run"}
    try:
        result = emergence(step, columns[goal.metric], goal.threshold, goal.direction)
        reached = result.state == "reached"
        last = int(np.searchsorted(step, result.high)) if reached else len(step) - 1
        curves = pd.DataFrame(columns, index=step)
        rows = np.unique(np.linspace(0, last, min(last + 1, moments)).astype(int))
        forecasts = [forecast_json(forecast_frame(goal, curves.iloc[: i + 1])) for i in rows]
    except InputError as error:
        return {"moments": [], "why": str(error)}
    answer = {
        "came": result.time if reached else math.nan,
        "until": step[-1],
        "metric": goal.metric,
        "threshold": goal.threshold,
        "probes": goal.probes,
        "moments": [{name: forecast[name] for name in _KEPT} for forecast in forecasts],
        "why": None,
    }
    return to_jsonable(answer)
