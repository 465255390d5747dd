"""Figures of our own."""

from . import closed_form, escape, offset, precision, reading, reduction

FIGURES = (reduction.FIGURE, closed_form.FIGURE, offset.FIGURE, precision.FIGURE, escape.FIGURE, reading.FIGURE)
__all__ = ["FIGURES"]
