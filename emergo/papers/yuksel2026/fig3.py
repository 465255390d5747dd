"""Figures 2 and 3: the full Transformer learns the chain in the same stages."""

import dataclasses

from ...tasks import Groups, MarkovChain
from ._chains import FULL, LAPTOP, Training, laptop, smoke
from ._stage_checks import Printed
from ._stage_figure import Settings, stage_figure

PAPER = Training(MarkovChain(Groups((4, 4, 4))), FULL)
SMALL = laptop(Groups(importance=2.2), optimizer=FULL, batch=128, steps=800)
TINY = smoke(optimizer=dataclasses.replace(FULL, learning_rate=3e-2))
FIGURE = stage_figure(
    "yuksel2026/fig3",
    "the full Transformer learns the chain in stages; Figs. 2 and 3 left: attention by head and lag, KL from the references",
    presets={
        "paper": Settings(PAPER, PAPER.full()),
        "laptop": Settings(SMALL, SMALL.full(width=48, hidden=32, dropout=0.0)),
        "smoke": Settings(TINY, TINY.full(heads=2, width=8, hidden=8)),
    },
    seconds={"paper": 20000, "laptop": 100, "smoke": 15},
    printed=Printed(boundaries=(65, 450), last=(3.05, 0.78, 0.19), plateaus=(0.45,)),
    laptop=f"groups of 2 positions, importance 2.2, width 48, no dropout, {LAPTOP}".replace("256", "128"),
)
