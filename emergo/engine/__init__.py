"""Learning itself: many runs as one compiled program."""

from ._config import KINDS, SEMANTICS, Config, Method, Optimizer, Precision, Run, default_precision
from ._cost import next_evaluation, step_operations
from ._group import History, State
from ._probes import circuits
from ._shape import Shape
from ._toy import Curves, Draws, Probe, train_toy
from ._train import Progress, train

__all__ = [
    "KINDS",
    "SEMANTICS",
    "Config",
    "Curves",
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
    "default_precision",
    "next_evaluation",
    "step_operations",
    "train",
    "train_toy",
]
