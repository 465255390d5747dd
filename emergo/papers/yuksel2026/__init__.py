"""Figures of *Incremental learning of sparse attention patterns in Transformers* (arXiv 2602.19143)."""

from . import fig4, fig5, fig10, stages_and_maps

_EVERY = (*stages_and_maps.FIGURES, fig4.FIGURE, fig5.FIGURE, fig10.FIGURE)
FIGURES = tuple(sorted(_EVERY, key=lambda figure: int(figure.id.removeprefix("yuksel2026/fig"))))
__all__ = ["FIGURES"]
