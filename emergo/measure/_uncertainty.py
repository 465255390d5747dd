"""Intervals over cells and seeds, ratios of conditions that share seeds, and three-way verdicts.

Runs with equal settings are a cell; the runs of a cell are its seeds. If the cells scatter more
around a law than their seeds do around the cells, the law misses its cells, and seeds say nothing
about by how much. Then cells are the units that are resampled.
"""

import math
from collections.abc import Hashable, Iterable
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

Interval = tuple[float, float]
Verdict = Literal["agrees", "disagrees", "undecided"]
VERDICTS: dict[bool | None, Verdict] = {True: "agrees", False: "disagrees", None: "undecided"}


def bounded_exp(log: float) -> float:
    """Return exp(log), at most exp(700).

    A level that the data do not determine has an arbitrary, large logarithm.
    """
    return math.exp(min(log, 700.0))


def cells_spread_more(
    residual: Float[np.ndarray, " runs"], cell: Int[np.ndarray, " runs"], fitted: int
) -> bool:
    """Return True if cells scatter more around a law than their runs do around the cells.

    This compares the two mean squares of the F test of lack of fit. It asks for no significance:
    a test with few cells rarely finds a misfit that spoils the intervals.

    **Arguments:**

    - `residual`: of each run from the law, on logarithms.
    - `cell`: the label of the cell of each run.
    - `fitted`: the number of fitted parameters.
    """
    means = pd.Series(residual).groupby(cell).transform("mean").to_numpy()
    cells = len({*cell})
    if cells <= fitted or len(residual) == cells:
        return False
    between = np.sum(means**2) / (cells - fitted)
    within = np.sum((residual - means) ** 2) / (len(residual) - cells)
    return bool(between > within)


def resample(
    cell: np.ndarray, by_cells: bool, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, str]:
    """Return bootstrap weights, one row per resample, and what was resampled.

    Whole cells are resampled if `by_cells`, or if some cell has a single run; otherwise the runs
    (seeds) of each cell. Of n units, n - 1 are drawn and weighted by n/(n-1). Drawing n units would
    shrink the variance of a mean by (n-1)/n (Rao and Wu 1988).
    """
    labels, sizes = np.unique(cell, return_counts=True)

    def draw(n: int) -> np.ndarray:
        return rng.multinomial(n - 1, np.full(n, 1 / n), size=count) * (n / (n - 1))

    weights = np.ones((count, len(cell)))
    if sizes.min() > 1 and not by_cells:
        for label, size in zip(labels, sizes, strict=True):
            weights[:, cell == label] = draw(int(size))
        return weights, "seeds"
    if len(labels) > 1:
        weights = draw(len(labels))[:, np.searchsorted(labels, cell)]
    return weights, "cells"


def spare_numbers(cell: np.ndarray, kind: str, fitted: int) -> int:
    """Return the degrees of freedom of an interval: units that no parameter uses up."""
    cells = len({*cell.tolist()})
    return cells - fitted if kind == "cells" else len(cell) - cells


def student(spare: int) -> float:
    """Return the 97.5% quantile of Student's t distribution."""
    from scipy.special import stdtrit  # here, because it is slow to import

    return float(stdtrit(spare, 0.975))


def interval(samples: np.ndarray, estimate: float, spare: int) -> Interval:
    """Return a 95% bootstrap interval.

    Quantiles are as narrow as if the spread of the units were known. With few units it is not, so
    their distance from the estimate is stretched as Student's t stretches the normal distribution.
    The interval is NaN if fewer than 20, or fewer than half, of the resamples determine the number,
    or if no unit is spare.
    """
    from scipy.special import ndtri  # here, because it is slow to import

    determined = samples[np.isfinite(samples)]
    if len(determined) < max(20, len(samples) / 2) or spare < 1:
        return (math.nan, math.nan)
    stretch = student(spare) / ndtri(0.975)
    low, high = estimate + stretch * (np.quantile(determined, [0.025, 0.975]) - estimate)
    return (float(low), float(high))


class Ratio(NamedTuple):
    """The geometric mean of ratios, with a 95% interval."""

    times: float
    low: float  # NaN for fewer than two units
    high: float
    units: str  # what the interval rests on, `"seeds"` or `"cells"`


def mean_ratio(ratios: ArrayLike, cells: Iterable[Hashable] | None = None) -> Ratio:
    """Return the geometric mean of ratios, with an interval from Student's t on logarithms.

    Ratios of two conditions with the same seed are paired: what a seed does to both cancels.

    **Arguments:**

    - `ratios`: positive numbers, one per seed and cell. Numbers that are not finite are left out.
    - `cells`: the cell of each ratio; by default one cell. If cells spread more than seeds,
      the interval is over the means of cells.
    """
    logs = pd.Series(np.log(np.asarray(ratios, np.float64)))
    labels = [0] * len(logs) if cells is None else list(cells)
    cell = pd.factorize(pd.Series(labels, dtype=object))[0]
    finite = np.isfinite(logs.to_numpy())
    logs = logs[finite]
    cell = cell[finite]
    if not len(logs):
        return Ratio(math.nan, math.nan, math.nan, "seeds")
    means = logs.groupby(cell).mean()
    runs = len(logs)
    mean = float(means.mean())
    units = "seeds"
    if cells_spread_more((logs - mean).to_numpy(), cell, 1) or runs == len(means) > 1:
        units = "cells"
        spare = len(means) - 1
        error = float(means.std()) / math.sqrt(len(means))
    else:
        spare = runs - len(means)
        off = logs - logs.groupby(cell).transform("mean")
        sizes = logs.groupby(cell).count()
        variance = float((off**2).sum()) / spare if spare else math.nan
        error = math.sqrt(variance * float((1 / sizes).sum())) / len(means)
    half = student(spare) * error if spare else math.nan
    return Ratio(bounded_exp(mean), bounded_exp(mean - half), bounded_exp(mean + half), units)


def paired_ratio(slow: pd.Series, fast: pd.Series) -> Ratio:
    """Return how many times sooner `fast` is than `slow`, as a mean over the seeds of both.

    The index of both series is the seed.
    """
    return mean_ratio((slow / fast).dropna().to_numpy())


def judge(
    value: float, ends: Interval, low: float, high: float, published: float | None = None
) -> bool | None:
    """Return whether a measured value lies between limits, given its interval.

    True: the whole interval lies between the limits. False: the value does not, and the interval
    excludes the published number (or the limits, if no number was published). None: the interval is
    too wide to decide, or missing (NaN).

    >>> judge(1.3, (1.25, 1.35), 1.2, 1.4, 1.3), judge(1.5, (1.4, 1.6), 1.2, 1.4, 1.3)
    (True, False)
    """
    if low <= ends[0] and ends[1] <= high:
        return True
    target = (low, high) if published is None else (published, published)
    excluded = ends[1] < target[0] or target[1] < ends[0]
    return False if excluded and not low <= value <= high else None


def all_hold(parts: Iterable[bool | np.bool_ | None]) -> bool | None:
    """Return False if a part does not hold, else None if a part is undecided, else True."""
    every = [None if part is None else bool(part) for part in parts]
    if False in every:
        return False
    return None if None in every else True
