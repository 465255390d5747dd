"""The steps left from two checkpoints: curvature against whole Hessians, and the forecast on plateaus that are known."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from emergo import theory
from emergo._errors import InputError
from emergo.engine import escape_rate, remaining_steps

from .own import BASE
from .untyped import Config, Optimizer, Run, SingleLocation, ToyAttention, Trained

TOY = Config(SingleLocation(24, 6), ToyAttention(scale=0.0), Optimizer("sgd", 0.5), precision="fp32")
CELL = theory.cells(24, 6)
START = TOY.model.init(jax.random.key(0), TOY.task.spec)


def at(params, step=0, config=TOY):
    return Trained(Run(config, 0), step, params)


@functools.cache
def descent():
    """The toy model under gradient descent on its expected loss, and the step at which that has fallen to a fifth."""
    target, rate = at(START).truth.weights, TOY.optimizer.learning_rate

    def step(params, _):
        after = jax.tree.map(lambda x, g: x - rate * g, params, theory.population_gradient(params, target, CELL))
        return after, (params, theory.population_loss(params, target, CELL))

    _, (path, losses) = jax.lax.scan(step, START, None, length=600)
    return path, int(np.argmax(np.asarray(losses) < 0.2 * losses[0]))


@pytest.mark.parametrize("optimizer", [Optimizer("sgd", 0.5), Optimizer("adam", 1e-3)])
def test_it_is_the_lowest_eigenvalue_of_the_whole_hessian(optimizer):
    """At random parameters, on the same sequences; Adam's with the roots of the mean squared gradients of batches."""
    logits, weights = (jax.random.normal(jax.random.key(i), leaf.shape) for i, leaf in enumerate(START))
    params, config = START._replace(logits=logits, weights=0.3 * weights), TOY.replace(optimizer=optimizer)
    trained, (flat, unravel) = at(params, config=config), ravel_pytree(params)
    batch = trained.batch(256, training=True)

    def loss(y, part):
        return config.task.loss(config.model.apply(unravel(y), part.inputs), part).mean()

    hessian = np.asarray(jax.jit(jax.hessian(loss))(flat, batch), np.float64)
    if optimizer.label == "adam":
        parts = jax.tree.map(lambda x: x.reshape(8, 32, *x.shape[1:]), batch)
        gradients = np.asarray(jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(flat, parts), np.float64)
        root = (np.sqrt(np.mean(gradients**2, 0)) + 1e-8) ** -0.5
        hessian = root[:, None] * hessian * root
    expected = -optimizer.learning_rate * np.linalg.eigvalsh(hessian)[0]
    assert expected > 0
    assert escape_rate(trained, 256, 60) == pytest.approx(expected, rel=1e-3)  # all of its 60 dimensions, in fp32


@pytest.mark.slow
def test_on_a_plateau_it_is_that_of_the_expected_loss():
    """65,536 sequences; fewer have curvature of their own, which makes the lowest eigenvalue lower."""
    path, end = descent()
    params = jax.tree.map(lambda x: x[end // 2], path)
    target, (flat, unravel) = at(START).truth.weights, ravel_pytree(params)
    hessian = jax.jit(jax.hessian(lambda y: theory.population_loss(unravel(y), target, CELL)))(flat)
    expected = -0.5 * float(jnp.linalg.eigvalsh(hessian)[0])
    many, few = (escape_rate(at(params), n) for n in (1 << 16, 256))
    assert many == pytest.approx(expected, rel=0.05)
    assert few > many


@pytest.mark.slow
def test_the_steps_left_of_the_toy_model():
    """From the middle half of its plateau. At d = 6 the theory's leading order itself is off by a quarter."""
    path, end = descent()
    for later in (end // 2, 3 * end // 4):
        checkpoints = [at(jax.tree.map(lambda x, i=i: x[i], path), i) for i in (later - 10, later)]
        left = remaining_steps(*checkpoints, n=1 << 15)
        assert left.growth > 0
        assert left.steps == pytest.approx(end - later, rel=0.35)


def test_wrong_checkpoints():
    with pytest.raises(InputError, match="takes two checkpoints of one run, the earlier one first"):
        remaining_steps(at(START, 5), at(START, 5))
    with pytest.raises(InputError, match="the curvature that lion sees is not known; it is for sgd, adam and adamw"):
        escape_rate(at(START, config=TOY.replace(optimizer=Optimizer("lion", 0.1))))
    quiet = [Trained(Run(BASE.replace(task=Silent(length=4, dim=3)), 0), step, None) for step in (0, 1)]
    with pytest.raises(InputError, match="Silent has no attention on relevant tokens, whose growth tells"):
        remaining_steps(*(one._replace(params=BASE.model.init(jax.random.key(0), BASE.task.spec)) for one in quiet))


class Silent(type(BASE.task)):
    """The task without a word of what is relevant."""

    def batch(self, key, n, truth):
        return super().batch(key, n, truth)._replace(relevant=None)
