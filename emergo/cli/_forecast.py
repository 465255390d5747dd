"""`emergo forecast`: when will it emerge?"""

import dataclasses

from .._terminal import print_json, say, show
from ._logs import LogOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast(LogOptions):
    """When will it emerge? From the log so far: a step with its 80% interval, or "no signal"."""

    metric: str = "loss"  # The curve that tells that it has emerged.
    below: float | None = None  # Emergence is the metric falling to this value ...
    above: float | None = None  # ... or rising to this one.
    probes: bool = False
    """Also read attention, entropies and the like. They tell earlier, but were calibrated where one token is to be found; on
    other tasks their 80% intervals held half of the time."""
    json: bool = False  # Print one JSON object, with intervals of 50, 80 and 95%.

    def run(self) -> None:
        from ..measure import forecast_logs
        from ..measure._forecast import threshold_of

        self.check_logs()
        notes: list[str] = []
        threshold = threshold_of(self.below, self.above, "--")
        found = forecast_logs(self.logs, self.metric, *threshold, probes=self.probes, say=notes.append, **self.reading)
        for note in notes:
            say(note)
        if self.json:
            return print_json({"forecasts": [forecast.to_json() for forecast in found]})
        for forecast in found:
            show(f"{forecast.name}: {forecast}")
            show(f"  at step {forecast.at:,.0f}: {forecast.why}")
