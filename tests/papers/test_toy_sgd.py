"""Stochastic gradient descent on the toy model, from the statistics of a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo import theory
from emergo.core.contract import Tap
from emergo.core.errors import InputError
from emergo.core.random import fold_in, raw
from emergo.measure import emergence
from emergo.papers import train_toy
from emergo.papers._toy_sgd import toy_gradient
from emergo.training._program import user_key

from ..training.untyped import (
    Config,
    Optimizer,
    Run,
    SingleLocation,
    ToyAttention,
    ToyParameters,
    train,
)


def gradient_from_tokens(params, truth, task, key, batch):
    """By drawing every token, as any other model is trained."""
    data = task.batch(key, batch, truth)
    model = ToyAttention()
    return jax.grad(
        lambda p: jnp.mean(task.loss(model.apply(p, data.inputs, Tap(task.spec)), data))
    )(params)


def point(length, dim):
    """A point without symmetry."""
    logits = jax.random.normal(jax.random.key(1), (length,))
    return ToyParameters(logits, jax.random.normal(jax.random.key(2), (dim, dim)))


@pytest.mark.parametrize(("burst", "repeat"), [(1, 0.0), (2, 0.3)])
def test_both_draws_give_gradients_of_one_distribution(burst, repeat):
    """Mean and covariance of all entries of the gradient over 20,000 batches each."""
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


def test_mean_gradient_is_that_of_the_population():
    task = SingleLocation(5, 3, 2, 0.2)
    draws = 40_000
    truth = task.truth(jax.random.key(0))
    params = point(5, 3)
    keys = jax.random.split(jax.random.key(3), draws)
    grads = jax.jit(jax.vmap(lambda key: toy_gradient(params, truth, task, key, 2)))(keys)
    exact = theory.population_gradient(params, truth.weights, theory.cells(5, 3, 2, 0.2))
    for ours, theirs in ((grads.logits, exact.logits), (grads.weights, exact.weights)):
        error = np.asarray(ours).std(0) / np.sqrt(draws)
        assert (np.abs(np.asarray(ours).mean(0) - theirs) < 5 * error).all()


def test_a_plain_numpy_loop_takes_the_same_path():
    """Five steps of the engine on tokens, with gradients written out in NumPy float64."""
    task = SingleLocation(6, 3, 2)
    config = Config(
        task,
        ToyAttention(),
        Optimizer("sgd", 0.7),
        batch=4,
        precision="fp32",
        steps=5,
        threshold=None,
        n_test=4,
    )
    kept = {}
    train([Run(config, 0)], keep=[], snapshot=lambda run, step, params: kept.update({step: params}))
    key = raw(jax.random.key(0))
    truth = task.truth(user_key(fold_in(key, 0)))
    start = ToyAttention().init(user_key(fold_in(key, 1)), task.spec)
    a = np.zeros(6)
    W = np.asarray(start.weights, np.float64)
    target = np.asarray(truth.weights, np.float64)
    drawn = jax.jit(
        lambda step: task.batch(user_key(fold_in(fold_in(key, 2), step)), 4, truth).inputs
    )
    for step in range(5):
        x = np.asarray(drawn(step), np.float64)
        alpha = np.exp(a) / np.exp(a).sum()
        z = np.einsum("t,ntd->nd", alpha, x)
        error = z @ W.T - x[:, -1] @ target.T
        by_alpha = np.einsum("nd,ntd->t", error @ W, x) / 4
        W = W - 0.7 * error.T @ z / 4
        a = a - 0.7 * alpha * (by_alpha - alpha @ by_alpha)
    # fp32 against float64 over five steps.
    np.testing.assert_allclose(kept[5].weights, W, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(kept[5].logits, a, rtol=1e-3, atol=1e-5)


def loss_probe(params, truth):
    """The exact expected loss at a burst of 1."""
    cell = theory.Cell(
        *(jnp.float32(size) for size in (len(params.logits), len(truth.weights), 1, 0))
    )
    return {"loss": theory.population_loss(params, truth.weights, cell)}


def burst_probe(params, truth):
    cell = theory.Cell(
        *(jnp.float32(size) for size in (len(params.logits), len(truth.weights), 8, 0))
    )
    return {"loss": theory.population_loss(params, truth.weights, cell)}


def test_a_seed_does_not_depend_on_its_neighbours_or_on_the_evaluations():
    task = SingleLocation(8, 4)
    many = train_toy(task, loss_probe, seeds=3, steps=40, every=10)
    one = train_toy(task, loss_probe, seeds=1, steps=40, every=20)
    assert many.step.tolist() == [0, 10, 20, 30, 40]
    # Batched and single products may order their sums differently: fp32 over 40 steps.
    np.testing.assert_allclose(many.values["loss"][0, [0, 2, 4]], one.values["loss"][0], rtol=1e-4)
    assert len(np.unique(many.values["loss"][:, -1])) == 3


@pytest.mark.slow
def test_sgd_follows_the_exact_flow_not_the_reduced_one():
    """At burst 8 the two flows differ by 2.6; seeds scatter by a tenth, and random initial weights
    delay them a little."""
    cell = theory.cells(64, 32, 8)
    exact, reduced = (float(theory.plateau(cell, f).time) for f in ("exact", "reduced"))
    curves = train_toy(SingleLocation(64, 32, burst=8), burst_probe, seeds=4, steps=1000, every=10)
    times = [emergence(curves.step, loss, 0.2 * loss[0]).time for loss in curves.values["loss"]]
    assert exact / reduced > 2
    assert 0.8 < np.mean(times) / exact < 1.5
    assert np.mean(times) / reduced > 2


@pytest.mark.slow
def test_from_zero_weights_sgd_is_on_time_and_from_random_ones_late():
    """Assumption 4 of A.1 and what relaxing it does."""
    flow = float(theory.plateau(theory.cells(32, 32), "exact").time)
    means = {}
    for scale in (0.0, 1.0):
        curves = train_toy(
            SingleLocation(32, 32), loss_probe, seeds=8, steps=700, every=5, initial_scale=scale
        )
        means[scale] = (
            np.mean([emergence(curves.step, v, 0.2 * v[0]).time for v in curves.values["loss"]])
            / flow
        )
    assert means[0.0] == pytest.approx(1, abs=0.03)
    assert means[1.0] > 1.05


def test_a_learning_rate_that_diverges_is_seen_as_failed():
    curves = train_toy(
        SingleLocation(8, 4), loss_probe, seeds=2, steps=300, every=10, learning_rate=500.0
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
        train_toy(SingleLocation(8, 4), loss_probe, **options)
