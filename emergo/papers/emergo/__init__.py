"""Figures of our own."""

from . import dropout, escape, offset, precision, reading, rounding, second_plateau, stages
from .plateaus import CLOSED_FORM, REDUCTION

_MODULES = (offset, precision, escape, reading, stages, rounding, dropout, second_plateau)
FIGURES = (REDUCTION, CLOSED_FORM, *(module.FIGURE for module in _MODULES))
__all__ = ["FIGURES"]
