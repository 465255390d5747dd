"""Figures of our own."""

from . import coupled, dropout, escape, offset, precision, reading, rounding, schedule, second_plateau, stages
from .plateaus import CLOSED_FORM, REDUCTION

_MODULES = (offset, precision, escape, reading, stages, rounding, dropout, second_plateau, schedule, coupled)
FIGURES = (REDUCTION, CLOSED_FORM, *(module.FIGURE for module in _MODULES))
__all__ = ["FIGURES"]
