"""The censored likelihood against a general optimiser and least squares."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from emergo.measure import fit_censored

from .synthetic import censor, synthetic


def test_scipy_finds_the_same_maximum():
    table = censor(synthetic(3), 0.4)
    design = np.column_stack([np.ones(len(table)), np.log(table["dim"]), np.log(table["length"])])
    z = np.log(table["plateau"].to_numpy())
    censored = table["censored"].to_numpy()
    theta, scale = fit_censored(design, z, censored, np.ones((1, len(z))))

    def negative(x):
        mean = design @ x[:-1]
        sd = np.exp(x[-1])
        return -np.where(censored, norm.logsf(z, mean, sd), norm.logpdf(z, mean, sd)).sum()

    start = np.append(np.linalg.lstsq(design, z, rcond=None)[0], np.log(0.5))
    best = minimize(
        negative,
        start,
        method="Nelder-Mead",
        options={"maxiter": 20000, "xatol": 1e-9, "fatol": 1e-12},
    )
    np.testing.assert_allclose(theta[0], best.x[:-1], rtol=1e-5)
    assert scale[0] == pytest.approx(np.exp(best.x[-1]), rel=1e-5)


def test_without_censored_runs_the_likelihood_is_least_squares():
    table = synthetic(2)
    design = np.column_stack([np.ones(len(table)), np.log(table["dim"])])
    z = np.log(table["plateau"].to_numpy())
    theta, _ = fit_censored(design, z, np.zeros(len(z), bool), np.ones((1, len(z))))
    np.testing.assert_allclose(theta[0], np.linalg.lstsq(design, z, rcond=None)[0], rtol=1e-8)


def test_units_change_neither_the_fits_nor_which_fits_the_data_determine():
    # A third of these resamples leave a direction open, because one of their few cells that are
    # not censored is drawn alone. Their fits would depend on rounding, and so on the processor.
    table = censor(synthetic(3), 0.4)
    design = np.column_stack([np.ones(len(table)), np.log(table["dim"]), np.log(table["length"])])
    z = np.log(table["plateau"].to_numpy())
    censored = table["censored"].to_numpy()
    cell = np.unique(design, axis=0, return_inverse=True)[1].ravel()
    few = np.random.default_rng(0).multinomial(
        4, np.full(cell.max() + 1, 1 / (cell.max() + 1)), 200
    )
    weights = few[:, cell].astype(float)
    theta, scale = fit_censored(design, z, censored, weights)
    change = np.array([[1.0, 3.3, -2.0], [0.0, 2.1, 0.0], [0.0, 0.0, 0.4]])
    other, other_scale = fit_censored(design @ change, 7 * z, censored, weights)
    open_fits = np.isnan(scale)
    assert 10 < open_fits.sum() < 190
    np.testing.assert_array_equal(open_fits, np.isnan(other_scale))
    np.testing.assert_array_equal(open_fits, np.isnan(theta).any(1))
    # Both reach the maximum up to rounding.
    np.testing.assert_allclose(other @ change.T / 7, theta, rtol=1e-6, atol=1e-6)
