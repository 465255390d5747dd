"""Forecasts of emergo's own runs, in training or finished, by the threshold of their task."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..core.contract import Threshold
from ..core.json import to_jsonable
from ..measure import Direction
from ..store.claims import Note
from ..store.curves import curve_frame
from ..study.description import known_types
from ..tasks import Task
from ..training import Progress, Run
from ._drift import probe_scale
from ._forecast import Forecast, forecast_curves

GROWTH = 1.05  # a run is forecast again when its number of steps has grown by this factor
LOOKS = 5.0  # forecasts per second, over all runs: each takes 3 to 5 ms, and a GPU waits for it
AT_ONCE = 10.0  # forecasts that may be saved up
POINTS = 40  # points of the thinned curve in a note


class Goal(NamedTuple):
    """The criterion of emergence of a run."""

    metric: str
    threshold: float
    direction: Direction


def forecast_json(forecast: Forecast) -> dict[str, Any]:
    """Convert a forecast to plain data, with its summary in `words`."""
    return forecast.to_json() | {"words": str(forecast)}


def goal_of(task: Task | type[Task], threshold: Any) -> Goal | None:
    """Return the goal of runs of this task and threshold, or None without a criterion."""
    learned = task.learned
    if not isinstance(learned, Threshold) or threshold is None:
        return None
    return Goal(learned.metric, float(threshold), learned.direction)


def described_goal(config: Mapping[str, Any]) -> Goal | str:
    """Return the goal of a config in plain data, or the reason for the lack of one.

    Only known task types are used; no code is imported.
    """
    task = config.get("task")
    name = task.get("type") if isinstance(task, Mapping) else None
    threshold = config.get("threshold")
    if name is None:
        return "the folder does not say what task this run has"
    kind = known_types(Task).get(str(name))
    goal = None if kind is None else goal_of(kind, threshold)
    return goal or f"nothing tells when task {name} with threshold {threshold} is learned"


def forecast_frame(goal: Goal, curves: pd.DataFrame, name: str = "") -> Forecast:
    """Forecast a run from its curves so far, indexed by step."""
    value = curves[goal.metric].astype(np.float64)
    others = curves.drop(columns=goal.metric)
    return forecast_curves(value, others, goal.threshold, goal.direction, name=name)


def forecast_run(run: Run, curves: Mapping[str, np.ndarray]) -> Forecast | None:
    """Forecast a run by its task's threshold; return None without a threshold."""
    goal = goal_of(run.config.task, run.config.threshold)
    if goal is None:
        return None
    kept = {n: v for n, v in curves.items() if n == goal.metric or probe_scale(n) is not None}
    frame = curve_frame(kept).set_index(np.asarray(curves["step"]))
    return forecast_frame(goal, frame, run.identity)


def note_of(forecast: Forecast) -> Note:
    """Convert a forecast to a note with a thinned curve of the metric."""
    value = forecast.value
    rows = np.linspace(0, len(value) - 1, min(len(value), POINTS)).astype(int)
    value = value.iloc[np.unique(rows)]
    numbers = [float(f"{number:.5g}") for number in value]
    data = forecast_json(forecast) | {"curve": to_jsonable([value.index.tolist(), numbers])}
    return Note(str(forecast), forecast.step if forecast.state == "forecast" else None, data)


class RunForecasts:
    """Forecasts of runs in training, updated when a run has made progress.

    Forecasts are rate-limited with a token bucket: `LOOKS` per second, and at most `AT_ONCE` in a
    burst. Runs that have progressed most since their last forecast come first.
    """

    def __init__(self) -> None:
        self.notes: dict[str, Note] = {}
        self._step_of: dict[str, int] = {}  # the step of each run at its last forecast
        self._looks = AT_ONCE
        self._seconds = 0.0

    def update(self, now: Progress) -> Mapping[str, Note]:
        """Return the forecasts of the runs in training, by identity.

        Runs without a threshold are left out.
        """
        running = {run.identity for run, _, _ in now.running}
        self.notes = {id: note for id, note in self.notes.items() if id in running}
        self._looks += LOOKS * (now.seconds - self._seconds)
        self._looks = min(self._looks, AT_ONCE)
        self._seconds = now.seconds
        due = []
        for run, step, _ in now.running:
            last = self._step_of.get(run.identity, 0)
            if step >= GROWTH * max(last, 1) and goal_of(run.config.task, run.config.threshold):
                due.append((last / step, run, step))
        for _, run, step in sorted(due, key=lambda one: one[0])[: int(self._looks)]:
            curves = now.curves(run)
            forecast = None if curves is None else forecast_run(run, curves)
            if forecast is not None:
                self._looks -= 1
                self._step_of[run.identity] = step
                self.notes[run.identity] = note_of(forecast)
        return self.notes
