"""Emergence steps of curves whose answers are known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emergo.core.errors import InputError
from emergo.measure import emergence, past_threshold


def test_the_crossing_is_interpolated_between_its_evaluations():
    result = emergence([0, 10, 20, 30], [1.0, 0.8, 0.4, 0.1], 0.5)
    assert result.time == pytest.approx(17.5)
    assert (result.low, result.high, result.state) == (10, 20, "reached")
    assert not result.censored


def test_above_mirrors_below():
    step = [0, 1, 2, 3]
    value = np.array([0.0, 0.2, 0.7, 0.9])
    up = emergence(step, value, 0.5, "above")
    down = emergence(step, -value, -0.5, "below")
    assert up == down
    assert up.time == pytest.approx(1.6)


def test_a_curve_that_never_crosses_is_censored_at_its_last_step():
    result = emergence([0, 10, 20], [1.0, 0.9, 0.8], 0.5)
    assert (result.time, result.low, result.high, result.state) == (20, 20, math.inf, "censored")
    assert result.censored


def test_a_curve_may_start_past_the_threshold():
    result = emergence([5, 10], [0.1, 0.0], 0.5)
    assert (result.time, result.low, result.high, result.state) == (5, -math.inf, 5, "reached")


def test_a_value_on_the_threshold_counts():
    assert emergence([0, 1], [1.0, 0.5], 0.5).time == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_run_that_diverges_before_it_crosses_has_failed(bad):
    result = emergence([0, 1, 2, 3], [1.0, 0.9, bad, 0.1], 0.5)
    assert result.state == "failed"
    assert math.isnan(result.time)
    assert not result.censored


def test_a_run_that_diverges_afterwards_has_emerged():
    assert emergence([0, 1, 2, 3], [1.0, 0.4, 0.3, math.nan], 0.5).state == "reached"


def test_hold_requires_a_sustained_crossing():
    step = np.arange(8)
    value = [1.0, 1.0, 0.1, 1.0, 1.0, 0.2, 0.2, 0.2]
    assert emergence(step, value, 0.5).high == 2
    assert emergence(step, value, 0.5, hold=2).high == 5
    assert emergence(step, value, 0.5, hold=3).high == 5
    assert emergence(step, value, 0.5, hold=4).state == "censored"
    assert emergence([0, 1], [1.0, 0.1], 0.5, hold=3).state == "censored"


def test_noisy_curves_need_hold_or_a_window():
    """Single noisy evaluations cross early; sustained crossings and the median do not."""
    rng = np.random.default_rng(0)
    step = np.arange(0, 1000, 5)
    errors = {"first": [], "hold": [], "window": []}
    for _ in range(50):
        value = 1 / (1 + np.exp((step - 500) / 20)) + 0.2 * rng.normal(size=len(step))
        errors["first"].append(emergence(step, value, 0.5).time - 500)
        errors["hold"].append(emergence(step, value, 0.5, hold=8).time - 500)
        errors["window"].append(emergence(step, value, 0.5, window=15).time - 500)
    assert np.mean(errors["first"]) < -60
    assert abs(np.mean(errors["hold"])) < 25
    assert abs(np.mean(errors["window"])) < 10


@given(st.floats(20, 980), st.integers(1, 50))
def test_the_interval_of_a_noiseless_curve_contains_the_truth(truth, every):
    step = np.arange(0, 1001, every)
    result = emergence(step, np.where(step < truth, 1.0, 0.0), 0.5)
    if result.state == "reached":
        assert result.low < truth <= result.high
        assert result.low <= result.time <= result.high
    else:
        assert step[-1] < truth


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.floats(-4, 4), st.integers(1, 4))
def test_crossing_lies_in_its_bracket_and_nothing_earlier_holds(values, threshold, hold):
    step = np.arange(len(values)) * 3.0
    result = emergence(step, values, threshold, hold=hold)
    past = np.array(values) <= threshold
    if result.state == "censored":
        assert not any(past[i : i + hold].all() for i in range(len(past) - hold + 1))
    else:
        first = int(result.high // 3)
        assert past[first : first + hold].all()
        assert not any(past[i : i + hold].all() for i in range(first))
        assert result.low <= result.time <= result.high


def test_past_the_threshold_in_float64():
    """0.1 in float32 is above 0.1, but a comparison in float32 would call them equal."""
    assert past_threshold(np.array([[0.2, 0.1], [0.0, np.nan]]), 0.1, "below").tolist() == [
        [False, True],
        [True, False],
    ]
    assert past_threshold(np.array([0.1, 0.05], np.float32), 0.1, "below").tolist() == [False, True]
    assert past_threshold([0.2, 0.1, 0.0, np.nan], 0.1, "above").tolist() == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": [], "value": [], "threshold": 0.5}, "too few evaluations: 0"),
        ({"step": [0, 1], "value": [1.0], "threshold": 0.5}, "one length"),
        ({"step": [0, 0], "value": [1.0, 1.0], "threshold": 0.5}, "increasing"),
        ({"step": [0, 1], "value": [1.0, 1.0], "threshold": math.nan}, "threshold must be finite"),
        (
            {"step": [0, 1], "value": [1.0, 1.0], "threshold": 0.5, "hold": 0},
            "hold must be at least 1",
        ),
        (
            {"step": [0, 1], "value": [1.0, 1.0], "threshold": 0.5, "window": 2},
            "window must be an odd",
        ),
    ],
)
def test_wrong_input_is_named(arguments, message):
    with pytest.raises(InputError, match=message):
        emergence(**arguments)
