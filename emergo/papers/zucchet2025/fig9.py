"""Figure 9: stochastic gradient descent on the real toy model against the reduced flow."""

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Plot
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D

from ... import theory
from ..._style import BLACK, BLUE, GREY, ORANGE, RED, WIDTH, panel
from ...engine import Draws, train_toy
from ...measure import emergence
from ...tasks import SingleLocation
from .._figure import Check, Figure, Outcome, Progress
from .._plateaus import curve_table
from .._probe import toy_probe


@dataclasses.dataclass(frozen=True)
class Settings:
    length: int = 256
    dim: int = 256
    batch: int = 32
    learning_rate: float = 1.0
    seeds: int = 5
    steps: int = 9000
    every: int = 30
    draws: Draws = "statistics"


def make(settings: Settings, progress: Progress) -> Outcome:
    task = SingleLocation(settings.length, settings.dim)
    seen = train_toy(
        task,
        toy_probe(task.burst),
        seeds=settings.seeds,
        steps=settings.steps,
        every=settings.every,
        batch=settings.batch,
        learning_rate=settings.learning_rate,
        draws=settings.draws,
        progress=lambda step: progress(f"SGD step {step} of {settings.steps}", step / settings.steps),
    )
    cell = theory.cells(settings.length, settings.dim)
    path = theory.trajectory(cell, settings.learning_rate * seen.step)
    found = [emergence(seen.step, loss, theory.THRESHOLD * loss[0]) for loss in seen.values["loss"]]
    expected = float(theory.plateau(cell).time) / settings.learning_rate
    plateaus = pd.DataFrame(
        {
            "seed": range(settings.seeds),
            "length": settings.length,
            "dim": settings.dim,
            "plateau": [f.time for f in found],
            "plateau_low": [f.low for f in found],
            "plateau_high": [f.high for f in found],
            "censored": [f.censored for f in found],
            "state": [f.state for f in found],
            "flow_plateau": expected,
        }
    )
    runs = pd.DataFrame(
        {"seed": np.repeat(np.arange(settings.seeds), len(seen.step)), "step": np.tile(seen.step, settings.seeds)}
        | {name: values.ravel() for name, values in seen.values.items()}
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
    lines = {"SGD, a line a seed": seeds, "reduced flow": dashed}
    plot.legend(
        lines.values(), lines, loc="upper right", ncols=2, handlelength=2.4, borderaxespad=0.1, handler_map=side_by_side
    )
    return plot


FIGURE = Figure(
    id="zucchet2025/fig9",
    shows="SGD on the toy model (loss, attention, projection; 5 seeds) against the reduced flow",
    presets={
        "paper": Settings(),
        "laptop": Settings(length=64, dim=64, steps=1500, every=5, draws="tokens"),
        "smoke": Settings(length=16, dim=16, steps=200, every=10, seeds=2, draws="tokens"),
    },
    make=make,
    seconds={"paper": 52, "laptop": 31, "smoke": 7},
    shrunk={"laptop": "T = d = 64 instead of 256", "smoke": "T = d = 16 and two seeds"},
)
