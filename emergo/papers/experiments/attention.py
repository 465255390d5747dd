"""Forms of attention: their plateaus, and the laws of these plateaus.

All forms are trained on the same task. Models have one layer with one head, except for the runs
borrowed from other figures and for windows, which need two layers to reach every position. A run
*has a plateau* if it spends more than half of its time to the threshold on it
(`measure.plateau_share`). This definition, the forms and the expectations were written down before
the runs were trained.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ...core.errors import InputError
from ...core.plotting import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    key,
    over,
    subtitle,
)
from ...measure import Law, find_stages, fit_law, judge, mean_ratio, plateau_share
from ...study import Runs, Study
from ...training import Config, Result
from .._figure import Check, Comparison, Figure, Outcome, Plot, RunSource
from .._panels import colours_of, panels
from .._source import curve
from ..transformers import PAPER, SMALL, TINY, shallow
from ..zucchet2025.fig13_15 import FIXED, SLOW, sgd
from ._shared import (
    DOT,
    TERMS,
    Look,
    draw_curve,
    draw_interval,
    entries,
    geometric_mean,
    name_rows,
    whole_cells,
)

# The changes of each form to the base model.
FORMS: Mapping[str, Mapping[str, Any]] = {
    "softmax": {},
    "linear": {"model__attention": "linear"},
    "sigmoid": {"model__attention": "sigmoid"},
    "norm before": {"model__norm": "pre"},
    "rotary positions": {"model__positions": "rope"},
    "positional bias": {"model__attention": "biased"},
    "top 8 scores": {"model__top_k": 8},
    "learned temperature": {"model__temperature": "learned"},
}
COLOURS = dict(zip(FORMS, (BLACK, RED, ORANGE, GREEN, BLUE, SKY, PINK, GREY), strict=True))
# Wide lines stay visible under the curves of forms that coincide with them.
LINE_WIDTHS = {"softmax": 3.4, "positional bias": 2.2}
# Forms that should not change the plateau: they add a term that starts at zero, or rotate queries
# and keys alike.
NEUTRAL = ("rotary positions", "positional bias", "learned temperature")
# Settings of Figures 3, 14 and 15 of zucchet2025, at the same sizes; their runs are reused.
BORROWED = {
    "two layers, four heads": PAPER,
    "fixed position": shallow(PAPER).replace(task=FIXED),
    "SGD": sgd(SLOW, 5e-3, 400_000).base,
}
FIXED_FORM = "positions alone, fixed position"
SHARE = 0.5
SAME = 0.15
NEAR = (0.8, 1.25)
# Limits of the plateau relative to softmax, by form.
EXPECTED: Mapping[str, tuple[float, float, str]] = {
    "linear": (
        *(1.0, np.inf),
        "above 1: without an exponential the escape is slower, by a logarithm",
    ),
    **dict.fromkeys(NEUTRAL, (*NEAR, f"{NEAR[0]} to {NEAR[1]}: it does not touch the mechanism")),
    "top 8 scores": (
        *(NEAR[0], np.inf),
        f"above {NEAR[0]}: at the start the relevant token is seen rarely, and then more",
    ),
}
CELL = ["dim", "length"]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the figure.

    - `deep`, `windows`: a base with two layers and its attention windows.
    - `borrow`: also show runs of other figures.
    """

    base: Config
    forms: tuple[str, ...] = tuple(FORMS)
    dims: tuple[int, ...] = (16, 32, 64)
    lengths: tuple[int, ...] = (32, 128)
    seeds: int = 5
    deep: Config | None = None
    windows: tuple[int, ...] = ()
    borrow: bool = False

    def grid(self, base: Config, seeds: int) -> Study:
        return Study.of(base, grid={"length": self.lengths, "dim": self.dims}, seeds=seeds)

    def own(self) -> dict[str, Study]:
        """Return the runs that are drawn with their curves."""
        parts = {
            form: self.grid(self.base.replace(**FORMS[form]), self.seeds) for form in self.forms
        }
        if self.deep is not None:
            parts["windows"] = Study.of(self.deep, grid={"window": self.windows}, seeds=self.seeds)
        if self.borrow:
            positional = self.base.replace(task=FIXED, model__attention="positional")
            parts[FIXED_FORM] = self.grid(positional, self.seeds)
        return parts

    def borrowed(self) -> dict[str, Study]:
        return {name: self.grid(base, 5) for name, base in BORROWED.items() if self.borrow}

    def studies(self) -> dict[str, Study]:
        return self.own() | self.borrowed()


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.own(), curves=True)
    windows = parts.pop("windows", None)
    tables = {name: with_shares(runs) for name, runs in parts.items()}
    every = dict(tables)
    if settings.borrow:
        borrowed = source.runs(settings.borrowed())
        every |= {name: runs.table for name, runs in borrowed.items()}
    laws = {name: law for name, table in every.items() if (law := law_of(table)) is not None}
    frames = [table.assign(form=name) for name, table in every.items()]
    out = {"runs": pd.concat(frames, ignore_index=True), "forms": summary(tables, laws)}
    checks = [*form_checks(tables, laws)]
    if windows is not None:
        out["windows"] = window_table(windows)
        checks += window_checks(out["windows"])
    plot = draw(parts, tables, laws, windows, settings)
    return Outcome(out, plot, [Comparison(name, law) for name, law in laws.items()], checks)


