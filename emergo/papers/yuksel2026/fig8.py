"""Figure 8: with the far group strongest, the far group is learned first."""

import dataclasses

from ...tasks import Groups, MarkovChain
from ._chains import FULL, LAPTOP, TWO, Training, laptop, smoke
from ._stage_checks import Printed
from ._stage_figure import Settings, stage_figure

PAPER = Training(MarkovChain(Groups((2, 4, 8), strongest="far")), FULL)
SMALL = laptop(Groups(strongest="far"))
TINY = smoke(dataclasses.replace(TWO, strongest="far"))
FIGURE = stage_figure(
    "yuksel2026/fig8",
    "with the far group strongest, the far group is learned first",
    presets={
        "paper": Settings(PAPER, PAPER.full(dropout_every=3, start="xavier")),
        "laptop": Settings(SMALL, SMALL.minimal()),
        "smoke": Settings(TINY, TINY.minimal(heads=2, scale=1e-3)),
    },
    seconds={"paper": 25000, "laptop": 30, "smoke": 10},
    printed=Printed(boundaries=(90, 410)),
    laptop=f"the minimal attention instead of the Transformer, groups of 2 positions, {LAPTOP}",
)
