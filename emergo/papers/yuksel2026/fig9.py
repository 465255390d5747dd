"""Figure 9: where the heads of Fig. 8 look, with the far group strongest."""

from .._figure import Check
from . import fig8
from ._chains import Seen
from ._map_figure import map_figure


def far_first(seen: Seen) -> list[Check]:
    """The group that some head has half of its attention on before any other."""
    first = [run[0] if run else None for run in seen.order()]
    name = "the group that a head first has half of its attention on, counted from the nearest, by seed"
    return [Check(name, first, "the far group is learned first", all(group == seen.groups.count for group in first))]


FIGURE = map_figure(
    "yuksel2026/fig9",
    "where the heads of Fig. 8 look: at the far group first, which is strongest",
    fig8.FIGURE,
    far_first,
)
