r"""Power laws $y = C \prod_k (\text{term}_k)^{\theta_k}$ with their uncertainty (zucchet2025, D.2).

Least squares on logarithms, as the papers do; 95% intervals from a bootstrap; and, when some runs are right-censored, a
maximum-likelihood fit beside it that uses them, because leaving them out pulls the law towards the runs that were quick.
"""

import base64
import dataclasses
import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from .._errors import InputError
from .._json import to_jsonable
from .._style import Picture, png, style
from .._terminal import fit_lines
from ._censored import fit_censored
from ._law_plot import law_plot
from ._terms import Term, censored_rows, column, log_column, log_product, usable_rows

Interval = tuple[float, float]
Method = Literal["least squares", "censored maximum likelihood"]
LEVEL = (0.8, 1.25)
SLACK = 0.05


@dataclasses.dataclass(frozen=True, repr=False)
class Law:
    """A fitted power law. Printed, it shows its intervals; `law.plot()` is its picture."""

    y: str
    terms: tuple[Term, ...]
    C: float
    exponents: Mapping[str, float]  # one per column, fitted or fixed; columns tied in one term move together
    ci95: Mapping[str, Interval]  # 95% intervals of `C` and of every exponent; NaN where the data do not determine them
    ci_kind: str  # what was resampled: `"seeds"` within cells, or `"cells"` where every cell has one run
    r2: float  # share of the variance of log y explained, over the runs that were observed
    spread: float  # standard deviation of log y around the law; for the censored fit, the likelihood's own
    # The same around the means of the cells: what no law of these columns can explain. NaN without repeated cells. Where
    # `spread` is well above it, the law misses its cells, and intervals over seeds, which take it for granted, are too narrow.
    seed_spread: float
    runs: int  # how many runs the fit uses
    censored: int
    failed: int = 0
    method: Method = "least squares"
    with_censored: "Law | None" = None  # the fit that uses the censored runs, when there are any
    table: pd.DataFrame | None = dataclasses.field(default=None, compare=False)  # the table that it was fitted to

    @property
    def formula(self) -> str:
        parts = " ".join(f"{name}^{value:.2f}" for name, value in self.exponents.items())
        return f"{self.y} = {self.C:.3g} {parts}".rstrip()

    def predict(self, table: pd.DataFrame) -> Float[np.ndarray, " rows"]:
        """The law's value for every row of a table with the law's columns."""
        return self.C * np.exp(log_product(self.exponents.items(), table))

    def plot(self) -> Picture:
        """The law and the runs it was fitted to, on logarithmic axes; censored runs are open triangles."""
        if self.table is None:
            raise InputError("this law does not hold the table it was fitted to, so there is nothing to draw; fit it again")
        with style():
            return law_plot(self, self.table)

    def __repr__(self) -> str:
        return "\n".join(fit_lines(law_json(self)))

    def _repr_html_(self) -> str:
        """In a notebook: the words, and the picture below where the law holds its table."""
        words = f"<pre>{html.escape(repr(self))}</pre>"
        if self.table is None:
            return words
        picture = base64.b64encode(png(self.plot(), dpi=110)).decode()
        return f'{words}<img src="data:image/png;base64,{picture}" alt="{html.escape(self.formula)}">'


