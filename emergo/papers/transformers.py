"""Settings and grids for the figures of trained Transformers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..models import Transformer
from ..study import Study
from ..tasks import SingleLocation
from ..training import Config, Optimizer

TASK = SingleLocation(2, 1, position="random", indicator=True, special="draw")
"""The task of B.1; the grids set length and dim."""
PAPER = Config(TASK, Transformer(), Optimizer(), precision="bf16")
SMALL = PAPER.replace(
    model__width=64, optimizer__learning_rate=1e-3, batch=16, precision="fp32", steps=2000
)
"""The base of the `laptop` presets, for two cores."""
TINY = SMALL.replace(
    model=Transformer(layers=1, heads=1, width=16), optimizer__learning_rate=1e-2, steps=600
)
"""The base of the `smoke` presets, which take seconds. Figures with the same runs, or with as many
runs of one length, share compiled programs."""


def shallow(base: Config) -> Config:
    """Return a config with one layer and one head."""
    return base.replace(model__layers=1, model__heads=1)


@dataclasses.dataclass(frozen=True)
class Grid:
    """A grid of dims and lengths around a config."""

    base: Config = PAPER
    seeds: int = 5
    dims: tuple[int, ...] = (16, 32, 64, 128)
    lengths: tuple[int, ...] = (32, 64, 128, 256, 512)

    def study(self, base: Config | None = None, **axes: Sequence[Any]) -> Study:
        """Return the study of the grid with further axes, or with other values of `length` and
        `dim`."""
        return Study.of(
            base or self.base,
            grid={"length": self.lengths, "dim": self.dims} | axes,
            seeds=self.seeds,
        )
