"""Figures of our own."""

from . import closed_form, escape, offset, precision, reduction

FIGURES = (reduction.FIGURE, closed_form.FIGURE, offset.FIGURE, precision.FIGURE, escape.FIGURE)
__all__ = ["FIGURES"]
