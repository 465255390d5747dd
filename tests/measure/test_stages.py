"""Stages and early stopping of curves with known answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emergo.core.errors import InputError
from emergo.measure import (
    Drop,
    boundary_of,
    departure,
    early_stop,
    find_stages,
    plateau_share,
    stage_boundaries,
)


def staircase(step, onsets, levels, power=6.0):
    """Return plateaus at `levels`, joined by power laws of the step that start at the onsets."""
    log = np.full(len(step), np.log(levels[0]))
    for onset, high, low in zip(onsets, levels, levels[1:], strict=False):
        fall = power * np.log(np.maximum(step, 1e-9) / onset)
        log -= np.clip(fall, 0, np.log(high / low))
    return np.exp(log)


STEPS = np.arange(0, 2001)
TRUTH = (20, 120, 700)
LEVELS = (3.3, 0.9, 0.35, 0.1)


def test_plateaus_and_onsets_of_a_staircase():
    drops = find_stages(STEPS, staircase(STEPS, TRUTH, LEVELS))
    assert len(drops) == 3
    for drop, onset, high, low in zip(drops, TRUTH, LEVELS, LEVELS[1:], strict=False):
        assert drop.onset == pytest.approx(onset, rel=0.05)
        assert drop.onset < drop.steepest < onset * (high / low) ** (1 / 6) * 1.05
        assert drop.level == pytest.approx(high, rel=0.03)
        assert drop.after == pytest.approx(low, rel=0.03)


@given(
    st.floats(10, 30),
    st.lists(st.floats(2.5, 6.0), min_size=1, max_size=2),
    st.lists(st.floats(2.0, 4.0), min_size=3, max_size=3),
)
def test_any_staircase(first, gaps, ratios):
    """Onsets are a factor of at least 2.5 apart, drops have a factor of 2 to 4, all at most 50."""
    onsets = first * np.cumprod([1.0, *gaps])
    factors = np.minimum(ratios[: len(onsets)], 50 ** (1 / len(onsets)))
    levels = 2.0 / np.cumprod([1.0, *factors])
    drops = find_stages(STEPS, staircase(STEPS, onsets, levels))
    assert [d.onset for d in drops] == pytest.approx(list(onsets), rel=0.07)


@pytest.mark.parametrize("seed", range(5))
def test_noise_moves_onsets_little_and_makes_no_stages(seed):
    noise = np.exp(0.05 * np.random.default_rng(seed).normal(size=len(STEPS)))
    drops = find_stages(STEPS, staircase(STEPS, TRUTH, LEVELS) * noise)
    assert [d.onset for d in drops] == pytest.approx(TRUTH, rel=0.12)


def test_onsets_do_not_depend_on_the_scale_of_values_or_on_the_steps():
    curve = staircase(STEPS, TRUTH, LEVELS)
    reference = [d.onset for d in find_stages(STEPS, curve)]
    assert [d.onset for d in find_stages(STEPS, 1e6 * curve)] == pytest.approx(reference, rel=1e-6)
    some = np.unique(np.round(np.geomspace(1, 2000, 250)))
    assert [d.onset for d in find_stages(some, staircase(some, TRUTH, LEVELS))] == pytest.approx(
        reference, rel=0.05
    )


def test_curves_without_stages():
    step = np.arange(1, 1001)
    assert find_stages(step, np.full(1000, 2.0)) == []
    assert find_stages(step, np.zeros(1000)) == []
    assert find_stages(step, np.linspace(1, 2, 1000)) == []
    # An exponential approach to 0 is one drop.
    assert len(find_stages(step, 3 * np.exp(-step / 50))) == 1
    # A power law has one drop and no plateau.
    assert len(find_stages(step, 1 / np.sqrt(step))) == 1
    # Overfitting after a drop does not add a drop.
    overfitted = staircase(step, (50,), (1, 0.2)) * (1 + (step > 300) * step / 1000)
    assert len(find_stages(step, overfitted)) == 1


def test_boundaries_over_runs():
    def run(*onsets):
        return [Drop(o, o, 1.0, 0.5) for o in onsets]

    one, two = stage_boundaries([run(1, 90, 400), run(2, 100, 500), run(1, 110, 450), run(1, 100)])
    assert (one.runs, one.of) == (3, 4)
    logs = np.log([90, 100, 110])
    assert one.step == pytest.approx(np.exp(logs.mean()))
    half = 4.303 * logs.std(ddof=1) / np.sqrt(3)  # t of two degrees of freedom
    assert (one.low, one.high) == pytest.approx(
        (np.exp(logs.mean() - half), np.exp(logs.mean() + half)), rel=1e-3
    )
    assert two.low < 450 < two.high
    (alone,) = stage_boundaries([run(1, 100)])
    assert alone.step == pytest.approx(100)
    assert np.isnan([alone.low, alone.high]).all()
    assert stage_boundaries([run(), run()]) == []
    assert stage_boundaries([run(5), run(5)]) == []


@given(st.floats(2, 900), st.floats(0.01, 5), st.floats(-3, 3), st.floats(0.02, 0.9))
def test_departure_from_a_minimum(least, scale, level, share):
    """The curve falls to `least` and rises in a straight line. Scale and level do not matter."""
    value = np.abs(STEPS - least)
    step = departure(STEPS, scale * value + level, share)
    expected = least + share * (STEPS[-1] - least)
    assert step == pytest.approx(expected, abs=1.5)  # the smallest evaluation is off by up to 0.5


def test_departure_from_a_plateau():
    value = np.where(STEPS < 300, 0.2, 1 - 0.8 * np.exp(-(STEPS - 300) / 50))
    assert departure(STEPS, value) == pytest.approx(300 - 50 * np.log(0.95), abs=1)
    assert np.isnan(departure(STEPS, 1.0 / (1 + STEPS)))
    assert np.isnan(departure(STEPS, np.where(STEPS == 7, np.nan, 1.0 * STEPS)))
    assert np.isnan(departure([0, 1], [1.0, np.nextafter(1, 2)]))
    mixed = boundary_of([100.0, 400.0, np.nan])
    assert (mixed.step, mixed.runs, mixed.of) == (pytest.approx(200), 2, 3)
    assert np.isnan(boundary_of([np.nan]).step)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: departure([1, 2, 2], [3, 2, 1]), "increasing"),
        (lambda: departure([1, 2], [3, 2], share=1.0), "share must be between 0 and 1"),
        (lambda: find_stages([1, 2], [1, 2]), "at least 3"),
        (lambda: find_stages([1, 2, 2], [3, 2, 1]), "increasing"),
        (lambda: find_stages([-1, 2, 3], [3, 2, 1]), "not negative"),
        (lambda: find_stages([1, 2, 3], [3, np.nan, 1]), "values finite"),
        (lambda: stage_boundaries([]), "at least one run"),
        (lambda: early_stop([1, 2], [np.nan] * 2, np.ones((2, 2)), np.eye(2)), "nowhere finite"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


# References 1, 2, 3 at mutual divergences as in the paper's setting.
APART = np.array([[0.0, 2.5, 2.9], [1.9, 0.0, 0.7], [2.3, 0.65, 0.0]])


def test_early_stopping_at_a_truncated_predictor():
    """The loss is best at step 20, where the student equals A*_{1:2}."""
    step = [10, 20, 30, 40]
    loss = [1.0, 0.8, 0.8, 1.5]
    divergences = np.array([[0.5, 1.6, 2.0, 2.5], [1.5, 0.1, 0.5, 2.0], [1.9, 0.6, 0.7, 3.0]])
    stop = early_stop(step, loss, divergences, APART)
    assert stop == (20, 0.8, 2, 0.1, 2)
    # An early student is far from all references. It equals none of them.
    early = early_stop(step, [0.1, 1, 1, 1], divergences + 2.0, APART)
    assert (early.nearest, early.equals) == (1, None)
    # The student equals the first reference, although another one is nearer.
    both = early_stop(step, [0.1, 1, 1, 1], np.array([[0.45] * 4, [0.40] * 4, [1.0] * 4]), APART)
    assert (both.nearest, both.equals) == (2, 1)
    assert early_stop(step, [np.nan, np.inf, 0.9, 0.9], divergences, APART).step == 30


TIME = np.linspace(0, 1000, 2001)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.where(TIME < 800, 0.5, 0.05), 1.0),
        (0.5 * np.exp(-TIME / 300), 0.19),
        (0.5 - 0.4 * TIME / 900, 0.24),
        # 90% is 22 steps before the middle, a fifth 14 steps after it
        (0.5 / (1 + np.exp((TIME - 500) / 10)), 0.93),
        # a fast fall at the start does not count towards the level
        (0.5 + 0.2 * np.exp(-TIME / 5) - 0.5 * (TIME > 700), 1.0),
    ],
)
def test_the_share_of_a_plateau(value, expected):
    assert plateau_share(TIME, value, 0.1) == pytest.approx(expected, abs=0.01)


def test_plateau_share_of_a_curve_that_does_not_reach_its_end():
    assert np.isnan(plateau_share(TIME, np.full(len(TIME), 0.5), 0.1))
    assert np.isnan(plateau_share(TIME, np.full(len(TIME), 0.05), 0.1))
