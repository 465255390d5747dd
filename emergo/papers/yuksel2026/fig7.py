"""Figure 7: where the heads of Fig. 6 look."""

from . import fig6
from ._map_figure import map_figure

FIGURE = map_figure(
    "yuksel2026/fig7",
    "where the heads of Fig. 6 look: all at the strongest group first, then each at one of its own",
    fig6.FIGURE,
)
