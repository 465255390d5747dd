"""Figure 17: recall emerges together with attention to the relevant tokens, in two layers at once."""

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Plot

from ..._style import WIDTH, level, outside, panel, shades
from ...engine import Config, Result
from ...studies import Study, provenance_of
from ...tasks import Recall
from .._figure import Check, Figure, Outcome
from .._recall import PAPER, SMALL, TINY, passed, recall_curves, recall_task, strongest
from .._source import RunSource, curve

PROBES = {
    "copying": "attention of the\nrelevant value to its key",
    "selecting": "attention of the query\nto the relevant value",
    "previous": "attention to the\ntoken before",
    "induction": "attention to what\nfollowed a token before",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    base: Config
    seeds: int = 3

    def studies(self) -> dict[str, Study]:
        return {"runs": Study.of(self.base, seeds=self.seeds)}


def holders(result: Result) -> dict[str, int]:
    """The layer (from 1) whose heads copy and the one whose heads select, at the end, by their strongest head."""
    return {name: int(np.argmax(curve(result, name)[-1].max(-1))) + 1 for name in ("copying", "selecting")}


def half_times(result: Result) -> dict[str, float]:
    """When accuracy and the strongest copying and selecting head are half way from where they begin to where they end."""
    curves = {name: strongest(result, name) for name in ("copying", "selecting")} | {"accuracy": curve(result, "accuracy")}
    return {name: passed(result, c, float(c[0] + c[-1]) / 2).time for name, c in curves.items()}


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies(), curves=True)
    results = parts["runs"]
    rows = []
    for result in results:
        layers, halves = holders(result), half_times(result)
        rows.append(
            {"seed": result.run.seed, "accuracy": float(curve(result, "accuracy")[-1])}
            | {f"{name}_layer": layer for name, layer in layers.items()}
            | {f"{name}_end": float(curve(result, name)[-1].max()) for name in layers}
            | {f"{name}_half": time for name, time in halves.items()}
        )
    table = pd.DataFrame(rows)
    apart = float(np.max(np.abs(np.log(table["copying_half"].to_numpy() / table["selecting_half"].to_numpy()))))
    last = curve(results[0], "selecting").shape[1]
    checks = [
        Check(
            "copying and selecting attention half way: largest ratio of their times",
            float(np.exp(apart)),
            "1: learned at the same time",
            bool(np.exp(apart) < 1.5),
        ),
        Check(
            "layer that selects, by seed",
            [int(layer) for layer in table["selecting_layer"]],
            f"{last}: the last",
            bool((table["selecting_layer"] == last).all()),
        ),
        Check(
            "layer that copies, by seed",
            [int(layer) for layer in table["copying_layer"]],
            f"{last - 1}: the one before",
            bool((table["copying_layer"] == last - 1).all()),
        ),
        Check(
            "attention of the strongest selecting head at the end, smallest over runs",
            float(table["selecting_end"].min()),
            None,
            bool(table["selecting_end"].min() > 0.5),
            "above one half",
        ),
    ]
    return Outcome(
        tables={"runs": table, "curves": recall_curves(results)},
        plot=draw(results[0]),
        checks=checks,
        precision=settings.base.precision,
        device=provenance_of(parts),
    )


def draw(result: Result) -> Plot:
    plot = Plot(figsize=(WIDTH, 4.2), layout="constrained")
    grid = plot.subplots(2, 3, sharex=True)
    step, task = curve(result, "step"), recall_task(result.run)
    colours = shades(curve(result, "copying").shape[1])
    grid[0][0].plot(step[1:], curve(result, "accuracy")[1:], color="black", lw=1.2)
    level(grid[0][0], 1 / task.pairs, "guess")
    grid[0][0].set(ylabel="test accuracy", ylim=(-0.03, 1.03))
    panel(grid[0][0], "a", f"{task.pairs} pairs, {task.vocabulary} tokens")
    grid[1][0].plot(step[1:], curve(result, "loss")[1:], color="black", lw=1.2)
    grid[1][0].set(ylabel="test loss", ylim=(0, None))
    panel(grid[1][0], "d")
    places = (grid[0][1], grid[0][2], grid[1][1], grid[1][2])
    for axes, letter, (name, label) in zip(places, "bcef", PROBES.items(), strict=True):
        for layer, colour in enumerate(colours):
            axes.plot(step[1:], curve(result, name)[1:, layer], color=colour, lw=1)
        axes.set(ylabel=label, ylim=(-0.03, 1.03))
        panel(axes, letter, name)
    for axes in grid[1]:
        axes.set_xlabel("step")
        axes.locator_params(axis="x", nbins=4)
    outside(grid[0][2], "layer", [(str(i + 1), {"color": colour}) for i, colour in enumerate(colours)])
    return plot


FIGURE = Figure(
    id="zucchet2025/fig17",
    title="recall emerges together with copying and selecting attention",
    presets={
        "paper": Settings(PAPER.replace(steps=300_000)),
        "laptop": Settings(SMALL.replace(task=Recall(4, 16), overtrain=0.5), seeds=2),
        "smoke": Settings(TINY, seeds=2),
    },
    make=make,
    studies=Settings.studies,
    curves=True,
    seconds={"paper": 4e5, "laptop": 31, "smoke": 8},
    caveat={
        "laptop": "2 layers, 2 heads, width 64, PyTorch's start, learning rate 1e-3, 4 pairs of 16 tokens, 2 seeds",
        "smoke": "width 16, one head, 3 pairs of 6 tokens, 2 seeds",
    },
)
