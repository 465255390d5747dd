"""Theory of incremental learning (yuksel2026), in float64.

Heads first compete for the strongest group of positions, then divide the other groups.
"""

from ._closed_form import (
    StageLoss,
    cooperation,
    escape_factor,
    first_stage,
    learning_order,
    plateaus,
    stage_losses,
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
    "Flow",
    "Heads",
    "Path",
    "StageLoss",
    "attention",
    "cooperation",
    "escape_factor",
    "first_stage",
    "growth",
    "learning_order",
    "loss",
    "plateaus",
    "stage_losses",
    "stage_times",
    "start",
    "start_rates",
    "takeoff",
    "target",
    "trajectory",
    "velocity",
]
