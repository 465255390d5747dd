"""Figures of our own."""

from . import closed_form, dropout, escape, offset, precision, reading, reduction, rounding, stages

FIGURES = (
    reduction.FIGURE,
    closed_form.FIGURE,
    offset.FIGURE,
    precision.FIGURE,
    escape.FIGURE,
    reading.FIGURE,
    stages.FIGURE,
    rounding.FIGURE,
    dropout.FIGURE,
)
__all__ = ["FIGURES"]
