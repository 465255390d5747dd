"""Drifts: random walks, noise and saturation are weak; growth that speeds up is strong."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emergo.forecasting._drift import STRONG, drift_of, look, probe_scale, read_curves
from emergo.measure import Direction

STEP = np.arange(0.0, 2001.0, 20.0)


def drift(values, step=STEP, now=2000.0):
    found = drift_of(step, np.asarray(values, np.float64), now)
    assert found is not None
    return found


def curves(metric=None, threshold=0.1, direction: Direction = "below", **columns):
    value = pd.Series(np.full(len(STEP), 0.5) if metric is None else metric, STEP)
    return read_curves(value, pd.DataFrame(columns, index=STEP), threshold, direction)


def test_strength_of_known_curves():
    x = STEP / 2000
    assert drift(x).strength == pytest.approx(np.sqrt(7), abs=0.05)
    assert drift(x**2).strength == pytest.approx(5.8, abs=0.2)
    for saturating in (1 - np.exp(-3 * x), np.log(x + 0.05), np.sqrt(x)):
        assert drift(saturating).strength < 2.6
    assert not drift(x).strong


def test_random_walks_are_rarely_strong():
    walks = np.random.default_rng(0).standard_normal((4000, len(STEP))).cumsum(1)
    strong = np.mean([drift(walk).strong for walk in walks])
    # 0.3% are expected; the standard error is 0.0009.
    assert 0 < strong < 0.006


def test_a_jump_that_is_over_is_not_strong():
    found = drift(np.where(STEP > 1200, 1.0, 0.0))
    assert found.strength > STRONG
    assert not found.strong


@given(st.integers(-10, 20), st.integers(0, 20))
def test_drifts_do_not_depend_on_the_unit_of_time(power, seed):
    noise = np.random.default_rng(seed).standard_normal(len(STEP))
    values = (STEP / 1500) ** 2 + 0.01 * noise
    there = drift(values, 2.0**power * STEP, 2.0**power * 2000)
    assert there == pytest.approx(drift(values), rel=1e-6)


def test_the_future_does_not_count():
    column = np.exp((STEP / 1000) ** 2)
    until = int(np.searchsorted(STEP, 1000, side="right"))
    now, later = (
        look(curves(metric), until)
        for metric in (1 / column, np.where(STEP > 1000, 7.0, 1 / column))
    )
    assert now == later


@pytest.mark.parametrize("step", [np.zeros(1), np.linspace(0, 90, 10), np.arange(1000.0, 1100.0)])
def test_too_few_evaluations_and_late_logs_are_not_read(step):
    value = pd.Series(np.ones(len(step)), step)
    assert look(read_curves(value, pd.DataFrame(index=step), 0.1, "below")) is None


def test_an_exponential_is_continued_exactly():
    """Moves in equal times are a geometric series, so the time to the threshold is exact."""
    loss = np.exp(-0.01 * np.exp(8 * STEP / 2000))
    found = look(curves(loss, threshold=np.exp(-40.0)))
    assert found is not None
    # From the middle of the last two blocks, at 15/16 of the time. Averaging over these blocks
    # raises the level by sinh(x) / x with x = 8 / 16, that is by 4%, or the time by -0.005.
    level = 0.01 * np.exp(8 * 15 / 16)
    assert found.ahead == pytest.approx(np.log(40 / level) / 8 - 0.005, abs=0.002)
    assert found.gain == pytest.approx(level / 40, abs=0.02)


@pytest.mark.parametrize(
    ("metric", "threshold", "direction"),
    [
        (np.full(len(STEP), 0.5) * np.exp(-((STEP / 2000) ** 6)), 0.1, "below"),
        (1 - 0.5 * np.exp(-((STEP / 2000) ** 6)), 0.9, "above"),
        (-((STEP / 2000) ** 6), -1.6, "below"),
    ],
    ids=["loss", "accuracy", "negative loss"],
)
def test_scales_of_metrics(metric, threshold, direction):
    found = look(curves(metric, threshold, direction))
    away = look(curves(-metric, -10.0, "below"))
    assert found is not None
    assert away is not None
    assert 0 < found.ahead < 1
    assert (direction == "above") or np.isnan(away.ahead)


def test_names_of_probes():
    assert all(map(probe_scale, ("attention_0_3", "attention_by_lag_0_0_2", "entropy_1_0")))
    assert not any(map(probe_scale, ("train_loss", "attention_entropy", "step", "loss")))


def test_the_drift_of_a_twin_is_subtracted():
    grown = 0.01 * np.exp((STEP / 1000) ** 6 / 10)
    run = curves(attention_0_0=grown, entropy_0_0=np.ones(len(STEP)))
    alone = look(run)
    same = look(run, twin=curves(attention_0_1=grown))
    other = look(run, twin=curves(entropy_0_0=1 / grown))
    assert alone is not None
    assert same is not None
    assert (alone.name, same.name, same.probe) == ("attention_0_0", "", 0.0)
    assert other == alone
