"""Figures of *Incremental learning of sparse attention patterns in Transformers* (arXiv 2602.19143)."""

from . import fig1, fig10

FIGURES = (fig1.FIGURE, fig10.FIGURE)
__all__ = ["FIGURES"]
