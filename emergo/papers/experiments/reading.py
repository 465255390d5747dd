"""The setting behind Figure 4 of zucchet2025: norm, mask and initialisation are ambiguous there.

Table 1 says that associative recall uses no layer norm, Section 3.2 says that it does; the mask and
the initial weights are not stated. Each possible setting ("reading") is trained at small sizes and
compared with the published law.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd

from ...core.plotting import GREY, WIDTH, outside, plain_ticks
from ...study import Study
from ...training import Config
from .._figure import Check, Figure, Outcome, Plot, RunSource
from .._panels import colours_of, panels
from .._recall import CRITERIA, PAPER, SMALL, TINY, Criterion, emergence_table
from ..zucchet2025.fig4 import LAW
from ._shared import Look, entries, name_rows

# The changes of each reading to the first.
READINGS: Mapping[str, Mapping[str, str]] = {
    "no norm, causal": {},
    "norm before": {"model__norm": "pre"},
    "norm after": {"model__norm": "post"},
    "no mask": {"model__mask": "none"},
    "Xavier's start": {"model__initial": "xavier"},
    "normal start, 0.02": {"model__initial": "normal"},
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the figure; `cells`: pairs and tokens."""

    base: Config
    rates: tuple[float, ...] = (3e-5, 1e-4)
    seeds: int = 2
    cells: tuple[tuple[int, int], ...] = ((8, 64), (16, 64))
    readings: tuple[str, ...] = tuple(READINGS)

    def studies(self) -> dict[str, Study]:
        pairs, vocabularies = zip(*self.cells, strict=True)
        sizes = {"pairs": pairs, "vocabulary": vocabularies}
        rates = {"learning_rate": self.rates}
        return {
            name: Study.of(
                self.base.replace(**READINGS[name]), zip=sizes, grid=rates, seeds=self.seeds
            )
            for name in self.readings
        }


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies(), curves=True)
    # At these sizes guessing can pass the paper's criterion, so the law may belong to either one.
    frames = []
    for by in CRITERIA:
        for name, runs in parts.items():
            frames.append(emergence_table(runs, by).assign(reading=name, criterion=by))
    table = pd.concat(frames, ignore_index=True)
    table["law"] = LAW.at(vocabulary=table["vocabulary"], pairs=table["pairs"])
    means = table.groupby(["criterion", "reading", "learning_rate", "pairs", "vocabulary"]).agg(
        plateau=("plateau", "mean"), law=("law", "first"), censored=("censored", "sum")
    )
    means["factor"] = np.exp(np.abs(np.log(np.maximum(means["plateau"], 1) / means["law"])))
    return Outcome(
        {"runs": table, "means": means.reset_index()},
        draw(table, list(parts)),
        checks=[nearest(means, by) for by in CRITERIA],
        summary={"steps": summary(table)},
    )


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Tabulate the steps of each seed by both criteria, None if censored, and the published law."""
    rows = []
    cells = table.groupby(["reading", "learning_rate", "pairs"], sort=False)
    for (reading, rate, pairs), cell in cells:
        row = {"reading": reading, "rate": rate, "pairs": pairs, "law": float(cell["law"].iloc[0])}
        for by, name in CRITERIA.items():
            seeds = cell[cell["criterion"] == by]
            times = zip(seeds["plateau"], seeds["censored"], strict=True)
            row[name] = [None if late else step for step, late in times]
        rows.append(row)
    return pd.DataFrame(rows)


def nearest(means: pd.DataFrame, by: Criterion) -> Check:
    """Find the reading and rate without censored runs whose times are nearest to the law."""
    rows = means.xs(by, level="criterion")
    factors = rows["factor"].where(rows["censored"] == 0, np.inf)
    off = factors.groupby(level=["reading", "learning_rate"]).max()
    reading, rate = off.index[int(off.argmin())]
    name = (
        f"{CRITERIA[by]}: nearest reading ({reading}, learning rate {rate:g}): largest factor "
        f"between its times and the law"
    )
    return Check(name, off.min(), None, off.min() < 1.5, "below 1.5")


def draw(table: pd.DataFrame, readings: list[str]) -> Plot:
    cells = list(table.groupby(["pairs", "vocabulary"]))
    titles = [f"{pairs} pairs, {vocabulary} tokens" for (pairs, vocabulary), _ in cells]
    plot, row = panels(0.35 * len(readings) + 1.2, *titles, width=WIDTH * 0.8, share=True)
    colours = colours_of(table["learning_rate"])
    for axes, (_, rows) in zip(row, cells, strict=True):
        for shift, (rate, colour) in enumerate(colours.items()):
            for (criterion, late), some in rows[rows["learning_rate"] == rate].groupby(
                ["criterion", "censored"]
            ):
                fill = colour if criterion == "corrected" else "none"
                look: Look = {"marker": ">" if late else "o", "ls": "", "mfc": fill}
                heights = some["reading"].map(readings.index) + 0.2 * shift
                axes.plot(some["plateau"], heights, color=colour, **look)
        axes.axvline(rows["law"].iloc[0], color=GREY, ls="--", lw=1)
        axes.set(xscale="log", xlabel="emergence (steps)")
        plain_ticks(axes.xaxis, "{x:,.0f}")
    name_rows(row[0], readings)
    dot: Look = {"marker": "o", "ls": ""}
    marks = [
        *entries(colours, **dot),
        ("5%", dot | {"mfc": "none"}),
        ("corrected", dot),
        ("later, or not", {"marker": ">", "ls": ""}),
        ("published\nlaw", {"ls": "--"}),
    ]
    outside(row[-1], "learning rate", marks)
    return plot


THREE = ("no norm, causal", "norm before", "no mask")
FIGURE = Figure(
    "emergo/reading",
    "which norm, mask and start of the recall Transformer gives the published emergence times",
    {
        "paper": Settings(PAPER.replace(model__initial="pytorch", steps=40_000)),
        "laptop": Settings(SMALL.replace(steps=2000), (1e-3,), cells=((4, 16),), readings=THREE),
        "smoke": Settings(TINY, (1e-2,), cells=((3, 6),), readings=("no norm, causal", "no mask")),
    },
    make,
    {"paper": 1e6, "laptop": 68, "smoke": 10},
    curves=True,
)
