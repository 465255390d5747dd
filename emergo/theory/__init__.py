"""What should happen, in float64: the loss, flows and closed forms of zucchet2025; those of yuksel2026 are in `incremental`."""

from . import incremental
from ._cells import Cell, cells, grid
from ._closed_form import Flow, escape_time, growth_rate, linear_solution, linearise, predicted_plateau, repeat_factor
from ._flow import ATOL, RTOL, THRESHOLD, Plateau, Trajectory, field, plateau, trajectory
from ._full import Parameters, describe_cell, full_plateau, population_gradient, population_loss, unit_columns
from ._reduced import equilibrium, float64, gradient, hessian, loss, relevant_attention, test_loss

__all__ = [
    "ATOL",
    "RTOL",
    "THRESHOLD",
    "Cell",
    "Flow",
    "Parameters",
    "Plateau",
    "Trajectory",
    "cells",
    "describe_cell",
    "equilibrium",
    "escape_time",
    "field",
    "float64",
    "full_plateau",
    "gradient",
    "grid",
    "growth_rate",
    "hessian",
    "incremental",
    "linear_solution",
    "linearise",
    "loss",
    "plateau",
    "population_gradient",
    "population_loss",
    "predicted_plateau",
    "relevant_attention",
    "repeat_factor",
    "test_loss",
    "trajectory",
    "unit_columns",
]
