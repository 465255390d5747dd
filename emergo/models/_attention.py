"""Forms of attention behind one interface, masks and positional encodings.

A form defines how scores become weights:

| form | weight from position i to j |
| --- | --- |
| `softmax` | softmax over j of q·k/√size |
| `linear` | q·k/(√size · visible positions): no exponential, no competition between tokens |
| `sigmoid` | sigmoid of q·k/√size - log(visible positions): in [0, 1], no competition |
| `biased` | softmax over j of q·k/√size + a learned logit of (i, j) |
| `positional` | softmax over j of the learned logit of (i, j) alone, as in zucchet2025, Eq. 2 |
"""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ._products import at_least_fp32

Attention = Literal["softmax", "linear", "sigmoid", "biased", "positional"]
Queries = Float[Array, "n queries heads size"]
Keys = Float[Array, "n length heads size"]
Weights = Float[Array, "#n heads queries length"]
Bias = Float[Array, "heads queries length"] | None
Visible = Bool[Array, "*queries length"] | None
Temperature = Float[Array, " heads"] | None  # logarithms of temperatures


def causal(
    length: int, context: int | Int[Array, ""] | None = None
) -> Bool[Array, "length length"]:
    """Return a mask: a position sees itself and earlier ones, at most `context` in all."""
    behind = jnp.arange(length)[:, None] - jnp.arange(length)
    return (behind >= 0) & (behind < (length if context is None else context))


def near(length: int, window: int) -> Bool[Array, "length length"]:
    """Return a mask: a position sees all positions fewer than `window` away, on both sides."""
    return jnp.abs(jnp.arange(length)[:, None] - jnp.arange(length)) < window


def score(
    form: Attention, q: Queries, k: Keys, bias: Bias, temperature: Temperature = None
) -> Weights:
    """Return scores of queries against all positions, in at least fp32."""
    wide = at_least_fp32(q.dtype)
    if form == "positional" and bias is not None:
        return cooled(bias[None].astype(wide), temperature)
    scores = jnp.einsum("nqhs,nkhs->nhqk", q, k, preferred_element_type=wide)
    scores = scores / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias.astype(wide)
    return cooled(scores, temperature)


def cooled(scores: Weights, temperature: Temperature) -> Weights:
    """Divide scores by the temperature of their head."""
    if temperature is None:
        return scores
    return scores / jnp.exp(temperature.astype(scores.dtype))[:, None, None]


def weigh(
    form: Attention,
    scores: Float[Array, "*rows length"],
    visible: Visible,
    top_k: int | None = None,
) -> Float[Array, "*rows length"]:
    """Return attention weights.

    **Arguments:**

    - `form`: the form of attention.
    - `scores`: scores; the last axis is the position.
    - `visible`: mask of visible positions; None: all.
    - `top_k`: if given, every query sees only the visible positions with its `top_k` largest
      scores, including ties with the last of them. The selection is not differentiated.
    """
    if top_k is not None:
        seen = scores if visible is None else jnp.where(visible, scores, -jnp.inf)
        largest, _ = jax.lax.top_k(jax.lax.stop_gradient(seen), min(top_k, scores.shape[-1]))
        visible = (seen >= largest[..., -1:]) & (seen > -jnp.inf)
    if form in ("linear", "sigmoid"):
        count = scores.shape[-1] if visible is None else jnp.sum(visible, -1, keepdims=True)
        if form == "linear":
            weights = scores / count
        else:
            weights = jax.nn.sigmoid(scores - jnp.log(jnp.asarray(count, scores.dtype)))
        return weights if visible is None else jnp.where(visible, weights, 0)
    if visible is not None:
        scores = jnp.where(visible, scores, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1)


def attend(weights: Weights, v: Keys) -> Queries:
    """Return weighted sums of values."""
    weights = jnp.broadcast_to(weights.astype(v.dtype), (len(v), *weights.shape[1:]))
    return jnp.einsum("nhqk,nkhs->nqhs", weights, v)


def _angles(length: int, size: int) -> Float[Array, "length half"]:
    r"""Return the angles $t \cdot 10000^{-2i/\mathrm{size}}$ of positions t, for i < size/2."""
    rate = jnp.exp(jnp.arange(0, size, 2, jnp.float32) * (-math.log(10_000) / size))
    return jnp.arange(length, dtype=jnp.float32)[:, None] * rate


def sinusoids(length: int, width: int) -> Float[Array, "length width"]:
    """Return alternating sines and cosines (Vaswani et al. 2017, Section 3.5)."""
    angle = _angles(length, width)
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(length, width)


def rotate(x: Queries, length: int) -> Queries:
    """Apply rotary positions (RoPE; Su et al. 2021, Eq. 34) to the last positions of `length`.

    Features 2i and 2i + 1 are rotated by the i-th angle of their position. So a score depends on
    two positions only through their difference.
    """
    angle = _angles(length, x.shape[-1])[length - x.shape[1] :, None]
    cosine = jnp.cos(angle)
    sine = jnp.sin(angle)
    even = x[..., ::2]
    odd = x[..., 1::2]
    turned = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)
