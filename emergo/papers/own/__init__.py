"""Figures of our own."""

from . import closed_form, escape, reduction

FIGURES = (reduction.FIGURE, closed_form.FIGURE, escape.FIGURE)
__all__ = ["FIGURES"]
