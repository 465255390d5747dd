"""Figure 9: where the heads of Fig. 8 look, with the far group strongest."""

from .._figure import Check
from . import fig8
from ._chains import ChainRuns
from ._map_figure import map_figure


def far_first_check(runs: ChainRuns) -> list[Check]:
    """The group that some head has half of its attention on before any other."""
    first = [order[0] if order else None for order in runs.learning_order]
    name = "the group that a head first has half of its attention on, counted from the nearest, by seed"
    return [Check(name, first, "the far group is learned first", all(group == runs.groups.count for group in first))]


FIGURE = map_figure(
    "yuksel2026/fig9",
    "where the heads of Fig. 8 look: at the far group first, which is strongest",
    fig8.FIGURE,
    far_first_check,
)
