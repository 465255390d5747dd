"""Formulas of the reduced model against automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emergo import theory

from ..strategies import cells

# Each function is compiled once for all property tests.
gradient, hessian, loss, loss_on_test = (
    jax.jit(f) for f in (theory.gradient, theory.hessian, theory.loss, theory.test_loss)
)
auto_gradient = jax.jit(jax.grad(theory.loss))
auto_hessian = jax.jit(jax.hessian(theory.loss))

weights = st.floats(-30, 30)
logits = st.floats(-5, 25)


def close(ours, reference):
    # Terms may cancel, so tolerances are relative to the largest entry.
    np.testing.assert_allclose(
        ours, reference, rtol=1e-9, atol=1e-12 * (1 + np.abs(reference).max())
    )


@given(cells(), weights, weights, logits)
def test_gradient_and_hessian_equal_automatic_differentiation(cell, a, b, logit):
    with theory.float64():
        for state in (jnp.array([a, logit]), jnp.array([a, b, logit])):
            one = cell if len(state) == 3 else cell._replace(repeat=np.zeros_like(cell.repeat))
            close(gradient(state, one), auto_gradient(state, one))
            close(hessian(state, one), auto_hessian(state, one))


@given(cells(repeat=False), weights, logits)
def test_two_variables_suffice_without_cross_sample_repetition(cell, w, logit):
    """Eq. 12 is Eq. 17 at p = 0 if all columns of W move together."""
    with theory.float64():
        root = np.sqrt(cell.dim)
        apart = jnp.array([w / root, w * np.sqrt(cell.dim - 1) / root, logit])
        close(loss(jnp.array([w, logit]), cell), loss(apart, cell))


@pytest.mark.parametrize("entries", [2, 3])
def test_arrays_of_cells_and_states_broadcast(entries):
    cell = theory.cells([[64], [128]], [4, 16, 32], 2, 0.0 if entries == 2 else 0.3)
    with theory.float64():
        states = jnp.linspace(0.1, 2.0, 3 * entries).reshape(3, entries)
        for function in (loss, loss_on_test, gradient, hessian, jax.jit(theory.field)):
            together = function(states, cell)
            for i, j in np.ndindex(2, 3):
                one = theory.Cell(*(a[i, j] for a in cell))
                np.testing.assert_allclose(together[i, j], function(states[j], one), rtol=1e-12)


@given(cells(), weights, weights, logits)
def test_test_loss_is_the_loss_without_cross_sample_repetition(cell, a, b, logit):
    with theory.float64():
        state = jnp.array([a, b, logit])
        none = cell._replace(repeat=np.zeros_like(cell.repeat))
        close(loss_on_test(state, cell), loss(state, none))


@given(cells())
def test_the_loss_starts_at_one_half(cell):
    with theory.float64():
        start = jnp.zeros(3)
        assert float(loss(start, cell)) == pytest.approx(0.5, rel=1e-12)
        assert float(loss_on_test(start, cell)) == pytest.approx(0.5, rel=1e-12)


@given(cells(), st.floats(-20, 40))
def test_attention_is_the_softmax_of_two_groups(cell, logit):
    T = float(cell.length)
    B = float(cell.burst)
    with theory.float64():
        ours = float(theory.relevant_attention(jnp.asarray(logit), cell))
    assert ours == pytest.approx(B * np.exp(logit) / (B * np.exp(logit) + T - B), rel=1e-10)


@given(cells(repeat=False), st.floats(1e-6, 1))
def test_the_gradient_in_w_vanishes_at_the_equilibrium(cell, attention):
    with theory.float64():
        w = theory.equilibrium(jnp.asarray(attention), cell)
        odds = attention / max(1 - attention, 1e-300) * (cell.length - cell.burst) / cell.burst
        slope = gradient(jnp.array([w, np.log(odds)]), cell)[0]
        scale = attention / np.sqrt(cell.dim)  # the term that the other two cancel
        assert abs(float(slope)) < 1e-9 * float(scale)


@pytest.mark.parametrize("burst", [1, 3, 16])
def test_the_hessian_of_the_late_phase(burst):
    """At the equilibrium with A = 1 - ε, to leading order in each entry. A.3.3 differs."""
    T = 64
    d = 32
    cell = theory.cells(T, d, burst)
    errors = []
    for epsilon in (1e-3, 1e-4):
        mixed = epsilon / np.sqrt(d)
        leading = np.array(
            [[(1 - 2 * epsilon) / d, mixed], [mixed, epsilon**2 * (1 + 2 / (T - burst))]]
        )
        with theory.float64():
            logit = np.log((1 - epsilon) / epsilon * (T - burst) / burst)
            state = jnp.array([theory.equilibrium(1 - epsilon, cell), logit])
            errors.append(np.abs(leading / hessian(state, cell) - 1))
    assert (errors[1] < 1e-3).all()
    # Relative errors of the leading order are proportional to epsilon.
    assert (errors[1] < 0.2 * errors[0] + 1e-9).all()


def test_the_printed_hessian_is_wrong():
    """A.3.1 prints (1-2Bα)/(α(1-Bα)) ∇ + α(1-Bα)(...) for the second derivative in Δa."""
    cell = theory.cells(64, 16, 4)
    with theory.float64():
        state = jnp.array([2.0, 1.0])
        truth = auto_hessian(state, cell)[1, 1]
        A = theory.relevant_attention(state[1], cell)
        alpha = A / 4
        slope = gradient(state, cell)[1]
        bracket = 16 * 4.0 / (16 * 60) + 16 * 4.0 / 16
        printed = (1 - 2 * A) / (alpha * (1 - A)) * slope + alpha * (1 - A) * bracket
        assert abs(float(printed / truth) - 1) > 0.5
        close(hessian(state, cell)[1, 1], truth)
