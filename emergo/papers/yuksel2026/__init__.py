"""Figures of *Incremental learning of sparse attention patterns in Transformers* (arXiv 2602.19143)."""

from . import fig1, fig3, fig4, fig5, fig6, fig8, fig10, fig13, fig18

_MODULES = (fig1, fig3, fig4, fig5, fig6, fig8, fig10, fig13, fig18)
FIGURES = tuple(module.FIGURE for module in _MODULES)
__all__ = ["FIGURES"]
