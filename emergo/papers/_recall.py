"""What the figures of associative recall share: their base, criteria of emergence, and curves."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from .._style import hues, outside
from ..engine import Config, Optimizer, Result, Run
from ..measure import Emergence, emergence
from ..models import Transformer
from ..studies import curve_frame
from ..tasks import Recall
from ._source import curve

# A run ends at an accuracy well past the transition, so that any criterion can be read off its curve.
PAPER = Config(
    Recall(32, 256),
    Transformer(layers=4, heads=4, mask="causal", initial="xavier"),
    Optimizer(),
    precision="bf16",
    steps=200_000,
    threshold=0.9,
    n_test=512,
)
"""Of the readings of the paper the one nearest to its law (`emergo/reading`)."""
SMALL = PAPER.replace(
    model=Transformer(layers=2, heads=2, width=64, mask="causal"),
    optimizer__learning_rate=1e-3,
    precision="fp32",
    steps=3000,
    n_test=256,
)
TINY = SMALL.replace(
    task=Recall(3, 6),
    model=Transformer(layers=2, heads=1, width=16, mask="causal"),
    optimizer__learning_rate=1e-2,
    batch=16,
    steps=600,
    threshold=0.8,
    n_test=64,
)

Criterion = Literal["corrected", "plain"]
CRITERIA: dict[Criterion, str] = {"corrected": "chance-corrected 5%", "plain": "5%"}
"""Of emergence, in words."""


def recall_task(run: Run) -> Recall:
    """The task of a run that is known to be of recall."""
    task = run.config.task
    if not isinstance(task, Recall):
        raise TypeError(f"a run of associative recall was expected, got one of {type(task).__name__}")
    return task


def criteria(result: Result, level: float = 0.05) -> dict[Criterion, Emergence]:
    """When recall emerged: test accuracy at `level`, the paper's (`plain`), and at `level` of the way from guessing to perfect.

    A model that names any value of the context is right once in `pairs`: with fewer than 20 pairs it passes 5% without recall.
    Three evaluations in a row must be past the mark: accuracy is counted on few hundred sequences.
    """
    guess = 1 / recall_task(result.run).pairs
    marks: dict[Criterion, float] = {"plain": level, "corrected": guess + level * (1 - guess)}
    return {name: passed(result, curve(result, "accuracy"), mark) for name, mark in marks.items()}


def passed(result: Result, values: np.ndarray, mark: float) -> Emergence:
    """When a curve of a run rises past a mark for three evaluations in a row. A run that has learned the task, and so ended,
    counts as staying where it is; one that failed before it passed has failed."""
    step = curve(result, "step")
    crossing = emergence(step, values, mark, "above", hold=3)
    if crossing.state == "censored" and result.state == "reached":
        longer = np.append(step, step[-1] + np.array([1, 2])), np.append(values, values[-1:].repeat(2))
        with_rest = emergence(*longer, mark, "above", hold=3)
        return with_rest if with_rest.state == "reached" else crossing
    if crossing.state != "reached" and result.failed_step is not None:
        return Emergence(math.nan, math.nan, math.nan, "failed")
    return crossing


def emergence_table(results: Sequence[Result], by: Criterion = "corrected") -> pd.DataFrame:
    """One row per run: when it emerged by a criterion."""
    rows = []
    for result in results:
        task, plateau = recall_task(result.run), criteria(result)[by]
        rows.append(
            {
                "identity": result.run.identity,
                **dataclasses.asdict(task),
                "learning_rate": result.run.config.optimizer.learning_rate,
                "seed": result.run.seed,
                "plateau": plateau.time,
                "censored": plateau.censored,
                "state": plateau.state,
                "accuracy": float(curve(result, "accuracy")[-1]),
                "guess": 1 / task.pairs,
                "steps": result.steps,
            }
        )
    return pd.DataFrame(rows)


def recall_curves(results: Sequence[Result]) -> pd.DataFrame:
    """All curves, one row per evaluation."""
    frames = [pd.DataFrame()]
    for result in results:
        task = dataclasses.asdict(recall_task(result.run))
        frames.append(curve_frame(result.curves).assign(**task, seed=result.run.seed))
    return pd.concat(frames, ignore_index=True)


def strongest(result: Result, name: str) -> np.ndarray:
    """A curve of layers and heads: that of the head where it ends highest."""
    heads = curve(result, name).reshape(len(curve(result, "step")), -1)
    return heads[:, int(np.argmax(heads[-1]))]


def colours_by(results: Sequence[Result], by: str) -> dict[float, Any]:
    """A colour for each value of a task's field."""
    values = sorted({getattr(r.run.config.task, by) for r in results})
    return dict(zip(values, hues(len(values)), strict=True))


def step_limits(results: Sequence[Result], span: float = 600) -> tuple[float, float]:
    """Of a logarithmic axis of steps, without the beginning, where nothing happens."""
    longest = max(result.steps for result in results)
    return max(longest / span, results[0].run.config.task.eval_every), longest * 1.2


def curves_by(axes: Axes, results: Sequence[Result], by: str, name: str, label: str, legend: bool = True) -> None:
    """A curve against step, one colour per value of `by`, one line per seed."""
    colours = colours_by(results, by)
    for result in results:
        colour = colours[getattr(result.run.config.task, by)]
        axes.plot(curve(result, "step")[1:], curve(result, name)[1:], color=colour, lw=1, alpha=0.85)
    axes.set(xscale="log", xlabel="step")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if legend:
        outside(axes, label, [(f"{value:g}", {"color": colour}) for value, colour in colours.items()])
