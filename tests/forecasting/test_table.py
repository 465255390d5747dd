"""The calibration of forecasts: quantiles with censoring, the fit, and the shipped table."""

import json

import numpy as np
import pandas as pd
import pytest

from emergo.forecasting._signals import METRIC, Signal
from emergo.forecasting._table import (
    EDGES,
    FILE,
    LEVELS,
    censored_quantiles,
    features,
    fit_table,
    predict_left,
    shipped_table,
    usable,
)


def test_quantiles_without_censoring():
    values = np.random.default_rng(0).standard_normal(999)
    found = censored_quantiles(values, np.zeros(999, bool), np.ones(999), LEVELS)
    assert found == pytest.approx(np.quantile(values, LEVELS, method="inverted_cdf"))


def test_quantiles_are_corrected_for_censoring():
    rng = np.random.default_rng(1)
    values = rng.standard_normal(20_000)
    ends = rng.standard_normal(20_000) + 1
    known = np.minimum(values, ends)
    found = censored_quantiles(known, values > ends, np.ones(20_000), [0.25, 0.5, 0.75])
    assert found == pytest.approx([-0.674, 0.0, 0.674], abs=0.04)  # four standard errors
    assert np.median(known) < -0.1


def test_quantiles_beyond_the_last_value_are_infinite():
    found = censored_quantiles(np.arange(10.0), np.arange(10) >= 5, np.ones(10), [0.4, 0.9])
    assert found.tolist() == [3.0, np.inf]


def made_moments(rng: np.random.Generator, cells: int = 40, seeds: int = 10) -> pd.DataFrame:
    """Moments with the score 0.5 - 0.8 log gain - 1.5 log recent, spread 0.3, a fifth censored."""
    n = cells * seeds
    gain = rng.uniform(0.05, 2.0, n)
    recent = rng.uniform(0.6, 1.0, n)
    left = 0.5 - 0.8 * np.log(gain) - 1.5 * np.log(recent) + 0.3 * rng.standard_normal(n)
    ends = left + rng.normal(0.5, 0.6, n)
    names = [f"c{i % cells}" for i in range(n)]
    rows = {"run": [f"r{i}" for i in range(n)], "cell": names, "block": names}
    rows |= {"kind": "attention", "gain": gain, "recent": recent}
    return pd.DataFrame(rows | {"left": np.minimum(left, ends), "censored": left > ends})


def test_the_fit_recovers_the_score_and_the_coverage():
    rng = np.random.default_rng(2)
    table = fit_table(made_moments(rng))["attention"]
    assert table["coefficients"][:2] == pytest.approx([0.5, -0.8], abs=0.1)
    assert table["coefficients"][2] == pytest.approx(-1.5, abs=0.3)  # three standard errors
    truth = 0.5 - 0.8 * np.log(0.4) - 1.5 * np.log(0.8) + 0.3 * rng.standard_normal(4000)
    quantiles = predict_left(table, Signal("", "attention", 0.4, 0.8, 9.0, (0, 0)))
    assert quantiles is not None
    held = np.mean((truth >= quantiles[1]) & (truth <= quantiles[5]))
    # About 100 runs in the range: a standard error of 0.04, plus the error of the score.
    assert held == pytest.approx(0.8, abs=0.07)


def test_too_few_runs_have_no_table():
    assert fit_table(made_moments(np.random.default_rng(0), cells=4, seeds=2)) == {}


def test_the_shipped_table_has_every_level_and_range():
    table = shipped_table()
    data = json.loads(FILE.read_text())
    assert set(table) == {"attention", "entropy", METRIC}
    assert (tuple(data["levels"]), tuple(data["edges"])) == (LEVELS, EDGES)
    for kind, one in table.items():
        assert len(one["ranges"]) == len(EDGES) + 1
        assert len(one["coefficients"]) == features(kind, 0.5, 0.7).shape[-1]
        for entry in filter(None, one["ranges"]):
            quantiles = [np.inf if q is None else q for q in entry["quantiles"]]
            assert entry["runs"] >= 20
            assert quantiles == sorted(quantiles)


@pytest.mark.parametrize(
    ("change", "expected"),
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
def test_usable_signals(change, expected):
    signal = Signal("attention_0_0", "attention", 0.4, 0.7, 5.0, (0, 0))
    assert usable(signal._replace(**change)) is expected
