"""Figure 14: where the heads of Fig. 13 look, with unequal weights within a group."""

from . import fig13
from ._map_figure import map_figure

FIGURE = map_figure(
    "yuksel2026/fig14",
    "where the heads of Fig. 13 look: more at the position of a group that weighs more",
    fig13.FIGURE,
    fig13.weight_check,
)
