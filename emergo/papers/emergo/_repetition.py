"""What a run repeats and when it learned, in one row; how many times sooner one cell learns than another."""

import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from ... import theory
from ...engine import Config, Ramp, Result, Switch, WhenStuck
from ...measure import emergence
from ...tasks import Recall, SingleLocation
from .. import _recall
from .._source import curve
from ..zucchet2025 import fig5_16_17

RANDOM_SIGN = ", random sign"


class Repetition(NamedTuple):
    """What a run repeats, in plain numbers."""

    kind: str  # "none", "kept", "switched", "faded" or "policy"
    amount: float  # p or B
    at: int = 0  # the step at which it ends or, faded, begins to; 0 where it does neither
    end: int = 0

    @classmethod
    def of(cls, config: Config) -> "Repetition":
        task = config.task
        value, none = (task.burst, 1.0) if isinstance(task, Recall) else (getattr(task, "repeat", 0.0), 0.0)
        if isinstance(value, WhenStuck):
            return cls("policy", value.stuck)
        if isinstance(value, Ramp):
            at_once = value.end == value.begin + 1
            return cls("switched" if at_once else "faded", value.first, value.end if at_once else value.begin, value.end)
        if isinstance(value, Switch):
            if value.before == none or value.at == 0:
                return cls("none", none)
            return cls("kept", value.before) if value.at >= config.steps else cls("switched", value.before, value.at, value.at)
        return cls("none" if value == none else "kept", float(value))


def row_of(result: Result) -> dict[str, Any]:
    """When a run learned: the plateau of the regression, a test accuracy of one half in recall."""
    task, learned, takeoff, levels = result.run.config.task, result.plateau, math.nan, (math.nan, math.nan)
    if isinstance(task, Recall):
        cell, signed = f"recall, {task.pairs} pairs of {task.vocabulary}", False
        learned = _recall.passed(result, curve(result, "accuracy"), fig5_16_17.LEVEL)
    else:
        assert isinstance(task, SingleLocation)
        signed = task.special == "signed"
        cell = f"T = {task.length}, d = {task.dim}{RANDOM_SIGN if signed else ''}"
        if result.curves is not None:
            heads = curve(result, "attention")
            takes_off = emergence(curve(result, "step"), heads.reshape(len(heads), -1).max(1), theory.TAKEN_OFF, "above")
            takeoff = takes_off.time if takes_off.state == "reached" else math.inf
            levels = plateau_levels(result, takeoff)
    row = {"cell": cell, "signed": signed} | Repetition.of(result.run.config)._asdict() | {"seed": result.run.seed}
    row |= {"time": learned.time, "censored": learned.censored, "takeoff": takeoff}
    return row | dict(zip(("test_level", "train_level"), levels, strict=True))


def plateau_levels(result: Result, takeoff: float) -> tuple[float, float]:
    """The test and the training loss while p is repeated and attention has not taken off, after the first evaluations."""
    at, step = Repetition.of(result.run.config).at, curve(result, "step")
    within = (step >= 12 * result.run.config.task.eval_every) & (step <= min(at or step[-1], takeoff / 2))
    test, train = (float(np.mean(curve(result, name)[within])) if within.any() else math.nan for name in ("loss", "train_loss"))
    return test, train


class Effect(NamedTuple):
    """How many times sooner, with a 95% interval over seeds."""

    times: float
    low: float
    high: float


def effect(slow: pd.DataFrame, fast: pd.DataFrame, column: str = "time") -> Effect:
    """The ratio of the geometric means of two cells (Welch's t in logarithms). Censored runs count as they stand, so that it is
    a lower bound with some in `slow`, and an upper bound with some in `fast`."""
    one, other = (np.log(np.maximum(cell[column].to_numpy(float), 1)) for cell in (slow, fast))
    ratio = float(one.mean() - other.mean())
    parts = [float(x.var(ddof=1)) / len(x) if len(x) > 1 else math.nan for x in (one, other)]
    total, half = sum(parts), math.nan
    if total > 0:
        freedom = total**2 / sum(part**2 / (len(x) - 1) for part, x in zip(parts, (one, other), strict=True))
        half = float(stdtrit(freedom, 0.975)) * math.sqrt(total)
    return Effect(math.exp(ratio), math.exp(ratio - half), math.exp(ratio + half))
