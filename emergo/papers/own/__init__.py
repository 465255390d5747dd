"""Figures of our own."""

from . import closed_form, reduction

FIGURES = (reduction.FIGURE, closed_form.FIGURE)
__all__ = ["FIGURES"]
