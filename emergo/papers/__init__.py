"""Every figure, one module each: a study, its laws beside the published ones, and a plot."""

from collections.abc import Mapping

from .._errors import InputError, unknown
from . import own, yuksel2026, zucchet2025
from ._figure import Check, Comparison, Figure, Outcome, Preset, made_preset, run_figure, seconds_needed, work_for
from ._probe import toy_probe

FIGURES: Mapping[str, Figure] = {f.id: f for f in (*zucchet2025.FIGURES, *yuksel2026.FIGURES, *own.FIGURES)}


def find_figure(id: str) -> Figure:
    """The figure of that id, or an `InputError` with the nearest ids."""
    if id not in FIGURES:
        same = [known for known in FIGURES if known.endswith(f"/{id}")]
        if same:
            raise InputError(f"unknown figure '{id}'; did you mean {' or '.join(same)}?")
        raise unknown("figure", id, FIGURES)
    return FIGURES[id]


__all__ = [
    "FIGURES",
    "Check",
    "Comparison",
    "Figure",
    "Outcome",
    "Preset",
    "find_figure",
    "made_preset",
    "run_figure",
    "seconds_needed",
    "toy_probe",
    "work_for",
]
