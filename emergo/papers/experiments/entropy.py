"""How attention becomes sparse during training: its entropy, next to what the model answers.

zucchet2025 suggests to follow the entropy of attention and the alignment of the value path, because
its toy model learns in this order: while attention is uniform, the value path aligns with the
target; that strengthens the signal for attention, which becomes sparse at the end of the plateau.
The runs are those of its Figures 11 (regression) and 17 (recall).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ... import theory
from ...core.plotting import BLACK, BLUE, GREEN, ORANGE, RED, key
from ...study import Runs
from ...training import Result
from .._figure import Check, Figure, Outcome, Plot, RunSource, Studies
from .._panels import colours_of, legend, panels
from .._recall import criteria
from .._source import curve
from ..zucchet2025 import fig5_16_17, fig11_12

HALF = 0.5
LATE = 0.8  # a relative entropy above this counts as nearly uniform
LAYERS = (RED, ORANGE, GREEN, BLUE)


def make(studies: Studies, source: RunSource) -> Outcome:
    parts = source.runs(studies, curves=True)
    regression = pd.DataFrame([regression_row(r) for r in reached(parts["regression"])])
    recall = pd.DataFrame([recall_row(r) for r in parts["recall"]])
    checks = [*regression_checks(regression), *recall_checks(recall)]
    summary = {}
    if len(regression):
        means = regression.groupby("dim", as_index=False).mean(numeric_only=True)
        summary = {"by_dim": means.drop(columns=["length", "seed"])}
    tables = {"regression": regression, "recall": recall}
    return Outcome(tables, draw(parts), checks=checks, summary=summary)


def reached(runs: Runs) -> list[Result]:
    return [result for result in runs if result.state == "reached"]


def relative_entropy(result: Result, layer: int | None = None) -> np.ndarray:
    """Return the smallest entropy of a head over that of uniform attention, at each evaluation.

    **Arguments:**

    - `layer`: take heads of this layer only.
    """
    values = curve(result, "entropy")
    values = values if layer is None else values[:, layer]
    smallest = values.reshape(len(values), -1).min(1)
    return smallest / np.log(result.run.config.task.spec.length)


def first(step: np.ndarray, passed: np.ndarray) -> float:
    """Return the first step at which a condition holds; NaN if it never does."""
    return float(step[np.argmax(passed)]) if passed.any() else np.nan


def regression_row(result: Result) -> dict[str, Any]:
    """Return when the value path aligned and when attention became sparse."""
    task: Any = result.run.config.task
    step = curve(result, "step")
    alignment = curve(result, "alignment")
    entropy = relative_entropy(result)
    aligned = alignment >= HALF * alignment[-1]
    plateau = result.plateau.time
    return {
        "length": task.length,
        "dim": task.dim,
        "seed": result.run.seed,
        "plateau": plateau,
        "entropy_when_aligned": float(entropy[np.argmax(aligned)]),
        "aligned": first(step, aligned) / plateau,
        "sparse": first(step, entropy <= HALF) / plateau,
    }


def recall_row(result: Result) -> dict[str, Any]:
    """Return when recall began, and when a head of each layer became sparse."""
    step = curve(result, "step")
    begins = criteria(result)["corrected"].time
    row = {"seed": result.run.seed, "begins": begins}
    for layer in range(curve(result, "entropy").shape[1]):
        sparse = first(step, relative_entropy(result, layer) <= HALF)
        row[f"layer_{layer + 1}"] = sparse / begins if begins else np.nan
    return row


def regression_checks(table: pd.DataFrame) -> Iterator[Check]:
    """Check the order of the toy model: values before sparse attention, which ends the plateau."""
    if table.empty:
        return
    for dim, rows in table.groupby("dim"):
        name = f"relative entropy when the value path is half aligned, mean, d = {dim}"
        mean = rows["entropy_when_aligned"].mean()
        words = f"over {LATE:g}: values first, while attention is nearly uniform"
        yield Check(name, mean, None, mean > LATE, words)
    sparse = table["sparse"].mean()
    name = "half of the entropy is gone, as a share of the plateau, mean"
    yield Check(name, sparse, None, LATE < sparse < 1, f"{LATE:g} to 1: at the end of the plateau")


def recall_checks(table: pd.DataFrame) -> Iterator[Check]:
    """Check that recall begins when a head of the first layer becomes sparse."""
    ratio = table["layer_1"].mean()
    name = "recall: step at which a head of layer 1 is sparse, over that of recall, mean"
    words = "0.8 to 1.25: recall begins when a head looks at the previous token"
    yield Check(name, ratio, None, bool(0.8 < ratio < 1.25), words)


def draw(parts: Mapping[str, Runs]) -> Plot:
    titles = ("a  regression", "b  the order", "c  recall, by layer")
    plot, (a, b, c) = panels(2.6, *titles)
    regression = reached(parts["regression"])
    tasks: list[Any] = [result.run.config.task for result in regression]
    colours = colours_of((task.dim for task in tasks), "dim", apart=True)
    for task, result in zip(tasks, regression, strict=True):
        look: dict[str, Any] = {"color": colours[task.dim], "lw": 0.9, "alpha": 0.8}
        entropy = relative_entropy(result)
        alignment = curve(result, "alignment")
        a.plot(curve(result, "step")[1:] / result.plateau.time, entropy[1:], **look)
        b.plot(alignment / alignment[-1], entropy, **look)
    if regression:
        b.plot(*toy_path(tasks[0].length, min(colours)), color=BLACK, ls="--", lw=1.2)
        key(b, [("toy model", {"color": BLACK, "ls": "--"})], loc="lower left")
        legend(b, "$d$", colours)
    a.set(xlabel="step over plateau", ylabel="entropy over that of\nuniform attention")
    a.set(xscale="log", xlim=(0.02, 1.5), ylim=(0, 1.03))
    b.set(xlabel="alignment of the value path", ylim=(0, 1.03), xlim=(-0.05, 1.05))
    draw_recall(c, list(parts["recall"]))
    return plot


def draw_recall(axes: Any, results: Sequence[Result]) -> None:
    layers = range(curve(results[0], "entropy").shape[1])
    for result in results:
        step = curve(result, "step")[1:]
        for layer in layers:
            look: dict[str, Any] = {"color": LAYERS[layer % 4], "lw": 0.9, "alpha": 0.8}
            axes.plot(step, relative_entropy(result, layer)[1:], **look)
        axes.plot(step, curve(result, "accuracy")[1:], color=BLACK, ls=":", lw=1)
    end = max(curve(result, "step")[-1] for result in results)
    axes.set(xscale="log", xlabel="step", xlim=(0.03 * end, 1.1 * end), ylim=(0, 1.03))
    names = [(f"layer {layer + 1}", {"color": LAYERS[layer % 4]}) for layer in layers]
    key(axes, [*names, ("accuracy", {"color": BLACK, "ls": ":"})], loc="lower left")


def toy_path(length: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return alignment and relative entropy along the flow of the toy model.

    Attention gives one position the weight a and each other one (1 - a)/(T - 1).
    """
    cell = theory.cells(length, (dim,))
    end = 2 * float(np.max(theory.predicted_plateau(cell)))
    path = theory.trajectory(cell, np.linspace(0, end, 2000))
    attention = np.clip(np.ravel(path.attention), 1e-12, 1 - 1e-12)
    other = 1 - attention
    entropy = -attention * np.log(attention) - other * np.log(other / (length - 1))
    return np.ravel(path.alignment) / np.sqrt(dim), entropy / np.log(length)


FIGURE = Figure(
    "emergo/entropy",
    "entropy of attention next to the value path: what is learned first",
    {
        name: {
            "regression": fig11_12.FIGURE_11.presets[name]["dim"],
            "recall": fig5_16_17.FIGURE_17.presets[name]["runs"],
        }
        for name in ("paper", "laptop", "smoke")
    },
    make,
    {"paper": 5e5, "laptop": 80, "smoke": 15},
    curves=True,
)
