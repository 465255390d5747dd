"""Incremental learning: heads that compete for the strongest group, then share out the others (yuksel2026). float64."""

from ._closed_form import (
    Cooperation,
    Rates,
    cooperation,
    escape_factor,
    first_stage,
    learning_order,
    plateaus,
    start_rates,
    takeoff,
)
from ._heads import Flow, Heads, attention, loss, residual, start, target, velocity
from ._integrate import Growth, Path, growth, stage_times, trajectory

__all__ = [
    "Cooperation",
    "Flow",
    "Growth",
    "Heads",
    "Path",
    "Rates",
    "attention",
    "cooperation",
    "escape_factor",
    "first_stage",
    "growth",
    "learning_order",
    "loss",
    "plateaus",
    "residual",
    "stage_times",
    "start",
    "start_rates",
    "takeoff",
    "target",
    "trajectory",
    "velocity",
]
