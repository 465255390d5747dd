"""What the figures of associative recall share: their base, and criteria of emergence."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, cast

import numpy as np
import pandas as pd

from ..engine import Config, Result, Run
from ..measure import Emergence, emergence
from ..models import Transformer
from ..tasks import Recall
from ._source import curve

DEEP = Transformer(layers=4, heads=4, mask="causal", initial="xavier")
SHALLOW = Transformer(layers=2, heads=2, width=64, mask="causal")
NARROW = SHALLOW.replace(heads=1, width=16)
# A run ends at an accuracy well past the transition, so that any criterion can be read off its curve.
PAPER = Config(Recall(32, 256), DEEP, precision="bf16", steps=200_000, threshold=0.9, n_test=512)
"""Of the readings of the paper the one nearest to its law (`emergo/reading`)."""
SMALL = PAPER.replace(model=SHALLOW, optimizer__learning_rate=1e-3, precision="fp32", steps=3000, n_test=256)
QUICK = SMALL.replace(optimizer__learning_rate=1e-2, batch=16, steps=600, threshold=0.8, n_test=64)
TINY = QUICK.replace(task=Recall(3, 6), model=NARROW)

COLUMNS = tuple(field.name for field in dataclasses.fields(Recall))
Criterion = Literal["corrected", "plain"]
CRITERIA: dict[Criterion, str] = {"corrected": "chance-corrected 5%", "plain": "5%"}


def recall_task(run: Run) -> Recall:
    """The task of a run that is known to be of recall."""
    return cast(Recall, run.config.task)


def criteria(result: Result, level: float = 0.05) -> dict[Criterion, Emergence]:
    """When recall emerged: test accuracy at `level`, the paper's (`plain`), and at `level` of the way from guessing to perfect.

    A model that names any value of the context is right once in `pairs`: with fewer than 20 pairs it passes 5% without recall.
    """
    guess = 1 / recall_task(result.run).pairs
    marks: dict[Criterion, float] = {"plain": level, "corrected": guess + level * (1 - guess)}
    return {name: passed(result, curve(result, "accuracy"), mark) for name, mark in marks.items()}


def passed(result: Result, values: np.ndarray, mark: float) -> Emergence:
    """When a curve rises past a mark for three evaluations in a row: accuracy is counted on few hundred sequences. A run that
    has learned the task, and so ended, counts as staying where it is; one that failed before it passed has failed."""
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
        run = {"learning_rate": result.run.config.optimizer.learning_rate, "seed": result.run.seed}
        emerged = {"plateau": plateau.time, "censored": plateau.censored, "state": plateau.state}
        end = {"accuracy": float(curve(result, "accuracy")[-1]), "guess": 1 / task.pairs, "steps": result.steps}
        rows.append({"identity": result.run.identity} | dataclasses.asdict(task) | run | emerged | end)
    return pd.DataFrame(rows)


def step_limits(results: Sequence[Result], span: float = 600) -> tuple[float, float]:
    """Of a logarithmic axis of steps, without the beginning, where nothing happens."""
    longest = max(result.steps for result in results)
    return max(longest / span, results[0].run.config.task.eval_every), longest * 1.2
