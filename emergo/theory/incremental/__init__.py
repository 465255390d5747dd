"""Incremental learning: heads that compete for the strongest group, then share out the others
(yuksel2026). float64."""

from ._closed_form import (
    cooperation,
    escape_factor,
    first_stage,
    learning_order,
    plateaus,
    start_rates,
    takeoff,
)
from ._flow import (
    Flow,
    Heads,
    Path,
    attention,
    growth,
    loss,
    stage_times,
    start,
    target,
    trajectory,
    velocity,
)

__all__ = [
    "cooperation",
    "escape_factor",
    "first_stage",
    "learning_order",
    "plateaus",
    "start_rates",
    "takeoff",
]
__all__ += [
    "Flow",
    "Heads",
    "Path",
    "attention",
    "growth",
    "loss",
    "stage_times",
    "start",
    "target",
    "trajectory",
    "velocity",
]