def with_shares(runs: Runs) -> pd.DataFrame:
    """Add the column `share`: the plateau over the time to the threshold."""
    shares = [
        plateau_share(curve(r, "step"), curve(r, "loss"), float(r.run.config.threshold or 0))
        for r in runs
    ]
    return runs.table.assign(share=shares)


def law_of(table: pd.DataFrame) -> Law | None:
    """Fit the law of dim and length, or return None if the runs do not determine it."""
    reached = table[table["state"] == "reached"]
    terms = [name for name in CELL if len(set(reached[name])) > 1]
    try:
        return fit_law(table, x=terms) if terms else None
    except InputError:
        return None


def summary(tables: Mapping[str, pd.DataFrame], laws: Mapping[str, Law]) -> pd.DataFrame:
    """Summarise each form: runs, plateau in the largest cell, and exponents."""
    rows = []
    for name, table in tables.items():
        last = hardest(table)
        reached = int((table["state"] == "reached").sum())
        row: dict[str, Any] = {"form": name, "runs": len(table), "reached": reached}
        row |= {size: last[size].iloc[0] for size in CELL if len(last)}
        row |= {"plateau": last["plateau"].mean(), "share": last["share"].mean()}
        row |= {"least_share": last["share"].min()}
        for term in CELL:
            fit = (np.nan, np.nan, np.nan)
            if name in laws and term in laws[name].exponents:
                fit = laws[name].exponents[term], *laws[name].ci95[term]
            row |= dict(zip((f"by_{term}", f"{term}_low", f"{term}_high"), fit, strict=True))
        rows.append(row)
    return pd.DataFrame(rows)


