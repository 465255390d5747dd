"""Figure 16: where three heads look when groups overlap."""

from . import fig15
from ._map_figure import map_figure

FIGURE = map_figure(
    "yuksel2026/fig16",
    "where three heads look when groups overlap",
    fig15.FIGURE,
    fig15.sharing_check,
    lambda studies: {name: studies[name] for name in list(studies)[:1]},
    own_heads=False,
)
