"""Figures of *The emergence of sparse attention: impact of data distribution and benefits of repetition* (arXiv 2505.17863)."""

from . import fig1, fig2, fig3, fig4, fig9, fig17
from .fig5_16 import FIGURE_5, FIGURE_16
from .fig6_10 import FIGURE_6, FIGURE_7, FIGURE_8, FIGURE_10
from .fig11_12 import FIGURE_11, FIGURE_12
from .fig13_15 import FIGURE_13, FIGURE_14, FIGURE_15

FIGURES = (
    *(fig1.FIGURE, fig2.FIGURE, fig3.FIGURE, fig4.FIGURE, FIGURE_5, FIGURE_6, FIGURE_7, FIGURE_8, fig9.FIGURE, FIGURE_10),
    *(FIGURE_11, FIGURE_12, FIGURE_13, FIGURE_14, FIGURE_15, FIGURE_16, fig17.FIGURE),
)
__all__ = ["FIGURES"]
