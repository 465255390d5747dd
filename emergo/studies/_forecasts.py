"""When runs that are in training will emerge, from their curves so far."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..engine import Progress, Result, Run
from ..measure import Forecast, forecast_curves
from ..measure._signals import kind_of
from ._store import curve_frame

GROWTH = 1.05  # a run is looked at again when it has so many times as many steps


class Told(NamedTuple):
    """What was last said of a run."""

    at: int
    words: str
    step: float | None  # the middle of the forecast; None where there is no signal


def forecast_run(run: Run, curves: Mapping[str, np.ndarray]) -> Forecast | None:
    """The forecast of a run by its task's own threshold; None where it has none. Probes count if the task says so."""
    learned, threshold = run.config.task.learned, run.config.threshold
    if learned is None or not isinstance(threshold, float):
        return None
    known = curve_frame({name: values for name, values in curves.items() if kind_of(name) is not None})
    value = pd.Series(curves[learned.metric], index=curves["step"], name=learned.metric, dtype=np.float64)
    others = known.set_index(value.index) if len(known.columns) else pd.DataFrame(index=value.index)
    probes = run.config.task.forecast_probes
    return forecast_curves(value, others, threshold, learned.direction, probes=probes, name=run.identity)


class RunForecasts:
    """Keeps the forecasts of runs in training, and looks again only at those that have got further."""

    def __init__(self) -> None:
        self.told: dict[str, Told] = {}

    def update(self, now: Progress) -> Mapping[str, Told]:
        """The forecasts of the runs that are in training now, by identity; runs without a threshold have none."""
        running = {run.identity for run, _, _ in now.running}
        self.told = {identity: told for identity, told in self.told.items() if identity in running}
        for run, step, _ in now.running:
            before = self.told.get(run.identity)
            if before is None or step >= GROWTH * max(before.at, 1):
                self._look(run, step, now.curves)
        return self.told

    def _look(self, run: Run, step: int, curves_of: Callable[[Run], Mapping[str, np.ndarray] | None]) -> None:
        curves = curves_of(run)
        forecast = None if curves is None else forecast_run(run, curves)
        if forecast is not None:
            middle = forecast.step if forecast.state == "forecast" else None
            self.told[run.identity] = Told(step, str(forecast), middle)


def forecast_results(results: list[Result]) -> list[Forecast]:
    """The forecasts of runs whose curves are there."""
    found = [forecast_run(result.run, result.curves) for result in results if result.curves is not None]
    return [forecast for forecast in found if forecast is not None]
