"""Forms of attention behind one interface: how scores become weights, and weights a mixture.

| form | weight from position i to j |
| --- | --- |
| `softmax` | softmax over j of q·k/√size |
| `linear` | q·k/(√size · tokens seen): no exponential, no competition between tokens |
| `biased` | softmax over j of q·k/√size + a learned logit of (i, j) |
| `positional` | softmax over j of the learned logit of (i, j) alone: the attention of the toy model (zucchet2025, Eq. 2) |
"""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Attention = Literal["softmax", "linear", "biased", "positional"]


def score(
    form: Attention,
    q: Float[Array, "n queries heads size"],
    k: Float[Array, "n length heads size"],
    bias: Float[Array, "heads queries length"] | None,
) -> Float[Array, "#n heads queries length"]:
    """Scores of queries against all positions, in fp32."""
    if form == "positional" and bias is not None:
        return bias[None].astype(jnp.float32)
    scores = jnp.einsum("nqhs,nkhs->nhqk", q, k, preferred_element_type=jnp.float32) / math.sqrt(q.shape[-1])
    return scores if bias is None else scores + bias.astype(jnp.float32)


def weigh(
    form: Attention, scores: Float[Array, "*rows length"], visible: Bool[Array, "queries length"] | None
) -> Float[Array, "*rows length"]:
    """Attention weights from scores, over the visible positions."""
    if form == "linear":
        if visible is None:
            return scores / scores.shape[-1]
        return jnp.where(visible, scores, 0) / jnp.sum(visible, -1, keepdims=True)
    if visible is not None:
        scores = jnp.where(visible, scores, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1)


def attend(
    weights: Float[Array, "#n heads queries length"], v: Float[Array, "n length heads size"]
) -> Float[Array, "n queries heads size"]:
    weights = jnp.broadcast_to(weights.astype(v.dtype), (len(v), *weights.shape[1:]))
    return jnp.einsum("nhqk,nkhs->nqhs", weights, v)


def attend_all(
    form: Attention,
    q: Float[Array, "n length heads size"],
    k: Float[Array, "n length heads size"],
    v: Float[Array, "n length heads size"],
    bias: Float[Array, "heads length length"] | None,
    visible: Bool[Array, "length length"] | None,
    fused: bool,
) -> Float[Array, "n length heads size"]:
    """Attention of all positions. `fused` takes the GPU's own kernel where there is one that can be relied on."""
    length, causal = q.shape[1], visible is not None
    tiles = _tiles(length, q.shape[-1], causal) if fused and form == "softmax" and v.dtype == jnp.bfloat16 else 0
    if not tiles:
        return attend(weigh(form, score(form, q, k, bias), visible), v)
    q, k, v = (jnp.pad(a, ((0, 0), (0, _TILE * tiles - length), (0, 0), (0, 0))) for a in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation="cudnn")[:, :length]


_TILE = 128
"""Positions that cuDNN's attention works on at a time."""


def _tiles(length: int, size: int, causal: bool) -> int:
    """How many tiles cuDNN's attention is to be given for heads of this size, or 0: not to be used.

    It must not fill up a tile itself: those positions have score 0, whose weight exp(0 - log Σ exp score) overflows where all
    scores are below -88, and the gradient of the query is then NaN. With a causal mask what stands behind the last position is
    seen by none, so that the tile can be filled up beforehand; that is worth it where more than half of all tiles is used.
    """
    tiles = -(-length // _TILE)
    whole = length == _TILE * tiles or (causal and 2 * length > _TILE * tiles)
    return tiles if whole and size <= 128 and size % 8 == 0 else 0
