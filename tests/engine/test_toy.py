import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo import theory
from emergo._errors import InputError
from emergo.engine import train_toy
from emergo.engine._toy import _gradient_from_statistics, _gradient_from_tokens
from emergo.measure import emergence
from emergo.models import ToyAttention
from emergo.papers import toy_probe
from emergo.tasks import SingleLocation


@pytest.mark.parametrize(("burst", "repeat"), [(1, 0.0), (2, 0.0), (1, 0.3), (2, 0.3)])
def test_both_draws_give_gradients_of_one_law(burst, repeat):
    """Mean and covariance of all entries of the gradient, at a point without symmetry, over 20,000 batches each."""
    task, draws = SingleLocation(5, 2, burst, repeat), 20_000
    truth = task.truth(jax.random.key(0))
    model = ToyAttention(jax.random.normal(jax.random.key(1), (5,)), jax.random.normal(jax.random.key(2), (2, 2)))
    found = []
    for i, gradient in enumerate((_gradient_from_tokens, _gradient_from_statistics)):
        keys = jax.random.split(jax.random.key(10 + i), draws)
        grads = jax.jit(jax.vmap(lambda k, g=gradient: g(model, truth, task, k, 3)))(keys)
        flat = np.concatenate([grads.logits, grads.weights.reshape(draws, -1)], axis=1).astype(np.float64)
        found.append((flat.mean(0), np.cov(flat.T), flat.std(0), np.mean((flat - flat.mean(0)) ** 3, axis=0)))
    (mean, cov, sd, skew), (mean2, cov2, _, skew2) = found
    # Five standard errors of a difference of two means; covariances and third moments have heavier tails.
    assert (np.abs(mean - mean2) < 5 * sd * np.sqrt(2 / draws)).all()
    np.testing.assert_allclose(cov2, cov, atol=0.12 * np.outer(sd, sd).max())
    np.testing.assert_allclose(skew2 / sd**3, skew / sd**3, atol=1.0)


def test_saturated_attention_is_not_divided_by_zero():
    task = SingleLocation(6, 3, 2)
    truth = task.truth(jax.random.key(0))
    model = ToyAttention(jnp.where(truth.relevant, 60.0, 0.0), jnp.eye(3))
    gradient = _gradient_from_statistics(model, truth, task, jax.random.key(1), 4)
    assert np.isfinite(gradient.logits).all()
    assert np.isfinite(gradient.weights).all()


def test_mean_gradient_is_that_of_the_population():
    task, draws = SingleLocation(5, 3, 2, 0.2), 40_000
    truth = task.truth(jax.random.key(0))
    model = ToyAttention(jax.random.normal(jax.random.key(1), (5,)), jax.random.normal(jax.random.key(2), (3, 3)))
    keys = jax.random.split(jax.random.key(3), draws)
    grads = jax.jit(jax.vmap(lambda k: _gradient_from_statistics(model, truth, task, k, 2)))(keys)
    parameters = theory.Parameters(model.logits, model.weights)
    exact = theory.population_gradient(parameters, truth.weights, theory.cells(5, 3, 2, 0.2))
    for ours, truth_ in ((grads.logits, exact.logits), (grads.weights, exact.weights)):
        error = np.asarray(ours).std(0) / np.sqrt(draws)
        assert (np.abs(np.asarray(ours).mean(0) - truth_) < 5 * error).all()


def test_a_plain_numpy_loop_takes_the_same_path():
    """Five steps on the same tokens, with gradients written out in NumPy float64."""
    task = SingleLocation(6, 3, 2)
    seen = train_toy(task, full_probe, seeds=1, steps=5, every=1, batch=4, learning_rate=0.7, draws="tokens")
    key_truth, key_model = (jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 0), i) for i in range(2))
    truth = task.truth(key_truth)
    a, W = np.zeros(6), np.asarray(ToyAttention.init(key_model, 6, 3).weights, np.float64)
    target = np.asarray(truth.weights, np.float64)
    stream = jax.random.fold_in(jax.random.key(0), 1)
    for step in range(5):
        x = np.asarray(task.sample(jax.random.fold_in(stream, step), 4, truth).tokens, np.float64)
        alpha = np.exp(a) / np.exp(a).sum()
        z = np.einsum("t,ntd->nd", alpha, x)
        error = z @ W.T - x[:, -1] @ target.T
        by_alpha = np.einsum("nd,ntd->t", error @ W, x) / 4
        W, a = W - 0.7 * error.T @ z / 4, a - 0.7 * alpha * (by_alpha - alpha @ by_alpha)
    # fp32 against float64 over five steps.
    assert seen.values["first_weight"][0, -1] == pytest.approx(W[0, 0], rel=1e-4)
    assert seen.values["last_logit"][0, -1] == pytest.approx(a[-1], rel=1e-3)


def full_probe(model, truth):
    return {"first_weight": model.weights[0, 0], "last_logit": model.logits[-1]}


@pytest.mark.slow
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
    """At burst 8 the two flows differ by 2.6; seeds scatter by a tenth, and random initial weights delay them a little."""
    task = SingleLocation(64, 32, burst=8)
    cell = theory.cells(64, 32, 8)
    exact, reduced = (float(theory.plateau(cell, f).time) for f in ("exact", "reduced"))
    seen = train_toy(task, toy_probe(8), seeds=8, steps=1000, every=5)
    times = [emergence(seen.step, loss, 0.2 * loss[0]).time for loss in seen.values["loss"]]
    assert exact / reduced > 2
    assert 0.8 < np.mean(times) / exact < 1.5
    assert np.mean(times) / reduced > 2


@pytest.mark.slow
def test_from_zero_weights_sgd_is_on_time_and_from_random_ones_late():
    """Assumption 4 of A.1 and what relaxing it does."""
    flow = float(theory.plateau(theory.cells(32, 32), "exact").time)
    means = {}
    for scale in (0.0, 1.0):
        seen = train_toy(SingleLocation(32, 32), toy_probe(), seeds=8, steps=700, every=5, initial_scale=scale)
        means[scale] = np.mean([emergence(seen.step, v, 0.2 * v[0]).time for v in seen.values["loss"]]) / flow
    assert means[0.0] == pytest.approx(1, abs=0.03)
    assert means[1.0] > 1.05


def test_a_learning_rate_that_diverges_is_seen_as_failed_and_spoils_nothing_else():
    seen = train_toy(SingleLocation(8, 4), toy_probe(), seeds=2, steps=300, every=10, learning_rate=500.0)
    states = [emergence(seen.step, loss, 0.2 * loss[0]).state for loss in seen.values["loss"]]
    assert states == ["failed", "failed"]


def test_probe_reads_what_it_says():
    task = SingleLocation(6, 3, 2)
    truth = task.truth(jax.random.key(0))
    model = ToyAttention(jnp.where(truth.relevant, 60.0, 0.0), truth.weights)
    seen = toy_probe(2)(model, truth)
    assert float(seen["attention"]) == pytest.approx(1, abs=1e-6)
    assert float(seen["alignment"]) == pytest.approx(float(jnp.linalg.norm(truth.weights)), rel=1e-6)
    assert float(seen["loss"]) == pytest.approx(0, abs=1e-9)


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
