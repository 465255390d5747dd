"""When runs will emerge, from their curves so far: runs in training, and, looking back, finished ones."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from .._contract import Threshold
from ..engine import Progress, Result, Run
from ..measure import Forecast, forecast_curves
from ..measure._emergence import Direction
from ..measure._signals import kind_of
from ..tasks import Task
from ._curves import curve_frame
from ._description import known_types

GROWTH = 1.05  # a run is looked at again when it has so many times as many steps
LOOKS = 5.0  # a second at most, of all runs: each takes 3 to 5 ms, and a GPU waits for it
AT_ONCE = 10.0  # looks that may be saved up
POINTS = 40  # of the curve that others are told


class Goal(NamedTuple):
    """What a run is expected to come to."""

    metric: str
    threshold: float
    direction: Direction
    probes: bool  # whether forecasts may rest on probes


class Told(NamedTuple):
    """What was last said of a run."""

    at: int  # the step of the run when it was looked at
    forecast: Forecast

    @property
    def words(self) -> str:
        return str(self.forecast)

    @property
    def step(self) -> float | None:
        """The middle of the forecast; None where there is no signal."""
        return self.forecast.step if self.forecast.state == "forecast" else None

    def to_json(self) -> dict[str, Any]:
        """For others to read: the forecast, and the curve that it was made from with few points."""
        value = self.forecast.value
        value = value.iloc[np.unique(np.linspace(0, len(value) - 1, min(len(value), POINTS)).astype(int))]
        curve = [value.index.tolist(), [float(f"{v:.5g}") if np.isfinite(v) else None for v in value]]
        return forecast_json(self.forecast) | {"curve": curve}


def forecast_json(forecast: Forecast) -> dict[str, Any]:
    """A forecast as plain data, also in words."""
    return forecast.to_json() | {"words": str(forecast)}


def goal_of(task: Task | type[Task], threshold: Any) -> Goal | None:
    """By what a run of this task and threshold is judged; None where nothing tells that it has learned."""
    learned = task.learned
    if not isinstance(learned, Threshold) or isinstance(threshold, bool) or not isinstance(threshold, int | float):
        return None
    return Goal(learned.metric, float(threshold), learned.direction, task.forecast_probes)


def described_goal(config: Mapping[str, Any]) -> Goal | str:
    """As `goal_of`, from the plain data of a config; or why there is none. What is not known here is not imported."""
    task = config.get("task")
    name = task.get("type") if isinstance(task, Mapping) else None
    if not isinstance(name, str):
        return "the folder does not say what task this run has"
    if config.get("threshold") is None:
        return "this run has no threshold: nothing tells when it has learned"
    kind = known_types(Task).get(name)
    if kind is None:
        return f"the task {name} is not one of emergo's, and its code is not run here"
    return goal_of(kind, config["threshold"]) or f"nothing tells when {name} is learned"


def forecast_frame(goal: Goal, curves: pd.DataFrame, name: str = "") -> Forecast:
    """The forecast of a run from its curves so far, with steps as their index."""
    value = curves[goal.metric].astype(np.float64)
    others = curves[[column for column in curves.columns if kind_of(column) is not None and column != goal.metric]]
    return forecast_curves(value, others, goal.threshold, goal.direction, probes=goal.probes, name=name)


def forecast_run(run: Run, curves: Mapping[str, np.ndarray]) -> Forecast | None:
    """The forecast of a run by its task's own threshold; None where it has none."""
    goal = goal_of(run.config.task, run.config.threshold)
    if goal is None:
        return None
    kept = {name: values for name, values in curves.items() if name == goal.metric or kind_of(name) is not None}
    return forecast_frame(goal, curve_frame(kept).set_index(np.asarray(curves["step"])), run.identity)


class RunForecasts:
    """Keeps the forecasts of runs in training, and looks again only at those that have got further."""

    def __init__(self) -> None:
        self.told: dict[str, Told] = {}
        self.looks, self.seconds = AT_ONCE, 0.0

    def update(self, now: Progress) -> Mapping[str, Told]:
        """The forecasts of the runs that are in training now, by identity; runs without a threshold have none."""
        running = {run.identity for run, _, _ in now.running}
        self.told = {identity: told for identity, told in self.told.items() if identity in running}
        self.looks = min(self.looks + LOOKS * max(now.seconds - self.seconds, 0.0), AT_ONCE)
        self.seconds = now.seconds
        known = [(run, step) for run, step, _ in now.running if goal_of(run.config.task, run.config.threshold)]
        further = [(run, step) for run, step in known if step >= GROWTH * max(self._seen(run), 1)]
        for run, step in sorted(further, key=lambda one: self._seen(one[0]) / one[1])[: int(self.looks)]:
            self._look(run, step, now.curves(run))
        return self.told

    def _seen(self, run: Run) -> int:
        """The step at which it was looked at last."""
        return self.told[run.identity].at if run.identity in self.told else 0

    def _look(self, run: Run, step: int, curves: Mapping[str, np.ndarray] | None) -> None:
        forecast = None if curves is None else forecast_run(run, curves)
        if forecast is not None:
            self.looks -= 1
            self.told[run.identity] = Told(step, forecast)


def forecast_results(results: list[Result]) -> list[Forecast]:
    """The forecasts of runs whose curves are there."""
    found = [forecast_run(result.run, result.curves) for result in results if result.curves is not None]
    return [forecast for forecast in found if forecast is not None]
