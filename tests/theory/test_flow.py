"""Plateaus and trajectories against SciPy, the full model and each other."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from scipy.integrate import solve_ivp

from benchmarks.flows import random_cells, scipy_plateau
from emergo import theory
from emergo.core.errors import InputError
from emergo.theory._closed_form import logit_speed

from ..strategies import batches

POINTS = 50
"""Number of times of every trajectory, so that all share one compiled program."""


@pytest.mark.slow
def test_plateau_equals_scipy():
    """SciPy's DOP853 integrates independent formulas in plain time, at a tighter tolerance."""
    cell = random_cells(24, seed=3)
    ours = theory.plateau(cell)
    theirs = [
        scipy_plateau(*map(float, c), rtol=1e-10, atol=1e-13) for c in zip(*cell, strict=True)
    ]
    assert not ours.censored.any()
    np.testing.assert_allclose(ours.time, theirs, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["reduced", "exact"])
def test_trajectory_equals_scipy(flow):
    cell = theory.cells(96, 12, 3, 0.2)
    times = np.linspace(0, 1.5 * float(theory.plateau(cell, flow).time), POINTS)

    def velocity(_, y):
        with theory.float64():
            return np.asarray(theory.field(jnp.asarray(y), cell, logit_speed(cell, flow)))

    theirs = solve_ivp(
        velocity, (0, times[-1]), np.zeros(3), "DOP853", times, rtol=1e-10, atol=1e-12
    ).y
    path = theory.trajectory(cell, times, flow)
    # Values between steps are interpolated to fourth order where the path is steep.
    np.testing.assert_allclose(
        [path.repeated, path.others, path.logit], theirs, rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
def test_the_exact_flow_equals_the_full_model():
    """Cells have both kinds of repetition and two model sizes."""
    bursts = [1, 2, 5, 16, 1, 4, 9]
    repeats = [0.0, 0.0, 0.0, 0.0, 0.2, 0.1, 0.6]
    cell = theory.cells([48] * 6 + [16], [6] * 6 + [4], bursts, repeats)
    full = theory.full_plateau(cell)
    exact = theory.plateau(cell, "exact")
    assert not full.censored.any()
    np.testing.assert_allclose(full.time, exact.time, rtol=1e-6)


def test_reduced_and_exact_differ_by_one_over_length_at_burst_one():
    lengths = np.array([64, 640, 6400])
    cell = theory.cells(lengths, 32)
    ratio = theory.plateau(cell, "reduced").time / theory.plateau(cell, "exact").time - 1
    assert (ratio > 0).all()
    np.testing.assert_allclose(ratio * lengths, np.mean(ratio * lengths), rtol=0.1)


@pytest.mark.slow
@settings(
    max_examples=5,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
)
@given(batches())
def test_every_valid_cell_has_a_plateau_or_is_censored(cell):
    reduced = theory.plateau(cell, "reduced")
    exact = theory.plateau(cell, "exact")
    for found in (reduced, exact):
        assert np.isfinite(found.time).all()
        assert (found.time > 0).all()
        # For p = 1 only the repeated direction is learned.
        assert found.censored[(cell.repeat == 1) & (cell.dim > 1)].all()
        assert not found.censored[cell.repeat <= 0.9].any()
    # For several copies, but fewer than half of all tokens, the exact flow is slower.
    few = (cell.burst > 1) & (cell.burst < cell.length / 2) & ~exact.censored
    assert (reduced.time < exact.time)[few].all()


def test_more_repetition_in_context_means_a_shorter_plateau():
    found = theory.plateau(theory.cells(1024, 64, [1, 2, 4, 8, 16])).time
    assert (np.diff(found) < 0).all()


def test_shapes_and_batches_do_not_change_a_cell():
    cell = theory.grid(length=[64, 300], dim=[8, 40], repeat=[0.0, 0.999])
    square = theory.Cell(*(a.reshape(2, 2, 2) for a in cell))
    together = theory.plateau(square)
    assert together.time.shape == (2, 2, 2)
    alone = [float(theory.plateau(theory.cells(*c)).time) for c in zip(*cell, strict=True)]
    # Batched and single programs may order their sums differently.
    np.testing.assert_allclose(together.time.ravel(), alone, rtol=1e-10)


def test_cells_are_censored_at_their_horizon():
    found = theory.plateau(theory.cells([64, 64, 64], 16), horizon=[10.0, 1e4, 100.0])
    assert found.censored.tolist() == [True, False, True]
    assert found.time[0] == pytest.approx(10.0)
    assert found.time[2] == pytest.approx(100.0)


def test_the_default_horizon_depends_on_the_flow():
    """For many copies the exact plateau is sqrt(B) times the reduced plateau."""
    found = theory.plateau(theory.cells(10**8, 64, 10**5), "exact")
    assert not found.censored
    assert found.time == pytest.approx(3.276e6, rel=1e-3)


def test_a_lower_threshold_is_reached_later():
    cell = theory.cells(256, 64)
    times = [float(theory.plateau(cell, threshold=s).time) for s in (0.9, 0.5, 0.2, 0.05)]
    assert times == sorted(times)


def test_the_event_lies_on_the_threshold():
    cell = theory.cells(256, 64, 2, 0.1)
    end = float(theory.plateau(cell).time)
    path = theory.trajectory(cell, np.linspace(0, end, POINTS))
    assert path.test_loss[-1] == pytest.approx(0.1, rel=1e-5)


def test_no_cells_give_no_plateaus():
    found = theory.plateau(theory.cells(np.zeros((0, 2)) + 4, 8))
    assert found.time.shape == (0, 2)


def test_the_precision_of_the_caller_is_kept():
    theory.plateau(theory.cells(64, 8))
    theory.trajectory(theory.cells(64, 8), np.linspace(0, 1, POINTS))
    assert jnp.ones(1).dtype == jnp.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: theory.plateau(c, threshold=1.5), "threshold must be between 0 and 1"),
        (lambda c: theory.plateau(c, horizon=-1), "horizon must be a positive"),
        (lambda c: theory.plateau(c, horizon=np.nan), "horizon must be a positive"),
        (lambda c: theory.trajectory(c, [0, np.nan]), "times must be"),
        (lambda c: theory.trajectory(c, [0, 2, 1]), "times must be"),
        (lambda c: theory.trajectory(c, [-1, 1]), "times must be"),
        (lambda c: theory.trajectory(c, 3.0), "times must be"),
        (lambda c: theory.trajectory(c, [0, np.inf]), "times must be"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call(theory.cells(64, 8))


def test_alignment_is_w_of_eq_12():
    """SciPy integrates Eqs. 13-14 as printed."""
    T = 128
    d = 20
    B = 2

    def velocity(_, y):
        w, logit = y
        a = 1 / ((T - B) * np.exp(-logit) + B)
        dw = (1 - B * a) ** 2 * w / (d * (T - B)) + B * a * (B * a * w - np.sqrt(d)) / d
        noise = -B * (1 - B * a) * w**2 / (d * (T - B))
        da = a * (1 - B * a) * (noise + B * w * (B * a * w - np.sqrt(d)) / d)
        return [-dw, -da]

    times = np.linspace(0, 700, POINTS)
    theirs = solve_ivp(velocity, (0, 700), [0, 0], "DOP853", times, rtol=1e-10, atol=1e-12).y
    path = theory.trajectory(theory.cells(T, d, B), times)
    np.testing.assert_allclose(path.alignment, theirs[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(path.logit, theirs[1], rtol=1e-5, atol=1e-6)
