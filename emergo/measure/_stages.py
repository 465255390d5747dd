r"""Stages of a curve that falls in steps, where each plateau ends and the next drop begins, and
early stopping (yuksel2026).

The curve is drawn on logarithms of both axes, where a stage is as wide late as early. Its speed
$-\mathrm d\log y/\mathrm d\log t$ has a peak in every drop and a valley on every plateau. The
*onset* of a drop is where the tangent at its steepest point meets the level of the plateau before
it, so that it does not depend on a threshold.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.ndimage import gaussian_filter1d
from scipy.special import stdtrit

from ..core.errors import InputError
from ._emergence import Series, as_curve, emergence

# values below this share of the largest are not told apart: the exponential approach to 0 is not a
# stage
FLOOR = 0.01
SMOOTH = 0.05  # width of the Gaussian that the speed is smoothed with, in units of log step
# a plateau is where the speed is below 1 - DEPTH of that in the smaller of the drops beside it
DEPTH = 0.5
LEAST = 0.15  # a drop must lower the logarithm of the value by this much


class Drop(NamedTuple):
    """One fall of a curve and the plateau before it."""

    onset: float  # the step at which the plateau ends
    steepest: float  # the step at which the curve falls fastest, on logarithms
    # the value on the plateau before, where the curve is flattest; for the first drop, the first
    # value
    level: float
    after: float  # the value on the plateau after; for the last drop, the last value


class Boundary(NamedTuple):
    """The step of one event, such as the end of a plateau, over several runs."""

    step: float  # geometric mean
    # a 95% interval of that mean, from Student's t on logarithms; NaN with fewer than two runs
    low: float
    high: float
    # how many runs are in it: those that have the event, and of ends of plateaus those with as many
    # stages as most
    runs: int
    of: int  # how many runs there are


def find_stages(step: Series, value: Series) -> list[Drop]:
    """The drops of a curve, in order. A curve that falls without a plateau in between is one drop.
    `value` is a loss above its floor (excess loss, KL): 0 is the best there is. Step 0 only counts
    for the first level."""
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
        drops.append(
            Drop(
                float(np.exp(onset)),
                float(np.exp(grid[peak])),
                float(levels[i]),
                float(levels[i + 1]),
            )
        )
    return drops


def _peaks(speed: np.ndarray, y: np.ndarray) -> list[int]:
    """The grid points of steepest fall, one per drop; peaks that lower `y` by less than `LEAST` are
    dropped, smallest first."""
    from scipy.signal import find_peaks  # slow to import

    # Beyond both ends nothing moves, so that a drop at the edge is a peak too.
    candidates, properties = find_peaks(np.pad(speed, 1), prominence=1e-12)
    peaks = [
        int(p) - 1
        for p, q in zip(candidates, properties["prominences"], strict=True)
        if q >= DEPTH * speed[p - 1]
    ]
    while peaks:
        falls = [y[a] - y[b] for a, b in pairwise(_flattest(speed, peaks))]
        if min(falls) >= LEAST:
            break
        peaks.pop(int(np.argmin(falls)))
    return peaks


def _flattest(speed: np.ndarray, peaks: Sequence[int]) -> list[int]:
    """The grid points of the plateaus: both ends, and the slowest between neighbouring drops."""
    return [0, *(a + int(np.argmin(speed[a:b])) for a, b in pairwise(peaks)), len(speed) - 1]


def _averaged(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The curve on an even grid: in each cell the mean of the straight lines between evaluations,
    so that none is left out."""
    edges = np.linspace(x[0], x[-1], 1001)
    every = np.union1d(x, edges)
    lines = np.interp(every, x, y)
    area = np.append(0, np.cumsum(np.diff(every) * (lines[1:] + lines[:-1]) / 2))
    return (edges[1:] + edges[:-1]) / 2, np.diff(np.interp(edges, every, area)) / np.diff(edges)


def stage_boundaries(runs: Sequence[Sequence[Drop]]) -> list[Boundary]:
    """The ends of the plateaus between the stages of several runs: the onsets of all drops but the
    first. Runs that show another number of stages than most are left out and counted; of numbers as
    frequent, the largest is taken."""
    if not runs:
        raise InputError("there is no run to find boundaries in")
    counts = Counter(len(run) for run in runs)
    usual = max(counts, key=lambda n: (counts[n], n))
    chosen = np.array([[drop.onset for drop in run[1:]] for run in runs if len(run) == usual])
    return [boundary_of(onsets, len(runs)) for onsets in chosen.T]


