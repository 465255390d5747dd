r"""Stages of a curve that falls in steps, the ends of its plateaus, and early stopping.

Stages (yuksel2026) are defined on logarithms of both axes, where late stages are as wide as early
ones. The speed $-\mathrm d\log y/\mathrm d\log t$ has a peak in every drop and a valley on every
plateau. The *onset* of a drop is where the tangent at its steepest point meets the level of the
plateau before it, so it does not depend on a threshold.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..core.errors import InputError
from ._emergence import Series, as_curve, emergence
from ._uncertainty import bounded_exp, student

# This share of the largest value is added to the curve, so that an exponential approach to 0 is not
# counted as a stage.
FLOOR = 0.01
SMOOTH = 0.05  # width of the Gaussian that smooths the curve, in units of log step
DEPTH = 0.5  # between two drops, the speed must fall below 1 - DEPTH of the smaller peak
LEAST = 0.15  # a drop must lower the logarithm of the value by this much


class Drop(NamedTuple):
    """One drop of a curve, with the plateau before it."""

    onset: float  # the step at which the plateau ends
    steepest: float  # the step at which the curve falls fastest, on logarithms
    level: (
        float  # the value where the plateau before is flattest; the first value for the first drop
    )
    after: float  # the value on the plateau after; the last value for the last drop


class Boundary(NamedTuple):
    """The step of one event, such as the end of a plateau, over several runs."""

    step: float  # geometric mean
    # The 95% interval of the mean, from Student's t on logarithms; NaN for fewer than two runs.
    low: float
    high: float
    runs: int  # number of runs in the mean
    of: int  # number of all runs, including those without the event or with other stages


def find_stages(step: Series, value: Series) -> list[Drop]:
    """Return the drops of a curve, in order.

    A curve that falls without a plateau in between has one drop.

    **Arguments:**

    - `step`: increasing steps. Step 0 counts only for the first level.
    - `value`: a loss above its floor, such as an excess loss or a KL divergence; its optimum is 0.
    """
    from scipy.ndimage import gaussian_filter1d  # here, because it is slow to import

    step, value = as_curve(step, value, at_least=3)
    if step[0] < 0 or not np.isfinite(value).all():
        raise InputError("steps must be not negative, and values finite")
    if value.max() <= 0:
        return []
    positive = step > 0
    height = FLOOR * value.max()
    grid, y = _averaged(np.log(step[positive]), np.log(np.maximum(value[positive], 0) + height))
    y = gaussian_filter1d(y, SMOOTH / (grid[1] - grid[0]), mode="nearest")
    speed = np.maximum(-np.gradient(y, grid), 0)
    peaks = _peaks(speed, y)
    flats = _flattest(speed, peaks)
    levels = np.exp(y[flats]) - height
    levels[0] = value[0]
    levels[-1] = value[-1]
    drops = []
    for i, peak in enumerate(peaks):
        back = (y[flats[i]] - y[peak]) / speed[peak]
        onset = np.clip(grid[peak] - back, grid[flats[i]], grid[peak])
        numbers = (np.exp(onset), np.exp(grid[peak]), levels[i], levels[i + 1])
        drops.append(Drop(*map(float, numbers)))
    return drops


def _peaks(speed: np.ndarray, y: np.ndarray) -> list[int]:
    """Return the grid points of steepest descent, one per drop.

    Peaks that lower `y` by less than `LEAST` are removed, smallest first.
    """
    from scipy.signal import find_peaks  # here, because it is slow to import

    # The speed is padded with zeros, so that a drop at the edge is a peak too.
    candidates, properties = find_peaks(np.pad(speed, 1), prominence=1e-12)
    prominent = properties["prominences"] >= DEPTH * speed[candidates - 1]
    peaks = [int(p) - 1 for p in candidates[prominent]]
    while peaks:
        falls = [y[a] - y[b] for a, b in pairwise(_flattest(speed, peaks))]
        if min(falls) >= LEAST:
            break
        peaks.pop(int(np.argmin(falls)))
    return peaks


def _flattest(speed: np.ndarray, peaks: Sequence[int]) -> list[int]:
    """Return the grid points of the plateaus: both ends, and the slowest point between drops."""
    return [0, *(a + int(np.argmin(speed[a:b])) for a, b in pairwise(peaks)), len(speed) - 1]


def _averaged(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the curve on an even grid.

    Each grid cell holds the mean of the linear interpolation over the cell, so that every
    evaluation counts.
    """
    edges = np.linspace(x[0], x[-1], 1001)
    every = np.union1d(x, edges)
    lines = np.interp(every, x, y)
    area = np.append(0, np.cumsum(np.diff(every) * (lines[1:] + lines[:-1]) / 2))
    return (edges[1:] + edges[:-1]) / 2, np.diff(np.interp(edges, every, area)) / np.diff(edges)


