"""Figure 15: stochastic gradient descent against Adam."""

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Plot

from ..._style import WIDTH
from ...engine import Config, Optimizer
from ...measure import Law, Published, fit_law
from ...studies import Study, provenance_of
from .._figure import Check, Comparison, Figure, Outcome
from .._source import RunSource
from .._transformers import PAPER, SMALL, TINY, Grid, plateaus_by, shallow, write_law

PUBLISHED = {
    "sgd": Published("Fig. 15 left", 6.42, {"dim": 1.44, "length": 1.07}, 0.997),
    "adam": Published("Fig. 15 right", 1.45, {"dim": 1.31, "length": 0.57}, 0.998),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    adam: Grid
    sgd: Grid

    def studies(self) -> dict[str, Study]:
        return {"sgd": self.sgd.study(), "adam": self.adam.study()}


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies())
    tables = {name: runs.table for name, runs in parts.items()}
    laws = {name: fit_law(table, x=["dim", "length"]) for name, table in tables.items()}
    return Outcome(
        tables=tables,
        plot=draw(tables, laws, settings),
        laws=[Comparison.of(name, laws[name], tables[name], PUBLISHED[name]) for name in tables],
        checks=compare_optimizers(tables, laws) if len(tables) == 2 else (),
        precision=settings.adam.base.precision,
        device=provenance_of(parts),
    )


def compare_optimizers(tables: dict[str, pd.DataFrame], laws: dict[str, Law]) -> list[Check]:
    steeper = {n: laws["sgd"].exponents[n] - laws["adam"].exponents[n] for n in ("dim", "length")}
    return [
        *gap_of(tables),
        Check("exponent of length, SGD less Adam", steeper["length"], 0.50, bool(abs(steeper["length"] - 0.50) < 0.15)),
        Check("exponent of dim, SGD less Adam", steeper["dim"], 0.13, bool(abs(steeper["dim"] - 0.13) < 0.15)),
    ]


def gap_of(tables: dict[str, pd.DataFrame]) -> list[Check]:
    """SGD over Adam in the cell that takes SGD longest, of those that all runs of both get through."""
    marked = [tables[name].assign(reached=tables[name]["state"] == "reached") for name in ("sgd", "adam")]
    cells = [table.groupby(["dim", "length"])[["plateau", "reached"]].mean() for table in marked]
    sgd, adam = cells[0].align(cells[1], join="inner")
    whole = (sgd["reached"] == 1) & (adam["reached"] == 1)
    if not whole.any():
        return []
    slowest = int(sgd["plateau"].where(whole).argmax())
    dim, length = whole.index[slowest]
    gap = float(sgd["plateau"].iloc[slowest] / adam["plateau"].iloc[slowest])
    printed = float(PUBLISHED["sgd"].at(dim=dim, length=length) / PUBLISHED["adam"].at(dim=dim, length=length))
    name = f"plateau of SGD over Adam at d = {dim}, T = {length}"
    return [Check(name, gap, printed, bool(abs(np.log(gap / printed)) < np.log(1.5)))]


def draw(tables: dict[str, pd.DataFrame], laws: dict[str, Law], settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH * 0.375 * len(tables), 2.8), layout="constrained")
    panels = plot.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, tables, strict=True):
        optimizer = getattr(settings, name).base.optimizer
        plateaus_by(axes, tables[name], laws[name], "length", "$T$")
        write_law(axes, laws[name], PUBLISHED[name], {"dim": "d", "length": "T"})
        axes.set_title(f"{'SGD' if name == 'sgd' else 'Adam'}, learning rate {optimizer.learning_rate:g}", y=1.13)
    for axes in panels[1:]:
        axes.set_ylabel("")
    return plot


def sgd(base: Config, learning_rate: float, steps: int) -> Config:
    return base.replace(optimizer=Optimizer("sgd", learning_rate), steps=steps)


MIDDLE = shallow(SMALL).replace(batch=32)
FIGURE = Figure(
    id="zucchet2025/fig15",
    title="plateau under SGD and under Adam (one layer, one head)",
    presets={
        "paper": Settings(
            Grid(shallow(PAPER)), Grid(sgd(shallow(PAPER), 5e-3, 400_000), dims=(16, 32, 64), lengths=(32, 64, 128, 256))
        ),
        "laptop": Settings(
            Grid(MIDDLE, 3, dims=(4, 8, 16), lengths=(8, 32)),
            Grid(sgd(MIDDLE, 5e-2, 8000), 3, dims=(4, 8, 16), lengths=(8, 32)),
        ),
        "smoke": Settings(
            Grid(TINY, 1, dims=(2, 4), lengths=(4, 8)),
            Grid(sgd(TINY, 5e-2, 2000), 1, dims=(2, 4), lengths=(4, 8)),
        ),
    },
    make=make,
    studies=Settings.studies,
    seconds={"paper": 7.5e4, "laptop": 82, "smoke": 15},
    caveat={
        "laptop": "width 64, learning rates 1e-3 (Adam) and 5e-2 (SGD), d ≤ 16, T = 8 and 32, 3 seeds",
        "smoke": "one layer and head of width 16, d ≤ 4, T ≤ 8, one seed",
    },
)
