"""Positions as angles: sinusoids that are added to tokens, and rotations of queries and keys.

Position t has the angles $t \\cdot 10000^{-2i/\\mathrm{size}}$, for i from 0 to size/2 - 1.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float


def _angles(length: int, size: int) -> Float[Array, "length half"]:
    rate = jnp.exp(jnp.arange(0, size, 2, jnp.float32) * (-math.log(10_000) / size))
    return jnp.arange(length, dtype=jnp.float32)[:, None] * rate


def sinusoids(length: int, width: int) -> Float[Array, "length width"]:
    """Sines and cosines in turn (Vaswani et al. 2017, Section 3.5)."""
    angle = _angles(length, width)
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(length, width)


def rotate(x: Float[Array, "n last heads size"], length: int) -> Float[Array, "n last heads size"]:
    """Rotary positions (RoPE; Su et al. 2021, Eq. 34) for the last positions of `length`: features 2i and 2i + 1 are turned by
    their position's i-th angle, so that a score depends on positions through their difference alone."""
    angle = _angles(length, x.shape[-1])[length - x.shape[1] :, None]
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    even, odd = x[..., ::2], x[..., 1::2]
    turned = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)
