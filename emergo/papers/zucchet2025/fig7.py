"""Figure 7: the early dynamics and their linear approximation."""

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Plot

from ... import theory
from ..._style import GREY, WIDTH, key, outside, panel, shades
from .._figure import Check, Figure, Outcome
from .._plateaus import curve_table, follow
from .._source import RunSource


@dataclasses.dataclass(frozen=True)
class Settings:
    lengths: tuple[int, ...] = (64, 256, 1024)
    dim: int = 512
    points: int = 200


def make(settings: Settings, source: RunSource) -> Outcome:
    cell = theory.cells(settings.lengths, settings.dim)
    limit = 1.1 * (theory.predicted_plateau(cell) + 1.5 * cell.dim)
    times = np.stack([np.geomspace(e / 300, e, settings.points) for e in limit])
    path, end = follow(cell, times)
    linear = theory.linear_solution(cell, times)
    curves = curve_table(cell, path)
    for name in linear._fields:
        curves[f"linear_{name}"] = getattr(linear, name).ravel()
    curves = curves[curves["time"] <= np.repeat(end, settings.points)]
    # How far into the plateau the linear solution stays within a tenth of the flow.
    valid = {}
    for name, flow, line in (("w", path.alignment, linear.weight), ("Δa", path.logit, linear.logit)):
        off = np.abs(line / flow - 1) > 0.1
        first = np.where(off.any(1), off.argmax(1), settings.points - 1)
        valid[name] = [float(times[i, j] / end[i]) for i, j in enumerate(first)]
    checks = [
        Check(
            f"share of the plateau over which the linear {name} is within 10%",
            v,
            None,
            bool(min(v) > 0.2),
            "over 0.2 for every length",
        )
        for name, v in valid.items()
    ]
    return Outcome(tables={"curves": curves}, plot=draw(curves, settings), checks=checks)


def draw(curves: pd.DataFrame, settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.5), layout="constrained")
    panels = plot.subplots(1, 3)
    colours = shades(len(settings.lengths))
    for length, colour in zip(settings.lengths, colours, strict=True):
        rows = curves[curves["length"] == length]
        t = rows["time"]
        panels[0].plot(t, rows["alignment"], color=colour)
        panels[0].plot(t, rows["linear_weight"], color=colour, ls="--", lw=1.2)
        panels[1].plot(t, rows["logit"], color=colour)
        panels[1].plot(t, rows["linear_logit"], color=colour, ls="--", lw=1.2)
        panels[2].plot(t, 0.5 - rows["loss"], color=colour)
        panels[2].plot(t, 0.5 - rows["linear_loss"], color=colour, ls="--", lw=1.2)
    names = (("weight $w$", "a"), (r"attention logit $\Delta a$", "b"), ("loss so far removed, $0.5 - L$", "c"))
    for axes, (label, letter) in zip(panels, names, strict=True):
        axes.set(xscale="log", yscale="log", xlabel="flow time $t$")
        panel(axes, letter, label)
    key(panels[0], [("flow", {}), ("linearised", {"ls": "--", "lw": 1.2})], loc="lower right")
    outside(panels[2], "$T$", [(str(n), {"color": c}) for n, c in zip(settings.lengths, colours, strict=True)])
    panels[2].text(0.97, 0.04, f"$d$ = {settings.dim}", transform=panels[2].transAxes, ha="right", color=GREY)
    return plot


FULL = Settings()
FIGURE = Figure(
    id="zucchet2025/fig7",
    title="early flow (w, Δa, loss) beside its linear approximation around the start",
    presets={"paper": FULL, "laptop": FULL, "smoke": Settings(points=40)},
    make=make,
    seconds={"paper": 10, "laptop": 10, "smoke": 7},
    caveat={"smoke": "fewer points"},
)
