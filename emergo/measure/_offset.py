r"""A power law on top of a time that the last term does not touch: $y = a\,u^{\alpha} + b\,u^{\beta} v^{\gamma}$.

A plain power law in $v$ then has no exponent of its own: it grows from 0 to $\gamma$ with $v$, and a fit finds whatever the
grid reaches.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from .._errors import InputError
from ._laws import Interval, interval, resample, spread_of_seeds
from ._terms import Term, censored_rows, log_column, usable_rows

NAMES = ("a", "alpha", "b", "beta", "gamma")


@dataclasses.dataclass(frozen=True)
class OffsetLaw:
    r"""$y = a\,u^{\alpha} + b\,u^{\beta} v^{\gamma}$."""

    u: Term
    v: Term
    values: Mapping[str, float]
    """Of `a`, `alpha`, `b`, `beta` and `gamma`."""
    ci95: Mapping[str, Interval]
    r2: float
    """Share of the variance of log y explained."""
    spread: float
    """Unbiased standard deviation of log y around the law."""
    seed_spread: float
    """The same around the means of the cells: what no law of u and v can explain. NaN without repeated cells."""
    runs: int

    def predict(self, table: pd.DataFrame) -> np.ndarray:
        """The law's value for every row of a table with the law's columns."""
        theta = np.array([math.log(value) if name in ("a", "b") else value for name, value in self.values.items()])
        return np.exp(_log_law(theta, self.u.log(table), self.v.log(table)))


def fit_offset(
    table: pd.DataFrame, y: str = "plateau", u: str = "dim", v: str = "length", *, resamples: int = 200, seed: int = 0
) -> OffsetLaw:
    r"""Fits $y = a\,u^{\alpha} + b\,u^{\beta} v^{\gamma}$ by least squares on logarithms.

    Cells with a censored or failed run are left out whole: their other runs are the quick ones. Intervals are from a bootstrap
    of the seeds within cells.
    """
    first, second = Term.parse(u), Term.parse(v)
    lu, lv = first.log(table), second.log(table)
    cell = np.unique(np.column_stack([lu, lv]), axis=0, return_inverse=True)[1].ravel()
    bad = censored_rows(table) | ~usable_rows(table, y)
    keep = ~np.isin(cell, cell[bad])
    if len({*cell[keep]}) <= len(NAMES):
        raise InputError(f"{len({*cell[keep]})} whole cells are too few for a law of {len(NAMES)} numbers")
    if len({*lv[keep]}) < 3:
        raise InputError(f"'{second}' takes {len({*lv[keep]})} values in whole cells; an offset needs at least 3")
    lu, lv, z, cell = lu[keep], lv[keep], log_column(table[keep], y), cell[keep]
    theta = _fit(lu, lv, z, np.ones(len(z)), _guess(lu, lv, z))
    weights, _ = resample(cell, resamples, np.random.default_rng(seed))
    unique, which = np.unique(weights, axis=0, return_inverse=True)  # with one seed a cell, all are equal
    samples = np.array([_fit(lu, lv, z, w, theta) for w in unique])[which.ravel()]
    residual = z - _log_law(theta, lu, lv)

    def shown(values: np.ndarray) -> np.ndarray:
        values = values.copy()
        levels = np.isin(NAMES, ("a", "b"))
        values[..., levels] = np.exp(np.clip(values[..., levels], -700, 700))  # a part that is not there has any level
        return values

    return OffsetLaw(
        u=first,
        v=second,
        values=dict(zip(NAMES, map(float, shown(theta)), strict=True)),
        ci95={n: interval(s) for n, s in zip(NAMES, shown(samples).T, strict=True)},
        r2=float(1 - np.sum(residual**2) / np.sum((z - z.mean()) ** 2)),
        spread=float(np.sqrt(np.sum(residual**2) / (len(z) - len(NAMES)))),
        seed_spread=spread_of_seeds(z, cell),
        runs=len(z),
    )


def _log_law(theta: np.ndarray, lu: np.ndarray, lv: np.ndarray) -> np.ndarray:
    log_a, alpha, log_b, beta, gamma = theta
    return np.logaddexp(log_a + alpha * lu, log_b + beta * lu + gamma * lv)


def _guess(lu: np.ndarray, lv: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Both parts half of what a plain power law gives in the middle, and an exponent of 1."""
    design = np.column_stack([np.ones(len(z)), lu, lv])
    log_c, power, growth = np.linalg.lstsq(design, z, rcond=None)[0]
    middle = lv.mean()
    return np.array([log_c + growth * middle - math.log(2), power, log_c + (growth - 1) * middle - math.log(2), power, 1.0])


def _fit(lu: np.ndarray, lv: np.ndarray, z: np.ndarray, weights: np.ndarray, start: np.ndarray) -> np.ndarray:
    return least_squares(lambda theta: np.sqrt(weights) * (_log_law(theta, lu, lv) - z), start, x_scale="jac").x
