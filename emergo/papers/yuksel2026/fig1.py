"""Figure 1: the minimal attention learns a Markov chain in stages; heads first share a group, then divide the groups."""

from ...tasks import Groups
from ._chains import Training, laptop, smoke
from ._stage_checks import Printed
from ._stage_figure import Settings, stage_figure

PAPER, SMALL, TINY = Training(), laptop(Groups()), smoke()
FIGURE = stage_figure(
    "yuksel2026/fig1",
    "the minimal attention learns a Markov chain in three stages: heads compete for one group, then divide them",
    presets={
        "paper": Settings(PAPER, PAPER.minimal()),
        "laptop": Settings(SMALL, SMALL.minimal()),
        "smoke": Settings(TINY, TINY.minimal(heads=2, scale=1e-3)),
    },
    seconds={"paper": 7200, "laptop": 33, "smoke": 10},
    printed=Printed(boundaries=(330, 575), last=(2.78, 0.70, 0.09), plateaus=(0.87, 0.34)),
)
