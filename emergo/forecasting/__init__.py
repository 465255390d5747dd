"""Forecasts of emergence, from the metric and the probes of a run."""

from ._follow import follow
from ._forecast import Forecast, forecast, forecast_logs
from ._runs import RunForecasts, described_goal, forecast_frame, forecast_json

__all__ = [
    "Forecast",
    "RunForecasts",
    "described_goal",
    "follow",
    "forecast",
    "forecast_frame",
    "forecast_json",
    "forecast_logs",
]
