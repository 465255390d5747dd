"""Follow the log of a run in training, and raise an alert when its forecast changes its state."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..measure import Direction
from ._forecast import Forecast, forecast_logs


def follow(
    log: Path | str,
    metric: str,
    threshold: float | None = None,
    direction: Direction = "below",
    *,
    every: float = 5.0,
    alert: Callable[[Forecast], object] | None = None,
    wait: Callable[[float], object] = time.sleep,
    **options: Any,
) -> Iterator[Forecast]:
    """Yield the forecast of a growing log whenever it says something new, until the run emerges.

    A log that does not exist yet is waited for. If a log could be read once and cannot be read any
    more, for example while a row is being written, it is tried again.

    **Arguments:**

    - `log`, `metric`, `threshold`, `direction`, `options`: as in
      [`emergo.forecasting.forecast_logs`][]; the log holds one run.
    - `every`: seconds between two looks at the file.
    - `alert`: called when the state changes to "coming", "forecast" or "emerged".
    - `wait`: sleeps for some seconds.
    """
    if every <= 0:
        raise InputError(f"every must be a positive number of seconds, got {every:g}")
    stamp: object = None
    last: Forecast | None = None
    while last is None or last.state != "emerged":
        now = _stamp(log)
        if now in (None, stamp):
            wait(every)
            continue
        try:
            found = forecast_logs([log], metric, threshold, direction, **options)
        except InputError:
            if last is None:
                raise
            wait(every)  # the log was read while a row was being written
            continue
        stamp = now
        if len(found) != 1:
            raise InputError(f"{log}: holds {len(found)} runs; only one can be followed")
        (new,) = found
        before = "no signal" if last is None else last.state
        if alert is not None and new.state not in ("no signal", before):
            alert(new)
        if last is None or str(new) != str(last):
            yield new
        last = new


def _stamp(log: Path | str) -> object:
    """Return what changes when a log grows; None if there is no log yet."""
    try:
        files = [*Path(log).rglob("*")] if os.path.isdir(log) else [Path(log)]
        return tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(files))
    except OSError:
        return None
