"""The emergence step of a curve: a value with an interval, or a censored observation."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from ..core.errors import InputError, unknown

Series = ArrayLike | Sequence[Any]
Direction = Literal["below", "above"]
State = Literal["reached", "censored", "trained", "failed"]
"""The end of a run. `reached`: it crossed its threshold. `censored`: it trained all steps without
crossing. `trained`: it trained all steps and had no threshold, so it has no plateau. `failed`: it
diverged before it crossed."""


class Emergence(NamedTuple):
    """The emergence time of one curve, in the units of its steps."""

    time: float  # the interpolated crossing; the last step if censored; NaN if failed
    low: float  # the last evaluation before the crossing
    high: float  # the first evaluation after the crossing; infinite if censored
    state: State

    @property
    def censored(self) -> bool:
        return self.state == "censored"


def as_curve(step: Series, value: Series, at_least: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and values as float64.

    Raises an `InputError` for different lengths, for fewer than `at_least` evaluations, and for
    steps that do not increase.
    """
    step = np.asarray(step, np.float64)
    value = np.asarray(value, np.float64)
    if step.ndim != 1 or step.shape != value.shape:
        raise InputError(
            f"step and value must be two series of one length, got shapes {step.shape} and "
            f"{value.shape}"
        )
    if len(step) < at_least:
        raise InputError(
            f"the curve has too few evaluations: {len(step)}, and at least {at_least} are needed"
        )
    if not np.isfinite(step).all() or (np.diff(step) <= 0).any():
        raise InputError("steps must be finite and increasing")
    return step, value


def past_threshold(
    value: ArrayLike, threshold: float, direction: Direction
) -> Bool[np.ndarray, "..."]:
    """Return True where values lie on or past a threshold; False for NaN.

    Values are compared in float64, whatever their dtype.
    """
    if direction not in get_args(Direction):
        raise unknown("direction", direction, get_args(Direction))
    value = np.asarray(value, np.float64)
    return np.asarray(value <= threshold if direction == "below" else value >= threshold)


def running_median(values: Series, window: int) -> Float[np.ndarray, " evaluations"]:
    """Return the median over `window` (odd) neighbouring evaluations, over fewer at the ends."""
    if window < 1 or window % 2 == 0:
        raise InputError(f"window must be an odd number of evaluations, got {window}")
    series = pd.Series(np.asarray(values, np.float64))
    return series.rolling(window, center=True, min_periods=1).median().to_numpy(copy=True)


def emergence(
    step: Series,
    value: Series,
    threshold: float,
    direction: Direction = "below",
    *,
    hold: int = 1,
    window: int = 1,
) -> Emergence:
    """Return the first time a curve crosses a threshold, interpolated between evaluations.

    A curve that never crosses is right-censored at its last step. A curve that turns NaN or
    infinite before it crosses has failed. For a curve past the threshold at its first evaluation,
    `low` is minus infinity.

    **Arguments:**

    - `step`, `value`: increasing steps (or times) of evaluation, and the metric there.
    - `threshold`, `direction`: emergence is `value <= threshold` (`"below"`) or `value >=
      threshold` (`"above"`).
    - `hold`: number of evaluations in a row that must lie past the threshold. This ignores single
      lucky evaluations of a noisy curve. The crossing is dated at the first of them. A row that is
      cut off by the end of the curve does not count.
    - `window`: smooth the curve first with a running median over this many evaluations.

    >>> emergence([0, 10, 20, 30], [1.0, 0.75, 0.25, 0.1], threshold=0.5)
    Emergence(time=15.0, low=10.0, high=20.0, state='reached')
    """
    step, value = as_curve(step, value)
    if not math.isfinite(threshold):
        raise InputError(f"threshold must be finite, got {threshold:g}")
    if hold < 1:
        raise InputError(f"hold must be at least 1, got {hold}")

    finite = np.isfinite(value)
    healthy = len(value) if finite.all() else int(np.argmin(finite))
    curve = running_median(value[:healthy], window)
    past = past_threshold(curve, threshold, direction)
    # Entry i of `held` is True if evaluations i .. i + hold - 1 are all past the threshold.
    held = np.zeros(0, bool)
    if len(past) >= hold:
        held = np.convolve(past, np.ones(hold), "valid") == hold
    if not held.any():
        if healthy < len(value):
            return Emergence(math.nan, math.nan, math.nan, "failed")
        return Emergence(float(step[-1]), float(step[-1]), math.inf, "censored")
    first = int(np.argmax(held))
    high = float(step[first])
    if first == 0:
        return Emergence(high, -math.inf, high, "reached")
    low = float(step[first - 1])
    share = (curve[first - 1] - threshold) / (curve[first - 1] - curve[first])
    return Emergence(float(low + share * (high - low)), low, high, "reached")
