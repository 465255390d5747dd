"""The full toy model: its loss, its gradient and its flow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo import theory
from emergo.core.errors import InputError
from emergo.models import ToyParameters
from emergo.tasks import SingleLocation

gradient = jax.jit(theory.population_gradient)
auto_gradient = jax.jit(jax.grad(theory.population_loss))


def drawn_target(key, dim):
    columns = jax.random.normal(key, (dim, dim))
    return columns / jnp.linalg.norm(columns, axis=0)


@pytest.mark.parametrize(("burst", "repeat"), [(1, 0.0), (3, 0.0), (1, 0.4), (3, 0.4)])
def test_gradient_equals_automatic_differentiation(burst, repeat):
    """Eqs. 7 and 8 at a point without symmetry."""
    cell = theory.cells(9, 5, burst, repeat)
    keys = jax.random.split(jax.random.key(0), 3)
    with theory.float64():
        target = drawn_target(keys[0], 5)
        point = ToyParameters(jax.random.normal(keys[1], (9,)), jax.random.normal(keys[2], (5, 5)))
        ours = gradient(point, target, cell)
        truth = auto_gradient(point, target, cell)
    np.testing.assert_allclose(ours.logits, truth.logits, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(ours.weights, truth.weights, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(("burst", "repeat"), [(1, 0.0), (2, 0.3)])
def test_population_loss_is_the_mean_over_samples(burst, repeat):
    """50,000 samples of the task have a standard error near 0.6%."""
    task = SingleLocation(6, 4, burst, repeat)
    keys = jax.random.split(jax.random.key(1), 3)
    target = drawn_target(keys[0], 4)
    truth = task.truth(keys[0])._replace(weights=target)
    point = ToyParameters(jax.random.normal(keys[1], (6,)), jax.random.normal(keys[2], (4, 4)))
    data = task.batch(jax.random.key(2), 50_000, truth)
    output = jnp.einsum("ij,t,ntj->ni", point.weights, jax.nn.softmax(point.logits), data.inputs)
    sampled = 0.5 * np.sum(np.asarray(output - data.target) ** 2, axis=-1)
    exact = float(theory.population_loss(point, target, theory.cells(6, 4, burst, repeat)))
    assert abs(sampled.mean() - exact) < 4 * sampled.std() / np.sqrt(len(sampled))


def test_the_full_loss_equals_the_reduced_loss_on_the_symmetric_line():
    cell = theory.cells(12, 6, 3, 0.25)
    with theory.float64():
        target = drawn_target(jax.random.key(0), 6)
        repeated = 0.7
        others = 1.9
        logit = 1.3
        columns = jnp.full(6, others / np.sqrt(5)).at[0].set(repeated)
        point = ToyParameters(jnp.where(jnp.arange(12) >= 9, logit, 0.0), target * columns)
        full = theory.population_loss(point, target, cell)
        reduced = theory.loss(jnp.array([repeated, others, logit]), cell)
    assert float(full) == pytest.approx(float(reduced), rel=1e-12)


def test_the_plateau_does_not_depend_on_the_target():
    cell = theory.cells(16, 4, 2, 0.2)
    times = [float(theory.full_plateau(cell, seed=s).time) for s in (0, 7)]
    assert times[0] == pytest.approx(times[1], rel=1e-7)


def test_censored_beyond_the_horizon():
    found = theory.full_plateau(theory.cells(16, 4), horizon=3.0)
    assert found.censored
    assert found.time == pytest.approx(3.0)


def test_describe_cell():
    found = theory.describe_cell(theory.cells(512, 64))
    assert found["plateau"] == pytest.approx(5319.27, rel=1e-5)
    assert found["censored"] is False
    assert found["predicted"] == pytest.approx(1.2533 * 8 * 512, rel=1e-4)
    assert found["rate"] == pytest.approx(1 / (8 * 512), rel=0.1)
    assert found["escape_linear"] == pytest.approx(17997.35, rel=1e-5)


def test_the_full_model_follows_the_exact_flow():
    full, exact = (
        theory.describe_cell(theory.cells(16, 4, 3, 0.2), flow) for flow in ("full", "exact")
    )
    assert full["plateau"] == pytest.approx(exact["plateau"], rel=1e-6)
    assert full["rate"] == exact["rate"]


def test_models_that_are_too_large_are_rejected():
    with pytest.raises(InputError, match="use the exact flow"):
        theory.describe_cell(theory.cells(64, 10_000), "full")