def boundary_of(steps: Series, of: int | None = None) -> Boundary:
    """Steps of several runs as one boundary; those that are not finite are left out. `of`: how many
    runs there are, if more."""
    steps = np.asarray(steps, np.float64)
    logs = np.log(steps[np.isfinite(steps)])
    n = len(logs)
    mean = float(logs.mean()) if n else math.nan
    half = float(stdtrit(n - 1, 0.975) * logs.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    return Boundary(
        math.exp(mean),
        math.exp(mean - half),
        math.exp(mean + half),
        n,
        len(steps) if of is None else of,
    )


def departure(step: Series, value: Series, share: float = 0.05) -> float:
    """The step at which a curve leaves its least value: where it has risen by `share` of what it
    rises to the end. Where the curve is the distance from a simpler predictor, this is when a
    student has left that behind; it needs no plateau. Interpolated between evaluations; NaN where
    the curve is least at the end."""
    step, value = as_curve(step, value, at_least=2)
    if not 0 < share < 1:
        raise InputError(f"share must be between 0 and 1, got {share!r}")
    least = int(value.argmin())
    level = value[least] + share * (value[-1] - value[least])
    if not level > value[least]:  # also where values are not finite, and where the rise is rounding
        return math.nan
    after = least + int(np.argmax(value[least:] >= level))
    return float(np.interp(level, value[after - 1 : after + 1], step[after - 1 : after + 1]))


def best_so_far(loss: ArrayLike) -> Float[np.ndarray, "*runs steps"]:
    """The running minimum along the last axis; an evaluation that is NaN does not count."""
    return np.fmin.accumulate(np.asarray(loss, np.float64), -1)


class Stop(NamedTuple):
    """A run at its best evaluation."""

    step: float  # the first at which the best loss was reached
    loss: float
    # the reference with the smallest divergence to the student, counted in groups kept: 1 is the
    # strongest alone
    nearest: int
    divergence: float
    equals: (
        int | None
    )  # the reference that the student is much closer to than other references are; None: there is no such


def early_stop(step: Series, loss: Series, divergences: ArrayLike, apart: ArrayLike) -> Stop:
    """The step at which validation loss is best, and the truncated predictor that the student
    equals there.

    The nearest reference alone does not say that: early students are far from all of them. The
    student equals reference k when its divergence from it is below half of the least divergence of
    k from another reference. `divergences` are KL(A*_{1:k} ‖ student) in nats for k = 1, 2, ...,
    shape (references, steps); `apart` are KL(A*_{1:k} ‖ A*_{1:l}).
    """
    step = np.asarray(step, np.float64)
    loss = np.asarray(loss, np.float64)
    divergences = np.asarray(divergences, np.float64)
    apart = np.asarray(apart, np.float64)
    count = len(divergences)
    if (
        divergences.shape != (count, len(step))
        or loss.shape != step.shape
        or apart.shape != (count, count)
        or count < 2
    ):
        shapes = f"{step.shape}, {loss.shape}, {divergences.shape} and {apart.shape}"
        raise InputError(
            f"needs one loss per step and divergences of 2 or more references by step and by "
            f"pair, got {shapes}"
        )
    if not np.isfinite(loss).any():
        raise InputError("the loss is nowhere finite: there is no best step")
    best = int(np.nanargmin(np.where(np.isfinite(loss), loss, np.nan)))
    here = divergences[:, best]
    gaps = np.where(np.eye(count, dtype=bool), np.inf, apart).min(1)
    close = np.flatnonzero(here < 0.5 * gaps)
    equals = int(close[np.argmin(here[close] / gaps[close])]) + 1 if len(close) else None
    nearest = int(np.argmin(here))
    return Stop(float(step[best]), float(loss[best]), nearest + 1, float(here[nearest]), equals)


def plateau_share(step: Series, value: Series, end: float) -> float:
    """How much of the time until a falling curve comes to `end` is a plateau: the share before it
    first falls to 90% of its level, the median over the first quarter of that time. A sudden fall
    has nearly 1, an exponential one to a fifth of its start 0.19, a straight line 0.24. NaN where
    the curve does not come to `end`."""
    step, value = as_curve(step, value, at_least=2)
    reached = emergence(step, value, end)
    if reached.state != "reached" or not reached.time > step[0]:
        return math.nan
    level = float(np.median(value[step <= max(step[0] + (reached.time - step[0]) / 4, step[1])]))
    left = emergence(step, value, max(0.9 * level, end)).time
    return float((left - step[0]) / (reached.time - step[0]))
