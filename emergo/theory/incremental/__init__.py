"""Incremental learning: heads that compete for the strongest group, then share out the others (yuksel2026). float64."""

from ._closed_form import cooperation, escape_factor, first_stage, learning_order, plateaus, start_rates, takeoff
from ._flow import Flow, Heads, Path, attention, growth, loss, stage_times, start, target, trajectory, velocity

__all__ = [
    "Flow",
    "Heads",
    "Path",
    "attention",
    "cooperation",
    "escape_factor",
    "first_stage",
    "growth",
    "learning_order",
    "loss",
    "plateaus",
    "stage_times",
    "start",
    "start_rates",
    "takeoff",
    "target",
    "trajectory",
    "velocity",
]
