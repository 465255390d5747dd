"""Repetition that changes: closed forms against the integrated flow, and the flow against the one
whose repetition stays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from emergo import theory
from emergo.core.errors import InputError

SHARES = np.array([0.0, 0.3, 0.6, 0.8])
"""Of the take-off time, at which repetition ends."""
CASES = [(p, bias) for p in (0.2, 0.4, 0.8) for bias in (False, True)] + [(1.0, False)]


def around(T, d, p, bias, shares=SHARES):
    """Repetition that ends at shares of its take-off time: the flow, and the closed form."""
    cell = theory.cells(T, d, 1, np.full(len(shares), p))
    at = shares * theory.takeoff_time(cell, bias)
    none = cell._replace(repeat=0 * cell.repeat)
    return theory.switched(cell, none, at, bias), theory.switched_takeoff(cell, at, bias)


@given(st.integers(4, 500))
def test_the_best_constant_repetition_takes_off_first(dim):
    for bias in (False, True):
        best = float(theory.best_repeat(dim, bias))
        others = theory.cells(64, dim, 1, np.linspace(0, 1, 101))
        assert (
            float(theory.takeoff_time(theory.cells(64, dim, 1, best), bias))
            <= theory.takeoff_time(others, bias).min() * 1.0001
        )


@pytest.mark.parametrize(("p", "bias"), CASES)
def test_takeoff_after_a_switch_is_what_the_closed_form_says(p, bias):
    """Leading order leaves out that the noise of the other tokens lets weights decay, at 1/dT for a
    time of √d T, and the rise from small attention to one half: 3% of the plateau without
    repetition, whatever the switch."""
    flow, derived = around(1024, 64, p, bias)
    assert not flow.censored.any()
    np.testing.assert_allclose(flow.takeoff, derived, atol=0.03 * derived[0], rtol=0)


def test_with_a_bias_full_repetition_is_lost_time():
    """Nothing about attention is learned: the clock starts when it ends."""
    cell = theory.cells(256, 64, 1, np.ones(3))
    none = theory.cells(256, 64, 1, np.zeros(3))
    at = np.array([0.0, 500.0, 4000.0])
    flow = theory.switched(cell, none, at, bias=True)
    np.testing.assert_allclose(
        flow.takeoff - at, flow.takeoff[0], rtol=0.01
    )  # the bias takes a few units to learn and forget
    np.testing.assert_allclose(
        theory.switched_takeoff(cell, at, True) - at, theory.takeoff_time(none), rtol=1e-9
    )


def test_the_time_left_and_the_cost_of_ending_early_are_the_closed_forms_own():
    for p, bias in CASES:
        cell = theory.cells(512, 32, 1, p)
        at = 0.7 * float(theory.takeoff_time(cell, bias))
        h = 1e-4 * at
        total = lambda t, c=cell, b=bias: float(theory.switched_takeoff(c, t, b))
        assert (total(at - h) - total(at + h)) / (2 * h) == pytest.approx(
            float(theory.cost_of_early(cell, at, bias)), rel=1e-4
        )
        # Attention at the switch, from the closed form of the time: A = (B/T) exp(Q s²/2), by
        # numerical inversion.
        Q = float(theory.strength(p, 32.0, bias))
        s = solve_ivp(
            lambda t, s, Q=Q: np.exp(Q * s**2 / 2) / 512, (0, at), [0.0], rtol=1e-10, atol=1e-12
        ).y[0, -1]
        assert at + float(
            theory.time_left(cell, np.exp(Q * s**2 / 2) / 512, bias)
        ) == pytest.approx(total(at), rel=1e-6)


def test_late_by_one_unit_costs_p():
    """After take-off the directions that are not repeated are learned 1 - p as fast."""
    cell = theory.cells(256, 64, 1, np.full(2, 0.8))
    none = theory.cells(256, 64, 1, np.zeros(2))
    late = float(theory.switched(cell, none, 1e9).takeoff[0]) + np.array([20.0, 60.0])
    early, later = theory.switched(cell, none, late, threshold=0.2).plateau
    assert (later - early) / 40 == pytest.approx(0.8, rel=0.05)


@pytest.mark.parametrize("B", [2, 8])
def test_in_context_repetition_that_ends(B):
    """Linear in the time of the switch, with the slope 1 - B."""
    shares = np.array([0.0, 0.3, 0.6, 0.9])
    cell = theory.cells(4096, 64, np.full(4, B))
    at = shares * theory.takeoff_time(cell)
    flow = theory.switched(cell, cell._replace(burst=np.ones(4)), at)
    derived = theory.dropped_takeoff(cell, at)
    np.testing.assert_allclose(flow.takeoff, derived, atol=0.03 * derived[0], rtol=0)
    assert np.diff(derived) / np.diff(at) == pytest.approx(1 - B)


def test_repetition_that_stays_is_the_flow_that_was_there():
    cell = theory.cells(256, 64, 1, [0.0, 0.4])
    none = theory.cells(256, 64, 1, [0.0, 0.0])
    np.testing.assert_allclose(
        theory.switched(cell, none, np.inf).plateau, theory.plateau(cell).time, rtol=1e-6
    )
    np.testing.assert_allclose(
        theory.switched(cell, none, 0.0).plateau, theory.plateau(none).time, rtol=1e-6
    )


def test_the_bias_is_a_gradient_flow_of_the_loss_with_it():
    """Against SciPy on the expected loss, differentiated numerically."""
    T = 16
    d = 4
    p = 0.6
    at = 30.0

    def loss(y, p):
        v, w, logit, b = y
        A = 1 / (1 + (T - 1) * np.exp(-logit))
        noise = (1 - A) ** 2 * (v * v + w * w) / (d * (T - 1))
        special = p * (A * v - 1 + b) ** 2 + (1 - p) * ((A * v - 1) ** 2 / d + b * b)
        return 0.5 * (noise + special + (1 - p) / d * (A * w - np.sqrt(d - 1)) ** 2)

    def velocity(t, y):
        steps = 1e-6 * np.eye(4)
        return [-(loss(y + h, p * (t < at)) - loss(y - h, p * (t < at))) / 2e-6 for h in steps]

    def event(t, y):
        return 1 / (1 + (T - 1) * np.exp(-y[2])) - 0.5

    ours = float(
        theory.switched(theory.cells(T, d, 1, p), theory.cells(T, d), at, bias=True).takeoff
    )
    path = solve_ivp(
        velocity, (0, 1.1 * ours), np.zeros(4), rtol=1e-9, atol=1e-11, max_step=1.0, events=event
    )
    assert path.t_events is not None
    assert ours == pytest.approx(path.t_events[0][0], rel=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: theory.switched(theory.cells(8, 4), theory.cells(16, 4), 1.0),
            "the same lengths and dims",
        ),
        (
            lambda: theory.switched(theory.cells(8, 4), theory.cells(8, 4), -1.0),
            "at must be a flow time of at least 0, got -1",
        ),
        (
            lambda: theory.time_left(theory.cells(8, 4), 0.01),
            "attention begins at burst/length = 0.125; got 0.01",
        ),
        (
            lambda: theory.time_left(theory.cells(8, 4), 1.5),
            "attention must be above 0 and below 1, got 1.5",
        ),
    ],
)
def test_wrong_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
