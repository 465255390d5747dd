r"""Power laws $y = C \prod_k (\text{term}_k)^{\theta_k}$ with their doubt (zucchet2025, D.2).

Least squares on logarithms, as the papers do; 95% intervals from a bootstrap; and, when some runs are right-censored, a
maximum-likelihood fit beside it that uses them, because leaving them out pulls the law towards the runs that were quick.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from .._errors import InputError
from .._json import plain
from ._censored import fit_censored
from ._terms import Term, censored_rows, column, log_column, usable_rows

Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Law:
    """A fitted power law."""

    y: str
    terms: tuple[Term, ...]
    fixed: Mapping[str, float]
    """Exponents that were given, not fitted."""
    C: float
    exponents: Mapping[str, float]
    """One per column; columns tied in one term move together."""
    ci95: Mapping[str, Interval]
    """95% intervals of `C` and of every exponent; NaN where the data do not determine them."""
    ci_kind: str
    """What was resampled: `"seeds"` within cells, or `"cells"` where every cell has one run."""
    r2: float
    """Share of the variance of log y explained, over the runs that were observed."""
    spread: float
    """Standard deviation of log y around the law: unbiased for least squares, the likelihood's own for the censored fit."""
    seed_spread: float
    """The same around the means of the cells: what no law of these columns can explain. NaN without repeated cells. Where
    `spread` is well above it, the law misses its cells by more than their seeds scatter, and intervals over seeds are too
    narrow: they take the law for granted."""
    runs: int
    censored: int
    failed: int = 0
    method: Literal["least squares", "censored maximum likelihood"] = "least squares"
    with_censored: "Law | None" = None
    """The fit that uses the censored runs, when there are any."""

    @property
    def formula(self) -> str:
        parts = " ".join(f"{name}^{value:.2f}" for name, value in self.exponents.items())
        return f"{self.y} = {self.C:.3g} {parts}".rstrip()

    def predict(self, table: pd.DataFrame) -> np.ndarray:
        """The law's value for every row of a table with the law's columns."""
        return evaluate_law(self.C, self.exponents, table)


def evaluate_law(C: float, exponents: Mapping[str, float], table: pd.DataFrame) -> np.ndarray:
    """$C \\prod_k x_k^{\\theta_k}$ for every row."""
    return C * np.exp(sum((power * log_column(table, name) for name, power in exponents.items()), np.zeros(len(table))))


def _check_design(design: np.ndarray, terms: Sequence[Term], what: str) -> None:
    runs, parameters = design.shape
    if runs < parameters:
        raise InputError(
            f"{what} has {runs} usable {'run' if runs == 1 else 'runs'}, fewer than the {parameters} numbers to fit "
            f"(C and {len(terms)} {'exponent' if len(terms) == 1 else 'exponents'})"
        )
    for i, term in enumerate(terms):
        if np.ptp(design[:, i + 1]) < 1e-12 * (1 + np.abs(design[:, i + 1]).max()):
            raise InputError(f"'{term}' is constant in {what}: its exponent cannot be told from C; vary it or leave it out")
    if np.linalg.matrix_rank(design - np.append(0, design[:, 1:].mean(0))) < parameters:
        names = ", ".join(str(t) for t in terms)
        raise InputError(f"{what} cannot tell the exponents of {names} apart: they vary together; tie them or leave one out")


