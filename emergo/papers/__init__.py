"""Every figure, one module each: a study, its laws beside the published ones, and a plot."""

from collections.abc import Mapping
from typing import Any

from .._errors import InputError, unknown
from . import emergo, yuksel2026, zucchet2025
from ._figure import (
    Check,
    Comparison,
    Figure,
    MadeFigure,
    Outcome,
    Preset,
    check_cost,
    made_preset,
    make_figure,
    run_figure,
    seconds_needed,
    source_for,
)
from ._source import RunSource

FIGURES: Mapping[str, Figure] = {f.id: f for f in (*zucchet2025.FIGURES, *yuksel2026.FIGURES, *emergo.FIGURES)}


def find_figure(id: str) -> Figure:
    """The figure of that id, or an `InputError` with the nearest ids."""
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
    - `options`: `out` (a folder that keeps runs), `fresh`, `partial`, `seconds`, as in [`emergo.papers.run_figure`][].

    ```python
    >>> em.figure("zucchet2025/fig3").laws[0]["formula"]
    'plateau = 0.886 dim^1.27 length^0.78 burst^-0.78'

    ```
    """
    chosen = find_figure(id)
    source = source_for(chosen, **options)
    if not (train or source.partial):
        check_cost(chosen, preset, source)
    return make_figure(chosen, preset, source)


__all__ = [
    "FIGURES",
    "Check",
    "Comparison",
    "Figure",
    "MadeFigure",
    "Outcome",
    "Preset",
    "RunSource",
    "check_cost",
    "figure",
    "find_figure",
    "made_preset",
    "make_figure",
    "run_figure",
    "seconds_needed",
    "source_for",
]
