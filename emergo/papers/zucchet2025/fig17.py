"""Figure 17: recall emerges together with attention to the relevant tokens, in two layers at once."""

import numpy as np
import pandas as pd

from ..._style import WIDTH, level, outside, panel, shades
from ...engine import Result
from ...studies import Study
from ...tasks import Recall
from .._figure import Check, Figure, Outcome, Plot, Presets, RunSource, Studies
from .._panels import strongest
from .._recall import COLUMNS, PAPER, SMALL, TINY, passed, recall_task
from .._source import curve, curve_table

PROBES = {
    "copying": "attention of the\nrelevant value to its key",
    "selecting": "attention of the query\nto the relevant value",
    "previous": "attention to the\ntoken before",
    "induction": "attention to what\nfollowed a token before",
}


def holders(result: Result) -> dict[str, int]:
    """The layer (from 1) whose heads copy and the one whose heads select, at the end, by their strongest head."""
    return {name: int(np.argmax(curve(result, name)[-1].max(-1))) + 1 for name in ("copying", "selecting")}


def half_times(result: Result) -> dict[str, float]:
    """When accuracy and the strongest copying and selecting head are half way from where they begin to where they end."""
    curves = {name: strongest(result, name) for name in ("copying", "selecting")} | {"accuracy": curve(result, "accuracy")}
    return {name: passed(result, c, float(c[0] + c[-1]) / 2).time for name, c in curves.items()}


def make(studies: Studies, source: RunSource) -> Outcome:
    results, rows = source.runs(studies, curves=True)["runs"], []
    for result in results:
        layers, halves = holders(result), half_times(result)
        rows.append(
            {"seed": result.run.seed, "accuracy": float(curve(result, "accuracy")[-1])}
            | {f"{name}_layer": layer for name, layer in layers.items()}
            | {f"{name}_end": float(curve(result, name)[-1].max()) for name in layers}
            | {f"{name}_half": time for name, time in halves.items()}
        )
    table = pd.DataFrame(rows)
    apart = np.exp(np.max(np.abs(np.log(table["copying_half"].to_numpy() / table["selecting_half"].to_numpy()))))
    selects, copies, end = table["selecting_layer"], table["copying_layer"], table["selecting_end"].min()
    last = curve(results[0], "selecting").shape[1]
    half = "copying and selecting attention half way: largest ratio of their times"
    name = "attention of the strongest selecting head at the end, smallest over runs"
    checks = [
        Check(half, apart, "1: learned at the same time", apart < 1.5),
        Check("layer that selects, by seed", selects, f"{last}: the last", (selects == last).all()),
        Check("layer that copies, by seed", copies, f"{last - 1}: the one before", (copies == last - 1).all()),
        Check(name, end, None, end > 0.5, "above one half"),
    ]
    return Outcome({"runs": table, "curves": curve_table(results, COLUMNS)}, draw(results[0]), checks=checks)


def draw(result: Result) -> Plot:
    plot = Plot(figsize=(WIDTH, 4.2), layout="constrained")
    grid = plot.subplots(2, 3, sharex=True)
    step, task = curve(result, "step"), recall_task(result.run)
    sizes = f"{task.pairs} pairs, {task.vocabulary} tokens"
    colours = shades(curve(result, "copying").shape[1])
    for axes, letter, name, title in zip(grid[:, 0], "ad", ("accuracy", "loss"), (sizes, ""), strict=True):
        axes.plot(step[1:], curve(result, name)[1:], color="black", lw=1.2)
        axes.set(ylabel=f"test {name}")
        panel(axes, letter, title)
    level(grid[0][0], 1 / task.pairs, "guess")
    for axes, letter, (name, label) in zip(grid[:, 1:].flat, "bcef", PROBES.items(), strict=True):
        for layer, colour in enumerate(colours):
            axes.plot(step[1:], curve(result, name)[1:, layer], color=colour, lw=1)
        axes.set(ylabel=label)
        panel(axes, letter, name)
    grid[1][0].set_ylim(0, None)
    for axes in (grid[0][0], *grid[:, 1:].flat):
        axes.set_ylim(-0.03, 1.03)
    for axes in grid[1]:
        axes.set_xlabel("step")
        axes.locator_params(axis="x", nbins=4)
    outside(grid[0][2], "layer", [(str(i + 1), {"color": colour}) for i, colour in enumerate(colours)])
    return plot


TITLE = "recall emerges together with copying and selecting attention"
PRESETS: Presets = {
    "paper": {"runs": Study.of(PAPER.replace(steps=300_000), seeds=3)},
    "laptop": {"runs": Study.of(SMALL.replace(task=Recall(4, 16), overtrain=0.5), seeds=2)},
    "smoke": {"runs": Study.of(TINY, seeds=2)},
}
FIGURE = Figure("zucchet2025/fig17", TITLE, PRESETS, make, {"paper": 4e5, "laptop": 31, "smoke": 8}, curves=True)
