"""Read training logs in common formats as runs with curves."""

from ._heads import head_classes
from ._long import MEASURED, Missing
from ._read import LoggedRun, measure_logs, read_logs

__all__ = ["MEASURED", "LoggedRun", "Missing", "head_classes", "measure_logs", "read_logs"]
