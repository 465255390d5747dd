"""What the figures of associative recall share: runs over a grid, criteria of emergence, and curves."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from .._style import hues, outside
from ..engine import Config, Optimizer, Precision, Run
from ..measure import Emergence, emergence
from ..models import Transformer
from ..studies import Result, curve_frame
from ..tasks import Recall

PAPER = Transformer(layers=4, heads=4, mask="causal", initial="xavier")
"""Of the readings of the paper the one nearest to its law (`emergo/reading`)."""
SMALL = Transformer(layers=2, heads=2, width=64, mask="causal")
TINY = Transformer(layers=2, heads=1, width=16, mask="causal")


Criterion = Literal["corrected", "plain"]
CRITERIA: dict[Criterion, str] = {"corrected": "chance-corrected 5%", "plain": "5%"}
"""Of emergence, in words."""


@dataclasses.dataclass(frozen=True)
class Training:
    """How the runs of a figure are trained."""

    model: Transformer = PAPER
    precision: Precision = "bf16"
    batch: int = 32
    steps: int = 200_000
    threshold: float = 0.9
    """Test accuracy that ends a run: well past the transition, so that any criterion can be read off the curve."""
    beyond: float = 0.0
    tests: int = 512

    def runs(self, tasks: Iterable[Recall], rates: Iterable[float], seeds: Iterable[int]) -> list[Run]:
        """Every task with every learning rate and seed, the hardest first."""
        found = []
        for task, rate, seed in itertools.product(tasks, rates, seeds):
            optimizer = Optimizer(learning_rate=rate)
            config = Config(
                task, self.model, optimizer, self.batch, self.precision, self.steps, self.threshold, self.beyond, self.tests
            )
            found.append(Run(config, seed))
        return sorted(found, key=lambda r: (r.config.task.length, r.config.task.inputs), reverse=True)


def criteria(result: Result, level: float = 0.05) -> dict[Criterion, Emergence]:
    """When recall emerged: test accuracy at `level`, the paper's (`plain`), and at `level` of the way from guessing to perfect.

    A model that names any value of the context is right once in `pairs`: with fewer than 20 pairs it passes 5% without recall.
    Three evaluations in a row must be past the mark: accuracy is counted on few hundred sequences.
    """
    assert result.curves is not None
    task = result.run.config.task
    assert isinstance(task, Recall)
    guess = 1 / task.pairs
    marks: dict[Criterion, float] = {"plain": level, "corrected": guess + level * (1 - guess)}
    return {name: passed(result, result.curves["accuracy"], mark) for name, mark in marks.items()}


def passed(result: Result, curve: np.ndarray, mark: float) -> Emergence:
    """When a curve of a run rises past a mark for three evaluations in a row. A run that has learned the task, and so ended,
    counts as staying where it is; one that failed before it passed has failed."""
    assert result.curves is not None
    step = result.curves["step"]
    found = emergence(step, curve, mark, "above", hold=3)
    if found.state == "censored" and result.emergence.state == "reached":
        longer = np.append(step, step[-1] + np.array([1, 2])), np.append(curve, curve[-1:].repeat(2))
        with_rest = emergence(*longer, mark, "above", hold=3)
        return with_rest if with_rest.state == "reached" else found
    if found.state != "reached" and result.failed_step is not None:
        return Emergence(math.nan, math.nan, math.nan, "failed")
    return found


def emergence_table(results: Sequence[Result], by: Criterion = "corrected") -> pd.DataFrame:
    """A row a run: when it emerged by a criterion."""
    rows = []
    for result in results:
        task, found = result.run.config.task, criteria(result)[by]
        assert isinstance(task, Recall)
        assert result.curves is not None
        rows.append(
            {
                "identity": result.run.identity,
                **dataclasses.asdict(task),
                "learning_rate": result.run.config.optimizer.learning_rate,
                "seed": result.run.seed,
                "plateau": found.time,
                "censored": found.censored,
                "state": found.state,
                "accuracy": float(result.curves["accuracy"][-1]),
                "guess": 1 / task.pairs,
                "steps": result.steps,
            }
        )
    return pd.DataFrame(rows)


def recall_curves(results: Sequence[Result]) -> pd.DataFrame:
    """All curves, a row an evaluation."""
    frames = [pd.DataFrame()]
    for result in results:
        task = dataclasses.asdict(result.run.config.task)
        frames.append(curve_frame(result).assign(**task, seed=result.run.seed))
    return pd.concat(frames, ignore_index=True)


def strongest(result: Result, name: str) -> np.ndarray:
    """A curve of layers and heads: that of the head where it ends highest."""
    assert result.curves is not None
    flat = result.curves[name].reshape(len(result.curves["step"]), -1)
    return flat[:, int(np.argmax(flat[-1]))]


def colours_by(results: Sequence[Result], by: str) -> dict[float, Any]:
    """A colour for each value of a task's field."""
    values = sorted({getattr(r.run.config.task, by) for r in results})
    return dict(zip(values, hues(len(values)), strict=True))


def step_limits(results: Sequence[Result], span: float = 600) -> tuple[float, float]:
    """Of a logarithmic axis of steps, without the beginning, where nothing happens."""
    longest = max(result.steps for result in results)
    return max(longest / span, results[0].run.config.task.cadence), longest * 1.2


def curves_by(axes: Axes, results: Sequence[Result], by: str, curve: str, label: str, legend: bool = True) -> None:
    """A curve against step, one colour a value of `by`, a line a seed."""
    colours = colours_by(results, by)
    for result in results:
        assert result.curves is not None
        colour = colours[getattr(result.run.config.task, by)]
        axes.plot(result.curves["step"][1:], result.curves[curve][1:], color=colour, lw=1, alpha=0.85)
    axes.set(xscale="log", xlabel="step")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if legend:
        outside(axes, label, [(f"{value:g}", {"color": colour}) for value, colour in colours.items()])
