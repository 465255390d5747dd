r"""Power laws $y = C \prod_k (\text{term}_k)^{\theta_k}$ with their uncertainty (zucchet2025, D.2).

Laws are fitted by least squares on logarithms, as in the papers, with 95% intervals from a
bootstrap. If runs are right-censored, a maximum-likelihood fit that uses them stands next to it,
because leaving them out biases the law towards fast runs.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from ..core.errors import InputError
from ..core.json import to_jsonable
from ..core.terminal import fit_lines
from ._censored import fit_censored
from ._terms import Term, censored_rows, column, log_column, log_product, usable_rows
from ._uncertainty import (
    VERDICTS,
    Interval,
    Verdict,
    all_hold,
    bounded_exp,
    cells_spread_more,
    interval,
    judge,
    mean_ratio,
    resample,
    spare_numbers,
)

if TYPE_CHECKING:
    from ..core.plotting import Picture

Method = Literal["least squares", "censored maximum likelihood"]
LEVEL = (0.8, 1.25)
# An exponent that is off by 0.1 changes the law by a factor of 1.26 over a tenfold range of its
# column, which is as much as LEVEL allows.
MARGIN = 0.1


@dataclasses.dataclass(frozen=True, repr=False)
class Law:
    """A fitted power law. Its repr shows exponents with intervals; `law.plot()` draws it."""

    y: str
    terms: tuple[Term, ...]
    C: float
    # One exponent per column, fitted or fixed. The columns of one term vary together.
    exponents: Mapping[str, float]
    # 95% intervals of `C` and of every exponent; NaN if the data do not determine them
    ci95: Mapping[str, Interval]
    # what was resampled: `"cells"` if they spread more than seeds or some cell has a single run,
    # otherwise `"seeds"` within cells
    ci_kind: str
    r2: float  # explained share of the variance of log y, over the observed runs
    # standard deviation of log y around the law; the likelihood's own for the censored fit
    spread: float
    # The same around the means of the cells; NaN without repeated cells. If `spread` is much
    # larger, the law does not describe its cells.
    seed_spread: float
    runs: int  # number of runs in the fit
    censored: int
    failed: int = 0
    method: Method = "least squares"
    with_censored: "Law | None" = None  # the fit of all runs, if some are censored
    table: pd.DataFrame | None = dataclasses.field(default=None, compare=False)  # the fitted data

    @property
    def best(self) -> "Law":
        """The fit that uses censored runs if any run is censored; otherwise this fit."""
        return self.with_censored or self

    @property
    def formula(self) -> str:
        parts = " ".join(f"{name}^{value:.2f}" for name, value in self.exponents.items())
        return f"{self.y} = {self.C:.3g} {parts}".rstrip()

    def predict(self, table: pd.DataFrame) -> Float[np.ndarray, " rows"]:
        """Return the law's value for every row of a table with the law's columns."""
        with np.errstate(over="ignore"):  # absurd values of a table may give infinity
            return self.C * np.exp(log_product(self.exponents.items(), table))

    def of_term(self, term: Term) -> tuple[float, Interval]:
        """Return the exponent of a fitted term and its 95% interval."""
        name, power = term.powers[0]
        low, high = sorted(bound / power for bound in self.ci95[name])
        return self.exponents[name] / power, (low, high)

    def plot(self) -> "Picture":
        """Draw the law and its runs on logarithmic axes; censored runs are open triangles."""
        if self.table is None:
            raise InputError(
                "this law does not hold its table, so it cannot be drawn; fit it again"
            )
        from ..core.plotting import style  # here, because Matplotlib is slow to import
        from ._law_plot import law_plot

        with style():
            return law_plot(self.best, self.table)

    def __repr__(self) -> str:
        return "\n".join(fit_lines(law_json(self)))


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
    r"""Fit a power law to a table with one row per run.

    Observed runs are fitted by least squares on logarithms. If some runs are censored,
    `with_censored` of the result is a maximum-likelihood fit of all runs.

    **Arguments:**

    - `table`: the runs. A boolean column `censored` marks runs whose `y` is only a lower bound.
      Rows without a `y`, or whose `state` is `failed`, are counted and left out. Rows that agree in
      all columns of `x` and `fixed` are runs of one cell.
    - `y`: the column to explain.
    - `x`: terms, each with one exponent: a column (`"dim"`) or a product (`"length/burst"` ties
      the two exponents to opposite values). `repeat_factor` is $f(p,d)$ of Eq. 22.
    - `fixed`: columns with a known exponent, e.g. `{"length": 1.0}`.
    - `resamples`, `seed`: number of bootstrap resamples, and their seed.
    - `what`: name of the table in messages.

    **Returns:** a [`emergo.measure.Law`][]. Raises an `InputError` if the table does not determine
    the law.

    >>> fit_law(pd.DataFrame({"dim": [2, 4, 8], "plateau": [12, 48, 192]}), x=["dim"]).formula
    'plateau = 3 dim^2.00'
    """
    listed = [x] if isinstance(x, str) else x
    terms = tuple(term if isinstance(term, Term) else Term.parse(term) for term in listed)
    fixed = dict(fixed or {})
    _check_request(y, terms, fixed, resamples)
    rows = table[usable_rows(table, y)]
    if rows.empty:
        raise InputError(f"{what} has no run with a '{y}', so no law can be fitted")
    censored = censored_rows(rows)
    rng = np.random.default_rng(seed)
    law = _fit(rows[~censored], y, terms, fixed, resamples, rng, what)
    with_censored = None
    if censored.any():
        with_censored = _fit(rows, y, terms, fixed, resamples // 4, rng, what)
    counts = {"censored": int(censored.sum()), "failed": len(table) - len(rows)}
    return dataclasses.replace(law, table=table, with_censored=with_censored, **counts)


def _check_request(
    y: str, terms: Sequence[Term], fixed: Mapping[str, float], resamples: int
) -> None:
    """Raise an `InputError` for a law that no table can determine."""
    for name, exponent in fixed.items():
        if not abs(exponent) < 1e3:  # also for NaN
            raise InputError(
                f"the fixed exponent of '{name}' must be a finite number below 1000 in size, got "
                f"{exponent:g}"
            )
    names = [y, *_columns(terms), *fixed]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise InputError(
            f"'{repeated[0]}' appears in more than one term or is what the law explains; a column "
            f"can have one exponent only"
        )
    if not terms:
        raise InputError("no exponent to fit; give at least one term")
    if not 100 <= resamples <= 100_000:
        raise InputError(f"resamples must be at least 100 and at most 100,000, got {resamples}")


def _columns(terms: Sequence[Term]) -> list[str]:
    return [name for term in terms for name, _ in term.powers]


def _fit(
    rows: pd.DataFrame,
    y: str,
    terms: tuple[Term, ...],
    fixed: dict[str, float],
    resamples: int,
    rng: np.random.Generator,
    what: str,
) -> Law:
    """Fit runs by least squares, or by maximum likelihood if some of them are censored."""
    censored = censored_rows(rows)
    log_y = log_column(rows, y)
    # log y without the columns with a fixed exponent
    target = log_y - log_product(fixed.items(), rows)
    design = np.column_stack([np.ones(len(rows)), *(term.log(rows) for term in terms)])
    _check_design(design, log_y, y, terms, what)
    columns = [column(rows, name) for name in (*_columns(terms), *fixed)]
    cell = np.unique(np.column_stack(columns), axis=0, return_inverse=True)[1].ravel()
    one = np.ones((1, len(rows)))
    parameters = design.shape[1]
    method: Method
    if censored.any():
        method = "censored maximum likelihood"
        fits, scale = fit_censored(design, target, censored, one)
        spread = float(scale[0])
    else:
        method = "least squares"
        fits = _least_squares(design, target, one)
        spread = deviation(target - design @ fits[0], parameters)
    theta = fits[0]
    residual = target - design @ theta
    observed = ~censored
    by_cells = cells_spread_more(residual[observed], cell[observed], parameters)
    weights, ci_kind = resample(cell, by_cells, resamples, rng)
    if censored.any():
        samples, _ = fit_censored(design, target, censored, weights)
    else:
        samples = _least_squares(design, target, weights)
        if len(rows) == parameters:  # an exact fit cannot estimate its uncertainty
            samples[:] = math.nan
    spare = spare_numbers(cell, ci_kind, parameters)
    exponents = {}
    low, high = interval(samples[:, 0], theta[0], spare)
    ci95 = {"C": (bounded_exp(low), bounded_exp(high))}
    for i, term in enumerate(terms, start=1):
        for name, power in term.powers:
            exponents[name] = float(power * theta[i])
            ci95[name] = interval(power * samples[:, i], exponents[name], spare)
    for name, value in fixed.items():
        exponents[name] = float(value)
        ci95[name] = (float(value), float(value))
    return Law(
        y=y,
        terms=terms,
        C=bounded_exp(float(theta[0])),
        exponents=exponents,
        ci95=ci95,
        ci_kind=ci_kind,
        r2=explained(log_y[observed], residual[observed]),
        spread=spread,
        seed_spread=spread_of_seeds(log_y[observed], cell[observed]),
        runs=len(rows),
        censored=int(censored.sum()),
        method=method,
    )


def _check_design(
    design: np.ndarray, log_y: np.ndarray, y: str, terms: Sequence[Term], what: str
) -> None:
    """Raise an `InputError` if runs with these regressors do not determine the exponents."""
    runs, parameters = design.shape
    if runs < parameters:
        raise InputError(
            f"{what} has too few usable runs that are not censored: {runs}, fewer than the "
            f"{parameters} numbers to fit (C and one exponent per term)"
        )
    for name, values in ((y, log_y), *zip(terms, design.T[1:], strict=True)):
        if np.ptp(values) < 1e-12 * (1 + np.abs(values).max()):
            raise InputError(f"'{name}' is constant in {what}; vary it or leave it out")
    if np.linalg.matrix_rank(design - np.append(0, design[:, 1:].mean(0))) < parameters:
        names = ", ".join(map(str, terms))
        raise InputError(
            f"{what} cannot tell the exponents of {names} apart: they vary together; tie them or "
            f"leave one out"
        )


def _least_squares(design: np.ndarray, z: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Fit weighted least squares once per row of weights; NaN if a resample is degenerate."""
    centre = np.append(0, design[:, 1:].mean(0))
    scale = np.append(1, design[:, 1:].std(0))
    x = (design - centre) / scale
    gram = np.einsum("fr,ri,rj->fij", weights, x, x)
    # The ratio of extreme eigenvalues separates resamples in which a column became constant from
    # resamples that are merely uneven.
    values = np.linalg.eigvalsh(gram)
    determined = values[:, 0] > 1e-9 * values[:, -1]
    theta = np.full((len(weights), x.shape[1]), np.nan)
    moments = np.einsum("fr,ri->fi", weights, x * z[:, None])
    theta[determined] = np.linalg.solve(gram[determined], moments[determined][..., None])[..., 0]
    theta /= scale
    theta[:, 0] -= theta[:, 1:] @ centre[1:]
    return theta


