"""What the figures of trained Transformers share: grids of runs, tables of their plateaus, and the panels that show them."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from .._style import GREY, outside, shades
from ..engine import Config, Optimizer, Precision
from ..measure import Law
from ..models import Transformer
from ..studies import Result, result_row
from ..tasks import SingleLocation

TASK = SingleLocation(2, 1, position="random", indicator=True, special="draw")
"""The task of B.1; length and dim are set by the grids."""


def config(
    model: Transformer,
    optimizer: Optimizer,
    *,
    batch: int = 32,
    precision: Precision = "fp32",
    steps: int = 50_000,
    threshold: float = 0.1,
    beyond: float = 0.0,
    task: SingleLocation = TASK,
) -> Config:
    """A config whose task is filled in by [`grid_runs`][]."""
    return Config(task, model, optimizer, batch, precision, steps, threshold, beyond)


def run_table(results: Sequence[Result]) -> pd.DataFrame:
    """A row a run."""
    return pd.DataFrame([result_row(result) for result in results])


def plateaus_by(
    axes: Axes,
    table: pd.DataFrame,
    law: Law | None,
    by: str,
    label: str,
    x: str = "dim",
    legend: bool = True,
    means: bool = False,
) -> None:
    """Plateau against `x`, one colour a value of `by`: a dot a run, a line from the law (or through the means).

    Censored runs are hollow triangles at the last step observed.
    """
    values = sorted(table[by].unique())
    colours = shades(len(values))
    for value, colour in zip(values, colours, strict=True):
        rows = table[(table[by] == value) & (table["state"] != "failed")]
        seen, open_ended = rows[~rows["censored"]], rows[rows["censored"]]
        axes.plot(seen[x], seen["plateau"], "o", color=colour, mec="white", mew=0.4, ms=4, alpha=0.9, zorder=3)
        axes.plot(open_ended[x], open_ended["plateau"], "^", color=colour, mfc="none", ms=5, zorder=3)
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
        outside(axes, label, [(f"{v:g}", {"color": c, "marker": "o"}) for v, c in zip(values, colours, strict=True)])


def write_law(axes: Axes, law: Law | None, published: str, names: dict[str, str]) -> None:
    """Two lines above a panel's data: our law and the published one."""
    ours = "ours: not fitted"
    if law is not None:
        parts = " ".join(f"{names[n]}^{{{law.exponents[n]:.2f}}}" for n in names if n in law.exponents)
        ours = f"ours: {law.C:.2f} ${parts}$, $R^2$ = {law.r2:.3f}"
    axes.text(0.0, 1.01, f"{ours}\npublished: {published}", transform=axes.transAxes, va="bottom", fontsize=6.5, color=GREY)
