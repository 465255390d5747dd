"""Figure 11: two layers of the minimal attention learn the chain in the same stages."""

from ...tasks import Groups, MarkovChain
from ._chains import LAPTOP, SLOW, Training, laptop, smoke
from ._stage_checks import Printed
from ._stage_figure import Settings, stage_figure

PAPER = Training(MarkovChain(Groups((4, 4, 4), 1.8)), SLOW, samples=27_000)
SMALL, TINY = laptop(Groups(), optimizer=SLOW, batch=128), smoke(optimizer=SLOW)
FIGURE = stage_figure(
    "yuksel2026/fig11",
    "two layers of the minimal attention learn the chain in the same stages",
    presets={
        "paper": Settings(PAPER, PAPER.minimal(layers=2, start="xavier")),
        "laptop": Settings(SMALL, SMALL.minimal(layers=2, start="xavier")),
        "smoke": Settings(TINY, TINY.minimal(heads=2, layers=2, start="xavier")),
    },
    seconds={"paper": 40000, "laptop": 54, "smoke": 12},
    printed=Printed(boundaries=(180, 370)),
    laptop="groups of 2 positions, m = 1.7, " + LAPTOP.replace("256", "128"),
    one_layer=False,
)
