"""Gradients written by hand against automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.models._products import look_up, pick, product, spread


def same(ours, plain, *arguments):
    """Compare gradients of two functions, with random weights on their outputs."""
    g = jax.random.normal(jax.random.key(9), jax.eval_shape(plain, *arguments).shape)
    with jax.default_matmul_precision("highest"):
        found = [
            jax.grad(lambda *a, f=f: jnp.sum(f(*a) * g), range(len(arguments)))(*arguments)
            for f in (ours, plain)
        ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [3, 40, 64])
def test_over_many_rows(n):
    """The sum over rows has as many parts as divide both their number and 40."""
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (n, 5, 7))
    weight = jax.random.normal(keys[1], (7, 6))
    same(product, jnp.matmul, x, weight)
    tokens = jax.random.randint(keys[2], (n, 5), 0, 4)  # more rows of the table than tokens
    tables = jax.random.normal(keys[3], (2, 6, 3))
    same(lambda t: look_up(t, tokens), lambda t: t[:, tokens], tables)


def test_picked_entries():
    tokens = jax.random.randint(jax.random.key(0), (3, 5), 0, 4)
    scores = jax.random.normal(jax.random.key(1), (3, 2, 2, 4))
    same(
        lambda s: pick(s, tokens),
        lambda s: jnp.einsum("nqhr,ntr->nqht", s, jax.nn.one_hot(tokens, 4)),
        scores,
    )


def test_weights_by_token():
    tokens = jax.random.randint(jax.random.key(0), (3, 5), 0, 4)
    weights = jax.random.normal(jax.random.key(1), (3, 2, 2, 5))
    same(
        lambda w: spread(w, tokens, 4),
        lambda w: jnp.einsum("nqht,ntr->nqhr", w, jax.nn.one_hot(tokens, 4)),
        weights,
    )
