"""The figures of the papers and of our experiments, loaded by id.

A figure trains (or loads) its studies, fits laws, sets them next to the published ones, and draws a
plot.
"""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .index import FigureMapping, find_figure, made_preset, read_index

if TYPE_CHECKING:
    from ._figure import (
        Check,
        Comparison,
        Figure,
        MadeFigure,
        Outcome,
        Preset,
        figure,
        make_figure,
        run_figure,
        seconds_needed,
        source_for,
    )
    from ._make import (
        add_figure_records,
        find_probe,
        make_figures,
        print_figure,
        submit_figures,
    )
    from ._plateaus import toy_probe
    from ._source import RunSource
    from ._toy_sgd import train_toy

FIGURES: Mapping[str, "Figure"] = FigureMapping()
"""All figures by id, in the order of the papers; each is imported on first access."""

plugins = (
    "emergo.papers.yuksel2026._contexts",
    "emergo.papers.yuksel2026._maps",
    "emergo.papers.experiments.coupled",
)
"""The modules that define types of the figures' runs. Plans name this package as their plugin, and
`emergo.study.load_plugins` imports these modules with it."""

# Names are imported on first use, so that `emergo figures` does not import JAX.
_MODULES = ("_figure", "_make", "_plateaus", "_source", "_toy_sgd")
__all__ = [
    "FIGURES",
    "Check",
    "Comparison",
    "Figure",
    "MadeFigure",
    "Outcome",
    "Preset",
    "RunSource",
    "add_figure_records",
    "figure",
    "find_figure",
    "find_probe",
    "made_preset",
    "make_figure",
    "make_figures",
    "print_figure",
    "read_index",
    "run_figure",
    "seconds_needed",
    "source_for",
    "submit_figures",
    "toy_probe",
    "train_toy",
]


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        found = importlib.import_module(f".{module}", __name__)
        if hasattr(found, name):
            globals()[name] = getattr(found, name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
