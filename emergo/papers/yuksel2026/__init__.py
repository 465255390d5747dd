"""Figures of *Incremental learning of sparse attention patterns in Transformers* (arXiv 2602.19143)."""

from . import (
    fig1,
    fig2,
    fig3,
    fig4,
    fig5,
    fig6,
    fig7,
    fig8,
    fig9,
    fig10,
    fig11,
    fig12,
    fig13,
    fig14,
    fig15,
    fig16,
    fig17,
    fig18,
    fig19,
)

_MODULES = (
    *(fig1, fig2, fig3, fig4, fig5, fig6, fig7, fig8, fig9, fig10),
    *(fig11, fig12, fig13, fig14, fig15, fig16, fig17, fig18, fig19),
)
FIGURES = tuple(module.FIGURE for module in _MODULES)
__all__ = ["FIGURES"]
