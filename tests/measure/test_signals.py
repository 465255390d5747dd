"""How far columns have moved: windows, kinds, scales."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emergo.measure._emergence import Direction
from emergo.measure._signals import METRIC, find_signals, kind_of, read_curves

STEP = np.arange(0.0, 2001.0, 20.0)


def signals(metric=None, threshold=0.1, direction: Direction = "below", until=None, step=STEP, **columns):
    metric = np.full(len(step), 0.5) if metric is None else metric
    curves = read_curves(step, metric, pd.DataFrame(columns, index=step), threshold, direction)
    found = find_signals(curves, until)
    assert found is not None
    return {signal.kind: signal for signal in found}


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("attention_0_3", "attention"),
        ("attention_by_lag_0_0_2", "attention"),
        ("largest_0_0", "attention"),
        ("entropy_1_0", "entropy"),
        ("agreement_query_key_0", "agreement"),
        ("gradient_value_output_1", "gradient"),
        ("train_loss", None),
        ("attention_entropy", None),
        ("step", None),
    ],
)
def test_kinds_go_by_name(column, kind):
    assert kind_of(column) == kind


def test_even_growth_has_gained_58_per_cent_of_late_and_quadratic_growth_74():
    even, quadratic = signals(attention_0_0=np.exp(STEP / 2000)), signals(attention_0_0=np.exp((STEP / 2000) ** 2))
    assert even["attention"].recent == pytest.approx(0.576, abs=0.02)  # windows hold a few rows
    assert quadratic["attention"].recent == pytest.approx(0.745, abs=0.02)


def test_gains_are_by_factors():
    found = signals(attention_0_0=0.01 * 3 ** (STEP > 1000), entropy_0_0=4.0 * 0.5 ** (STEP > 1000))
    assert found["attention"].gain == pytest.approx(np.log(3))
    assert found["entropy"].gain == pytest.approx(np.log(2))


def test_the_metric_gains_a_share_of_its_way():
    fallen = np.where(STEP > 1000, np.sqrt(0.05), 0.5)  # half of the way from 0.5 to 0.1, by factors
    assert signals(fallen)[METRIC].gain == pytest.approx(0.5)
    risen = 1 - fallen
    assert signals(risen, 0.9, "above")[METRIC].gain == pytest.approx(0.5)
    negative = np.where(STEP > 1000, -2.0, -1.0)  # no logarithm
    assert signals(negative, -3.0)[METRIC].gain == pytest.approx(0.5)
    away = signals(-negative, 0.5)[METRIC]
    assert signals(negative, -3.0)[METRIC].evidence > 0 > away.evidence
    assert away.gain < 0


def test_of_several_heads_the_one_that_surely_moved_furthest_counts():
    noise = 0.02 * np.exp(3 * np.random.default_rng(0).standard_normal(len(STEP)))
    found = signals(attention_0_0=0.01 * np.exp(STEP / 2000), attention_0_1=0.01 * np.exp(STEP / 1000), attention_0_2=noise)
    assert found["attention"].name == "attention_0_1"


def test_a_kind_may_have_steps_of_its_own_and_gaps():
    values = np.where(np.arange(len(STEP)) % 2 == 0, np.exp(STEP / 1000), np.nan)
    seldom = np.where(STEP == 0, 1.0, np.nan)  # was there once, where the others were
    found = signals(attention_0_0=values, attention_0_1=seldom)
    assert found["attention"].name == "attention_0_0"
    assert found["attention"].gain == pytest.approx(signals(attention_0_0=np.exp(STEP / 1000))["attention"].gain, abs=0.05)


@pytest.mark.parametrize("step", [np.array([0.0]), np.array([0.0, 100.0]), np.arange(1000.0, 1100.0)])
def test_too_few_evaluations_or_a_late_beginning_tell_nothing(step):
    curves = read_curves(step, np.ones(len(step)), pd.DataFrame(index=step), 0.1, "below")
    assert find_signals(curves) is None
    assert find_signals(curves, until=0) is None


@given(st.integers(-10, 20).map(lambda power: 2.0**power), st.integers(0, 20))  # exact, so that windows hold the same rows
def test_the_unit_of_time_does_not_matter(unit, seed):
    noise = np.random.default_rng(seed).standard_normal(len(STEP))
    column = 0.01 * np.exp((STEP / 1500) ** 2 + 0.01 * noise)
    here, there = (signals(step=unit_of * STEP, attention_0_0=column)["attention"] for unit_of in (1.0, unit))
    assert here[2:5] == pytest.approx(there[2:5], rel=1e-6)


def test_the_future_does_not_matter():
    column = np.exp((STEP / 1000) ** 2)
    later = np.where(STEP > 1000, 7.0, column)
    until = int(np.searchsorted(STEP, 1000, side="right"))
    assert signals(until=until, attention_0_0=column)["attention"] == signals(until=until, attention_0_0=later)["attention"]
