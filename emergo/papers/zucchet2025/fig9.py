"""Figure 9: stochastic gradient descent on the real toy model against the reduced flow."""

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Plot
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D

from ... import theory
from ..._style import BLACK, BLUE, GREY, ORANGE, RED, WIDTH, panel
from ...engine import train_toy
from ...measure import emergence
from ...tasks import SingleLocation
from .._figure import Check, Figure, Outcome
from .._plateaus import curve_table
from .._probe import toy_probe
from .._source import RunSource


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
    curves = train_toy(
        task,
        toy_probe(task.burst),
        seeds=settings.seeds,
        steps=settings.steps,
        every=settings.every,
        batch=settings.batch,
        learning_rate=settings.learning_rate,
        progress=lambda step: source("SGD", step / settings.steps, f"step {step} of {settings.steps}"),
    )
    cell = theory.cells(settings.length, settings.dim)
    path = theory.trajectory(cell, settings.learning_rate * curves.step)
    crossings = [emergence(curves.step, loss, theory.THRESHOLD * loss[0]) for loss in curves.values["loss"]]
    expected = float(theory.plateau(cell).time) / settings.learning_rate
    plateaus = pd.DataFrame(
        {
            "seed": range(settings.seeds),
            "length": settings.length,
            "dim": settings.dim,
            "plateau": [c.time for c in crossings],
            "plateau_low": [c.low for c in crossings],
            "plateau_high": [c.high for c in crossings],
            "censored": [c.censored for c in crossings],
            "state": [c.state for c in crossings],
            "flow_plateau": expected,
        }
    )
    runs = pd.DataFrame(
        {"seed": np.repeat(np.arange(settings.seeds), len(curves.step)), "step": np.tile(curves.step, settings.seeds)}
        | {name: values.ravel() for name, values in curves.values.items()}
    )
    reached = plateaus[plateaus["state"] == "reached"]
    ratio = (reached["plateau"] / expected).mean() if len(reached) else float("nan")
    final = float(runs.groupby("seed")["attention"].last().min())
    checks = [
        Check("mean plateau of the seeds over the plateau of the flow", float(ratio), 1.0, bool(abs(ratio - 1) < 0.2)),
        Check("seeds that passed the threshold", len(reached), settings.seeds, len(reached) == settings.seeds),
        Check(
            "attention at the end, least of the seeds, over that of the flow",
            final / float(path.attention[-1]),
            1.0,
            bool(abs(final / path.attention[-1] - 1) < 0.05),
        ),
    ]
    return Outcome(
        tables={"runs": runs, "plateaus": plateaus, "flow": curve_table(cell, path)},
        plot=draw(runs, path, settings),
        checks=checks,
        precision="float64 flow, fp32 training",
    )


def draw(runs: pd.DataFrame, path: theory.Trajectory, settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.5), layout="constrained")
    panels = plot.subplots(1, 3)
    columns = (
        ("loss", "test_loss", "loss", ORANGE, "a"),
        ("attention", "attention", r"attention $\alpha$", RED, "b"),
        ("alignment", "alignment", "projection $w$ of $W$ on $W^*$", BLUE, "c"),
    )
    for axes, (name, flow, label, colour, letter) in zip(panels, columns, strict=True):
        for _, rows in runs.groupby("seed"):
            axes.plot(rows["step"], rows[name], color=colour, lw=0.9, alpha=0.8)
        axes.plot(path.time / settings.learning_rate, getattr(path, flow), color=BLACK, ls="--", lw=1.4)
        axes.set(xlabel="step", ylabel=label)
        panel(axes, letter)
    panels[2].axhline(np.sqrt(settings.dim), color=GREY, ls=":", lw=1)
    panels[2].text(0, np.sqrt(settings.dim), r"$\sqrt{d}$", fontsize=7, color=GREY, va="bottom")
    words = f"T = {settings.length}, d = {settings.dim}, batch {settings.batch}, learning rate {settings.learning_rate:g}"
    plot.suptitle(words, fontsize=8, x=0.01, ha="left", color=GREY)
    seeds, dashed = tuple(Line2D([], [], color=column[3]) for column in columns), Line2D([], [], color=BLACK, ls="--", lw=1.4)
    side_by_side = {tuple: HandlerTuple(ndivide=None, pad=0)}
    lines = {"SGD, one line per seed": seeds, "reduced flow": dashed}
    plot.legend(
        lines.values(), lines, loc="upper right", ncols=2, handlelength=2.4, borderaxespad=0.1, handler_map=side_by_side
    )
    return plot


FIGURE = Figure(
    id="zucchet2025/fig9",
    title="SGD on the toy model (loss, attention, projection; 5 seeds) against the reduced flow",
    presets={
        "paper": Settings(),
        "laptop": Settings(length=64, dim=64, steps=1500, every=5),
        "smoke": Settings(length=16, dim=16, steps=200, every=10, seeds=2),
    },
    make=make,
    seconds={"paper": 52, "laptop": 31, "smoke": 7},
    caveat={"laptop": "T = d = 64 instead of 256", "smoke": "T = d = 16 and two seeds"},
)