def fit_law(
    table: pd.DataFrame,
    y: str = "plateau",
    x: str | Sequence[str | Term] = ("dim", "length"),
    *,
    fixed: Mapping[str, float] | None = None,
    resamples: int = 2000,
    seed: int = 0,
    what: str = "the table",
) -> Law:
    r"""Fits a power law to a table with one row per run.

    - `table`: a boolean column `censored` marks runs whose `y` is only a lower bound; rows without a `y`, or whose `state` is
      `failed`, are counted and left out. Rows that agree in all columns of `x` and `fixed` are runs of one cell.
    - `y`: the column to explain.
    - `x`: terms, each with one exponent: a column (`"dim"`), or a product (`"length/burst"` ties the two exponents to
      opposite values). `repeat_factor` is $f(p,d)$ of Eq. 22.
    - `fixed`: columns with a known exponent, e.g. `{"length": 1.0}`.
    - `resamples`, `seed`: of the bootstrap; `what`: how messages call the table.

    The observed runs are fitted by least squares on logarithms; where there are censored ones, `with_censored` is a
    maximum-likelihood fit that uses them too. A table that does not determine the law is an `InputError`.

    >>> fit_law(pd.DataFrame({"dim": [2, 4, 8], "plateau": [12, 48, 192]}), x=["dim"]).formula
    'plateau = 3 dim^2.00'
    """
    if not isinstance(table, pd.DataFrame):
        raise InputError(f"a law is fitted to a table of pandas, such as runs.table, got a {type(table).__name__}")
    listed = [x] if isinstance(x, str) else x
    terms, fixed = tuple(term if isinstance(term, Term) else Term.parse(term) for term in listed), dict(fixed or {})
    _check_request(y, terms, fixed, resamples)
    runs = _log_runs(table, y, terms, fixed, what)
    rng = np.random.default_rng(seed)
    law = _fit_observed(runs, resamples, rng)
    with_censored = _fit_all(runs, resamples // 4, rng) if runs.censored.any() else None
    return dataclasses.replace(law, table=table, with_censored=with_censored)


@dataclasses.dataclass(frozen=True)
class _Runs:
    """The usable runs of a table on logarithms, and the law to fit to them."""

    y: str
    terms: tuple[Term, ...]
    fixed: dict[str, float]
    log_y: Float[np.ndarray, " runs"]
    target: Float[np.ndarray, " runs"]  # log y less the columns with a fixed exponent
    design: Float[np.ndarray, "runs parameters"]  # a column of ones for log C, then the logarithm of every term
    censored: Bool[np.ndarray, " runs"]
    cell: Int[np.ndarray, " runs"]
    failed: int

    def law(self, theta: np.ndarray, samples: np.ndarray, ci_kind: str, spread: float, method: Method) -> Law:
        """The law with log C and the exponents of the terms `theta`, with intervals from `samples` of them."""
        exponents, ci95 = {}, {"C": interval(np.exp(samples[:, 0]))}
        for i, term in enumerate(self.terms, start=1):
            for name, power in term.powers:
                exponents[name], ci95[name] = float(power * theta[i]), interval(power * samples[:, i])
        for name, value in self.fixed.items():
            exponents[name], ci95[name] = float(value), (float(value), float(value))
        observed = ~self.censored
        log_y, residual = self.log_y[observed], self.target[observed] - self.design[observed] @ theta
        level, runs = float(np.exp(theta[0])), len(log_y) if method == "least squares" else len(self.log_y)
        quality = (explained(log_y, residual), spread, spread_of_seeds(log_y, self.cell[observed]))
        counts = (runs, int(self.censored.sum()), self.failed)
        return Law(self.y, self.terms, level, exponents, ci95, ci_kind, *quality, *counts, method)


def _check_request(y: str, terms: Sequence[Term], fixed: Mapping[str, float], resamples: int) -> None:
    """Refuses a law that makes no sense for any table."""
    for name, exponent in fixed.items():
        if not abs(exponent) < 1e3:  # NaN too
            raise InputError(f"the fixed exponent of '{name}' must be a finite number below 1000 in size, got {exponent:g}")
    names = [*(name for term in terms for name, _ in term.powers), *fixed]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"'{repeated[0]}' appears in more than one term; a column can have one exponent only")
    if not terms:
        raise InputError("there is no exponent to fit; give at least one term")
    if y in names:
        raise InputError(f"'{y}' is what the law explains; leave it out of the terms")
    if not 100 <= resamples <= 100_000:
        raise InputError(f"resamples must be at least 100 for a 95% interval, and at most 100,000, got {resamples}")


