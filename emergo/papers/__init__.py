"""Every figure: its studies, its laws beside the published ones, and a plot."""

from collections.abc import Mapping
from typing import Any

import jax

from .._errors import InputError, unknown
from . import emergo, yuksel2026, zucchet2025
from ._figure import Figure, MadeFigure, Preset, made_preset, make_figure, run_figure, seconds_needed, source_for
from ._source import RunSource

LONG = 600
"""Seconds of training on two CPU cores above which a preset is not started without being asked for."""
FIGURES: Mapping[str, Figure] = {f.id: f for f in (*zucchet2025.FIGURES, *yuksel2026.FIGURES, *emergo.FIGURES)}
"""Every figure by its id, in the order of the papers."""


def find_figure(id: str) -> Figure:
    """The figure of that id, or an `InputError` with the nearest ids."""
    id = str(id)
    if id not in FIGURES:
        same = [known for known in FIGURES if known.endswith(f"/{id}")]
        if same:
            raise InputError(f"unknown figure '{id}'; did you mean {' or '.join(same)}?")
        raise unknown("figure", id, FIGURES)
    return FIGURES[id]


def figure(id: str, preset: Preset = "paper", *, train: bool = False, **options: Any) -> MadeFigure:
    """A figure in memory.

    **Arguments:**

    - `id`: as in [`emergo.papers.FIGURES`][], e.g. `"zucchet2025/fig3"`.
    - `preset`: `"paper"`, `"laptop"` or `"smoke"`.
    - `train`: whether to start training that takes over ten minutes on a CPU.
    - `options`: `out` (a folder that keeps runs), `fresh`, `partial`, `seconds`, as in [`emergo.papers.source_for`][].

    ```python
    >>> em.figure("zucchet2025/fig3").laws[0]["formula"]
    'plateau = 0.886 dim^1.27 length^0.78 burst^-0.78'

    ```
    """
    chosen = find_figure(id)
    source = source_for(chosen, **options)
    if not (train or source.partial) and jax.default_backend() == "cpu":
        needed = seconds_needed(chosen, preset, source)
        if needed > LONG:
            raise InputError(f"the {preset} preset of {id} has runs to train that take about {needed / 3600:.1f} h on a CPU")
    return make_figure(chosen, preset, source)


__all__ = [
    "FIGURES",
    "Figure",
    "MadeFigure",
    "RunSource",
    "figure",
    "find_figure",
    "made_preset",
    "make_figure",
    "run_figure",
    "seconds_needed",
    "source_for",
]
