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
