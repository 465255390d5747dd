"""Figures of *The emergence of sparse attention: impact of data distribution and benefits of repetition* (arXiv 2505.17863)."""

from . import fig3, fig4
from .fig1_2 import FIGURE_1, FIGURE_2
from .fig5_16_17 import FIGURE_5, FIGURE_16, FIGURE_17
from .fig6_10 import FIGURE_6, FIGURE_7, FIGURE_8, FIGURE_9, FIGURE_10
from .fig11_12 import FIGURE_11, FIGURE_12
from .fig13_15 import FIGURE_13, FIGURE_14, FIGURE_15

FIGURES = (
    *(FIGURE_1, FIGURE_2, fig3.FIGURE, fig4.FIGURE, FIGURE_5, FIGURE_6, FIGURE_7, FIGURE_8, FIGURE_9, FIGURE_10),
    *(FIGURE_11, FIGURE_12, FIGURE_13, FIGURE_14, FIGURE_15, FIGURE_16, FIGURE_17),
)
__all__ = ["FIGURES"]
