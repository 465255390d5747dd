"""Theory in float64: losses, gradient flows and closed forms of zucchet2025.

The theory of yuksel2026 is in `incremental`.
"""

from . import incremental
from ._assembly import Rates, assembly_plateau, assembly_rates
from ._cells import Cell, cells, grid
from ._changing import TAKEN_OFF, Switched, switched, switched_takeoff, takeoff_time
from ._closed_form import (
    Flow,
    escape_time,
    growth_rate,
    linear_solution,
    plateau_from,
    predicted_plateau,
    repeat_factor,
    strength,
)
from ._coupled import coupled_plateau, predicted_coupled
from ._flow import THRESHOLD, Plateau, Trajectory, field, plateau, trajectory
from ._full import describe_cell, full_plateau, population_gradient, population_loss
from ._integrate import ATOL, RTOL
from ._rank import rank_floor
from ._reduced import equilibrium, float64, gradient, hessian, loss, relevant_attention, test_loss

__all__ = [
    "ATOL",
    "RTOL",
    "TAKEN_OFF",
    "THRESHOLD",
    "Cell",
    "Flow",
    "Plateau",
    "Rates",
    "Switched",
    "Trajectory",
    "assembly_plateau",
    "assembly_rates",
    "cells",
    "coupled_plateau",
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
    "loss",
    "plateau",
    "plateau_from",
    "population_gradient",
    "population_loss",
    "predicted_coupled",
    "predicted_plateau",
    "rank_floor",
    "relevant_attention",
    "repeat_factor",
    "strength",
    "switched",
    "switched_takeoff",
    "takeoff_time",
    "test_loss",
    "trajectory",
]
