"""What the paper's reduction misses: the plateau against burst for the reduced flow, the exact flow and the full model."""

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Plot

from ... import theory
from ..._style import BLACK, BLUE, GREY, ORANGE, WIDTH, panel
from ...measure import Law, Published, fit_law
from .._figure import Check, Comparison, Figure, Outcome
from .._plateaus import plateau_table
from .._source import RunSource


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
    apart = float(np.max(np.abs(full["plateau"] / exact["plateau"] - 1)))
    checks = [
        Check("largest relative difference between the exact flow and the full model", apart, None, apart < 1e-6, "below 1e-6"),
        Check(
            "plateau of the reduced flow over the full model's at the largest burst",
            float(reduced["plateau"].iloc[-1] / full["plateau"].iloc[-1]),
            1.0,
            bool(abs(reduced["plateau"].iloc[-1] / full["plateau"].iloc[-1] - 1) < 0.1),
        ),
    ]
    return Outcome(
        tables={"plateaus": table},
        plot=draw(table, laws, settings),
        laws=[Comparison.of(name, law, table[table["flow"] == name], published) for name, law in laws.items()],
        checks=checks,
    )


def draw(table: pd.DataFrame, laws: dict[str, Law], settings: Settings) -> Plot:
    plot = Plot(figsize=(0.62 * WIDTH, 3.0), layout="constrained")
    axes = plot.subplots()
    looks = {
        "reduced": {"color": ORANGE, "marker": "o", "ms": 5},
        "exact": {"color": BLUE, "marker": "s", "ms": 8, "mfc": "none"},
        "full": {"color": BLACK, "marker": "x", "ms": 5},
    }
    names = {
        "reduced": "reduced flow (Eq. 14)",
        "exact": "exact flow",
        "full": "full model, $a \\in R^T$, $W \\in R^{d\\times d}$",
    }
    line = pd.DataFrame({"burst": np.geomspace(min(settings.bursts), max(settings.bursts), 50)})
    for name, look in looks.items():
        rows = table[table["flow"] == name]
        e = laws[name].exponents["burst"]
        axes.plot(rows["burst"], rows["plateau"], ls="", label=f"{names[name]}: $B^{{{e:.2f}}}$", **look)
        axes.plot(
            line["burst"], laws[name].predict(line), color=look["color"], lw=1, ls="--" if name == "full" else "-", zorder=1
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set(yscale="log", xlabel="in-context repetition $B$", ylabel="plateau (flow time)")
    axes.legend(loc="lower left")
    axes.text(
        0.97, 0.95, f"$T$ = {settings.length}, $d$ = {settings.dim}", transform=axes.transAxes, ha="right", va="top", color=GREY
    )
    panel(axes, "", "The model's own flow gains less from repetition")
    return plot


FULL = Settings()
FIGURE = Figure(
    id="emergo/reduction",
    title="plateau against burst: reduced flow, exact flow, full model, and their exponents",
    presets={"paper": FULL, "laptop": FULL, "smoke": Settings(length=64, dim=4, bursts=(1, 2, 4, 8))},
    make=make,
    seconds={"paper": 18, "laptop": 18, "smoke": 9},
    caveat={"smoke": "a small model"},
)
