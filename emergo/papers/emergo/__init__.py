"""Figures of our own."""

from . import closed_form, dropout, escape, offset, precision, reading, reduction, rounding, stages

_MODULES = (reduction, closed_form, offset, precision, escape, reading, stages, rounding, dropout)
FIGURES = tuple(module.FIGURE for module in _MODULES)
__all__ = ["FIGURES"]
