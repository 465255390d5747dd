"""Integration at given times against closed forms and against Diffrax's `SaveAt`."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emergo import theory
from emergo.theory import _flow, _integrate
from emergo.theory._reduced import float64
from emergo.theory.incremental import _flow as _incremental

TURNS = 6


def turning(y):
    """Return the velocity of a rotation with period 2 pi, as a pytree of two arrays."""
    x, z = y
    return -z, x


@jax.jit
@jax.vmap
def turned(times):
    return _integrate.sample(turning, (jnp.ones(()), jnp.zeros(())), times)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.0, 40.0), min_size=TURNS, max_size=TURNS, unique=True), st.booleans())
def test_a_circle_is_sampled_at_any_times(times, from_start):
    times = np.sort(times)
    if from_start:
        times[0] = 0.0
    if (np.diff(times) <= 0).any():
        return
    with float64():
        done, (x, z) = turned(np.stack([times, times / 7]))
    assert np.all(done)
    for row, scale in enumerate((1, 7)):
        np.testing.assert_allclose(x[row], np.cos(times / scale), atol=2e-6)
        np.testing.assert_allclose(z[row], np.sin(times / scale), atol=2e-6)


def test_samples_equal_those_of_diffrax():
    """They differ in the last digits, far below the tolerance."""
    cell = theory.Cell(64.0, 16.0, 1.0, 0.0)
    times = np.linspace(0, 500, 50)

    def field(y):
        return _flow.field(y, cell)

    def by_diffrax(times):
        return _integrate.solve(field, jnp.zeros(3), times[-1], saveat=diffrax.SaveAt(ts=times))[1]

    with float64():
        done, ours = jax.jit(lambda times: _integrate.sample(field, jnp.zeros(3), times))(times)
        theirs = jax.jit(by_diffrax)(times)
    assert done
    np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-13)


def test_observations_are_functions_of_the_state():
    with float64():
        times = np.array([0.0, 1.0, 2.0])
        start = jnp.ones(2)
        _, seen = jax.jit(
            lambda t: _integrate.sample(
                lambda y: -y, start, t, lambda y: {"sum": y.sum(), "twice": 2 * y}
            )
        )(times)
    np.testing.assert_allclose(seen["sum"], 2 * np.exp(-times), rtol=1e-7)
    np.testing.assert_allclose(seen["twice"], 2 * np.exp(-times)[:, None] * np.ones(2), rtol=1e-7)


def test_an_integration_ends_after_the_largest_number_of_steps(monkeypatch):
    """Observations that were not reached are infinite."""
    monkeypatch.setattr(_integrate, "MOST_STEPS", 50)
    with float64():
        done, (x, _) = jax.jit(
            lambda t: _integrate.sample(turning, (jnp.ones(()), jnp.zeros(())), t)
        )(np.array([0.0, 0.1, 1e4]))
    assert not done
    np.testing.assert_allclose(x[:2], np.cos([0, 0.1]), atol=1e-7)
    assert np.isinf(x[2])


def called_back(function, *args):
    with float64():
        return "callback" in function.lower(*args).as_text()


def test_programs_can_be_cached():
    """JAX does not cache programs that call back into Python, as Diffrax's `SaveAt` does."""
    cell = theory.Cell(*np.ones((4, 1)))
    assert not called_back(_flow._follow, cell, np.ones(1), np.linspace(0, 1, 5)[None])
    groups = np.eye(2)
    assert not called_back(
        _incremental._follow, 2, True, groups, np.linspace(0, 1, 5), np.ones(1), np.zeros(1, int)
    )

    def by_diffrax(t):
        return _integrate.solve(lambda y: -y, jnp.ones(()), t[-1], saveat=diffrax.SaveAt(ts=t))[1]

    # If this fails, Diffrax no longer calls back, and `sample` can be deleted.
    assert called_back(jax.jit(by_diffrax), np.linspace(0, 1, 5))


@pytest.mark.parametrize("last", [1e-6, 1e9])
def test_the_last_time_is_reached(last):
    with float64():
        times = np.array([0.0, 0.5, 1.0]) * last
        done, y = jax.jit(
            lambda t: _integrate.sample(lambda y: jnp.ones(()) / t[-1], jnp.zeros(()), t)
        )(times)
    assert done
    np.testing.assert_allclose(y, [0, 0.5, 1], rtol=1e-9)
