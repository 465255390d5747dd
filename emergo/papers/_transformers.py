"""What the figures of trained Transformers share: their base, grids around it, and the panels that show plateaus."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from .._style import CENSORED, outside, shades, subtitle
from ..engine import Config, Optimizer
from ..measure import Law, Published
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


def plateaus_by(
    axes: Axes,
    table: pd.DataFrame,
    law: Law | None,
    by: str,
    label: str,
    x: str = "dim",
    legend: bool = True,
    means: bool = False,
    censored: bool | None = None,
) -> None:
    """Plateau against `x`, one colour per value of `by`: one dot per run, a line from the law (or through the means).

    Censored runs are hollow triangles at the last step observed; `censored` is whether the legend says so (None: where there
    are some).
    """
    values = sorted(table[by].unique())
    colours = shades(len(values))
    for value, colour in zip(values, colours, strict=True):
        rows = table[(table[by] == value) & (table["state"] != "failed")]
        reached, bounds = rows[~rows["censored"]], rows[rows["censored"]]
        axes.plot(reached[x], reached["plateau"], "o", color=colour, mec="white", mew=0.4, ms=4, alpha=0.9, zorder=3)
        axes.plot(bounds[x], bounds["plateau"], "^", color=colour, mfc="none", ms=5, zorder=3)
        if means:
            line = rows.groupby(x)["plateau"].mean()
            axes.plot(line.index, line, color=colour, lw=1.2)
        elif law is not None:
            for _, cell in rows.groupby([n for n in law.exponents if n != x and n in rows]):
                points = np.geomspace(cell[x].min(), cell[x].max(), 40)
                fixed = {n: cell[n].iloc[0] for n in law.exponents if n in cell}
                axes.plot(points, law.predict(pd.DataFrame(fixed | {x: points})), color=colour, lw=1.2)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(xlabel={"dim": "input dimension $d$", "length": "sequence length $T$"}[x], ylabel="plateau (steps)")
    if legend:
        entries = [(f"{v:g}", {"color": c, "marker": "o"}) for v, c in zip(values, colours, strict=True)]
        explained = any_censored(table) if censored is None else censored
        outside(axes, label, [*entries, CENSORED] if explained else entries)


def any_censored(*tables: pd.DataFrame) -> bool:
    """Whether some run of these tables is drawn as a hollow triangle."""
    return any(bool((table["censored"] & (table["state"] != "failed")).any()) for table in tables)


def law_words(law: Law | Published, names: Mapping[str, str]) -> str:
    """A law as it is written above a panel: its factors in the order of `names`, which says what they are called."""
    parts = " ".join(f"{names[n]}^{{{law.exponents[n]:.2f}}}" for n in names if n in law.exponents)
    return f"{law.C:.2f} ${parts}$, $R^2$ = {law.r2:.3f}"


def write_law(axes: Axes, law: Law | None, published: Published, names: Mapping[str, str]) -> None:
    """Two lines above a panel's data: our law and the published one."""
    ours = "not fitted" if law is None else law_words(law, names)
    subtitle(axes, f"ours: {ours}\npublished: {law_words(published, names)}")
