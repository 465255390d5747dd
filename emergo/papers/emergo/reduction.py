"""What the paper's reduction misses: the plateau against burst for the reduced flow, the exact flow and the full model."""

import dataclasses

import numpy as np
import pandas as pd

from ... import theory
from ..._style import BLACK, BLUE, GREY, ORANGE, WIDTH, doubling
from ...measure import Law, Published, fit_law
from .._figure import Check, Comparison, Figure, Outcome, Plot, RunSource
from .._panels import panels
from .._plateaus import plateau_table


@dataclasses.dataclass(frozen=True)
class Settings:
    length: int = 1024
    dim: int = 16
    bursts: tuple[int, ...] = (1, 2, 4, 8, 16, 32)


def make(settings: Settings, source: RunSource) -> Outcome:
    cell = theory.cells(settings.length, settings.dim, settings.bursts)
    reduced, exact = plateau_table(cell, "reduced"), plateau_table(cell, "exact")
    source("the full model", 0.5)
    whole = theory.full_plateau(cell)
    full = exact.assign(flow="full", plateau=whole.time, censored=whole.censored)
    table = pd.concat([reduced, exact, full], ignore_index=True)
    # Fig. 2 left's law at this length and dim.
    constant = 1.51 * settings.length**0.99 * settings.dim**0.49
    published = Published("Fig. 2 left at this length and dim", constant, {"burst": -0.99}, 0.999)
    laws = {str(name): fit_law(rows, x=["burst"]) for name, rows in table.groupby("flow", sort=False)}
    apart = np.max(np.abs(full["plateau"] / exact["plateau"] - 1))
    ratio = reduced["plateau"].iloc[-1] / full["plateau"].iloc[-1]
    checks = [
        Check("largest relative difference between the exact flow and the full model", apart, None, apart < 1e-6, "below 1e-6"),
        Check("plateau of the reduced flow over the full model's at the largest burst", ratio, 1.0, abs(ratio - 1) < 0.1),
    ]
    comparisons = [Comparison.of(name, law, table[table["flow"] == name], published) for name, law in laws.items()]
    return Outcome({"plateaus": table}, draw(table, laws, settings), laws=comparisons, checks=checks)


def draw(table: pd.DataFrame, laws: dict[str, Law], settings: Settings) -> Plot:
    plot, (axes,) = panels(3.0, "The model's own flow gains less from repetition", width=0.62 * WIDTH)
    looks = {
        "reduced": ("reduced flow (Eq. 14)", {"color": ORANGE, "marker": "o", "ms": 5}),
        "exact": ("exact flow", {"color": BLUE, "marker": "s", "ms": 8, "mfc": "none"}),
        "full": (r"full model, $a \in R^T$, $W \in R^{d\times d}$", {"color": BLACK, "marker": "x", "ms": 5}),
    }
    line = pd.DataFrame({"burst": np.geomspace(min(settings.bursts), max(settings.bursts), 50)})
    for name, (words, look) in looks.items():
        rows, law = table[table["flow"] == name], laws[name]
        axes.plot(rows["burst"], rows["plateau"], ls="", label=f"{words}: $B^{{{law.exponents['burst']:.2f}}}$", **look)
        ls = "--" if name == "full" else "-"
        axes.plot(line["burst"], law.predict(line), color=look["color"], lw=1, ls=ls, zorder=1)
    doubling(axes)
    axes.set(yscale="log", xlabel="in-context repetition $B$", ylabel="plateau (flow time)")
    axes.legend(loc="lower left")
    sizes = f"$T$ = {settings.length}, $d$ = {settings.dim}"
    axes.text(0.97, 0.95, sizes, transform=axes.transAxes, ha="right", va="top", color=GREY)
    return plot


FIGURE = Figure(
    "emergo/reduction",
    "plateau against burst: reduced flow, exact flow, full model, and their exponents",
    presets={"paper": Settings(), "smoke": Settings(length=64, dim=4, bursts=(1, 2, 4, 8))},
    make=make,
    seconds={"paper": 18, "smoke": 9},
)
