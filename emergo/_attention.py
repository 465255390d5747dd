"""How sparse attention is, and where it goes. Functions of attention weights that can be compiled and mapped."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._errors import InputError


def attention_entropy(weights: Float[Array, "*rows length"]) -> Float[Array, "*rows"]:
    """The entropy of attention in nats: log(length) when it is uniform, 0 when it is on one position.

    Weights may be negative or unnormalised (linear attention): the entropy is that of their absolute values, scaled to a
    sum of 1. It is NaN where all weights of a row are 0.
    """
    shares = jnp.abs(weights) / jnp.sum(jnp.abs(weights), -1, keepdims=True)
    return -jnp.sum(shares * jnp.log(jnp.maximum(shares, 1e-30)), -1)


def attention_mass(
    weights: Float[Array, "n layers heads length"], relevant: Bool[Array, "n length"]
) -> Float[Array, "layers heads"]:
    """The total weight of one query per sequence on the relevant positions, mean over the n sequences."""
    return jnp.sum(jnp.where(relevant[:, None, None], weights, 0), -1).mean(0)


def attention_by_lag(
    pattern: Float[Array, "n layers heads length length"], window: int, first_query: int
) -> Float[Array, "layers heads window"]:
    """Attention to the token that lies 0, 1, ... `window` - 1 positions before the query, mean over sequences and over the
    queries from `first_query` on. Each must have `window` tokens up to and including itself. Axes: query, then key."""
    length = pattern.shape[-1]
    if not 1 <= window <= first_query + 1 <= length:
        raise InputError(f"queries from position {first_query} on of {length} do not all have {window} tokens to look back on")
    queries = jnp.arange(first_query, length)
    return jnp.stack([pattern[..., queries, queries - lag].mean((0, -1)) for lag in range(window)], -1)
