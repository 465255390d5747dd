"""Figures of our own."""

from . import attention, capacity, dropout, escape, offset, precision, reading, rounding, stages
from .plateaus import CLOSED_FORM, REDUCTION

_MODULES = (offset, precision, escape, reading, stages, rounding, dropout, capacity, attention)
FIGURES = (REDUCTION, CLOSED_FORM, *(module.FIGURE for module in _MODULES))
__all__ = ["FIGURES"]
