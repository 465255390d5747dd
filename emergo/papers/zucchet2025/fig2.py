"""Figure 2: both kinds of repetition shorten the plateau."""

import dataclasses

import pandas as pd

from ... import theory
from ..._style import GREY
from ...measure import Published, fit_law
from .._figure import Check, Comparison, Figure, Outcome, Plot, Presets, RunSource
from .._panels import law_lines, panels, plateaus_by
from .._plateaus import plateau_table

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
    ratio, ours = (printed / other).mean(), (same["plateau"] / other).mean()
    name = "at p = 0 and B = 1, over the law of Fig. 2 left: ours, and the law of Fig. 2 right"
    checks = [Check(name, ours, ratio, abs(ours - ratio) < 0.25 * ratio)]
    for kind, table, by in (("in-context", left, "burst"), ("cross-sample", right, "repeat")):
        falls = falls_along(table, by)
        checks.append(Check(f"more {kind} repetition, shorter plateau, at every dim", falls, True, falls))
    laws = [
        Comparison.of("in-context repetition (left)", in_context, left, IN_CONTEXT),
        Comparison.of("cross-sample repetition (right)", across, right, ACROSS),
    ]
    return Outcome({"in_context": left, "across": right}, draw(left, right, *laws), laws, checks)


def falls_along(table: pd.DataFrame, by: str) -> bool:
    """Whether the plateau falls along an axis at every dim."""
    return all(bool((rows.sort_values(by)["plateau"].diff().dropna() < 0).all()) for _, rows in table.groupby("dim"))


def draw(left: pd.DataFrame, right: pd.DataFrame, in_context: Comparison, across: Comparison) -> Plot:
    plot, (a, b) = panels(3.0, "left  in-context repetition", "right  cross-sample repetition", share=True)
    plateaus_by(a, left, in_context.law, "burst", "$B$", time="flow time")
    plateaus_by(b, right, across.law, "repeat", "$p$", time="flow time")
    in_words = (
        law_lines(in_context, {"length": "T", "burst": "B", "dim": "d"}),
        law_lines(across, {"length": r"(\sqrt{d}\,T/f)"}),
    )
    for axes, text in zip((a, b), in_words, strict=True):
        axes.text(0.03, 0.97, text, transform=axes.transAxes, va="top", fontsize=6.5, color=GREY)
    b.set_ylabel("")
    low, high = a.get_ylim()
    a.set_ylim(low, high * 2.5)
    plot.suptitle(f"Plateau of the reduced flow, T = {left['length'].iloc[0]}", fontsize=8.5, x=0.01, ha="left")
    return plot


TITLE = "plateau against dim for in-context (burst) and cross-sample (repeat) repetition"
PRESETS: Presets = {"paper": Settings(), "smoke": Settings(dims=(16, 64), bursts=(1, 4), repeats=(0.0, 0.1))}
FIGURE = Figure("zucchet2025/fig2", TITLE, PRESETS, make, {"paper": 11, "smoke": 6})
