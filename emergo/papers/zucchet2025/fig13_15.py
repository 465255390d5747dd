"""Figures 13 to 15: the plateau for other depths and widths, other tasks, and SGD."""

import dataclasses
import math

import pandas as pd

from ...measure import Law, Published, fit_law
from ...study import Study
from ...tasks import SingleLocation
from ...training import Config, Optimizer
from .._figure import Check, Comparison, Figure, Outcome, Plot, RunSource, Studies
from .._panels import any_censored, law_panels, law_words, panels, plateaus_by
from ..transformers import PAPER, SMALL, TASK, TINY, Grid, shallow

DEPTH_LAW = Published(
    "Fig. 13", 1.03, {"dim": 1.27, "length": 0.70, "layers": 0.06, "heads": 0.16}, 0.995
)


def by_depth(grid: Grid, *models: tuple[int, int]) -> Studies:
    """Return a grid for models with each pair of `(layers, heads)`."""
    layers, heads = zip(*models, strict=True)
    return {"runs": grid.study().replace(zip={"layers": layers, "heads": heads})}


def make_13(studies: Studies, source: RunSource) -> Outcome:
    table = source.runs(studies)["runs"].table
    law = fit_law(table, x=["dim", "length", "layers", "heads"])
    more = law.exponents["heads"] - law.exponents["layers"]
    checks = [
        Check("exponent of heads less that of layers", more, "above 0: heads matter more", more > 0)
    ]
    laws = [Comparison("layers and heads", law, DEPTH_LAW)]
    return Outcome({"runs": table}, draw_13(table, law), laws, checks)


def draw_13(table: pd.DataFrame, law: Law) -> Plot:
    models = {
        f"layers: {layers}, heads: {heads}": runs
        for (heads, layers), runs in table.groupby(["heads", "layers"])
    }
    rows = len(models) // 3
    plot, grid = panels(2.1 * rows + 0.4, *models, rows=rows, share=True)
    hollow = any_censored(table)
    for axes, runs in zip(grid, models.values(), strict=True):
        plateaus_by(axes, runs, law, "length", "$T$" if axes is grid[-1] else None, hollow)
        axes.label_outer()
    names = {"dim": "d", "length": "T", "layers": "N_{layers}", "heads": "N_{heads}"}
    both = f"ours: {law_words(law, names)}      published: {law_words(DEPTH_LAW, names)}"
    plot.suptitle(both, fontsize=7.5, x=0.01, ha="left")
    return plot


QUICK = SMALL.replace(model__width=32, optimizer__learning_rate=2e-3)
FOUR = {"layers": (1, 1, 2, 1), "heads": (1, 1, 1, 2), "length": (4, 8, 4, 4)}
FIGURE_13 = Figure(
    "zucchet2025/fig13",
    "plateau of trained Transformers for numbers of layers and heads",
    {
        "paper": by_depth(
            Grid(PAPER, 5, (16, 32, 64), (64, 128, 256)),
            *((1, 1), (2, 1), (4, 1), (1, 4), (2, 4), (4, 4)),
        ),
        "laptop": by_depth(Grid(QUICK, 3, (4, 8), (8, 16)), (1, 1), (2, 1), (1, 4), (2, 4)),
        "smoke": {"runs": Study.of(TINY, grid={"dim": (2, 4)}, zip=FOUR, seeds=1)},
    },
    make_13,
    {"paper": 4e5, "laptop": 94, "smoke": 25},
)


FIXED = TASK.replace(position="fixed")
# The task and the law of each panel of Figure 14.
KINDS: dict[str, tuple[SingleLocation, Published]] = {
    "indicator, random position": (
        TASK,
        Published("Fig. 14 left", 1.43, {"dim": 1.31, "length": 0.58}, 0.998),
    ),
    "indicator, fixed position": (
        FIXED,
        Published("Fig. 14 middle", 4.20, {"dim": 1.22, "length": 0.29}, 0.996),
    ),
    "no indicator, fixed position": (
        FIXED.replace(indicator=False),
        Published("Fig. 14 right", 4.61, {"dim": 1.21, "length": 0.30}, 0.999),
    ),
}
ONE = shallow(PAPER)


@dataclasses.dataclass(frozen=True)
class KindGrid(Grid):
    base: Config = ONE

    def studies(self) -> dict[str, Study]:
        return {kind: self.study(self.base.replace(task=task)) for kind, (task, _) in KINDS.items()}


