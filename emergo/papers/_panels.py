"""Parts of plots that several figures share: colours and legends, plateaus with a law, curves."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import NullFormatter

from ..core.plotting import CENSORED, WIDTH, Picture, doubling, hues, outside, shades, subtitle
from ..measure import Law, Published, fit_law
from ..training import Result
from ._figure import Comparison
from ._source import curve

Colours = dict[Any, Any]
SIZES = ("length", "burst", "repeat", "layers", "heads")
"""The fields of a cell, other than dim, at which a law is drawn."""


def colours_of(values: Iterable[Any], of: str = "length", apart: bool = False) -> Colours:
    """Return a colour for each value, in order.

    **Arguments:**

    - `of`: the parameter that the values belong to; see [`emergo.core.plotting.shades`][].
    - `apart`: make colours differ more, for curves that lie close together.
    """
    ordered = sorted(set(values))
    chosen = hues(len(ordered)) if apart else shades(len(ordered), of)
    return dict(zip(ordered, chosen, strict=True))


def panels(
    height: float,
    *titles: str,
    rows: int = 1,
    width: float = WIDTH,
    y: float | None = None,
    share: bool | Literal["row"] = False,
) -> tuple[Plot, Any]:
    """Create a plot with one panel per title.

    **Arguments:**

    - `height`, `width`: size in inches.
    - `rows`: the number of rows of panels.
    - `y`: the height of the titles.
    - `share`: whether all panels, or all panels of a row, share their y-axis.
    """
    plot = Picture(figsize=(width, height), layout="constrained")
    every = plot.subplots(rows, len(titles) // rows, sharey=share, squeeze=False).ravel()
    for axes, title in zip(every, titles, strict=True):
        axes.set_title(title, y=y)
    return plot, every


def lines_by(
    axes: Axes, table: pd.DataFrame, by: str, x: str, y: str, colours: Colours, **look: Any
) -> None:
    """Draw one line per value of a column."""
    for value, colour in colours.items():
        rows = table[table[by] == value]
        axes.plot(rows[x], rows[y], color=colour, **look)


def legend(
    axes: Axes, title: str, colours: Colours, *more: tuple[str, dict[str, Any]], **look: Any
) -> None:
    """Explain the colours, and the entries `more`, next to a panel."""
    names = [value if isinstance(value, str) else f"{value:g}" for value in colours]
    outside(
        axes,
        title,
        [
            *((name, {"color": c} | look) for name, c in zip(names, colours.values(), strict=True)),
            *more,
        ],
    )


def plateaus_by(
    axes: Axes,
    table: pd.DataFrame,
    law: Law | None,
    by: str,
    label: str | None,
    censored: bool | None = None,
) -> None:
    """Draw plateau against dim, one colour per value of `by`, one dot per run, and lines.

    Censored runs are hollow triangles.

    **Arguments:**

    - `law`: the law of the lines; None draws lines through the means.
    - `label`: the title of the legend; None draws no legend.
    - `censored`: whether the legend explains triangles; by default if a run is censored.
    """
    colours = colours_of(table[by], by)
    for value, colour in colours.items():
        rows = (
            table[(table[by] == value) & (table["state"] != "failed")]
            if "state" in table
            else table[table[by] == value]
        )
        reached = rows[~rows["censored"]]
        bounds = rows[rows["censored"]]
        axes.plot(
            reached["dim"],
            reached["plateau"],
            "o",
            color=colour,
            mec="white",
            mew=0.4,
            ms=4,
            alpha=0.9,
            zorder=3,
        )
        axes.plot(bounds["dim"], bounds["plateau"], "^", color=colour, mfc="none", ms=5, zorder=3)
        if law is None:
            line = rows.groupby("dim")["plateau"].mean()
            axes.plot(line.index, line, color=colour, lw=1.2)
            continue
        for _, cell in rows.groupby([name for name in SIZES if name in rows]):
            dims = np.geomspace(cell["dim"].min(), cell["dim"].max(), 40)
            fixed = {name: cell[name].iloc[0] for name in SIZES if name in cell}
            axes.plot(dims, law.predict(pd.DataFrame(fixed | {"dim": dims})), color=colour, lw=1.2)
    doubling(axes)
    axes.set(
        yscale="log",
        xlabel="input dimension $d$",
        ylabel=f"plateau ({'flow time' if 'flow' in table else 'steps'})",
    )
    if label is not None:
        explained = any_censored(table) if censored is None else censored
        legend(axes, label, colours, *[CENSORED] * explained, marker="o")


def any_censored(*tables: pd.DataFrame) -> bool:
    """Return True if a run of these tables is drawn as a hollow triangle."""
    return any(
        bool((table["censored"] & (table.get("state") != "failed")).any()) for table in tables
    )


def law_words(law: Law | Published, names: Mapping[str, str], digits: int = 3) -> str:
    """Format a law for the heading of a panel.

    `names` maps the factors to symbols and sets their order.
    """
    parts = " ".join(f"{names[n]}^{{{law.exponents[n]:.2f}}}" for n in names if n in law.exponents)
    return f"{law.C:.2f} ${parts}$, $R^2$ = {law.r2:.{digits}f}"


def law_lines(both: Comparison, names: Mapping[str, str]) -> str:
    """Format our law and the published one on two lines."""
    published = f"\npublished: {law_words(both.published, names)}" if both.published else ""
    return f"ours: {law_words(both.law.best, names)}{published}"


def law_panels(
    tables: Mapping[str, pd.DataFrame], published: Mapping[str, Published], titles: Sequence[str]
) -> tuple[Plot, list[Comparison]]:
    """Draw plateaus of trained Transformers by length, one panel per table, with their laws."""
    plot, row = panels(2.8, *titles, width=WIDTH * min(1, 0.375 * len(tables)), y=1.13, share=True)
    laws = []
    hollow = any_censored(*tables.values())
    last = list(tables.values())[-1]
    for axes, (name, table) in zip(row, tables.items(), strict=True):
        laws.append(Comparison(name, fit_law(table, x=["dim", "length"]), published[name]))
        # One legend serves all panels with the same lengths.
        own = table is last or set(table["length"]) != set(last["length"])
        plateaus_by(axes, table, laws[-1].law.best, "length", "$T$" if own else None, hollow)
        subtitle(axes, law_lines(laws[-1], {"dim": "d", "length": "T"}))
    for axes in row[1:]:
        axes.set_ylabel("")
    return plot, laws


def curves_by(
    axes: Axes,
    results: Sequence[Result],
    by: str,
    name: str,
    label: str | None,
    apart: bool = False,
) -> Colours:
    """Draw a curve against step, one colour per value of a task's field; return the colours.

    Each run is one line. Step 0 is left out.
    """
    colours = colours_of((getattr(result.run.config.task, by) for result in results), by, apart)
    for result in results:
        colour = colours[getattr(result.run.config.task, by)]
        values = strongest(result, name)
        axes.plot(curve(result, "step")[1:], values[1:], color=colour, lw=1, alpha=0.85)
    axes.set(xscale="log", xlabel="step")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if label is not None:
        legend(axes, label, colours)
    return colours


def strongest(result: Result, name: str) -> np.ndarray:
    """Return a curve; for a curve per layer and head, pick the head with the largest final
    value."""
    values = curve(result, name)
    heads = values.reshape(len(values), -1)
    return heads[:, int(np.argmax(heads[-1]))]
