"""Figure 9: stochastic gradient descent on the real toy model against the reduced flow."""

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D

from ... import theory
from ..._style import BLACK, BLUE, GREY, ORANGE, RED
from ...engine import train_toy
from ...measure import emergence
from ...tasks import SingleLocation
from .._figure import Check, Figure, Outcome, Plot, Presets, RunSource
from .._panels import panels
from .._plateaus import curve_table, toy_probe


@dataclasses.dataclass(frozen=True)
class Settings:
    length: int = 256
    dim: int = 256
    batch: int = 32
    learning_rate: float = 1.0
    seeds: int = 5
    steps: int = 9000
    every: int = 30


def make(settings: Settings, source: RunSource) -> Outcome:
    task = SingleLocation(settings.length, settings.dim)
    options = {name: getattr(settings, name) for name in ("seeds", "steps", "every", "batch", "learning_rate")}

    def progress(step: int) -> None:
        source("SGD", step / settings.steps, f"step {step} of {settings.steps}")

    curves = train_toy(task, toy_probe(task.burst), **options, progress=progress)
    cell = theory.cells(settings.length, settings.dim)
    path = theory.trajectory(cell, settings.learning_rate * curves.step)
    expected = float(theory.plateau(cell).time) / settings.learning_rate
    rows = []
    for seed, loss in enumerate(curves.values["loss"]):
        end = emergence(curves.step, loss, theory.THRESHOLD * loss[0])
        times = {"plateau": end.time, "plateau_low": end.low, "plateau_high": end.high, "censored": end.censored}
        rows.append({"seed": seed, "length": settings.length, "dim": settings.dim} | times | {"state": end.state})
    plateaus = pd.DataFrame(rows).assign(flow_plateau=expected)
    seed = np.repeat(np.arange(settings.seeds), len(curves.step))
    runs = pd.DataFrame({"seed": seed, "step": np.tile(curves.step, settings.seeds)})
    runs = runs.assign(**{name: values.ravel() for name, values in curves.values.items()})
    reached = plateaus[plateaus["state"] == "reached"]
    ratio = (reached["plateau"] / expected).mean()
    end = runs.groupby("seed")["attention"].last().min() / path.attention[-1]
    checks = [
        Check("mean plateau of the seeds over the plateau of the flow", ratio, 1.0, abs(ratio - 1) < 0.2),
        Check("seeds that passed the threshold", len(reached), settings.seeds, len(reached) == settings.seeds),
        Check("attention at the end, least of the seeds, over that of the flow", end, 1.0, abs(end - 1) < 0.05),
    ]
    tables = {"runs": runs, "plateaus": plateaus, "flow": curve_table(cell, path)}
    return Outcome(tables, draw(runs, path, settings), checks=checks, precision="float64 flow, fp32 training")


def draw(runs: pd.DataFrame, path: theory.Trajectory, settings: Settings) -> Plot:
    plot, row = panels(2.5, *"abc")
    columns = (
        ("loss", "test_loss", "loss", ORANGE),
        ("attention", "attention", r"attention $\alpha$", RED),
        ("alignment", "alignment", "projection $w$ of $W$ on $W^*$", BLUE),
    )
    for axes, (name, flow, label, colour) in zip(row, columns, strict=True):
        for _, rows in runs.groupby("seed"):
            axes.plot(rows["step"], rows[name], color=colour, lw=0.9, alpha=0.8)
        axes.plot(path.time / settings.learning_rate, getattr(path, flow), color=BLACK, ls="--", lw=1.4)
        axes.set(xlabel="step", ylabel=label)
    row[2].axhline(np.sqrt(settings.dim), color=GREY, ls=":", lw=1)
    row[2].text(0, np.sqrt(settings.dim), r"$\sqrt{d}$", fontsize=7, color=GREY, va="bottom")
    words = f"T = {settings.length}, d = {settings.dim}, batch {settings.batch}, learning rate {settings.learning_rate:g}"
    plot.suptitle(words, fontsize=8, x=0.01, ha="left", color=GREY)
    seeds, dashed = tuple(Line2D([], [], color=column[3]) for column in columns), Line2D([], [], color=BLACK, ls="--", lw=1.4)
    place = {"loc": "upper right", "ncols": 2, "handlelength": 2.4, "borderaxespad": 0.1}
    side_by_side = {tuple: HandlerTuple(ndivide=None, pad=0)}
    lines = {"SGD, one line per seed": seeds, "reduced flow": dashed}
    plot.legend(lines.values(), lines, handler_map=side_by_side, **place)
    return plot


TITLE = "SGD on the toy model (loss, attention, projection; 5 seeds) against the reduced flow"
PRESETS: Presets = {
    "paper": Settings(),
    "laptop": Settings(length=64, dim=64, steps=1500, every=5),
    "smoke": Settings(length=16, dim=16, steps=200, every=10, seeds=2),
}
FIGURE = Figure("zucchet2025/fig9", TITLE, PRESETS, make, {"paper": 52, "laptop": 31, "smoke": 7})
