"""Statistics of attention weights, as functions that can be compiled and mapped."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .errors import InputError


def attention_entropy(weights: Float[Array, "*rows length"]) -> Float[Array, "*rows"]:
    """Compute the entropy of attention in nats: log(length) if uniform, 0 if one-hot.

    Weights may be negative or unnormalised, as in linear attention. Their absolute values are
    scaled to a sum of 1 first. The entropy is NaN if all weights of a row are 0.
    """
    shares = jnp.abs(weights) / jnp.sum(jnp.abs(weights), -1, keepdims=True)
    return -jnp.sum(shares * jnp.log(jnp.maximum(shares, 1e-30)), -1)


def attention_mass(
    weights: Float[Array, "n layers heads length"], relevant: Bool[Array, "n length"]
) -> Float[Array, "layers heads"]:
    """Sum the weights of one query over the relevant positions, and average over sequences."""
    return jnp.sum(jnp.where(relevant[:, None, None], weights, 0), -1).mean(0)


def attention_by_lag(
    pattern: Float[Array, "n layers heads length length"], window: int, first_query: int
) -> Float[Array, "layers heads window"]:
    """Average the attention to the token at each distance before the query.

    **Arguments:**

    - `pattern`: attention; the last two axes are query and key.
    - `window`: the number of distances: 0, 1, ... `window` - 1.
    - `first_query`: the first query in the mean over queries. It must have `window` tokens up to
      and including itself.
    """
    length = pattern.shape[-1]
    if not 1 <= window <= first_query + 1 <= length:
        raise InputError(
            f"queries from position {first_query} on of {length} do not all have {window} tokens "
            f"to look back on"
        )
    queries = jnp.arange(first_query, length)
    lags = [pattern[..., queries, queries - lag].mean((0, -1)) for lag in range(window)]
    return jnp.stack(lags, -1)