def hardest(table: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the cell with the largest dim times length whose runs all emerged."""
    whole = whole_cells(table, CELL)
    size = whole["dim"] * whole["length"]
    largest = whole[size == size.max()]
    return largest[largest["length"] == largest["length"].max()]


def ratios_by_cell(table: pd.DataFrame, reference: pd.DataFrame) -> pd.Series:
    """Return the ratios of plateaus of two forms, paired by seed, by cell and seed.

    Cells count in which all runs of both forms emerged.
    """
    plateau, of_reference = (
        whole_cells(each, CELL).set_index([*CELL, "seed"])["plateau"].astype(float)
        for each in (table, reference)
    )
    return (plateau / of_reference).dropna()


def form_checks(tables: Mapping[str, pd.DataFrame], laws: Mapping[str, Law]) -> Iterator[Check]:
    shares = {name: hardest(table)["share"].mean() for name, table in tables.items()}
    means = pd.Series(shares).dropna()
    if len(means):
        share = means.min()
        yield Check(
            f"share of the plateau in the time to the threshold, largest cell, least over "
            f"{len(means)} forms ({means.idxmin()})",
            share,
            None,
            share > SHARE,
            "above 0.5: every form has a plateau",
        )
    if "softmax" not in tables:
        return
    for form, (low, high, words) in EXPECTED.items():
        if form not in tables:
            continue
        ratios = ratios_by_cell(tables[form], tables["softmax"])
        if len(ratios):
            factor = mean_ratio(ratios, ratios.droplevel("seed").index)
            cells = ratios.groupby(level=CELL).agg(geometric_mean)
            yield Check(
                f"plateau with {form} over that of softmax, interval over {factor.units} "
                f"({cells.min():.2f} to {cells.max():.2f} by cell)",
                [factor[:3]],
                None,
                judge(factor.times, factor[1:3], low, high),
                words,
            )
    if "sigmoid" in laws and "softmax" in laws:
        mine = laws["sigmoid"].exponents
        theirs = laws["softmax"].exponents
        apart = max(abs(mine[term] - theirs[term]) for term in mine if term in theirs)
        yield Check(
            "largest difference between the exponents of sigmoid and softmax",
            apart,
            None,
            apart < SAME,
            f"below {SAME}: the same flow to leading order",
        )


def window_table(runs: Runs) -> pd.DataFrame:
    """Tabulate runs with a window: the number of drops, and the loss after the first of several.

    The loss is relative to that at the start; `hidden` is the fraction of sequences whose relevant
    token is out of the last position's reach.
    """
    rows = []
    for result, row in zip(runs, runs.table.to_dict("records"), strict=True):
        drops = find_stages(curve(result, "step"), curve(result, "loss"))
        start = float(np.median(curve(result, "loss")[:5]))
        after = drops[0].after / start if len(drops) > 1 else np.nan
        hidden = 1 - row["window"] / row["length"]
        rows.append(row | {"drops": len(drops), "hidden": hidden, "after": after})
    return pd.DataFrame(rows)


def window_checks(stages: pd.DataFrame) -> Iterator[Check]:
    for window, rows in stages.groupby("window"):
        several = rows[rows["drops"] > 1]
        count = len(several)
        yield Check(
            f"window of {window}: runs that fall in more than one step, of {len(rows)}",
            count,
            None,
            count == len(rows),
            "all: what is out of reach needs both layers",
        )
        if count:
            off = geometric_mean(several["after"] / several["hidden"])
            yield Check(
                f"window of {window}: loss after the first step over the share of sequences "
                f"out of reach",
                off,
                None,
                NEAR[0] < off < NEAR[1],
                f"{NEAR[0]} to {NEAR[1]}",
            )


def draw(
    parts: Mapping[str, Runs],
    tables: Mapping[str, pd.DataFrame],
    laws: Mapping[str, Law],
    windows: Runs | None,
    settings: Settings,
) -> Plot:
    names = list(dict.fromkeys([*tables, *laws]))
    titles = (
        *("a  the loss over time", "b  attention within a window"),
        *("c  exponents of the plateau", "d  how much of the time is a plateau"),
    )
    plot, (a, b, c, d) = panels(6.4, *titles, rows=2, y=1.07)
    draw_forms(a, parts, settings)
    if windows is not None:
        draw_windows(b, windows)
    for axes in (a, b):
        axes.set(xscale="log", xlabel="step", ylabel="test loss", ylim=(0, 0.65))
    draw_exponents(c, names, laws)
    draw_shares(d, names, tables)
    name_rows(c, names)
    name_rows(d, [""] * len(names))
    return plot


def draw_forms(axes: Axes, parts: Mapping[str, Runs], settings: Settings) -> None:
    """Draw the loss of the first seed of every form in the largest cell."""
    largest = settings.dims[-1], settings.lengths[-1]
    drawn = {}
    for name, runs in parts.items():
        for result in runs if name in FORMS else ():
            if result.run.seed == 0 and sizes_of(result) == largest:
                drawn[name] = COLOURS[name]
                width = LINE_WIDTHS.get(name, 1.2)
                draw_curve(axes, result, "loss", color=COLOURS[name], lw=width)
    subtitle(axes, f"$d$ = {largest[0]}, $T$ = {largest[1]}, first seed")
    key(axes, entries(drawn), loc="lower left")


def sizes_of(result: Result) -> tuple[int, int]:
    task: Any = result.run.config.task
    return task.dim, task.length


def draw_windows(axes: Axes, runs: Runs) -> None:
    """Draw the loss of every run by window, with the level set by unreachable tokens (dotted)."""
    windows = runs.table["window"]
    colours = colours_of(windows)
    dim, length = sizes_of(runs[0])
    for result, window in zip(runs, windows, strict=True):
        draw_curve(axes, result, "loss", color=colours[window], lw=1)
        axes.axhline(0.5 * (1 - window / length), color=colours[window], lw=0.8, ls=":")
    subtitle(axes, f"$d$ = {dim}, $T$ = {length}; dotted: what is out of reach")
    place = {"loc": "lower left", "bbox_to_anchor": (0, 0.42)}  # above the dotted lines
    key(axes, entries(colours), title="window", **place)


def draw_exponents(axes: Axes, names: Sequence[str], laws: Mapping[str, Law]) -> None:
    """Draw the exponents of each form with their intervals; dotted: exponents of the flow."""
    for term, flow, shift in (("dim", 0.5, -0.13), ("length", 1.0, 0.13)):
        for name, law in laws.items():
            if term in law.exponents:
                height = names.index(name) + shift
                draw_interval(axes, law.exponents[term], law.ci95[term], height, TERMS[term])
        axes.axvline(flow, color=TERMS[term], lw=0.8, ls=":")
    axes.set_xlabel("exponent, with its 95% interval")
    colours = dict(zip(("of $d$", "of $T$"), TERMS.values(), strict=True))
    over(axes, [*entries(colours, marker="o"), ("the toy model's flow", {"ls": ":"})])


def draw_shares(axes: Axes, names: Sequence[str], tables: Mapping[str, pd.DataFrame]) -> None:
    """Draw the plateau's share of the time to the threshold, for each run and the largest cell."""
    mean: Look = {"marker": "D", "ls": ""}
    for name, table in tables.items():
        colour = COLOURS.get(name, GREY)
        height = names.index(name)
        axes.plot(table["share"], [height] * len(table), color=colour, **DOT)
        axes.plot(hardest(table)["share"].mean(), height, color=colour, **mean)
    axes.axvline(SHARE, color=GREY, lw=0.8, ls=":")
    axes.set(xlabel="share of the time to the threshold", xlim=(0, 1))
    over(axes, [("one run", DOT), ("mean of the largest cell", mean)])


DEEP = PAPER.replace(task__length=64, task__dim=32, steps=20_000, threshold=0.05)
SMALL_BASE = shallow(SMALL).replace(batch=32, optimizer__learning_rate=5e-4, steps=3000)
PAPER_BASE = shallow(PAPER).replace(steps=20_000)
FIGURE = Figure(
    "emergo/attention",
    "which forms of attention have a plateau, and by which law",
    {
        "paper": Settings(PAPER_BASE, deep=DEEP, windows=(32, 48), borrow=True),
        "laptop": Settings(SMALL_BASE, ("softmax", "linear", "sigmoid"), (4, 16), (8, 32), 3),
        "smoke": Settings(TINY, ("softmax", "sigmoid"), (2, 4), (4, 8), 1),
    },
    make,
    {"paper": 2e5, "laptop": 50, "smoke": 12},
    curves=True,
    outcomes=tuple(BORROWED),
)
