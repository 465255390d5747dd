"""What is left of a plateau, from growth and curvature in the middle of it, against the integrated
flows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from emergo import theory
from emergo.core.errors import InputError
from emergo.models import ToyParameters

SHARES = np.array([0.001, 0.2, 0.4, 0.6, 0.8])
"""Of the plateau, that have been seen."""


def seen(cell, flow, shares=SHARES):
    """The flow at these shares of its plateau: states, what is left, growth and curvature."""
    end = float(theory.plateau(cell, flow).time)
    path = theory.trajectory(cell, shares * end, flow)
    states = np.stack([path.repeated, path.others, path.logit], -1)
    with theory.float64():
        growth, curvature = (np.asarray(x) for x in theory.local(jnp.asarray(states), cell, flow))
    return path, (1 - shares) * end, growth, curvature


@pytest.mark.parametrize("flow", ["reduced", "exact"])
@pytest.mark.parametrize(
    ("T", "d", "B"),
    [(1024, 64, 1), (1024, 256, 1), (10**5, 64, 1), (10**5, 1024, 1), (10**5, 64, 16)],
)
def test_the_time_left_is_what_the_flow_takes(T, d, B, flow):
    """Leading order leaves out a decay of the values, of relative order 1/√d (4% at d = 64 from the
    start, 2% later), and the drop itself, of order d: at T = 1024 up to 8% of what is left after
    80% of the plateau."""
    _, left, growth, curvature = seen(theory.cells(T, d, B), flow)
    np.testing.assert_allclose(
        theory.remaining_time(growth, theory.local_rate(growth, curvature)), left, rtol=0.08
    )


def test_the_most_negative_curvature_is_not_the_rate():
    """Read as λ, it says too little time from the middle of the plateau on: 0.72 of it in the
    end."""
    _, left, growth, curvature = seen(
        theory.cells(10**5, 1024), "reduced", np.array([0.001, 0.5, 0.95])
    )
    np.testing.assert_allclose(
        theory.remaining_time(growth, curvature) / left, [1.0, 0.81, 0.71], atol=0.02
    )


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_with_cross_sample_repetition_it_is_the_time_to_takeoff(p):
    cell = theory.cells(10**4, 64, 1, p)
    at = SHARES * float(theory.takeoff_time(cell))
    path = theory.trajectory(cell, at)
    with theory.float64():
        growth, curvature = theory.local(
            jnp.stack([path.repeated, path.others, path.logit], -1), cell
        )
    took_off = float(theory.switched(cell, cell, 0.0).takeoff)
    left = theory.remaining_time(growth, theory.local_rate(growth, curvature))
    np.testing.assert_allclose(left, took_off - at, rtol=0.06)


def test_attention_alone_tells_the_rate():
    """From the growth of attention and the change of that, by finite differences."""
    cell = theory.cells(10**4, 256)
    end = float(theory.plateau(cell).time)
    middle = np.array([0.2, 0.5, 0.8]) * end
    h = 0.01 * end
    logs = np.log(np.stack([theory.trajectory(cell, middle + i * h).attention for i in (-1, 0, 1)]))
    growth = (logs[2] - logs[0]) / (2 * h)
    change = (logs[2] - 2 * logs[1] + logs[0]) / h**2
    left = theory.remaining_time(growth, theory.local_rate_from_growth(growth, change))
    np.testing.assert_allclose(left, end - middle, rtol=0.05)


@pytest.mark.slow
def test_in_the_full_model_it_is_the_most_negative_curvature_of_all_parameters():
    """T + d² parameters, at states of the exact flow, which the full model follows: its Hessian has
    no direction that is more negative, so that a search for one finds the escape. The whole plateau
    is the full model's own."""
    T = 48
    d = 5
    cell = theory.cells(T, d)
    target = theory.unit_columns(jax.random.key(0), d)
    path, _, growth, curvature = seen(cell, "exact")
    end = float(theory.full_plateau(cell).time)
    with theory.float64():
        target = theory.unit_columns(jax.random.key(0), d)
        _, unravel = ravel_pytree(ToyParameters(jnp.zeros(T), jnp.zeros((d, d))))
        hessian = jax.jit(jax.hessian(lambda y: theory.population_loss(unravel(y), target, cell)))
        for i in range(len(SHARES)):
            logits = jnp.full(T, -path.logit[i] / T).at[-1].add(path.logit[i])
            y = ravel_pytree(
                ToyParameters(logits, jnp.asarray(path.alignment[i] / d**0.5 * target))
            )[0]
            assert -float(jnp.linalg.eigvalsh(hessian(y))[0]) == pytest.approx(
                curvature[i], rel=1e-6
            )
    # Small sizes: what is dropped is of relative order 1/√d = 0.45, and the drop itself is a share
    # d λ = 0.05.
    left = theory.remaining_time(growth, theory.local_rate(growth, curvature))
    np.testing.assert_allclose(left / ((1 - SHARES) * end), 1, atol=0.25)


@given(st.floats(1e-6, 1e3), st.floats(-2, 5))
def test_rates_undo_each_other(rate, ratio):
    growth = ratio * rate
    curvature = (growth + np.sqrt(growth**2 + 4 * rate**2)) / 2
    assert theory.local_rate(growth, curvature) == pytest.approx(rate, rel=1e-6)
    assert theory.local_rate_from_growth(growth, growth**2 + rate**2) == pytest.approx(
        rate, rel=1e-6
    )
    assert theory.remaining_time(0.0, rate) == pytest.approx(np.sqrt(np.pi / 2) / rate)


def test_what_is_no_plateau_has_no_rate():
    assert np.isnan(theory.local_rate([1.0, 0.0, 0.5], [0.9, -1.0, 0.5])).all()
    assert np.isnan(theory.local_rate_from_growth(1.0, 0.5))
    assert np.isnan(theory.remaining_time(1.0, np.nan))
    with pytest.raises(InputError, match="rate must be positive, got 0"):
        theory.remaining_time(1.0, 0.0)
    with pytest.raises(InputError, match="a state has 2 or 3 entries"):
        theory.local(jnp.zeros(4), theory.cells(4, 2))
