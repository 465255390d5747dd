"""The repetition that a run receives, when it learned, and how much sooner one cell learns."""

import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ... import theory
from ...measure import Ratio, emergence, paired_ratio
from ...tasks import Recall, SingleLocation
from ...training import Config, Ramp, Result, Switch, WhenStuck
from .. import _recall
from .._source import curve
from ..zucchet2025 import fig5_16_17

RANDOM_SIGN = ", random sign"
# Attention at which theory and training are compared, and the column with its step. Beyond 0.3 the
# flow under strong repetition slows down, because one attention waits for all directions of the
# map; the strongest head of a Transformer does not.
WHOLE = 0.9  # test accuracy of recall
LEVELS = {"early": 0.25, "takeoff": theory.TAKEN_OFF}


class Repetition(NamedTuple):
    """The repetition of a run.

    - `kind`: "none", "kept", "switched", "faded" or "policy".
    - `amount`: p or B.
    - `at`, `end`: the steps at which it starts to fall and is gone; 0 if it does not change.
    """

    kind: str
    amount: float
    at: int = 0
    end: int = 0

    @classmethod
    def of(cls, config: Config) -> "Repetition":
        task = config.task
        none = 1.0 if isinstance(task, Recall) else 0.0
        value = task.burst if isinstance(task, Recall) else getattr(task, "repeat", 0.0)
        if isinstance(value, WhenStuck):
            return cls("policy", value.stuck)
        if isinstance(value, Ramp):
            if value.end == value.begin + 1:
                return cls("switched", value.first, value.end, value.end)
            return cls("faded", value.first, value.begin, value.end)
        if isinstance(value, Switch):
            if value.at == 0:
                value = none
            elif value.before != none and value.at < config.steps:
                return cls("switched", value.before, value.at, value.at)
            else:
                value = value.before
        return cls("none" if value == none else "kept", float(value))


def row_of(result: Result) -> dict[str, Any]:
    """Tabulate when a run learned.

    For the regression this is the plateau; for recall, the step to a test accuracy of one half, and
    in the columns `whole` and `whole_censored`, of 0.9.
    """
    task = result.run.config.task
    repetition = Repetition.of(result.run.config)
    learned = result.plateau
    times = dict.fromkeys(LEVELS, math.nan)
    levels = {"test_level": math.nan, "train_level": math.nan}
    signed = False
    whole = None
    if isinstance(task, Recall):
        cell = f"recall, {task.pairs} pairs of {task.vocabulary}"
        accuracy = curve(result, "accuracy")
        learned = _recall.passed(result, accuracy, fig5_16_17.LEVEL)
        whole = _recall.passed(result, accuracy, WHOLE, hold=1)
    else:
        assert isinstance(task, SingleLocation)
        signed = task.special == "signed"
        cell = f"T = {task.length}, d = {task.dim}{RANDOM_SIGN if signed else ''}"
        if result.curves is not None:
            step = curve(result, "step")
            heads = curve(result, "attention").reshape(len(step), -1).max(1)
            for name, level in LEVELS.items():
                taken_off = emergence(step, heads, level, "above")
                times[name] = taken_off.time if taken_off.state == "reached" else math.inf
            levels = plateau_levels(result, min(repetition.at or step[-1], times["takeoff"] / 2))
    row = {"cell": cell, "signed": signed} | repetition._asdict() | {"seed": result.run.seed}
    row |= {"time": learned.time, "censored": learned.censored} | times | levels
    row["whole"] = math.nan if whole is None else whole.time
    row["whole_censored"] = whole is not None and whole.censored
    return row


def plateau_levels(result: Result, until: float) -> dict[str, float]:
    """Average the test and training loss up to a step, without the first evaluations."""
    step = curve(result, "step")
    within = (step >= 12 * result.run.config.task.eval_every) & (step <= until)
    return {
        f"{name}_level": float(np.mean(curve(result, loss)[within])) if within.any() else math.nan
        for name, loss in (("test", "loss"), ("train", "train_loss"))
    }


def effect(slow: pd.DataFrame, fast: pd.DataFrame) -> Ratio:
    """Compute how many times sooner one cell learns than another, paired by seed.

    Censored runs enter with their last step: with some in `slow`, the ratio is a lower bound, with
    some in `fast`, an upper bound.
    """
    times = [cell.set_index("seed")["time"].clip(lower=1) for cell in (slow, fast)]
    return paired_ratio(*times)


def kept_flow(length: int, dim: int, repeat: np.ndarray, bias: bool, column: str) -> np.ndarray:
    """Integrate how many times sooner the flow takes off with each p kept than without repetition.

    **Arguments:**

    - `column`: the level of attention, a key of `LEVELS`.
    """
    cell = theory.cells(length, dim, 1, np.append(0.0, repeat))
    horizon = 20 * float(theory.takeoff_time(theory.cells(length, dim)))
    flow = theory.switched(cell, cell, math.inf, bias, horizon=horizon, level=LEVELS[column])
    times = np.where(flow.takeoff < 0.99 * horizon, flow.takeoff, math.inf)
    return times[0] / times[1:]
