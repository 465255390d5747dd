"""Read training logs in common formats as runs with curves."""

from ._config import NAMES as CONFIG_NAMES
from ._long import MEASURED, Missing
from ._read import LoggedRun, measure_logs, read_logs

__all__ = [
    "CONFIG_NAMES",
    "MEASURED",
    "LoggedRun",
    "Missing",
    "measure_logs",
    "read_logs",
]