def explained(log_y: np.ndarray, residual: np.ndarray) -> float:
    """Return R², the share of the variance of log y that a law explains."""
    return float(1 - np.sum(residual**2) / np.sum((log_y - log_y.mean()) ** 2))


def deviation(residual: np.ndarray, fitted: int) -> float:
    """Return the unbiased standard deviation of residuals after a fit of `fitted` numbers."""
    spare = len(residual) - fitted
    return float(np.sqrt(np.sum(residual**2) / spare)) if spare else math.nan


def spread_of_seeds(z: np.ndarray, cell: np.ndarray) -> float:
    """Return the standard deviation around the means of cells; NaN if every cell has one run."""
    return deviation(z - pd.Series(z).groupby(cell).transform("mean").to_numpy(), len({*cell}))


def law_json(law: Law) -> dict[str, Any]:
    """Return a law as plain data for JSON; numbers that are not finite become None.

    The fitted terms come first in `terms`, in the order of the request, followed by the columns
    with a fixed exponent.
    """
    left_out = ("y", "terms", "with_censored", "table")
    names = [field.name for field in dataclasses.fields(law) if field.name not in left_out]
    plain: dict[str, Any] = {"formula": law.formula}
    plain |= {name: getattr(law, name) for name in names}
    fitted = _columns(law.terms)
    fixed = [Term(((name, 1.0),)) for name in law.exponents if name not in fitted]
    plain["terms"] = []
    for term in (*law.terms, *fixed):
        exponent, ci95 = law.of_term(term)
        row = {"term": str(term), "exponent": exponent, "ci95": ci95, "fixed": term in fixed}
        plain["terms"].append(row)
    if law.with_censored is not None:
        plain["with_censored"] = law_json(law.with_censored)
    return to_jsonable(plain)


