"""Figure 2: both kinds of repetition shorten the plateau."""

import dataclasses

import pandas as pd
from matplotlib.figure import Figure as Plot

from ... import theory
from ..._style import WIDTH, panel
from ...measure import Law, Published, fit_law
from .._figure import Check, Comparison, Figure, Outcome
from .._plateaus import plateau_table, scatter_by, show_law
from .._source import RunSource

IN_CONTEXT = Published("Fig. 2 left", 1.51, {"length": 0.99, "burst": -0.99, "dim": 0.49}, 0.999)
ACROSS = Published("Fig. 2 right", 2.15, {"dim": 0.51, "length": 1.02, "repeat_factor": -1.02}, 0.992)


@dataclasses.dataclass(frozen=True)
class Settings:
    length: int = 4096
    dims: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    bursts: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    repeats: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.4)


def make(settings: Settings, source: RunSource) -> Outcome:
    left = plateau_table(theory.grid(length=settings.length, dim=settings.dims, burst=settings.bursts))
    source("cross-sample repetition", 0.5)
    right = plateau_table(theory.grid(length=settings.length, dim=settings.dims, repeat=settings.repeats))
    # D.2: alpha and beta free on the left (T/B is one term); 2 alpha = beta = gamma on the right.
    in_context = fit_law(left, x=["dim", "length/burst"])
    across = fit_law(right, x=["dim^0.5*length/repeat_factor"])
    # At p = 0 the right panel is the left one at B = 1: the two published laws cannot both be right there.
    same = right[right["repeat"] == 0]
    printed = 2.15 * (same["dim"] ** 0.5 * same["length"]) ** 1.02
    other = 1.51 * same["length"] ** 0.99 * same["dim"] ** 0.49
    ratio = float((printed / other).mean())
    ours = float((same["plateau"] / other).mean())
    checks = [
        Check(
            "at p = 0 and B = 1, over the law of Fig. 2 left: ours, and the law of Fig. 2 right",
            ours,
            ratio,
            bool(abs(ours - ratio) < 0.25 * ratio),
        ),
        Check("more in-context repetition, shorter plateau, at every dim", falls(left, "burst"), True, falls(left, "burst")),
        Check(
            "more cross-sample repetition, shorter plateau, at every dim", falls(right, "repeat"), True, falls(right, "repeat")
        ),
    ]
    return Outcome(
        tables={"in_context": left, "across": right},
        plot=draw(left, right, in_context, across, settings),
        laws=[
            Comparison.of("in-context repetition (left)", in_context, left, IN_CONTEXT),
            Comparison.of("cross-sample repetition (right)", across, right, ACROSS),
        ],
        checks=checks,
    )


def falls(table: pd.DataFrame, by: str) -> bool:
    """Whether the plateau falls along an axis at every dim."""
    return all(bool((rows.sort_values(by)["plateau"].diff().dropna() < 0).all()) for _, rows in table.groupby("dim"))


def draw(left: pd.DataFrame, right: pd.DataFrame, in_context: Law, across: Law, settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 3.0), layout="constrained")
    a, b = plot.subplots(1, 2, sharey=True)
    scatter_by(a, left, in_context, "burst", "$B$")
    panel(a, "left", "in-context repetition")
    e = in_context.exponents
    show_law(
        a,
        [
            f"ours: {in_context.C:.2f} $T^{{{e['length']:.2f}}} B^{{{e['burst']:.2f}}} d^{{{e['dim']:.2f}}}$,"
            f" $R^2$ = {in_context.r2:.4f}",
            "published: 1.51 $T^{0.99} B^{-0.99} d^{0.49}$, $R^2$ = 0.999",
        ],
    )
    scatter_by(b, right, across, "repeat", "$p$")
    panel(b, "right", "cross-sample repetition")
    show_law(
        b,
        [
            rf"ours: {across.C:.2f} $(\sqrt{{d}}\,T/f)^{{{across.exponents['length']:.2f}}}$, $R^2$ = {across.r2:.4f}",
            r"published: 2.15 $(\sqrt{d}\,T/f)^{1.02}$, $R^2$ = 0.992",
        ],
    )
    b.set_ylabel("")
    low, high = a.get_ylim()
    a.set_ylim(low, high * 2.5)
    plot.suptitle(f"Plateau of the reduced flow, T = {settings.length}", fontsize=8.5, x=0.01, ha="left")
    return plot


FULL = Settings()
FIGURE = Figure(
    id="zucchet2025/fig2",
    title="plateau against dim for in-context (burst) and cross-sample (repeat) repetition",
    presets={"paper": FULL, "laptop": FULL, "smoke": Settings(dims=(16, 64), bursts=(1, 4), repeats=(0.0, 0.1))},
    make=make,
    seconds={"paper": 11, "laptop": 11, "smoke": 6},
    caveat={"smoke": "a smaller grid"},
)
