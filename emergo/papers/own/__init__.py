"""Figures of our own."""

from . import closed_form, offset, precision, reduction

FIGURES = (reduction.FIGURE, closed_form.FIGURE, offset.FIGURE, precision.FIGURE)
__all__ = ["FIGURES"]
