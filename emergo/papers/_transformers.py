"""What the figures of trained Transformers share: their base and grids around it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..engine import Config, Optimizer
from ..models import Transformer
from ..studies import Study
from ..tasks import SingleLocation

TASK = SingleLocation(2, 1, position="random", indicator=True, special="draw")
"""The task of B.1; length and dim are set by the grids."""
PAPER = Config(TASK, Transformer(), Optimizer(), precision="bf16")
SMALL = PAPER.replace(model__width=64, optimizer__learning_rate=1e-3, batch=16, precision="fp32", steps=2000)
"""For two cores."""
TINY = SMALL.replace(model=Transformer(layers=1, heads=1, width=16), optimizer__learning_rate=1e-2, steps=600)
"""For a few seconds. Figures that show the same runs, or as many of one length, share what is compiled."""


def shallow(base: Config) -> Config:
    """One layer with one head."""
    return base.replace(model__layers=1, model__heads=1)


@dataclasses.dataclass(frozen=True)
class Grid:
    """Runs of a config with every dim and length."""

    base: Config = PAPER
    seeds: int = 5
    dims: tuple[int, ...] = (16, 32, 64, 128)
    lengths: tuple[int, ...] = (32, 64, 128, 256, 512)

    def study(self, base: Config | None = None, **axes: Sequence[Any]) -> Study:
        """The grid with further axes, or other values of `length` and `dim`."""
        return Study.of(base or self.base, grid={"length": self.lengths, "dim": self.dims} | axes, seeds=self.seeds)
