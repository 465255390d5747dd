"""The simplified attention layer of zucchet2025, Eq. 2."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._random import normals, raw


class ToyAttention(eqx.Module):
    r"""$y = W \sum_t \mathrm{softmax}(a)_t\, x_t$: one logit a position, one weight matrix, nothing else."""

    logits: Float[Array, " length"]
    weights: Float[Array, "dim dim"]

    @classmethod
    def init(cls, key: Array, length: int, dim: int) -> "ToyAttention":
        """Uniform attention, and weights with entries of variance 1/dim (A.3.4)."""
        weights = normals(raw(key), 1, dim, dim)[0] / jnp.sqrt(dim)
        return cls(jnp.zeros(length, jnp.float32), weights)

    @property
    def attention(self) -> Float[Array, " length"]:
        return jax.nn.softmax(self.logits)

    def __call__(self, tokens: Float[Array, "length dim"]) -> Float[Array, " dim"]:
        return self.weights @ (self.attention @ tokens)
