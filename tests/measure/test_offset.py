"""Fits of a law with an offset to synthetic runs."""

import itertools

import numpy as np
import pandas as pd
import pytest

from emergo.core.errors import InputError
from emergo.measure import fit_law, fit_offset

TRUE = {"a": 4.0, "alpha": 1.4, "b": 0.2, "beta": 1.2, "gamma": 1.0}


def plateaus(noise: float, seeds: int = 5) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for d, t, seed in itertools.product((16, 32, 64, 128), (32, 64, 128, 256, 512), range(seeds)):
        y = TRUE["a"] * d ** TRUE["alpha"] + TRUE["b"] * d ** TRUE["beta"] * t ** TRUE["gamma"]
        noisy = y * np.exp(noise * rng.standard_normal())
        rows.append({"dim": d, "length": t, "seed": seed, "plateau": noisy, "censored": False})
    return pd.DataFrame(rows)


def test_noiseless_numbers_are_recovered():
    law = fit_offset(plateaus(0.0, seeds=2))
    assert law.values == pytest.approx(TRUE, rel=1e-5)
    assert law.r2 == pytest.approx(1)
    table = plateaus(0.0, seeds=2)
    np.testing.assert_allclose(law.predict(table), table["plateau"], rtol=1e-6)


def test_noisy_numbers_are_in_their_intervals():
    table = plateaus(0.08)
    law = fit_offset(table)
    assert all(law.ci95[name][0] < value < law.ci95[name][1] for name, value in TRUE.items())
    # The standard deviation of 95 numbers has an error of 7%.
    assert law.spread == pytest.approx(0.08, rel=0.15)
    assert law.seed_spread == pytest.approx(0.08, rel=0.2)
    # A plain power law has an exponent between 0 and the true one, and larger residuals.
    plain = fit_law(table, x=["dim", "length"], resamples=100)
    assert plain.exponents["length"] < 0.8
    assert plain.spread > 1.2 * law.spread


def test_cells_with_censored_runs_are_left_out():
    table = plateaus(0.05)
    largest = (table["dim"] == 128) & (table["length"] == 512)
    table.loc[largest & (table["seed"] > 0), "censored"] = True
    assert fit_offset(table, resamples=100).runs == len(table) - 5
    with pytest.raises(InputError, match="5 whole cells are too few for a law of 5 numbers"):
        fit_offset(table[table["dim"] == 16])
    with pytest.raises(
        InputError, match="takes 2 values in whole cells; an offset needs at least 3"
    ):
        fit_offset(table[table["length"] <= 64])
