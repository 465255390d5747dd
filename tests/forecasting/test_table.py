"""The calibration of forecasts: conformal quantiles over runs, and the shipped table."""

import json

import numpy as np
import pandas as pd
import pytest

from emergo.forecasting._table import (
    FILE,
    LEVELS,
    conformal_quantiles,
    shipped_table,
    weights_of,
)


def quantiles(values, censored=None, levels=LEVELS):
    n = len(values)
    censored = np.zeros(n, bool) if censored is None else censored
    return conformal_quantiles(np.asarray(values), censored, np.ones(n) / n, 1 / n, levels)


def test_intervals_hold_new_runs_as_often_as_they_say():
    """Split conformal prediction holds at least 80%, and at most 2 / (n + 1) more."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(1000):
        *known, new = rng.exponential(size=31)
        low, high = quantiles(np.array(known), levels=(0.1, 0.9))
        held.append(low <= new <= high)
    assert 0.8 - 0.04 < np.mean(held) < 0.8 + 2 / 31 + 0.04  # three standard errors


def test_few_runs_have_open_intervals():
    assert quantiles(np.arange(1.0, 6.0), levels=(0.1, 0.5, 0.9)).tolist() == [0.0, 3.0, np.inf]


def test_quantiles_are_corrected_for_censoring():
    rng = np.random.default_rng(1)
    values = rng.exponential(size=20_000)
    ends = rng.exponential(scale=2, size=20_000)
    found = quantiles(np.minimum(values, ends), values > ends, (0.25, 0.5, 0.75))
    assert found == pytest.approx(-np.log([0.75, 0.5, 0.25]), rel=0.05)  # four standard errors


def test_families_runs_and_moments_have_equal_weight():
    rows = pd.DataFrame({"family": [*"aaab"], "run": ["a1", "a1", "a2", "b1"]})
    assert weights_of(rows).tolist() == [0.125, 0.125, 0.25, 0.5]


def test_the_shipped_table_is_ordered_and_honest():
    table = shipped_table()
    assert tuple(table["levels"]) == LEVELS
    assert json.loads(FILE.read_text()) == table
    ends = [np.inf if q is None else q for q in table["quantiles"]]
    assert ends == sorted(ends)
    assert ends[0] >= 0
    for chance in table["drop"].values():
        assert 0.5 < chance["probability"] < 1
        assert 0 < chance["false_alarms"] < 0.02
        assert chance["lead"] > 0