@dataclasses.dataclass(frozen=True)
class Published:
    """A law as printed in a paper."""

    source: str
    C: float
    exponents: Mapping[str, float]
    r2: float | None = None

    def at(self, **values: Any) -> Any:
        """Return the law's value for these values of its columns, numbers or arrays."""
        return self.C * math.prod(values[name] ** power for name, power in self.exponents.items())


class Agreement(NamedTuple):
    """The comparison of a fitted law with a published one."""

    level: float  # geometric mean of our y over the published law, over our observed runs
    verdict: Verdict
    why: str


def compare(law: Law, table: pd.DataFrame, published: Published) -> Agreement:
    """Compare a law, fitted to a table, with a published law in the same columns.

    An exponent agrees if its whole interval is within 0.1 of the published one. It disagrees if it
    is further off and its interval excludes the published one. Otherwise the interval is too wide
    to decide. The level, the geometric mean of our y over the published law, is judged in the same
    way by the limits [0.8, 1.25]. A fit that uses censored runs takes precedence.
    """
    rows = table[usable_rows(table, law.y)]
    rows = rows[~censored_rows(rows)]
    theirs = published.C * np.exp(log_product(published.exponents.items(), rows))
    ratios = column(rows, law.y) / theirs
    level = float(np.exp(np.mean(np.log(ratios))))
    cells = zip(*(column(rows, name) for name in law.exponents), strict=True)
    ends = mean_ratio(ratios, cells)[1:3]
    holds = [judge(level, ends, *LEVEL, 1.0)]
    reasons = []
    if holds[0] is not True:
        reasons.append(_why(f"level {level:.2f}", ends, f"[{LEVEL[0]}, {LEVEL[1]}]", holds[0]))
    for name, printed in published.exponents.items():
        value = law.best.exponents[name]
        ends = law.best.ci95[name]
        holds.append(judge(value, ends, printed - MARGIN, printed + MARGIN, printed))
        if holds[-1] is not True:
            what = f"exponent of {name} {value:.2f}"
            reasons.append(_why(what, ends, f"{printed:g} ± {MARGIN}", holds[-1]))
    why = "; ".join(reasons) or "exponents and level within the limits"
    return Agreement(level, VERDICTS[all_hold(holds)], why)


def _why(what: str, ends: Interval, limits: str, holds: bool | None) -> str:
    """Say why a number does not agree."""
    how = "is outside of" if holds is False else "is not wholly within"
    return f"{what} [{ends[0]:.2f}, {ends[1]:.2f}] {how} {limits}"
