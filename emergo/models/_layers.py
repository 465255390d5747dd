"""Building blocks that the models share: a linear map and layer normalisation."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

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
