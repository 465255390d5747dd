"""The table of forecasts: quantiles with lower bounds, a fit that finds what made the data, and what ships."""

import json

import numpy as np
import pandas as pd
import pytest

from emergo.measure._forecast_table import (
    EDGES,
    FILE,
    LEVELS,
    censored_quantiles,
    features,
    fit_table,
    shipped_table,
    table_data,
    table_from,
    usable,
)
from emergo.measure._signals import METRIC, Signal


def test_quantiles_without_lower_bounds_are_those_of_the_values():
    values = np.random.default_rng(0).standard_normal(999)
    found = censored_quantiles(values, np.zeros(999, bool), np.ones(999), LEVELS)
    assert found == pytest.approx(np.quantile(values, LEVELS, method="inverted_cdf"))


def test_lower_bounds_move_quantiles_to_what_they_were_before_censoring():
    rng = np.random.default_rng(1)
    values, ends = rng.standard_normal(20_000), rng.standard_normal(20_000) + 1
    found = censored_quantiles(np.minimum(values, ends), values > ends, np.ones(20_000), [0.25, 0.5, 0.75])
    assert found == pytest.approx([-0.674, 0.0, 0.674], abs=0.04)  # four standard errors
    assert np.median(np.minimum(values, ends)) < -0.1  # what one would get without


def test_a_quantile_beyond_the_last_value_is_not_known():
    found = censored_quantiles(np.arange(10.0), np.arange(10) >= 5, np.ones(10), [0.4, 0.9])
    assert found.tolist() == [3.0, np.inf]


def made_moments(rng: np.random.Generator, cells: int = 40, seeds: int = 10) -> pd.DataFrame:
    """Moments whose score is 0.5 - 0.8 log gain - 1.5 log recent, with a spread of 0.3; a fifth of them censored."""
    n = cells * seeds
    gain, recent = rng.uniform(0.05, 2.0, n), rng.uniform(0.6, 1.0, n)
    left = 0.5 - 0.8 * np.log(gain) - 1.5 * np.log(recent) + 0.3 * rng.standard_normal(n)
    ends = left + rng.normal(0.5, 0.6, n)
    names = [f"c{i % cells}" for i in range(n)]
    rows = {"run": [f"r{i}" for i in range(n)], "cell": names, "block": names, "kind": "attention", "gain": gain}
    return pd.DataFrame(rows | {"recent": recent, "left": np.minimum(left, ends), "censored": left > ends})


def test_the_fit_finds_what_made_the_moments_and_its_intervals_hold():
    rng = np.random.default_rng(2)
    table = fit_table(made_moments(rng))["attention"]
    assert table.coefficients[:2] == pytest.approx((0.5, -0.8), abs=0.1)
    assert table.coefficients[2] == pytest.approx(-1.5, abs=0.3)  # three standard errors
    gain, recent = 0.4, 0.8
    truth = 0.5 - 0.8 * np.log(gain) - 1.5 * np.log(recent) + 0.3 * rng.standard_normal(4000)
    quantiles = table.quantiles(Signal("", "attention", gain, recent, 9.0, (0, 0)))
    assert quantiles is not None
    held = np.mean((truth >= quantiles[1]) & (truth <= quantiles[5]))
    assert held == pytest.approx(0.8, abs=0.07)  # of 100 runs in the range: a standard error of 0.04 and that of the score


def test_few_runs_make_no_table():
    assert fit_table(made_moments(np.random.default_rng(0), cells=4, seeds=2)) == {}


def test_a_table_comes_back_from_its_data():
    table = fit_table(made_moments(np.random.default_rng(3)))
    data = json.loads(json.dumps(table_data(table), allow_nan=False))
    assert table_data(table_from(data)) == table_data(table)


def test_what_ships_has_every_level_and_range():
    table, data = shipped_table(), json.loads(FILE.read_text())
    assert set(table) == {"attention", "entropy", METRIC}
    assert (tuple(data["levels"]), tuple(data["edges"])) == (LEVELS, EDGES)
    for kind, one in table.items():
        assert len(one.ranges) == len(EDGES) + 1
        assert len(one.coefficients) == features(kind, 0.5, 0.7).shape[-1]
        for entry in filter(None, one.ranges):
            assert entry.runs >= 20
            assert list(entry.quantiles) == sorted(entry.quantiles)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, True),
        ({"evidence": 3.9}, False),
        ({"recent": 0.57}, False),
        ({"gain": -0.2}, False),
        ({"kind": METRIC}, True),
        ({"kind": METRIC, "gain": 0.09}, False),
        ({"kind": METRIC, "gain": 1.1}, False),
    ],
)
def test_what_counts_as_a_signal(change, said):
    assert usable(Signal("attention_0_0", "attention", 0.4, 0.7, 5.0, (0, 0))._replace(**change)) is said
