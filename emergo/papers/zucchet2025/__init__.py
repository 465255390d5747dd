"""Figures of *The emergence of sparse attention: impact of data distribution and benefits of repetition* (arXiv 2505.17863)."""

from . import fig1, fig2, fig3, fig4, fig5, fig6, fig7, fig8, fig9, fig10, fig11, fig12, fig13, fig14, fig15, fig16, fig17

_MODULES = (fig1, fig2, fig3, fig4, fig5, fig6, fig7, fig8, fig9, fig10, fig11, fig12, fig13, fig14, fig15, fig16, fig17)
FIGURES = tuple(module.FIGURE for module in _MODULES)
__all__ = ["FIGURES"]
