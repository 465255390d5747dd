"""Figure 19: where the heads of Fig. 18 look, trained with SGD."""

from . import fig18
from ._map_figure import map_figure

FIGURE = map_figure(
    "yuksel2026/fig19",
    "where the heads of Fig. 18, trained with SGD, look",
    fig18.FIGURE,
)
