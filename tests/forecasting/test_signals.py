"""Signals: windows, kinds, scales."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emergo.forecasting._signals import METRIC, find_signals, kind_of, read_curves
from emergo.measure import Direction

STEP = np.arange(0.0, 2001.0, 20.0)


def signals(
    metric=None, threshold=0.1, direction: Direction = "below", until=None, step=STEP, **columns
):
    metric = np.full(len(step), 0.5) if metric is None else metric
    curves = read_curves(step, metric, pd.DataFrame(columns, index=step), threshold, direction)
    found = find_signals(curves, until)
    assert found is not None
    return {signal.kind: signal for signal in found}


def attention(**columns):
    return signals(**{f"attention_0_{name[-1]}": values for name, values in columns.items()})[
        "attention"
    ]


def test_kinds_of_columns():
    known = ("attention_0_3", "attention_by_lag_0_0_2", "largest_0_0")
    assert {kind_of(name) for name in known} == {"attention"}
    assert kind_of("entropy_1_0") == "entropy"
    assert {kind_of(name) for name in ("train_loss", "attention_entropy", "step")} == {None}


def test_recent_fraction_of_linear_and_quadratic_growth():
    assert attention(a0=np.exp(STEP / 2000)).recent == pytest.approx(0.576, abs=0.02)
    assert attention(a0=np.exp((STEP / 2000) ** 2)).recent == pytest.approx(0.745, abs=0.02)


def test_gains_are_logarithms_of_factors():
    late = STEP > 1000
    found = signals(attention_0_0=0.01 * 3**late, entropy_0_0=4.0 * 0.5**late)
    assert found["attention"].gain == pytest.approx(np.log(3))
    assert found["entropy"].gain == pytest.approx(np.log(2))


def test_gain_of_the_metric_is_a_fraction_of_its_distance():
    fallen = np.where(STEP > 1000, np.sqrt(0.05), 0.5)  # half of the way from 0.5 to 0.1
    negative = np.where(STEP > 1000, -2.0, -1.0)  # without a logarithm
    falls = signals(negative, -3.0)[METRIC]
    for found in (signals(fallen)[METRIC], signals(1 - fallen, 0.9, "above")[METRIC], falls):
        assert found.gain == pytest.approx(0.5)
    away = signals(-negative, 0.5)[METRIC]
    assert falls.evidence > 0 > away.evidence
    assert away.gain < 0


def test_the_head_with_the_largest_sure_gain_counts():
    noise = 0.02 * np.exp(3 * np.random.default_rng(0).standard_normal(len(STEP)))
    found = attention(a0=0.01 * np.exp(STEP / 2000), a1=0.01 * np.exp(STEP / 1000), a2=noise)
    assert found.name == "attention_0_1"


def test_a_kind_may_have_other_steps_and_gaps():
    values = np.where(np.arange(len(STEP)) % 2 == 0, np.exp(STEP / 1000), np.nan)
    found = attention(a0=values, a1=np.where(STEP == 0, 1.0, np.nan))
    assert found.name == "attention_0_0"
    assert found.gain == pytest.approx(attention(a0=np.exp(STEP / 1000)).gain, abs=0.05)


@pytest.mark.parametrize("step", [np.zeros(1), np.array([0.0, 100.0]), np.arange(1000.0, 1100.0)])
def test_too_few_evaluations_and_late_logs_have_no_signals(step):
    curves = read_curves(step, np.ones(len(step)), pd.DataFrame(index=step), 0.1, "below")
    assert find_signals(curves) is None
    assert find_signals(curves, until=0) is None


@given(st.integers(-10, 20), st.integers(0, 20))
def test_signals_do_not_depend_on_the_unit_of_time(power, seed):
    noise = np.random.default_rng(seed).standard_normal(len(STEP))
    column = 0.01 * np.exp((STEP / 1500) ** 2 + 0.01 * noise)
    here = signals(attention_0_0=column)["attention"]
    there = signals(step=2.0**power * STEP, attention_0_0=column)["attention"]
    assert here[2:5] == pytest.approx(there[2:5], rel=1e-6)


def test_signals_do_not_depend_on_the_future():
    column = np.exp((STEP / 1000) ** 2)
    until = int(np.searchsorted(STEP, 1000, side="right"))
    now, later = (
        signals(until=until, attention_0_0=values)["attention"]
        for values in (column, np.where(STEP > 1000, 7.0, column))
    )
    assert now == later