def _log_runs(table: pd.DataFrame, y: str, terms: tuple[Term, ...], fixed: dict[str, float], what: str) -> _Runs:
    """The usable runs, or an `InputError` where the observed ones do not determine the law."""
    if table.empty:
        raise InputError(f"{what} is empty: there is nothing to fit")
    usable = table[usable_rows(table, y)]
    if usable.empty:
        raise InputError(f"{what} has no run with a '{y}': there is nothing to fit")
    censored, log_y = censored_rows(usable), log_column(usable, y)
    design = np.column_stack([np.ones(len(usable)), *(term.log(usable) for term in terms)])
    target = log_y - log_product(fixed.items(), usable)
    _check_design(design[~censored], terms, f"{what} (without its censored runs)" if censored.any() else what)
    if np.ptp(log_y[~censored]) < 1e-12 * (1 + np.abs(log_y).max()):
        raise InputError(f"'{y}' is constant in {what}: there is no law to fit")
    names = (*(name for term in terms for name, _ in term.powers), *fixed)
    varied = np.column_stack([column(usable, name) for name in names])
    cell = np.unique(varied, axis=0, return_inverse=True)[1].ravel()
    return _Runs(y, terms, fixed, log_y, target, design, censored, cell, failed=len(table) - len(usable))


def _check_design(design: np.ndarray, terms: Sequence[Term], what: str) -> None:
    runs, parameters = design.shape
    if runs < parameters:
        count = f"{runs} usable run" if runs == 1 else f"{runs} usable runs"
        raise InputError(f"{what} has {count}, fewer than the {parameters} numbers to fit (C and one exponent per term)")
    for i, term in enumerate(terms):
        if np.ptp(design[:, i + 1]) < 1e-12 * (1 + np.abs(design[:, i + 1]).max()):
            raise InputError(f"'{term}' is constant in {what}: nothing determines its exponent; vary it or leave it out")
    if np.linalg.matrix_rank(design - np.append(0, design[:, 1:].mean(0))) < parameters:
        names = ", ".join(map(str, terms))
        raise InputError(f"{what} cannot tell the exponents of {names} apart: they vary together; tie them or leave one out")


def _fit_observed(runs: _Runs, resamples: int, rng: np.random.Generator) -> Law:
    """Least squares without the censored runs."""
    observed = ~runs.censored
    design, target = runs.design[observed], runs.target[observed]
    theta = _least_squares(design, target, np.ones((1, len(target))))[0]
    weights, ci_kind = resample(runs.cell[observed], resamples, rng)
    samples = _least_squares(design, target, weights)
    if len(target) == len(theta):  # an exact fit says nothing about its uncertainty
        samples[:] = math.nan
    return runs.law(theta, samples, ci_kind, deviation(target - design @ theta, len(theta)), "least squares")


def _fit_all(runs: _Runs, resamples: int, rng: np.random.Generator) -> Law:
    """Maximum likelihood, which uses that a censored run took longer than was observed."""
    weights, ci_kind = resample(runs.cell, resamples, rng)
    theta, scale = fit_censored(runs.design, runs.target, runs.censored, np.ones((1, len(runs.target))))
    samples, _ = fit_censored(runs.design, runs.target, runs.censored, weights)
    return runs.law(theta[0], samples, ci_kind, float(scale[0]), "censored maximum likelihood")


