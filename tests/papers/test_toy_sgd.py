"""Stochastic gradient descent on the toy model from the statistics of a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo import theory
from emergo.core.contract import Tap
from emergo.core.errors import InputError
from emergo.measure import emergence
from emergo.papers import toy_probe, train_toy
from emergo.papers._toy_sgd import toy_gradient

from ..training.untyped import (
    SingleLocation,
    ToyAttention,
    ToyParameters,
)


def gradient_from_tokens(params, truth, task, key, batch):
    """Return the gradient from drawing every token, as other models are trained."""
    data = task.batch(key, batch, truth)
    model = ToyAttention()
    return jax.grad(
        lambda p: jnp.mean(task.loss(model.apply(p, data.inputs, Tap(task.spec)), data))
    )(params)


def point(length, dim):
    """Return parameters without symmetry."""
    logits = jax.random.normal(jax.random.key(1), (length,))
    return ToyParameters(logits, jax.random.normal(jax.random.key(2), (dim, dim)))


@pytest.mark.parametrize(("burst", "repeat"), [(1, 0.0), (2, 0.3)])
def test_both_draws_give_gradients_of_one_distribution(burst, repeat):
    """Compare means and covariances of all entries of the gradient over 20,000 batches each."""
    task = SingleLocation(5, 2, burst, repeat)
    draws = 20_000
    truth = task.truth(jax.random.key(0))
    params = point(5, 2)
    moments = []
    for i, gradient in enumerate((gradient_from_tokens, toy_gradient)):
        keys = jax.random.split(jax.random.key(10 + i), draws)
        grads = jax.jit(jax.vmap(lambda key, g=gradient: g(params, truth, task, key, 3)))(keys)
        flat = np.concatenate([grads.logits, grads.weights.reshape(draws, -1)], axis=1).astype(
            np.float64
        )
        moments.append(
            (flat.mean(0), np.cov(flat.T), flat.std(0), np.mean((flat - flat.mean(0)) ** 3, axis=0))
        )
    (mean, cov, sd, skew), (mean2, cov2, _, skew2) = moments
    # Five standard errors of a difference of two means; covariances and third moments have heavier
    # tails.
    assert (np.abs(mean - mean2) < 5 * sd * np.sqrt(2 / draws)).all()
    np.testing.assert_allclose(cov2, cov, atol=0.12 * np.outer(sd, sd).max())
    np.testing.assert_allclose(skew2 / sd**3, skew / sd**3, atol=1.0)


def test_saturated_attention_is_not_divided_by_zero():
    task = SingleLocation(6, 3, 2)
    truth = task.truth(jax.random.key(0))
    params = ToyParameters(jnp.where(truth.relevant, 60.0, 0.0), jnp.eye(3))
    gradient = jax.jit(lambda key: toy_gradient(params, truth, task, key, 4))(jax.random.key(1))
    assert np.isfinite(gradient.logits).all()
    assert np.isfinite(gradient.weights).all()


def test_a_seed_does_not_depend_on_its_neighbours_or_on_the_evaluations():
    task = SingleLocation(8, 4)
    many = train_toy(task, toy_probe(), seeds=3, steps=40, every=10)
    one = train_toy(task, toy_probe(), seeds=1, steps=40, every=20)
    assert many.step.tolist() == [0, 10, 20, 30, 40]
    # Batched and single products may order their sums differently: fp32 over 40 steps.
    np.testing.assert_allclose(many.values["loss"][0, [0, 2, 4]], one.values["loss"][0], rtol=1e-4)
    assert len(np.unique(many.values["loss"][:, -1])) == 3


@pytest.mark.slow
def test_sgd_follows_the_exact_flow_not_the_reduced_one():
    """At burst 8 the flows differ by a factor of 2.6. Seeds differ by 10%, and random initial
    weights delay them a little."""
    cell = theory.cells(64, 32, 8)
    exact, reduced = (float(theory.plateau(cell, f).time) for f in ("exact", "reduced"))
    curves = train_toy(SingleLocation(64, 32, burst=8), toy_probe(8), seeds=4, steps=1000, every=10)
    times = [emergence(curves.step, loss, 0.2 * loss[0]).time for loss in curves.values["loss"]]
    assert exact / reduced > 2
    assert 0.8 < np.mean(times) / exact < 1.5
    assert np.mean(times) / reduced > 2


def test_a_learning_rate_that_diverges_is_seen_as_failed():
    curves = train_toy(
        SingleLocation(8, 4), toy_probe(), seeds=2, steps=300, every=10, learning_rate=500.0
    )
    assert [
        emergence(curves.step, loss, 0.2 * loss[0]).state for loss in curves.values["loss"]
    ] == ["failed", "failed"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"every": 0}, "every must be at least 1"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive"),
        ({"learning_rate": -1.0}, "learning_rate must be positive"),
    ],
)
def test_wrong_input_is_named(options, message):
    with pytest.raises(InputError, match=message):
        train_toy(SingleLocation(8, 4), toy_probe(), **options)
