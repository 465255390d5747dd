"""Attention with folded maps against the usual form, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.models._layers import Linear
from emergo.models.fast._folded import folded
from emergo.models.fast._stream import Embedded


def drawn(*shape, seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float64)


def case(n=2, length=6, features=5, width=8):
    embed = Linear(drawn(features, width, seed=0), drawn(width, seed=1))
    maps = tuple(
        Linear(drawn(width, width, seed=i), drawn(width, seed=i + 1)) for i in range(2, 10, 2)
    )
    return embed, drawn(n, length, features, seed=10), drawn(length, width, seed=11), maps


def plain(embedded, maps, heads, weigh):
    x = embedded.stream()
    q, k, v = (map(x).reshape(*x.shape[:2], heads, -1) for map in maps[:3])
    weights = weigh(jnp.einsum("nqhs,nkhs->nqhk", q, k) / np.sqrt(q.shape[-1]))
    return maps[3](jnp.einsum("nqhk,nkhs->nqhs", weights, v).reshape(x.shape)), weights


@pytest.mark.parametrize("weigh", [jax.nn.softmax, jax.nn.sigmoid])
def test_values_and_gradients_equal_the_usual_form(weigh):
    with jax.enable_x64(True):
        embed, tokens, positions, maps = case()

        def loss(attention, embed, tokens, positions, maps):
            added, weights = attention(Embedded.of(embed, tokens, positions), maps, 2, weigh)
            return jnp.sum(jnp.sin(added)) + jnp.sum(weights**2), (added, weights)

        both = [
            jax.value_and_grad(lambda *args, by=by: loss(by, *args), (0, 1, 2, 3), has_aux=True)(
                embed, tokens, positions, maps
            )
            for by in (folded, plain)
        ]
        for one, other in zip(*map(jax.tree.leaves, both), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
