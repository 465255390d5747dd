"""What would have been said of a finished run, had anybody asked on the way: forecasts beside what came."""

import math
from typing import Any

import numpy as np

from .._errors import InputError
from .._json import to_jsonable
from ._runset import RunSet

MOMENTS = 120  # at which a run is asked about
_KEPT = ("state", "at", "step", "why", "intervals", "words")


def look_back(runs: RunSet, identity: str, moments: int = MOMENTS) -> dict[str, Any]:
    """The forecasts of one run until it emerged, each from what its log held at that step; `came`: when it did. Or `why` there
    are none."""
    if identity not in runs.runs:
        raise InputError(f"no run '{identity[:40]}' in this set")
    import pandas as pd

    from ..measure import emergence
    from ..studies._forecasts import described_goal, forecast_frame, forecast_json

    goal = described_goal(runs.config(identity))
    if isinstance(goal, str):
        return {"moments": [], "why": goal}
    columns = runs.curves.read(identity)
    step = np.asarray(columns.pop("step", ()), np.float64)
    if not len(step) or goal.metric not in columns:
        return {"moments": [], "why": f"no curve of {goal.metric} was kept of this run"}
    try:
        came = emergence(step, columns[goal.metric], goal.threshold, goal.direction)
        last = int(np.searchsorted(step, came.high)) if came.state == "reached" else len(step) - 1
        curves, asked = pd.DataFrame(columns, index=step), np.unique(np.linspace(0, last, min(last + 1, moments)).astype(int))
        told = [forecast_json(forecast_frame(goal, curves.iloc[: i + 1])) for i in asked]
    except InputError as error:
        return {"moments": [], "why": str(error)}
    shown = {"came": came.time if came.state == "reached" else math.nan, "until": step[-1]}
    shown |= {"metric": goal.metric, "threshold": goal.threshold, "probes": goal.probes}
    return to_jsonable(shown | {"moments": [{name: one[name] for name in _KEPT} for one in told], "why": None})