def _least_squares(design: np.ndarray, z: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted least squares for every row of weights; NaN where a resample does not determine the numbers."""
    centre, scale = np.append(0, design[:, 1:].mean(0)), np.append(1, design[:, 1:].std(0))
    x = (design - centre) / scale
    gram = np.einsum("fr,ri,rj->fij", weights, x, x)
    # The ratio of extreme eigenvalues tells a resample that lost an axis from one that is merely uneven.
    values = np.linalg.eigvalsh(gram)
    determined = values[:, 0] > 1e-9 * values[:, -1]
    theta = np.full((len(weights), x.shape[1]), np.nan)
    moments = np.einsum("fr,ri->fi", weights, x * z[:, None])
    theta[determined] = np.linalg.solve(gram[determined], moments[determined][..., None])[..., 0]
    theta /= scale
    theta[:, 0] -= theta[:, 1:] @ centre[1:]
    return theta


def resample(cell: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """Bootstrap weights, one row per resample, and what was resampled. Where every cell has several runs (seeds), the runs of
    each cell are resampled; otherwise whole cells are. Of n units, n - 1 are drawn and weighted by n/(n-1): drawing n would
    make the spread of a mean too small by (n-1)/n (Rao and Wu 1988)."""
    labels, sizes = np.unique(cell, return_counts=True)

    def draw(n: int) -> np.ndarray:
        return rng.multinomial(n - 1, np.full(n, 1 / n), size=count) * (n / (n - 1))

    weights = np.ones((count, len(cell)))
    if sizes.min() > 1:
        for label, size in zip(labels, sizes, strict=True):
            weights[:, cell == label] = draw(int(size))
        return weights, "seeds"
    if len(labels) > 1:
        weights = draw(len(labels))[:, np.searchsorted(labels, cell)]
    return weights, "cells"


def explained(log_y: np.ndarray, residual: np.ndarray) -> float:
    """R²: the share of the variance of log y that a law explains."""
    return float(1 - np.sum(residual**2) / np.sum((log_y - log_y.mean()) ** 2))


def deviation(residual: np.ndarray, fitted: int) -> float:
    """Unbiased standard deviation of what so many fitted numbers leave over; NaN where these are as many as the runs."""
    spare = len(residual) - fitted
    return float(np.sqrt(np.sum(residual**2) / spare)) if spare else math.nan


def spread_of_seeds(z: np.ndarray, cell: np.ndarray) -> float:
    """Deviation from the means of the cells; NaN where every cell has one run."""
    return deviation(z - pd.Series(z).groupby(cell).transform("mean").to_numpy(), len({*cell}))


def interval(samples: np.ndarray) -> Interval:
    """The 95% interval of a bootstrap; NaN where fewer than 20, or than half, of the resamples determine the number."""
    determined = samples[np.isfinite(samples)]
    if len(determined) < max(20, len(samples) / 2):
        return (math.nan, math.nan)
    low, high = np.quantile(determined, [0.025, 0.975])
    return (float(low), float(high))


def law_json(law: Law) -> dict[str, Any]:
    """A law as numbers, text, lists and dictionaries; a number that is not finite becomes None."""
    request = ("y", "terms", "with_censored", "table")
    fields = ["formula", *(field.name for field in dataclasses.fields(Law) if field.name not in request)]
    nested = {"with_censored": law_json(law.with_censored)} if law.with_censored else {}
    return to_jsonable({name: getattr(law, name) for name in fields} | nested)


@dataclasses.dataclass(frozen=True)
class Published:
    """A law as a paper prints it."""

    source: str
    C: float
    exponents: Mapping[str, float]
    r2: float | None = None

    def at(self, **values: Any) -> Any:
        """The law's value where its columns have these values, numbers or arrays."""
        return self.C * math.prod(values[name] ** power for name, power in self.exponents.items())


class Agreement(NamedTuple):
    """How a fitted law compares with a published one."""

    level: float  # geometric mean over our observed runs of our y over the published law
    agrees: bool  # every exponent within max(95% half-width, 0.05) and the level in [0.8, 1.25]
    why: str


def compare(law: Law, table: pd.DataFrame, published: Published) -> Agreement:
    """Sets a law, and the runs that it was fitted to, beside a published one, whose columns must be columns of ours."""
    rows = table[usable_rows(table, law.y)]
    rows = rows[~censored_rows(rows)]
    theirs = published.C * np.exp(log_product(published.exponents.items(), rows))
    level = float(np.exp(np.mean(np.log(column(rows, law.y) / theirs))))
    reasons = []
    for name, printed in published.exponents.items():
        low, high = law.ci95[name]
        half = (high - low) / 2
        allowed = max(half if math.isfinite(half) else 0.0, SLACK)
        off = law.exponents[name] - printed
        if abs(off) > allowed:
            reasons.append(f"exponent of {name} is off by {off:+.3f}, more than {allowed:.3f}")
    if not LEVEL[0] <= level <= LEVEL[1]:
        reasons.append(f"level {level:.2f} is outside [{LEVEL[0]}, {LEVEL[1]}]")
    return Agreement(level, not reasons, "; ".join(reasons) or "exponents and level within the limits")
