"""Figure 18: the same stages of the full Transformer with SGD, slower."""

import dataclasses

from ...engine import Optimizer
from ...tasks import Groups, MarkovChain
from ._chains import LAPTOP, Training, laptop, smoke
from ._stage_checks import Printed
from ._stage_figure import Settings, stage_figure

SGD, CLEAR = Optimizer("sgd", 0.2, 0.9, clip=1.0), Groups(importance=2.0)
PAPER = Training(MarkovChain(Groups((4, 4, 4), 2.0)), SGD, steps=7000)
SMALL = laptop(CLEAR, optimizer=dataclasses.replace(SGD, learning_rate=4.0), steps=6000, seeds=1, batch=128)
TINY = smoke(optimizer=SGD)
FIGURE = stage_figure(
    "yuksel2026/fig18",
    "SGD learns the chain in the same stages, slower",
    presets={
        "paper": Settings(PAPER, PAPER.full(dropout_every=3, start="xavier")),
        "laptop": Settings(SMALL, SMALL.minimal(scale=1e-4)),
        "smoke": Settings(TINY, TINY.minimal(heads=2, scale=1e-3)),
    },
    seconds={"paper": 75000, "laptop": 46, "smoke": 10},
    printed=Printed(boundaries=(600, 4000)),
    laptop="the minimal attention instead of the Transformer, groups of 2 positions, initial scale 1e-4, learning rate 4, "
    + LAPTOP.replace("256", "128").replace("2 seeds", "one seed"),
)
