r"""A power law on top of a time that the last term does not touch: $y = a\,u^{\alpha} +
b\,u^{\beta} v^{\gamma}$.

A plain power law in $v$ then has no exponent of its own: it grows from 0 to $\gamma$ with $v$, and
a fit finds whatever the grid reaches.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..core.errors import InputError
from ._laws import Interval, deviation, explained, interval, resample, spread_of_seeds
from ._terms import Term, censored_rows, log_column, usable_rows

NAMES = ("a", "alpha", "b", "beta", "gamma")


@dataclasses.dataclass(frozen=True)
class OffsetLaw:
    r"""A fitted $y = a\,u^{\alpha} + b\,u^{\beta} v^{\gamma}$."""

    u: Term
    v: Term
    values: Mapping[str, float]  # of `a`, `alpha`, `b`, `beta` and `gamma`
    ci95: Mapping[str, Interval]
    r2: float  # share of the variance of log y explained
    spread: float  # unbiased standard deviation of log y around the law
    # the same around the means of the cells: what no law of u and v can explain; NaN without
    # repeated cells
    seed_spread: float
    runs: int

    def predict(self, table: pd.DataFrame) -> np.ndarray:
        """The law's value for every row of a table with the law's columns."""
        theta = np.array(
            [
                math.log(value) if name in ("a", "b") else value
                for name, value in self.values.items()
            ]
        )
        return np.exp(_log_law(theta, self.u.log(table), self.v.log(table)))


def fit_offset(
    table: pd.DataFrame, y: str = "plateau", u: str = "dim", v: str = "length", resamples: int = 200
) -> OffsetLaw:
    r"""Fits $y = a\,u^{\alpha} + b\,u^{\beta} v^{\gamma}$ by least squares on logarithms to a table
    as that of `fit_law`. `u` and `v` are columns or products such as `length/burst`. Cells with a
    censored or failed run are left out whole: their other runs are the quick ones. Fewer than six
    whole cells, or three values of `v` in them, are an `InputError`."""
    from scipy.optimize import least_squares  # slow to import

    u_term = Term.parse(u)
    v_term = Term.parse(v)
    log_u = u_term.log(table)
    log_v = v_term.log(table)
    cell = np.unique(np.column_stack([log_u, log_v]), axis=0, return_inverse=True)[1].ravel()
    whole = ~np.isin(cell, cell[censored_rows(table) | ~usable_rows(table, y)])
    if len({*cell[whole]}) <= len(NAMES):
        raise InputError(
            f"{len({*cell[whole]})} whole cells are too few for a law of {len(NAMES)} numbers"
        )
    if len({*log_v[whole]}) < 3:
        raise InputError(
            f"'{v_term}' takes {len({*log_v[whole]})} values in whole cells; an offset needs at "
            f"least 3"
        )
    log_u = log_u[whole]
    log_v = log_v[whole]
    log_y = log_column(table[whole], y)
    cell = cell[whole]

    def fit(weights: np.ndarray, start: np.ndarray) -> np.ndarray:
        return least_squares(
            lambda t: np.sqrt(weights) * (_log_law(t, log_u, log_v) - log_y), start, x_scale="jac"
        ).x

    theta = fit(np.ones(len(log_y)), _guess(log_u, log_v, log_y))
    weights, _ = resample(cell, resamples, np.random.default_rng(0))
    unique, inverse = np.unique(
        weights, axis=0, return_inverse=True
    )  # with one seed per cell, all are equal
    samples = np.array([fit(w, theta) for w in unique])[inverse.ravel()]
    residual = log_y - _log_law(theta, log_u, log_v)
    values = {name: float(value) for name, value in zip(NAMES, _values(theta), strict=True)}
    ci95 = {name: interval(sample) for name, sample in zip(NAMES, _values(samples).T, strict=True)}
    quality = (
        explained(log_y, residual),
        deviation(residual, len(NAMES)),
        spread_of_seeds(log_y, cell),
    )
    return OffsetLaw(u_term, v_term, values, ci95, *quality, len(log_y))


def _values(theta: np.ndarray) -> np.ndarray:
    """The five numbers from those that are fitted, which are the logarithms of `a` and `b`."""
    levels = np.isin(NAMES, ("a", "b"))
    return np.where(
        levels, np.exp(np.clip(theta, -700, 700)), theta
    )  # a part that is not there has any level


def _log_law(theta: np.ndarray, log_u: np.ndarray, log_v: np.ndarray) -> np.ndarray:
    log_a, alpha, log_b, beta, gamma = theta
    return np.logaddexp(log_a + alpha * log_u, log_b + beta * log_u + gamma * log_v)


def _guess(log_u: np.ndarray, log_v: np.ndarray, log_y: np.ndarray) -> np.ndarray:
    """Both parts half of what a plain power law gives in the middle, and an exponent of 1."""
    design = np.column_stack([np.ones(len(log_y)), log_u, log_v])
    log_c, power, growth = np.linalg.lstsq(design, log_y, rcond=None)[0]
    middle = log_v.mean()
    return np.array(
        [
            log_c + growth * middle - math.log(2),
            power,
            log_c + (growth - 1) * middle - math.log(2),
            power,
            1.0,
        ]
    )
