"""What is resampled, ratios of paired runs, and verdicts."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp, ttest_rel

from emergo.measure import all_hold, judge, mean_ratio, paired_ratio


def test_a_paired_ratio_is_a_paired_t_test_on_logarithms():
    rng = np.random.default_rng(0)
    slow = pd.Series(np.exp(rng.normal(3, 0.3, 6)), index=range(6))
    fast = slow / 2 * np.exp(rng.normal(0, 0.02, 6))
    found = paired_ratio(slow, fast.iloc[::-1])
    expected = ttest_rel(np.log(slow), np.log(fast)).confidence_interval()
    assert found[1:3] == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert math.log(found.high / found.low) < 0.1, "what a seed does to both cancels"
    assert math.isnan(paired_ratio(slow[:1], fast).low), "the spread of one pair is unknown"
    assert math.isnan(paired_ratio(slow[:0], fast).times)


def test_ratios_of_cells_that_differ_rest_on_cells():
    """Four cells with five seeds each, and the same scatter of seeds."""
    seeds = np.tile([-0.1, -0.05, 0, 0.05, 0.1], 4)
    cells = np.repeat(list("abcd"), 5)
    same = mean_ratio(np.exp(seeds), cells)
    assert same.units == "seeds"
    means = np.array([0.2, 0.5, 0.9, 1.4])
    apart = mean_ratio(np.exp(seeds + means.repeat(5)), cells)
    assert apart.units == "cells"
    expected = ttest_1samp(means, 0).confidence_interval()
    assert apart[1:3] == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert apart.times == pytest.approx(math.exp(means.mean()))


@pytest.mark.parametrize(
    ("value", "ends", "published", "holds"),
    [
        (1.0, (0.9, 1.1), 1.0, True),
        (1.0, (0.5, 2.0), 1.0, None),
        (1.4, (1.3, 1.5), 1.0, False),
        (1.3, (1.1, 1.5), 1.0, False),  # off by more than the limits, and 1 is excluded
        (1.3, (1.1, 1.5), None, None),  # the interval reaches into the limits
        (1.3, (0.9, 1.8), 1.0, None),
        (1.0, (math.nan, math.nan), 1.0, None),
    ],
)
def test_an_interval_that_is_too_wide_decides_nothing(value, ends, published, holds):
    assert judge(value, ends, 0.8, 1.25, published) is holds


def test_one_failure_outweighs_what_is_undecided():
    assert all_hold([True, None, False]) is False
    assert all_hold([True, None]) is None
    assert all_hold([True, np.True_]) is True
