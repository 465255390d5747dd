"""Changing repetition: closed forms against the flow, and the flow against constant repetition."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from emergo import theory
from emergo.core.errors import InputError

SHARES = np.array([0.0, 0.3, 0.6, 0.8])
"""Shares of the take-off time at which repetition ends."""
CASES = [(p, bias) for p in (0.2, 0.4, 0.8) for bias in (False, True)] + [(1.0, False)]


@pytest.mark.parametrize(("p", "bias"), CASES)
def test_takeoff_after_a_switch_equals_the_closed_form(p, bias):
    """Leading order leaves out the decay of weights by the noise of other tokens, and the rise of
    attention to one half. Together they are 3% of the plateau without repetition."""
    cell = theory.cells(1024, 64, 1, np.full(len(SHARES), p))
    at = SHARES * theory.takeoff_time(cell, bias)
    flow = theory.switched(cell, cell._replace(repeat=0 * cell.repeat), at, bias)
    derived = theory.switched_takeoff(cell, at, bias)
    assert not flow.censored.any()
    np.testing.assert_allclose(flow.takeoff, derived, atol=0.03 * derived[0], rtol=0)


def test_a_schedule_beats_every_constant_only_at_a_high_level_of_attention():
    """To leading order attention takes off first if the best p is kept. Attention of one half also
    needs the directions that are not repeated, and p = 1 never teaches these."""
    constants = theory.cells(256, 64, 1, np.linspace(0, 1, 11))
    full = theory.cells(256, 64, 1, np.ones(12))
    none = full._replace(repeat=np.zeros(12))
    at = np.linspace(250, 500, 12)
    gains = {}
    for level in (0.25, 0.5):
        kept = theory.switched(constants, constants, np.inf, level=level).takeoff.min()
        gains[level] = kept / theory.switched(full, none, at, level=level).takeoff.min()
    assert gains[0.25] == pytest.approx(1, abs=0.02)
    assert gains[0.5] == pytest.approx(1.77, abs=0.05)  # at a switch near 350


def test_with_a_bias_full_repetition_teaches_nothing():
    """The plateau starts when the repetition ends."""
    cell = theory.cells(256, 64, 1, np.ones(3))
    none = theory.cells(256, 64, 1, np.zeros(3))
    at = np.array([0.0, 500.0, 4000.0])
    flow = theory.switched(cell, none, at, bias=True)
    # The bias needs a few units of time to learn and forget.
    np.testing.assert_allclose(flow.takeoff - at, flow.takeoff[0], rtol=0.01)
    derived = theory.switched_takeoff(cell, at, True)
    np.testing.assert_allclose(derived - at, theory.takeoff_time(none), rtol=1e-9)


def test_a_late_switch_costs_p_per_unit_of_time():
    """After take-off the other directions are learned at 1 - p times their speed."""
    cell = theory.cells(256, 64, 1, np.full(2, 0.8))
    none = theory.cells(256, 64, 1, np.zeros(2))
    late = float(theory.switched(cell, none, 1e9).takeoff[0]) + np.array([20.0, 60.0])
    early, later = theory.switched(cell, none, late, threshold=0.2).plateau
    assert (later - early) / 40 == pytest.approx(0.8, rel=0.05)


@pytest.mark.parametrize("B", [2, 8])
def test_ending_repetition_in_context_too_early_costs_its_burst(B):
    """Take-off is linear in the time of the switch, with slope 1 - B (docs/theory.md)."""
    shares = np.array([0.0, 0.3, 0.6, 0.9])
    cell = theory.cells(4096, 64, np.full(4, B))
    at = shares * theory.takeoff_time(cell)
    flow = theory.switched(cell, cell._replace(burst=np.ones(4)), at)
    derived = B * theory.takeoff_time(cell) - (B - 1) * at
    np.testing.assert_allclose(flow.takeoff, derived, atol=0.03 * derived[0], rtol=0)


def test_constant_repetition_is_the_usual_flow():
    cell = theory.cells(256, 64, 1, [0.0, 0.4])
    none = theory.cells(256, 64, 1, [0.0, 0.0])
    np.testing.assert_allclose(
        theory.switched(cell, none, np.inf).plateau, theory.plateau(cell).time, rtol=1e-6
    )
    np.testing.assert_allclose(
        theory.switched(cell, none, 0.0).plateau, theory.plateau(none).time, rtol=1e-6
    )


def test_the_bias_follows_the_gradient_of_its_loss():
    """SciPy integrates the expected loss, differentiated numerically."""
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


def test_wrong_input_is_named():
    with pytest.raises(InputError, match="at must be a flow time of at least 0, got -1"):
        theory.switched(theory.cells(8, 4), theory.cells(8, 4), -1.0)
