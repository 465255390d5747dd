"""Settings and criteria of emergence for the figures of associative recall."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, cast

import numpy as np
import pandas as pd

from ..measure import Emergence, emergence
from ..models import Transformer
from ..tasks import Recall
from ..training import Config, Result, Run
from ._source import curve

DEEP = Transformer(layers=4, heads=4, mask="causal", initial="xavier")
SHALLOW = Transformer(layers=2, heads=2, width=64, mask="causal")
NARROW = SHALLOW.replace(heads=1, width=16)
# Runs end at an accuracy well past the transition, so that any criterion can be read off the curve.
PAPER = Config(Recall(32, 256), DEEP, precision="bf16", steps=200_000, threshold=0.9, n_test=512)
"""The interpretation of the paper that comes closest to its law (see `emergo/reading`)."""
SMALL = PAPER.replace(
    model=SHALLOW, optimizer__learning_rate=1e-3, precision="fp32", steps=3000, n_test=256
)
QUICK = SMALL.replace(optimizer__learning_rate=1e-2, batch=16, steps=600, threshold=0.8, n_test=64)
TINY = QUICK.replace(task=Recall(3, 6), model=NARROW)

COLUMNS = tuple(field.name for field in dataclasses.fields(Recall))
Criterion = Literal["corrected", "plain", "first"]
# The criteria for which learning rates are chosen.
CRITERIA: dict[Criterion, str] = {"corrected": "chance-corrected 5%", "plain": "5%"}


def recall_task(run: Run) -> Recall:
    """Return the task of a run as `Recall`."""
    return cast(Recall, run.config.task)


def criteria(result: Result, level: float = 0.05) -> dict[Criterion, Emergence]:
    """Return the emergence of recall by three criteria.

    `first` is the paper's (D.1): the first evaluation at which test accuracy reaches `level`.
    `plain` asks for three evaluations in a row. `corrected` does too, and starts from the accuracy
    of guessing: a model that answers with a random value of the context is right once in `pairs`
    queries, so with fewer than 20 pairs it passes 5% without recall.
    """
    guess = 1 / recall_task(result.run).pairs
    accuracy = curve(result, "accuracy")
    return {
        "first": passed(result, accuracy, level, hold=1),
        "plain": passed(result, accuracy, level),
        "corrected": passed(result, accuracy, guess + level * (1 - guess)),
    }


def passed(result: Result, values: np.ndarray, mark: float, hold: int = 3) -> Emergence:
    """Return when a curve rises past a mark and stays there for `hold` evaluations.

    Accuracy is measured on a few hundred sequences and fluctuates. Runs that have learned the task
    have stopped early, and are assumed to stay where they are. Runs that fail before the mark have
    failed.
    """
    step = curve(result, "step")
    crossing = emergence(step, values, mark, "above", hold=hold)
    if crossing.state == "censored" and result.state == "reached":
        longer = (
            np.append(step, step[-1] + np.array([1, 2])),
            np.append(values, values[-1:].repeat(2)),
        )
        with_rest = emergence(*longer, mark, "above", hold=hold)
        return with_rest if with_rest.state == "reached" else crossing
    if crossing.state != "reached" and result.failed_step is not None:
        return Emergence(math.nan, math.nan, math.nan, "failed")
    return crossing


def emergence_table(results: Sequence[Result], by: Criterion = "corrected") -> pd.DataFrame:
    """Return one row per run with its emergence by a criterion."""
    rows = []
    for result in results:
        task = recall_task(result.run)
        plateau = criteria(result)[by]
        run = {"learning_rate": result.run.config.optimizer.learning_rate, "seed": result.run.seed}
        emerged = {"plateau": plateau.time, "censored": plateau.censored, "state": plateau.state}
        end = {
            "accuracy": float(curve(result, "accuracy")[-1]),
            "guess": 1 / task.pairs,
            "steps": result.steps,
        }
        rows.append(
            {"identity": result.run.identity} | dataclasses.asdict(task) | run | emerged | end
        )
    return pd.DataFrame(rows)


def step_limits(results: Sequence[Result], span: float = 600) -> tuple[float, float]:
    """Return the limits of a logarithmic axis of steps, without the uneventful start."""
    longest = max(result.steps for result in results)
    return max(longest / span, results[0].run.config.task.eval_every), longest * 1.2
