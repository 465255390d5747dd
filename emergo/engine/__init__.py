"""Learning itself: many runs as one compiled program."""

from ._checkpoint import CheckpointError
from ._config import KINDS, SEMANTICS, Config, Method, Optimizer, Precision, Run, default_precision
from ._cost import compile_seconds, memory_of, next_evaluation, planned_width, run_bytes, step_operations, step_seconds
from ._group import History, State
from ._probes import circuits
from ._shape import Device, Shape, family
from ._toy import Curves, Draws, Probe, train_toy
from ._train import Progress, train

__all__ = [
    "KINDS",
    "SEMANTICS",
    "CheckpointError",
    "Config",
    "Curves",
    "Device",
    "Draws",
    "History",
    "Method",
    "Optimizer",
    "Precision",
    "Probe",
    "Progress",
    "Run",
    "Shape",
    "State",
    "circuits",
    "compile_seconds",
    "default_precision",
    "family",
    "memory_of",
    "next_evaluation",
    "planned_width",
    "run_bytes",
    "step_operations",
    "step_seconds",
    "train",
    "train_toy",
]
