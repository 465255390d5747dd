"""A law with an offset gives back the numbers it was made with."""

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


def test_exact_numbers_come_back():
    law = fit_offset(plateaus(0.0, seeds=2))
    assert law.values == pytest.approx(TRUE, rel=1e-5)
    assert law.r2 == pytest.approx(1)
    table = plateaus(0.0, seeds=2)
    np.testing.assert_allclose(law.predict(table), table["plateau"], rtol=1e-6)


def test_noise_is_told_from_the_law():
    table = plateaus(0.08)
    law = fit_offset(table)
    assert all(law.ci95[name][0] < value < law.ci95[name][1] for name, value in TRUE.items())
    assert law.spread == pytest.approx(
        0.08, rel=0.15
    )  # the error of a standard deviation of 95 numbers is 7%
    assert law.seed_spread == pytest.approx(0.08, rel=0.2)
    # A plain power law finds an exponent between 0 and the true one, and leaves more unexplained.
    plain = fit_law(table, x=["dim", "length"], resamples=100)
    assert plain.exponents["length"] < 0.8
    assert plain.spread > 1.2 * law.spread


def test_cells_that_are_not_whole_are_left_out():
    table = plateaus(0.05)
    table.loc[
        (table["dim"] == 128) & (table["length"] == 512) & (table["seed"] > 0), "censored"
    ] = True
    assert fit_offset(table, resamples=100).runs == len(table) - 5
    with pytest.raises(InputError, match="5 whole cells are too few for a law of 5 numbers"):
        fit_offset(table[table["dim"] == 16])
    with pytest.raises(
        InputError, match="'length' takes 2 values in whole cells; an offset needs at least 3"
    ):
        fit_offset(table[table["length"] <= 64])
