"""What should happen, in float64: the loss, flows and closed forms of zucchet2025; those of
yuksel2026 are in `incremental`."""

from . import incremental
from ._agreement import (
    RANDOM,
    Agreement,
    GradientMoments,
    Moments,
    gradient_moments,
    leading_agreement,
)
from ._cells import Cell, cells, grid
from ._changing import (
    TAKEN_OFF,
    Switched,
    best_repeat,
    cost_of_early,
    dropped_takeoff,
    switched,
    switched_takeoff,
    takeoff_time,
    time_left,
)
from ._closed_form import (
    Flow,
    escape_time,
    growth_rate,
    linear_solution,
    mills_ratio,
    plateau_from,
    predicted_plateau,
    repeat_factor,
    strength,
)
from ._coupled import coupled_loss, coupled_plateau, coupled_velocity, predicted_coupled
from ._flow import THRESHOLD, Plateau, Trajectory, field, plateau, trajectory
from ._full import describe_cell, full_plateau, population_gradient, population_loss, unit_columns
from ._integrate import ATOL, RTOL
from ._rank import rank_floor
from ._reduced import equilibrium, float64, gradient, hessian, loss, relevant_attention, test_loss
from ._remaining import Local, local, local_rate, local_rate_from_growth, remaining_time

__all__ = ["Cell", "cells", "describe_cell", "float64", "grid", "incremental"]
__all__ += ["equilibrium", "gradient", "hessian", "loss", "relevant_attention", "test_loss"]
__all__ += [
    "escape_time",
    "growth_rate",
    "linear_solution",
    "predicted_plateau",
    "repeat_factor",
    "strength",
]
__all__ += ["mills_ratio", "plateau_from", "rank_floor"]
__all__ += ["TAKEN_OFF", "Switched", "best_repeat", "cost_of_early", "dropped_takeoff"]
__all__ += ["switched", "switched_takeoff", "takeoff_time", "time_left"]
__all__ += [
    "ATOL",
    "RTOL",
    "THRESHOLD",
    "Flow",
    "Plateau",
    "Trajectory",
    "field",
    "plateau",
    "trajectory",
]
__all__ += ["full_plateau", "population_gradient", "population_loss", "unit_columns"]
__all__ += ["coupled_loss", "coupled_plateau", "coupled_velocity", "predicted_coupled"]
__all__ += [
    "RANDOM",
    "Agreement",
    "GradientMoments",
    "Moments",
    "gradient_moments",
    "leading_agreement",
]
__all__ += ["Local", "local", "local_rate", "local_rate_from_growth", "remaining_time"]
