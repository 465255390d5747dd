"""What one query, of the last position, takes from a stream of all of them.

The stream is read three times: its last position, inner products with it, and a sum with weights. As each read is of few
vectors, so is the gradient: of 2 heads + 1 products of a vector over positions with one over features, one matrix product gives
it at once. Written by hand, since otherwise every read has a gradient of the stream's size, and these are added.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Stream = Float[Array, "n length width"]
Last = tuple[Float[Array, "n width"], Float[Array, "n heads width"], Float[Array, "n heads length"]]
_ROWS = 16  # that a GPU multiplies at least

wide = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def _last_query(ask: Callable[..., Any], weigh: Callable[..., Any], layer: Any, x: Stream) -> Last:
    """The last position, sums of the stream with the weights of its query, and these. `ask(layer, last)` returns what inner
    products are taken with, and what is added to them; `weigh(layer, scores)` weights. Neither may depend on anything else that
    is differentiated."""
    return _forward(ask, weigh, layer, x)[0]


def _forward(ask: Callable[..., Any], weigh: Callable[..., Any], layer: Any, x: Stream) -> tuple[Last, Any]:
    last = x[:, -1]
    (probe, constant), back_to_last = jax.vjp(ask, layer, last)
    weights, back_to_scores = jax.vjp(weigh, layer, wide("nhw,ntw->nht", probe, x) + constant)
    taken = jnp.einsum("nht,ntw->nhw", weights.astype(x.dtype), x)
    return (last, taken, weights), (x, probe, weights, back_to_last, back_to_scores)


def _backward(ask: Callable[..., Any], weigh: Callable[..., Any], saved: Any, g: Last) -> tuple[Any, Stream]:
    x, probe, weights, back_to_last, back_to_scores = saved
    by_last, by_taken, by_weights = g
    by_layer, by_scores = back_to_scores(by_weights + wide("nhw,ntw->nht", by_taken, x).astype(weights.dtype))
    by_constant, by_scores = by_scores.sum(-1, keepdims=True), by_scores.astype(x.dtype)
    also_by_layer, also_by_last = back_to_last((jnp.einsum("nht,ntw->nhw", by_scores, x), by_constant))
    heads, at_last = weights.shape[1], jnp.zeros_like(weights, x.dtype, shape=(len(x), 1, x.shape[1])).at[..., -1].set(1)

    def stacked(*parts: Array) -> Array:
        return jnp.pad(jnp.concatenate(parts, 1), ((0, 0), (0, -(2 * heads + 1) % _ROWS), (0, 0)))

    over_positions = stacked(by_scores, weights.astype(x.dtype), at_last)
    over_features = stacked(probe, by_taken, (by_last + also_by_last)[:, None])
    by_x = jnp.einsum("nkt,nkw->ntw", *jax.lax.optimization_barrier((over_positions, over_features)))
    return jax.tree.map(jnp.add, by_layer, also_by_layer), by_x


last_query = jax.custom_vjp(_last_query, nondiff_argnums=(0, 1))
last_query.defvjp(_forward, _backward)