def _least_squares(design: np.ndarray, z: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted least squares for every row of weights; NaN where a resample does not determine the law."""
    # The ratio of extreme eigenvalues tells a resample that lost an axis from one that is merely uneven.
    centre = np.append(0, design[:, 1:].mean(0))
    scale = np.append(1, design[:, 1:].std(0))
    x = (design - centre) / scale
    gram = np.einsum("fr,ri,rj->fij", weights, x, x)
    values = np.linalg.eigvalsh(gram)
    good = values[:, 0] > 1e-9 * values[:, -1]
    theta = np.full((len(weights), x.shape[1]), np.nan)
    moments = np.einsum("fr,ri->fi", weights, x * z[:, None])
    theta[good] = np.linalg.solve(gram[good], moments[good][..., None])[..., 0]
    theta /= scale
    theta[:, 0] -= theta[:, 1:] @ centre[1:]
    return theta


def resample(cell: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """Bootstrap weights, one row a resample, and what was resampled.

    Where every cell has several runs (seeds), the runs of each cell are resampled; otherwise whole cells are. Of n units, n - 1
    are drawn and weighted by n/(n-1): drawing n would make the spread of a mean too small by (n-1)/n, which for five seeds is
    a tenth of the interval (Rao and Wu 1988).
    """
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


def spread_of_seeds(z: np.ndarray, cell: np.ndarray) -> float:
    """Unbiased standard deviation around the means of the cells; NaN where every cell has one run."""
    spare = len(z) - len({*cell})
    means = pd.Series(z).groupby(cell).transform("mean").to_numpy()
    return float(np.sqrt(np.sum((z - means) ** 2) / spare)) if spare else math.nan


def interval(samples: np.ndarray) -> Interval:
    good = samples[np.isfinite(samples)]
    if len(good) < max(20, len(samples) / 2):
        return (math.nan, math.nan)
    low, high = np.quantile(good, [0.025, 0.975])
    return (float(low), float(high))


def fit_law(
    table: pd.DataFrame,
    y: str = "plateau",
    x: Sequence[str | Term] = ("dim", "length"),
    *,
    fixed: Mapping[str, float] | None = None,
    resamples: int = 2000,
    seed: int = 0,
    what: str = "the table",
) -> Law:
    r"""Fits a power law to a table with one row a run.

    **Arguments:**

    - `table`: needs the columns of `y` and `x`. A boolean column `censored` marks runs whose `y` is only a lower bound;
      rows without a `y`, or whose `state` is `failed`, are counted as failed and left out. Rows that agree in all columns of
      `x` and `fixed` are runs of one cell.
    - `y`: the column to explain.
    - `x`: terms, each with one exponent: a column (`"dim"`), or a product (`"length/burst"` ties the two exponents to
      opposite values; `"dim^0.5*length/repeat_factor"` is Fig. 2 right's $2\alpha = \beta = \gamma$). `repeat_factor` is
      $f(p,d)$ of Eq. 22.
    - `fixed`: columns with a known exponent, e.g. `{"length": 1.0}`.
    - `resamples`, `seed`: of the bootstrap.

    **Returns:**

    A [`emergo.measure.Law`][], fitted to the observed runs by least squares on logarithms. With censored runs,
    `with_censored` is the maximum-likelihood fit that uses them as well.
    """
    if not all(math.isfinite(value) and abs(value) < 1e3 for value in (fixed or {}).values()):
        raise InputError("a fixed exponent must be a finite number")
    terms = tuple(t if isinstance(t, Term) else Term.parse(t) for t in x)
    fixed = dict(fixed or {})
    names = [name for term in terms for name, _ in term.powers]
    twice = {n for n in names if names.count(n) > 1} | (set(names) & set(fixed))
    if twice:
        raise InputError(f"'{sorted(twice)[0]}' appears in more than one term; a column can have one exponent only")
    if not terms:
        raise InputError("there is no exponent to fit; give at least one term")
    if y in names or y in fixed:
        raise InputError(f"'{y}' is what the law explains; leave it out of the terms")
    if not 100 <= resamples <= 100_000:
        raise InputError(f"resamples must be at least 100 for a 95% interval, and at most 100,000, got {resamples}")
    if table.empty:
        raise InputError(f"{what} is empty: there is nothing to fit")

    usable = usable_rows(table, y)
    kept = table[usable]
    if kept.empty:
        raise InputError(f"{what} has no run with a '{y}': there is nothing to fit")
    censored = censored_rows(kept)
    seen = ~censored
    z = log_column(kept, y)
    design = np.column_stack([np.ones(len(kept)), *(term.log(kept) for term in terms)])
    offset = sum((power * log_column(kept, name) for name, power in fixed.items()), np.zeros(len(kept)))
    _check_design(design[seen], terms, f"{what} (without its censored runs)" if censored.any() else what)
    if np.ptp(z[seen]) < 1e-12 * (1 + np.abs(z).max()):
        raise InputError(f"'{y}' is constant in {what}: there is no law to fit")

    varied = np.column_stack([column(kept, name) for name in (*names, *fixed)])
    cell = np.unique(varied, axis=0, return_inverse=True)[1].ravel()
    rng = np.random.default_rng(seed)

    def law(estimate: np.ndarray, samples: np.ndarray, kind: str, **rest) -> Law:
        exponents, intervals = {}, {"C": interval(np.exp(samples[:, 0]))}
        for i, term in enumerate(terms, start=1):
            for name, power in term.powers:
                exponents[name] = float(power * estimate[i])
                intervals[name] = interval(power * samples[:, i])
        for name, value in fixed.items():
            exponents[name], intervals[name] = float(value), (float(value), float(value))
        return Law(
            y=y,
            terms=terms,
            fixed=fixed,
            C=float(np.exp(estimate[0])),
            exponents=exponents,
            ci95=intervals,
            ci_kind=kind,
            seed_spread=spread_of_seeds(z[seen], cell[seen]),
            censored=int(censored.sum()),
            failed=int((~usable).sum()),
            **rest,
        )

    target = (z - offset)[seen]
    estimate = _least_squares(design[seen], target, np.ones((1, seen.sum())))[0]
    residual = target - design[seen] @ estimate
    total = np.sum((z[seen] - z[seen].mean()) ** 2)
    r2 = float(1 - np.sum(residual**2) / total)
    spare = seen.sum() - design.shape[1]
    weights, kind = resample(cell[seen], resamples, rng)
    samples = _least_squares(design[seen], target, weights)
    if not spare:  # as many numbers as runs: an exact fit says nothing about its doubt
        samples = np.full_like(samples, np.nan)
    beside = None
    if censored.any():
        weights, kind_all = resample(cell, resamples // 4, rng)
        best, scale = fit_censored(design, z - offset, censored, np.ones((1, len(z))))
        again, _ = fit_censored(design, z - offset, censored, weights)
        beside = law(
            best[0],
            again,
            kind_all,
            r2=float(1 - np.sum((target - design[seen] @ best[0]) ** 2) / total),
            spread=float(scale[0]),
            runs=len(kept),
            method="censored maximum likelihood",
        )
    spread = float(np.sqrt(np.sum(residual**2) / spare)) if spare else math.nan
    return law(estimate, samples, kind, r2=r2, spread=spread, runs=int(seen.sum()), with_censored=beside)


def law_json(law: Law) -> dict[str, Any]:
    """A law as plain data."""
    fields = ("C", "exponents", "ci95", "ci_kind", "r2", "spread", "seed_spread", "runs", "censored", "failed", "method")
    beside = law.with_censored
    return plain(
        {"formula": law.formula}
        | {name: getattr(law, name) for name in fields}
        | ({"with_censored": law_json(beside)} if beside else {})
    )
