"""Building blocks that the models share: linear maps, normalisation and dropout."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..core.random import Key, fold_in, uniform
from ._products import at_least_fp32, rows


class Linear(NamedTuple):
    """An affine map `x @ weight + bias`."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __call__(self, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
        return rows(x, self.weight) + self.bias


class LayerNorm(NamedTuple):
    """Layer normalisation with a learned gain and offset. Moments are computed in at least fp32."""

    gain: Float[Array, " width"]
    offset: Float[Array, " width"]

    @classmethod
    def identity(cls, width: int) -> "LayerNorm":
        return cls(jnp.ones(width, jnp.float32), jnp.zeros(width, jnp.float32))

    def __call__(self, x: Float[Array, "*rows width"]) -> Float[Array, "*rows width"]:
        wide = x.astype(at_least_fp32(x.dtype))
        centred = wide - wide.mean(-1, keepdims=True)
        normal = centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)
        return normal.astype(x.dtype) * self.gain + self.offset


class RMSNorm(NamedTuple):
    """Division by the root mean square (Zhang and Sennrich 2019), with a learned gain."""

    gain: Float[Array, " width"]

    @classmethod
    def identity(cls, width: int) -> "RMSNorm":
        return cls(jnp.ones(width, jnp.float32))

    def __call__(self, x: Float[Array, "*rows width"]) -> Float[Array, "*rows width"]:
        wide = x.astype(at_least_fp32(x.dtype))
        normal = wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-5)
        return normal.astype(x.dtype) * self.gain


def dropped(
    key: Key, shape: tuple[int, ...], rate: float | Float[Array, ""]
) -> Bool[Array, "*shape"]:
    """Draw which numbers of an array dropout sets to zero."""
    rows = math.prod(shape[:-1])
    columns = shape[-1]
    # The loop over two halves keeps XLA from inlining the generator into everything that reads the
    # mask, which takes half a minute to compile on a CPU.
    halves = jax.lax.map(
        lambda i: uniform(fold_in(key, i), -(-rows // 2), columns) < rate, jnp.arange(2)
    )
    return halves.reshape(-1, columns)[:rows].reshape(shape)
