"""Attentions that multiply: loss against sums over all tokens, flow against SciPy and formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from emergo import theory
from emergo.core.errors import InputError
from emergo.theory._coupled import attentions, coupled_loss, coupled_velocity, crossover


def full_loss(weights, logits, dim, own):
    """Return the loss of the full model; the right position of every axis is the last one."""
    v, u = weights
    alphas = [jax.nn.softmax(a) for a in logits]
    grid = alphas[0]
    for alpha in alphas[1:]:
        grid = grid[..., None] * alpha

    def one(weight, attention):
        flat = jnp.ravel(attention)
        noise = jnp.sum(flat[:-1] ** 2) * weight**2
        return 0.5 * (noise + (flat[-1] * weight - jnp.sqrt(dim)) ** 2) / dim

    return one(v, grid) + own * one(u, alphas[0])


def test_loss_and_velocity_equal_those_of_all_logits():
    """Against automatic differentiation of the full model at a random point."""
    sizes = (4, 2, 5)
    rng = np.random.default_rng(0)
    state = rng.normal(size=2 + len(sizes))
    with theory.float64():
        logits = [jnp.zeros(T).at[-1].set(a) for T, a in zip(sizes, state[2:], strict=True)]
        loss, (by_weights, by_logits) = jax.value_and_grad(full_loss, (0, 1))(
            jnp.asarray(state[:2]), logits, 6.0, 0.3
        )
        lengths = jnp.asarray(sizes, float)
        assert coupled_loss(jnp.asarray(state), lengths, 6.0, 0.3) == pytest.approx(
            float(loss), rel=1e-12
        )
        differences = [float(g[-1] - g[0]) for g in by_logits]
        velocity = coupled_velocity(jnp.asarray(state), lengths, 6.0, 0.3)
        np.testing.assert_allclose(
            velocity, -np.append(by_weights, differences), rtol=1e-10, atol=1e-14
        )


def test_one_attention_is_the_toy_model():
    T = np.array([16, 128, 1024])
    d = 64
    expected = theory.plateau(theory.cells(T, d), "exact").time
    np.testing.assert_allclose(theory.coupled_plateau([T], d).time, expected, rtol=1e-6)
    np.testing.assert_allclose(
        theory.predicted_coupled([T], d), theory.predicted_plateau(theory.cells(T, d)), rtol=1e-12
    )


@pytest.mark.slow
def test_another_integrator_is_at_the_threshold_when_the_plateau_ends():
    lengths = jnp.array([6.0, 9.0])
    d = 16.0
    g = 0.05
    found = theory.coupled_plateau([6, 9], 16, 0.05)
    with theory.float64():
        velocity = jax.jit(lambda y: coupled_velocity(y, lengths, d, g))
        span = (0, float(found.time))
        path = solve_ivp(
            lambda t, y: np.asarray(velocity(jnp.asarray(y))),
            span,
            np.zeros(4),
            rtol=1e-9,
            atol=1e-12,
        )
        end, begin = (
            float(coupled_loss(jnp.asarray(y), lengths, d)) for y in (path.y[:, -1], np.zeros(4))
        )
    assert end / begin == pytest.approx(theory.THRESHOLD, abs=1e-6)
    assert not found.censored


@pytest.mark.parametrize("count", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_plateau_of_several_attentions_tends_to_the_closed_form(count):
    """The closed form is √(π/2n) √d ∏T. The difference at long lengths is 0.171/√(nd)."""
    T = np.array([64, 512, 4096])
    ratio = theory.coupled_plateau([T] * count, 1024).time / theory.predicted_coupled(
        [T] * count, 1024
    )
    assert (np.diff(ratio) < 0).all()
    left = (1 - np.pi / 4) / np.sqrt(np.pi / 2) / np.sqrt(1024 * count)
    assert ratio[-1] - 1 == pytest.approx(left, abs=0.02 if count == 1 else 1e-3)


def test_the_crossover_from_the_square_of_the_length_to_the_length():
    """Over the range in docs/theory.md: lengths 64 to 1024, dims 64 and 256, own 1e-4 to 1."""
    T, d, g = np.meshgrid([64, 256, 1024], [64, 256], [1e-4, 1e-3, 1e-2, 0.1, 1.0], indexing="ij")
    found = theory.coupled_plateau([T, T], d, g)
    ratio = found.time / theory.predicted_coupled([T, T], d, g)
    assert ((ratio > 1) & (ratio < 1.12)).all()
    slopes = np.log(found.time[1:] / found.time[:-1]) / np.log(4)  # (lengths, dims, own signals)
    np.testing.assert_allclose(slopes[0, :, 0], 2, atol=0.05)
    np.testing.assert_allclose(slopes[-1, :, -1], 1, atol=0.05)
    assert (np.diff(slopes, axis=-1) < 0.01).all()  # the exponent falls with `own`


@given(st.floats(0, 1e4))
@settings(deadline=None, max_examples=30)
def test_the_crossover_lies_between_its_limits(k):
    value = crossover(k)
    weak = np.sqrt(np.pi) / 2
    strong = np.sqrt(np.pi / 2) / max(k, 1e-9)
    assert 0 < value <= min(weak, strong) * (1 + 1e-9)
    assert value >= 0.5 * min(weak, strong)
    if k > 100:
        assert value == pytest.approx(strong, rel=1e-3)


def test_uniform_attention_at_the_start():
    with theory.float64():
        np.testing.assert_allclose(attentions(jnp.zeros(4), jnp.array([5.0, 8.0])), [1 / 5, 1 / 8])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 4), "lengths must hold one length for each attention, got none"),
        (([8, 1], 4), "lengths must be a finite number of at least 2, got 1"),
        (([8, 8], 4, -1), "own must be a finite number of at least 0, got -1"),
        (([8, 8, 8], 4, 0.1), "is derived for two attentions, got 3"),
    ],
)
def test_wrong_input_is_named(arguments, message):
    with pytest.raises(InputError, match=message):
        theory.coupled_plateau(*arguments)
