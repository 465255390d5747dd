"""What should happen, in float64: the loss, flows and closed forms of zucchet2025; those of yuksel2026 are in `incremental`."""

from . import incremental
from ._cells import Cell, cells, grid
from ._closed_form import Flow, escape_time, leading_rate, logit_speed, predicted_plateau, repeat_factor
from ._describe import describe_cell
from ._flow import ATOL, RTOL, THRESHOLD, Plateau, Trajectory, field, plateau, trajectory
from ._full import Parameters, full_plateau, population_gradient, population_loss, unit_columns
from ._linear import Linearisation, LinearSolution, growth_rate, linear_solution, linearise
from ._precision import float64
from ._reduced import directions, equilibrium, gradient, hessian, late_hessian, loss, relevant_attention, test_loss

__all__ = [
    "ATOL",
    "RTOL",
    "THRESHOLD",
    "Cell",
    "Flow",
    "LinearSolution",
    "Linearisation",
    "Parameters",
    "Plateau",
    "Trajectory",
    "cells",
    "describe_cell",
    "directions",
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
    "late_hessian",
    "leading_rate",
    "linear_solution",
    "linearise",
    "logit_speed",
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
