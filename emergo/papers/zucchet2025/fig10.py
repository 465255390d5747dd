"""Figure 10: cross-sample repetition speeds up emergence, through the repeated direction."""

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Plot

from ... import theory
from ..._style import GREY, WIDTH, key, outside, panel, shades
from .._figure import Check, Figure, Outcome
from .._plateaus import curve_table
from .._source import RunSource


@dataclasses.dataclass(frozen=True)
class Settings:
    length: int = 512
    dim: int = 64
    repeats: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.4)
    points: int = 600
    until: float = 1.45


def make(settings: Settings, source: RunSource) -> Outcome:
    cell = theory.cells(settings.length, settings.dim, repeat=settings.repeats)
    end = settings.until * float(theory.predicted_plateau(cell).max())
    path = theory.trajectory(cell, np.linspace(0, end, settings.points))
    curves = curve_table(cell, path)
    first, second = np.array(settings.repeats)[[0, -1]]
    halfway = {
        p: [
            float(rows["time"][rows[c] >= level].min())
            for c, level in (("repeated", 0.5), ("others", 0.5 * np.sqrt(settings.dim - 1)), ("attention", 0.5))
        ]
        for p, rows in curves.groupby("repeat")
    }
    led = all(halfway[p][0] < halfway[p][1] for p in settings.repeats if p > 0)
    # From 0.9 to 0.1 of the initial test loss: how long the drop itself takes.
    drop = {
        p: float(np.ptp([rows["time"][rows["test_loss"] <= 0.5 * s].min() for s in (0.9, 0.1)]))
        for p, rows in curves.groupby("repeat")
    }
    earlier = halfway[first][2] / halfway[second][2]
    ratio = float(
        curves[curves["repeat"] == second]["test_loss"].iloc[-1] / curves[curves["repeat"] == first]["test_loss"].iloc[-1]
    )
    checks = [
        Check("the repeated direction is half learned before the others, for every p > 0", led, True, led),
        Check(f"time to half attention, p = {first:g} over p = {second:g}", earlier, "> 1", bool(earlier > 1)),
        Check(
            f"duration of the drop itself, p = {second:g} over p = {first:g} (2.3: slower after the plateau)",
            drop[second] / drop[first],
            "> 1",
            bool(drop[second] > drop[first]),
        ),
        Check(
            f"test loss at the end, p = {second:g} over p = {first:g} (2.3: larger in the long run)",
            ratio,
            "> 1",
            bool(ratio > 1),
        ),
    ]
    return Outcome(tables={"curves": curves}, plot=draw(curves, settings), checks=checks)


def draw(curves: pd.DataFrame, settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.5), layout="constrained")
    a, b, c = plot.subplots(1, 3)
    colours = shades(len(settings.repeats))
    for p, colour in zip(settings.repeats, colours, strict=True):
        rows = curves[curves["repeat"] == p]
        a.plot(rows["time"], rows["test_loss"], color=colour)
        b.plot(rows["time"], rows["others"] / np.sqrt(settings.dim - 1), color=colour)
        b.plot(rows["time"], rows["repeated"], color=colour, ls="--", lw=1.2)
        c.plot(rows["time"], rows["attention"], color=colour)
    b.axhline(1, color=GREY, ls=":", lw=1)
    a.set(xlabel="flow time $t$", ylabel="test loss (no repetition)", ylim=(-0.01, 0.52))
    b.set(xlabel="flow time $t$", ylabel="weight / its optimum")
    c.set(xlabel="flow time $t$", ylabel=r"attention $\alpha$")
    top = float((curves["others"] / np.sqrt(settings.dim - 1)).max())
    b.set_ylim(-0.05, max(top, float(curves["repeated"].max())) * 1.3)
    key(b, [(r"repeated direction $\tilde w$", {"ls": "--", "lw": 1.2}), (r"others, $w/\sqrt{d-1}$", {})], loc="upper right")
    panel(a, "left", "test loss")
    panel(b, "middle", "weights")
    panel(c, "right", "attention")
    plot.suptitle(f"T = {settings.length}, d = {settings.dim}", fontsize=8, x=0.01, ha="left", color=GREY)
    outside(c, "$p$", [(f"{p:g}", {"color": k}) for p, k in zip(settings.repeats, colours, strict=True)])
    return plot


FULL = Settings()
FIGURE = Figure(
    id="zucchet2025/fig10",
    title="cross-sample repetition: test loss, repeated and other weights, attention",
    presets={"paper": FULL, "laptop": FULL, "smoke": Settings(points=80)},
    make=make,
    seconds={"paper": 11, "laptop": 11, "smoke": 6},
    caveat={"smoke": "fewer points"},
)