def make_14(settings: KindGrid, source: RunSource) -> Outcome:
    tables = {kind: runs.table for kind, runs in source.runs(settings.studies()).items()}
    plot, laws = law_panels(tables, {kind: law for kind, (_, law) in KINDS.items()}, list(KINDS))
    random, fixed, blind = (both.law.exponents["length"] for both in laws)
    position = "exponent of length, random over fixed position"
    without = "exponent of length at a fixed position, without over with the indicator"
    checks = [
        Check(position, random / fixed, 0.58 / 0.29, random > 1.5 * fixed),
        Check(without, blind / fixed, 0.30 / 0.29, abs(blind - fixed) < 0.1),
    ]
    named = {kind.replace(", ", "_").replace(" ", "_"): table for kind, table in tables.items()}
    return Outcome(named, plot, laws, checks)


FIGURE_14 = Figure(
    "zucchet2025/fig14",
    "plateau with and without the indicator, at random and fixed positions (one layer, one head)",
    {
        "paper": KindGrid(),
        "laptop": KindGrid(shallow(SMALL).replace(batch=32, steps=3000), 3, (4, 8, 16), (16, 64)),
        "smoke": KindGrid(TINY, 1, (2, 4), (4, 8)),
    },
    make_14,
    {"paper": 1.5e4, "laptop": 66, "smoke": 20},
)


OPTIMIZER_LAWS = {
    "sgd": Published("Fig. 15 left", 6.42, {"dim": 1.44, "length": 1.07}, 0.997),
    "adam": Published("Fig. 15 right", 1.45, {"dim": 1.31, "length": 0.57}, 0.998),
}


def make_15(studies: Studies, source: RunSource) -> Outcome:
    tables = {name: runs.table for name, runs in source.runs(studies).items()}
    words = {"sgd": "SGD", "adam": "Adam"}
    titles = [
        f"{words[name]}, learning rate {studies[name].base.optimizer.learning_rate:g}"
        for name in tables
    ]
    plot, laws = law_panels(tables, OPTIMIZER_LAWS, titles)
    if len(tables) < 2:  # a part of the figure
        return Outcome(tables, plot, laws)
    checks = gap_of(tables)
    for axis, printed in (("length", 0.50), ("dim", 0.13)):
        steeper = laws[0].law.exponents[axis] - laws[1].law.exponents[axis]
        near = abs(steeper - printed) < 0.15
        checks.append(Check(f"exponent of {axis}, SGD less Adam", steeper, printed, near))
    return Outcome(tables, plot, laws, checks)


def gap_of(tables: dict[str, pd.DataFrame]) -> list[Check]:
    """Compare SGD with Adam in the slowest cell for SGD in which all runs of both emerge."""
    both = pd.concat([tables[name].assign(optimizer=name) for name in OPTIMIZER_LAWS])
    plateaus = both["plateau"].where(both["state"] == "reached")
    cells = plateaus.groupby([both["dim"], both["length"], both["optimizer"]])
    means = cells.agg(lambda cell: cell.mean(skipna=False)).unstack().dropna()
    if means.empty:
        return []
    slowest = int(means["sgd"].argmax())
    dim, length = means.index[slowest]
    gap = means["sgd"].iloc[slowest] / means["adam"].iloc[slowest]
    sgd, adam = (law.at(dim=dim, length=length) for law in OPTIMIZER_LAWS.values())
    printed = float(sgd / adam)
    name = f"plateau of SGD over Adam at d = {dim}, T = {length}"
    return [Check(name, gap, printed, abs(math.log(gap / printed)) < math.log(1.5))]


def sgd(grid: Grid, learning_rate: float, steps: int) -> Study:
    return grid.study(grid.base.replace(optimizer=Optimizer("sgd", learning_rate), steps=steps))


ADAM = Grid(shallow(PAPER))
SLOW = Grid(shallow(PAPER), dims=(16, 32, 64), lengths=(32, 64, 128, 256))
MIDDLE = Grid(shallow(SMALL).replace(batch=32), 3, (4, 8, 16), (8, 32))
LITTLE = Grid(TINY, 1, (2, 4), (4, 8))
FIGURE_15 = Figure(
    "zucchet2025/fig15",
    "plateau under SGD and under Adam (one layer, one head)",
    {
        "paper": {"sgd": sgd(SLOW, 5e-3, 400_000), "adam": ADAM.study()},
        "laptop": {"sgd": sgd(MIDDLE, 5e-2, 8000), "adam": MIDDLE.study()},
        "smoke": {"sgd": sgd(LITTLE, 5e-2, 2000), "adam": LITTLE.study()},
    },
    make_15,
    {"paper": 7.5e4, "laptop": 82, "smoke": 15},
)