def stage_boundaries(runs: Sequence[Sequence[Drop]]) -> list[Boundary]:
    """Return the ends of the plateaus between stages, over several runs.

    These are the onsets of all drops except the first. Runs with another number of stages than most
    are left out and counted. If two numbers are equally frequent, the larger one is taken.
    """
    if not runs:
        raise InputError("stage boundaries need at least one run")
    counts = Counter(len(run) for run in runs)
    usual = max(counts, key=lambda n: (counts[n], n))
    chosen = np.array([[drop.onset for drop in run[1:]] for run in runs if len(run) == usual])
    return [boundary_of(onsets, len(runs)) for onsets in chosen.T]


def boundary_of(steps: Series, of: int | None = None) -> Boundary:
    """Return the steps of several runs as one boundary.

    Steps that are not finite are left out. `of` is the number of all runs; by default
    the number of steps.
    """
    steps = np.asarray(steps, np.float64)
    logs = np.log(steps[np.isfinite(steps)])
    n = len(logs)
    mean = float(logs.mean()) if n else math.nan
    half = float(student(n - 1) * logs.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    step, low, high = (bounded_exp(x) for x in (mean, mean - half, mean + half))
    return Boundary(step, low, high, n, len(steps) if of is None else of)


def departure(step: Series, value: Series, share: float = 0.05) -> float:
    """Return the step at which a curve leaves its minimum.

    If the curve is the distance of a student from a simpler predictor, this is when the student
    becomes better than the predictor. No plateau is needed.

    **Arguments:**

    - `step`, `value`: the curve.
    - `share`: the curve has left its minimum when it has risen by this share of its total rise.

    **Returns:** the step, interpolated between evaluations; NaN if the minimum is at the end.
    """
    step, value = as_curve(step, value, at_least=2)
    if not 0 < share < 1:
        raise InputError(f"share must be between 0 and 1, got {share!r}")
    least = int(value.argmin())
    level = value[least] + share * (value[-1] - value[least])
    if not level > value[least]:  # also for values that are not finite and for rounding errors
        return math.nan
    after = least + int(np.argmax(value[least:] >= level))
    return float(np.interp(level, value[after - 1 : after + 1], step[after - 1 : after + 1]))


class Stop(NamedTuple):
    """A run at its best evaluation. References are named by the number of groups they keep."""

    step: float  # the first step with the best loss
    loss: float
    nearest: int  # the reference with the smallest divergence from the student
    divergence: float
    equals: int | None  # the reference that the student equals, if any


def early_stop(step: Series, loss: Series, divergences: ArrayLike, apart: ArrayLike) -> Stop:
    """Return the step with the best validation loss, and the truncated predictor there.

    A reference may be nearest although the student is far from all references. The student *equals*
    reference k if its divergence from k is below half of the smallest divergence between k and
    another reference.

    **Arguments:**

    - `step`, `loss`: the curve of the validation loss.
    - `divergences`: KL(A*_{1:k} ‖ student) in nats for k = 1, 2, ..., shape (references, steps).
    - `apart`: KL(A*_{1:k} ‖ A*_{1:l}), shape (references, references).
    """
    step, loss, divergences, apart = map(np.asarray, (step, loss, divergences, apart))
    if not np.isfinite(loss).any():
        raise InputError("the loss is nowhere finite: there is no best step")
    best = int(np.argmin(np.where(np.isfinite(loss), loss, np.inf)))
    here = divergences[:, best]
    gaps = np.where(np.eye(len(here), dtype=bool), np.inf, apart).min(1)
    close = np.flatnonzero(here < 0.5 * gaps)
    equals = int(close[np.argmin(here[close] / gaps[close])]) + 1 if len(close) else None
    nearest = int(np.argmin(here))
    return Stop(float(step[best]), float(loss[best]), nearest + 1, float(here[nearest]), equals)


def plateau_share(step: Series, value: Series, end: float) -> float:
    """Return the share of the time to `end` that a falling curve spends on a plateau.

    The plateau lasts until the curve first falls to 90% of its level, the median over the first
    quarter of the time. The share is nearly 1 for a sudden drop, 0.19 for an exponential decay to a
    fifth of the start, 0.24 for a straight line, and NaN if the curve does not reach `end`.
    """
    step, value = as_curve(step, value, at_least=2)
    reached = emergence(step, value, end)
    if reached.state != "reached" or not reached.time > step[0]:
        return math.nan
    level = float(np.median(value[step <= max(step[0] + (reached.time - step[0]) / 4, step[1])]))
    left = emergence(step, value, max(0.9 * level, end)).time
    return float((left - step[0]) / (reached.time - step[0]))
