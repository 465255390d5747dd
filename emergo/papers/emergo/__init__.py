"""Figures of our own."""

from . import (
    attention,
    capacity,
    coupled,
    dropout,
    escape,
    forecast,
    offset,
    precision,
    reading,
    rounding,
    schedule,
    second_plateau,
    stages,
)
from .plateaus import CLOSED_FORM, REDUCTION

_LATER = (schedule, capacity, coupled, attention, forecast)
_MODULES = (offset, precision, escape, reading, stages, rounding, dropout, second_plateau, *_LATER)
FIGURES = (REDUCTION, CLOSED_FORM, *(module.FIGURE for module in _MODULES))
__all__ = ["FIGURES"]
