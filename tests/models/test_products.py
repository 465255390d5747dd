"""Gradients that are written by hand, against those of plain operations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.models._products import Linear, look_up, pick, product, spread


def same(ours, plain, *arguments):
    """Gradients of two functions, weighted so that no symmetry hides a mistake."""
    g = jax.random.normal(jax.random.key(9), jax.eval_shape(plain, *arguments).shape)
    with jax.default_matmul_precision("highest"):
        found = [jax.grad(lambda *a, f=f: jnp.sum(f(*a) * g), range(len(arguments)))(*arguments) for f in (ours, plain)]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [3, 40, 64])
def test_over_many_rows(n):
    """The sum over rows goes over as many parts as divide both their number and 40."""
    keys = jax.random.split(jax.random.key(0), 4)
    x, weight = jax.random.normal(keys[0], (n, 5, 7)), jax.random.normal(keys[1], (7, 6))
    same(product, jnp.matmul, x, weight)
    tokens = jax.random.randint(keys[2], (n, 5), 0, 4)  # more rows of the table than tokens
    tables = jax.random.normal(keys[3], (2, 6, 3))
    same(lambda t: look_up(t, tokens), lambda t: t[:, tokens], tables)


def test_picked_entries():
    tokens = jax.random.randint(jax.random.key(0), (3, 5), 0, 4)
    scores = jax.random.normal(jax.random.key(1), (3, 2, 2, 4))
    same(lambda s: pick(s, tokens), lambda s: jnp.einsum("nqhr,ntr->nqht", s, jax.nn.one_hot(tokens, 4)), scores)


def test_weights_by_token():
    tokens = jax.random.randint(jax.random.key(0), (3, 5), 0, 4)
    weights = jax.random.normal(jax.random.key(1), (3, 2, 2, 5))
    same(lambda w: spread(w, tokens, 4), lambda w: jnp.einsum("nqht,ntr->nqhr", w, jax.nn.one_hot(tokens, 4)), weights)


def test_a_gpu_sums_the_gradient_of_a_bias_in_two_parts():
    given = Linear(jnp.ones((3, 5)), jnp.arange(5.0)), jnp.asarray(np.random.default_rng(0).normal(size=(4, 7, 3)), jnp.float32)

    def loss(apply, map, x):
        return jnp.sum(jnp.sin(apply(map, x)))

    plain, parts = (jax.grad(functools.partial(loss, apply), (0, 1))(*given) for apply in (Linear.__call__, Linear.on_gpu))
    np.testing.assert_array_equal(Linear.on_gpu(*given), given[0](given[1]))
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)  # 28 terms, added in another order

    low = jax.tree.map(lambda a: a.astype(jnp.bfloat16), given)
    by_bias = jax.grad(lambda map, x: jnp.sum(map.on_gpu(x).astype(jnp.float32)))(*low).bias
    np.testing.assert_array_equal(by_bias, 28)
