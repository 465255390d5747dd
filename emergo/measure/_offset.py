r"""A power law plus an offset: $y = a\,u^{\alpha} + b\,u^{\beta} v^{\gamma}$.

The first part is a time that v does not change. With such an offset, a plain power law in v has no
constant exponent: it grows from 0 to $\gamma$ with v, and a fit depends on the range of the grid.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..core.errors import InputError
from ._laws import deviation, explained, spread_of_seeds
from ._terms import Term, censored_rows, log_column, usable_rows
from ._uncertainty import (
    Interval,
    bounded_exp,
    cells_spread_more,
    interval,
    resample,
    spare_numbers,
)

NAMES = ("a", "alpha", "b", "beta", "gamma")
LEVELS = ("a", "b")  # fitted as logarithms


@dataclasses.dataclass(frozen=True)
class OffsetLaw:
    r"""A fitted $y = a\,u^{\alpha} + b\,u^{\beta} v^{\gamma}$."""

    u: Term
    v: Term
    values: Mapping[str, float]  # of `a`, `alpha`, `b`, `beta` and `gamma`
    ci95: Mapping[str, Interval]
    r2: float  # explained share of the variance of log y
    spread: float  # unbiased standard deviation of log y around the law
    seed_spread: float  # the same around the means of cells; NaN without repeated cells
    runs: int

    def predict(self, table: pd.DataFrame) -> np.ndarray:
        """Return the law's value for every row of a table with the law's columns."""
        theta = [math.log(v) if name in ("a", "b") else v for name, v in self.values.items()]
        return np.exp(_log_law(np.array(theta), self.u.log(table), self.v.log(table)))


def fit_offset(
    table: pd.DataFrame, y: str = "plateau", u: str = "dim", v: str = "length", resamples: int = 200
) -> OffsetLaw:
    r"""Fit $y = a\,u^{\alpha} + b\,u^{\beta} v^{\gamma}$ by least squares on logarithms.

    Cells with a censored or failed run are left out entirely, because their other runs are biased
    towards fast ones. Raises an `InputError` for fewer than six whole cells, or fewer than three
    values of `v` in them.

    **Arguments:**

    - `table`, `y`: as in [`emergo.measure.fit_law`][].
    - `u`, `v`: columns, or products such as `length/burst`.
    - `resamples`: number of bootstrap resamples.
    """
    from scipy.optimize import least_squares  # here, because it is slow to import

    u_term = Term.parse(u)
    v_term = Term.parse(v)
    log_u = u_term.log(table)
    log_v = v_term.log(table)
    cell = np.unique(np.column_stack([log_u, log_v]), axis=0, return_inverse=True)[1].ravel()
    whole = ~np.isin(cell, cell[censored_rows(table) | ~usable_rows(table, y)])
    log_u = log_u[whole]
    log_v = log_v[whole]
    cell = cell[whole]
    if len({*cell}) <= len(NAMES):
        raise InputError(
            f"{len({*cell})} whole cells are too few for a law of {len(NAMES)} numbers"
        )
    if len({*log_v}) < 3:
        raise InputError(
            f"'{v_term}' takes {len({*log_v})} values in whole cells; an offset needs at least 3"
        )
    log_y = log_column(table[whole], y)

    def fit(weights: np.ndarray, start: np.ndarray) -> np.ndarray:
        def residual(theta: np.ndarray) -> np.ndarray:
            return np.sqrt(weights) * (_log_law(theta, log_u, log_v) - log_y)

        return least_squares(residual, start, x_scale="jac").x

    theta = fit(np.ones(len(log_y)), _guess(log_u, log_v, log_y))
    residual = log_y - _log_law(theta, log_u, log_v)
    by_cells = cells_spread_more(residual, cell, len(NAMES))
    weights, kind = resample(cell, by_cells, resamples, np.random.default_rng(0))
    # If cells have one seed, many resamples are equal; each different one is fitted once.
    unique, inverse = np.unique(weights, axis=0, return_inverse=True)
    samples = np.array([fit(w, theta) for w in unique])[inverse.ravel()]
    spare = spare_numbers(cell, kind, len(NAMES))
    ci95 = {name: interval(samples[:, i], theta[i], spare) for i, name in enumerate(NAMES)}
    for name in LEVELS:
        low, high = ci95[name]
        ci95[name] = (bounded_exp(low), bounded_exp(high))
    return OffsetLaw(
        u=u_term,
        v=v_term,
        values={
            name: bounded_exp(x) if name in LEVELS else x
            for name, x in zip(NAMES, theta.tolist(), strict=True)
        },
        ci95=ci95,
        r2=explained(log_y, residual),
        spread=deviation(residual, len(NAMES)),
        seed_spread=spread_of_seeds(log_y, cell),
        runs=len(log_y),
    )


def _log_law(theta: np.ndarray, log_u: np.ndarray, log_v: np.ndarray) -> np.ndarray:
    log_a, alpha, log_b, beta, gamma = theta
    return np.logaddexp(log_a + alpha * log_u, log_b + beta * log_u + gamma * log_v)


def _guess(log_u: np.ndarray, log_v: np.ndarray, log_y: np.ndarray) -> np.ndarray:
    """Return a start: each part is half of a plain power law in the middle, and gamma is 1."""
    design = np.column_stack([np.ones(len(log_y)), log_u, log_v])
    log_c, power, growth = np.linalg.lstsq(design, log_y, rcond=None)[0]
    middle = log_v.mean()
    log_a = log_c + growth * middle - math.log(2)
    log_b = log_c + (growth - 1) * middle - math.log(2)
    return np.array([log_a, power, log_b, power, 1.0])
