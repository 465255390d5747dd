"""`emergo forecast`."""

import dataclasses

from ..core.terminal import print_json, show
from ._logs import LogOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast(LogOptions):
    """Forecast from a log when a run will learn: a step with its 80% interval, or "no signal".
    With --json, intervals of 50, 80 and 95%."""

    metric: str = "loss"  # The curve whose crossing of the threshold is forecast.
    probes: bool = False
    """Also read attention, entropies and similar probes. They give earlier forecasts, but are
    calibrated on tasks with one relevant token; on other tasks their 80% intervals held in half of
    the cases."""

    def run(self) -> None:
        from ..forecasting import forecast_logs

        self.check()
        found = self.read(forecast_logs, self.metric, probes=self.probes)
        if self.json:
            return print_json({"forecasts": [forecast.to_json() for forecast in found]})
        for forecast in found:
            show(f"{forecast.name}: {forecast}")
            show(f"  at step {forecast.at:,.0f}: {forecast.why}")
