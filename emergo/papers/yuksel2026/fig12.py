"""Figure 12: two layers of the full Transformer learn the chain in the same stages."""

import dataclasses

from ...tasks import Groups, MarkovChain
from ._chains import FULL, LAPTOP, Training, laptop, smoke
from ._stage_checks import Printed
from ._stage_figure import Settings, stage_figure

PAPER = Training(MarkovChain(Groups((4, 4, 4))), dataclasses.replace(FULL, learning_rate=1e-3))
SMALL = laptop(
    Groups((4, 4, 4)), optimizer=dataclasses.replace(FULL, learning_rate=2e-3), batch=64, steps=2500, tests=256, seeds=1
)
TINY = smoke(optimizer=dataclasses.replace(FULL, learning_rate=3e-2))
FIGURE = stage_figure(
    "yuksel2026/fig12",
    "two layers of the full Transformer learn the chain in the same stages",
    presets={
        "paper": Settings(PAPER, PAPER.full(layers=2, dropout_every=3, start="xavier")),
        "laptop": Settings(SMALL, SMALL.full(layers=2, width=48, hidden=32, dropout=0.0)),
        "smoke": Settings(TINY, TINY.full(heads=2, width=8, hidden=8, layers=2, dropout=0.0)),
    },
    seconds={"paper": 45000, "laptop": 54, "smoke": 15},
    printed=Printed(boundaries=(70, 200)),
    laptop=f"width 48, PyTorch's start, no dropout, learning rate 2e-3, {LAPTOP}".replace("256", "64").replace(
        "2 seeds", "one seed"
    ),
    one_layer=False,
)
