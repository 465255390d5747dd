"""When did it happen? Emergence time as a measurement: a value with an interval, or a censored observation."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from .._errors import InputError, unknown

Series = ArrayLike | Sequence[Any]
Direction = Literal["below", "above"]
State = Literal["reached", "censored", "failed"]


class Emergence(NamedTuple):
    """The emergence time of one curve."""

    time: float
    """The interpolated crossing. Censored: the last step observed. Failed: NaN."""
    low: float
    """The crossing lies between `low` and `high`: the last evaluation on the wrong side of the threshold ..."""
    high: float
    """... and the first on the right side; infinite when censored."""
    state: State

    @property
    def censored(self) -> bool:
        return self.state == "censored"


def running_median(values: Series, window: int) -> np.ndarray:
    """The median over `window` (odd) neighbouring evaluations; at the ends over those there are."""
    values = np.asarray(values, np.float64)
    if window < 1 or window % 2 == 0:
        raise InputError(f"window must be an odd number of evaluations, got {window}")
    if window == 1:
        return values.copy()
    half = window // 2
    return np.array([np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))])


def emergence(
    step: Series,
    value: Series,
    threshold: float,
    direction: Direction = "below",
    *,
    hold: int = 1,
    window: int = 1,
) -> Emergence:
    """The first time a curve crosses a threshold, linearly interpolated between evaluations.

    **Arguments:**

    - `step`: increasing steps (or times) of evaluation.
    - `value`: the metric there.
    - `threshold`, `direction`: emergence is `value <= threshold` (`"below"`) or `value >= threshold` (`"above"`).
    - `hold`: how many evaluations in a row must lie past the threshold. 1 is the first crossing; more asks for a sustained
      one, so that a single lucky evaluation of a noisy curve does not count. The crossing is still dated where the row
      begins. A row cut short by the end of the curve does not count.
    - `window`: for noisy curves, a running median over this many evaluations comes first.

    **Returns:**

    An [`emergo.measure.Emergence`][]. A curve that never crosses is right-censored at its last step. One that turns NaN or
    infinite before it crosses has failed. One that is past the threshold at its first evaluation has emerged by then:
    `low` is minus infinity.
    """
    step, value = np.asarray(step, np.float64), np.asarray(value, np.float64)
    if step.ndim != 1 or step.shape != value.shape:
        raise InputError(f"step and value must be two series of one length, got shapes {step.shape} and {value.shape}")
    if not len(step):
        raise InputError("the curve is empty: there is no evaluation to measure")
    if not np.isfinite(step).all() or (np.diff(step) <= 0).any():
        raise InputError("steps must be finite and increasing")
    if not math.isfinite(threshold):
        raise InputError(f"threshold must be finite, got {threshold:g}")
    if direction not in get_args(Direction):
        raise unknown("direction", direction, get_args(Direction))
    if hold < 1:
        raise InputError(f"hold must be at least 1, got {hold}")

    finite = np.isfinite(value)
    healthy = len(value) if finite.all() else int(np.argmin(finite))
    curve = running_median(value[:healthy], window) if healthy else value[:0]
    past = curve <= threshold if direction == "below" else curve >= threshold
    # Row i counts when evaluations i .. i + hold - 1 are all past the threshold.
    rows = np.convolve(past, np.ones(hold), "valid") == hold if len(past) >= hold else np.zeros(0, bool)
    if rows.any():
        first = int(np.argmax(rows))
        if first == 0:
            return Emergence(float(step[0]), -math.inf, float(step[0]), "reached")
        share = (curve[first - 1] - threshold) / (curve[first - 1] - curve[first])
        time = step[first - 1] + share * (step[first] - step[first - 1])
        return Emergence(float(time), float(step[first - 1]), float(step[first]), "reached")
    if healthy < len(value):
        return Emergence(math.nan, math.nan, math.nan, "failed")
    return Emergence(float(step[-1]), float(step[-1]), math.inf, "censored")
