"""Figure 3: the full Transformer learns the chain in stages, also seen from predictors of restricted context."""

import dataclasses

import numpy as np

from ...tasks import Groups, MarkovChain
from .._figure import Check
from ._chains import FULL, LAPTOP, Seen, Training, laptop, smoke
from ._stage_checks import Printed
from ._stage_figure import Settings, stage_figure

WIDE = Groups((4, 4, 4))
PAPER = Training(MarkovChain(WIDE), FULL, windows=(4, 8, 12), compared=1)
SLOWER = dataclasses.replace(FULL, learning_rate=2e-3)
SMALL = laptop(WIDE, optimizer=SLOWER, batch=64, steps=2000, tests=256, seeds=1, windows=(4, 8, 12))
TINY = smoke(seeds=1, windows=(1, 2))


def by_window(seen: Seen) -> list[Check]:
    """The student passes the predictors of restricted context one after another."""
    compared = [curve for curve in seen.curves if "restricted" in curve]
    if not compared:
        return []
    nearest = np.array([curve["step"][curve["restricted"].argmin(0)] for curve in compared])
    last = np.mean([curve["restricted"][-1] for curve in compared], 0)
    return [
        Check(
            "steps at which the student is nearest to predictors of short, ... and whole context, geometric mean over runs",
            np.exp(np.log(np.maximum(nearest, 1)).mean(0)).tolist(),
            "each stage corresponds to the acquisition of information from a subset of positions",
            bool(np.all(np.diff(nearest) > 0)),
        ),
        Check(
            "KL from these predictors at the end, mean over these runs",
            last.tolist(),
            None,
            bool(np.all(np.diff(last) < 0)),
            "less for longer context",
        ),
    ]


FIGURE = stage_figure(
    "yuksel2026/fig3",
    "the full Transformer learns the chain in stages, also seen from predictors of restricted context",
    presets={
        "paper": Settings(PAPER, PAPER.full(dropout_every=3, start="xavier")),
        "laptop": Settings(SMALL, SMALL.full(width=96, hidden=32, dropout=0.0)),
        "smoke": Settings(TINY, TINY.minimal(heads=2, scale=1e-3)),
    },
    seconds={"paper": 40000, "laptop": 102, "smoke": 20},
    printed=Printed(boundaries=(65, 450), last=(3.05, 0.78, 0.19), plateaus=(0.45,)),
    more=by_window,
    laptop=f"width 96, PyTorch's start, no dropout, learning rate 2e-3, {LAPTOP}".replace("256", "64").replace(
        "2 seeds", "one seed"
    ),
)
