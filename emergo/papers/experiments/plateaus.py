"""The flow of the toy model: formulas for its plateau over six decades of √d·T; its reduction."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ... import theory
from ...core.plotting import BLACK, BLUE, GREY, ORANGE, WIDTH, doubling, key, plain_ticks, subtitle
from ...measure import Law, Published, fit_law
from .._figure import Check, Comparison, Figure, Outcome, Plot, RunSource
from .._panels import colours_of, panels
from .._plateaus import plateau_table
from ..zucchet2025.fig1_2 import IN_CONTEXT
from ._shared import Look, entries

DECADES = (2, 8)  # of √d·T
DIM = 64
# Colours by burst and repeat.
REPETITIONS = {(4, 0.0): BLUE, (1, 0.1): ORANGE, (4, 0.1): BLACK}
OURS: Look = {"marker": "o", "ms": 3, "lw": 1}
THEIRS: Look = {"marker": "s", "ls": "--", "ms": 3, "lw": 1, "mfc": "white"}


@dataclasses.dataclass(frozen=True)
class Settings:
    dims: tuple[int, ...] = (4, 16, 64, 256)
    per_decade: int = 4


def make(settings: Settings, source: RunSource) -> Outcome:
    size = np.logspace(*DECADES, settings.per_decade * (DECADES[1] - DECADES[0]) + 1)

    def column(dim: int, burst: int, repeat: float, flow: theory.Flow) -> pd.DataFrame:
        lengths = np.unique(np.round(size / np.sqrt(dim)))
        return plateau_table(theory.cells(lengths[lengths > burst + 1], dim, burst, repeat), flow)

    frames = [column(dim, 1, 0.0, "reduced") for dim in settings.dims]
    source.report("with repetition", 0.5)
    frames += [column(DIM, burst, repeat, "exact") for burst, repeat in REPETITIONS]
    table = pd.concat(frames, ignore_index=True)
    table["size"] = np.sqrt(table["dim"]) * table["length"]
    table["over_predicted"] = table["plateau"] / table["predicted"]
    table["over_escape_linear"] = table["plateau"] / table["escape_linear"]
    checks = [*checks_of(table, settings)]
    return Outcome({"plateaus": table}, draw(table, settings), checks=checks)


def checks_of(table: pd.DataFrame, settings: Settings) -> Iterator[Check]:
    ordered = table.sort_values("size")
    plain = ordered[ordered["flow"] == "reduced"]
    largest = plain.groupby("dim").last()
    ours = largest["over_predicted"]
    theirs = largest["over_escape_linear"]
    # To next order, the plateau exceeds the closed form by the fraction
    # (1 - pi/4) / sqrt(pi/2) / sqrt(d) (docs/theory.md).
    excess = (ours.iloc[-1] - 1) * np.sqrt(ours.index[-1])
    next_order = (1 - np.pi / 4) / np.sqrt(np.pi / 2)
    onset = plain["size"][(plain["over_predicted"] - 1).abs() > 0.1].max()
    repeated = ordered[(ordered["burst"] > 1) & (ordered["repeat"] > 0)]
    both = repeated["over_predicted"].iloc[-1]
    dims = f"dims {', '.join(map(str, settings.dims))}"
    yield Check(
        f"plateau over our formula at the largest size, {dims}",
        ours,
        None,
        (ours - 1).abs().max() < 0.1,
        "within 10% of 1",
    )
    yield Check(
        "its excess over 1, times √d, at the largest dim",
        excess,
        None,
        abs(excess / next_order - 1) < 0.1,
        f"{next_order:.3f}, derived to next order, within 10%",
    )
    yield Check(
        f"plateau over the paper's formula at the largest size, {dims}",
        theirs,
        None,
        (theirs - 1).abs().max() < 0.25,
        "1 if the formula gave the time; held to within 25%",
    )
    yield Check(
        f"largest √d·T on the grid at which our formula is off by over 10%, {dims}",
        onset,
        None,
        onset < 1e4,
        "below 10,000",
    )
    yield Check(
        "plateau over our formula with both repetitions, at the largest size",
        both,
        None,
        abs(both - 1) < 0.05,
        "within 5% of 1",
    )


def draw_ratios(axes: Axes, rows: pd.DataFrame, colour: Any) -> None:
    axes.plot(rows["size"], rows["over_predicted"], color=colour, **OURS)
    axes.plot(rows["size"], rows["over_escape_linear"], color=colour, **THEIRS)


def draw(table: pd.DataFrame, settings: Settings) -> Plot:
    titles = "a  reduced flow, no repetition", f"b  exact flow with repetition, $d$ = {DIM}"
    plot, (a, b) = panels(2.9, *titles, share=True)
    table = table.sort_values("size")
    dims = colours_of(settings.dims, "dim")
    for dim, colour in dims.items():
        draw_ratios(a, table[(table["flow"] == "reduced") & (table["dim"] == dim)], colour)
    exact = table[table["flow"] == "exact"]
    for (burst, repeat), colour in REPETITIONS.items():
        rows = exact[(exact["burst"] == burst) & (exact["repeat"] == repeat)]
        draw_ratios(b, rows, colour)
    for axes in (a, b):
        axes.axhline(1, color=GREY, lw=0.8)
        axes.set(xscale="log", yscale="log", xlabel=r"$\sqrt{d}\,T$", ylim=(0.08, 7))
        plain_ticks(axes.yaxis)
    a.set_ylabel("integrated plateau / formula")
    key(a, entries({f"$d$ = {d}": c for d, c in dims.items()}), loc="upper right", ncols=2)
    names = {f"$B$ = {n}, $p$ = {p:g}": c for (n, p), c in REPETITIONS.items()}
    key(b, entries(names), loc="upper right")
    ours = r"over $\sqrt{\pi/2}/\lambda$ (ours)"
    key(b, [(ours, OURS), ("over the arcsinh formula (A.3.2)", THEIRS)], loc="lower left")
    return plot


CLOSED_FORM = Figure(
    "emergo/closed-form",
    "integrated plateau over the paper's formula and over ours, across six decades of √d·T",
    {"paper": Settings(), "smoke": Settings(dims=(16, 64), per_decade=1)},
    make,
    {"paper": 10, "smoke": 9},
)


@dataclasses.dataclass(frozen=True)
class Bursts:
    length: int = 1024
    dim: int = 16
    bursts: tuple[int, ...] = (1, 2, 4, 8, 16, 32)


def make_bursts(settings: Bursts, source: RunSource) -> Outcome:
    cell = theory.cells(settings.length, settings.dim, settings.bursts)
    reduced = plateau_table(cell, "reduced")
    exact = plateau_table(cell, "exact")
    source.report("the full model", 0.5)
    whole = theory.full_plateau(cell)
    full = exact.assign(flow="full", plateau=whole.time, censored=whole.censored)
    table = pd.concat([reduced, exact, full], ignore_index=True)
    constant = float(IN_CONTEXT.at(length=settings.length, burst=1, dim=settings.dim))
    published = Published("Fig. 2 left at this length and dim", constant, {"burst": -0.99}, 0.999)
    flows = table.groupby("flow", sort=False)
    laws = {str(name): fit_law(rows, x=["burst"]) for name, rows in flows}
    comparisons = [Comparison(name, law, published) for name, law in laws.items()]
    apart = np.max(np.abs(full["plateau"] / exact["plateau"] - 1))
    ratio = reduced["plateau"].iloc[-1] / full["plateau"].iloc[-1]
    same = "largest relative difference between the exact flow and the full model"
    less = "plateau of the reduced flow over the full model's at the largest burst"
    checks = [
        Check(same, apart, None, apart < 1e-6, "below 1e-6"),
        Check(less, ratio, 1.0, abs(ratio - 1) < 0.1),
    ]
    return Outcome({"plateaus": table}, draw_bursts(table, laws, settings), comparisons, checks)


BURST_LOOKS: Mapping[str, tuple[str, Look]] = {
    "reduced": ("reduced flow (Eq. 14)", {"color": ORANGE, "marker": "o"}),
    "exact": ("exact flow", {"color": BLUE, "marker": "s", "ms": 8, "mfc": "none"}),
    "full": (r"full model, $a \in R^T$, $W \in R^{d\times d}$", {"color": BLACK, "marker": "x"}),
}


def draw_bursts(table: pd.DataFrame, laws: Mapping[str, Law], settings: Bursts) -> Plot:
    title = "The model's own flow gains less from repetition"
    plot, (axes,) = panels(3.0, title, width=0.62 * WIDTH, y=1.07)
    for name, (words, look) in BURST_LOOKS.items():
        rows = table[table["flow"] == name]
        label = f"{words}: $B^{{{laws[name].exponents['burst']:.2f}}}$"
        axes.plot(rows["burst"], rows["plateau"], ls="", label=label, **look)
        axes.plot(rows["burst"], laws[name].predict(rows), color=look["color"], lw=1)
    doubling(axes)
    axes.set(yscale="log", xlabel="in-context repetition $B$", ylabel="plateau (flow time)")
    axes.legend(loc="lower left")
    subtitle(axes, f"$T$ = {settings.length}, $d$ = {settings.dim}")
    return plot


REDUCTION = Figure(
    "emergo/reduction",
    "plateau against burst: reduced flow, exact flow, full model, and their exponents",
    {"paper": Bursts(), "smoke": Bursts(length=64, dim=4, bursts=(1, 2, 4, 8))},
    make_bursts,
    {"paper": 18, "smoke": 9},
)
