"""Forms of attention behind one interface: how scores become weights, and weights a mixture; and positions as angles.

| form | weight from position i to j |
| --- | --- |
| `softmax` | softmax over j of q·k/√size |
| `linear` | q·k/(√size · visible positions): no exponential, no competition between tokens |
| `sigmoid` | sigmoid of q·k/√size - log(visible positions): between 0 and 1, no competition between tokens |
| `biased` | softmax over j of q·k/√size + a learned logit of (i, j) |
| `positional` | softmax over j of the learned logit of (i, j) alone: the attention of the toy model (zucchet2025, Eq. 2) |
"""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Attention = Literal["softmax", "linear", "sigmoid", "biased", "positional"]
Queries = Float[Array, "n queries heads size"]
Keys = Float[Array, "n length heads size"]
Weights = Float[Array, "#n heads queries length"]
Bias = Float[Array, "heads queries length"] | None
Visible = Bool[Array, "*queries length"] | None
Temperature = Float[Array, " heads"] | None  # its logarithm
_TILE = 128  # positions that cuDNN's attention works on at a time


def causal(length: int, context: int | Int[Array, ""] | None = None) -> Bool[Array, "length length"]:
    """Which positions each one sees: itself and those before it, at most `context` of them in all."""
    behind = jnp.arange(length)[:, None] - jnp.arange(length)
    return (behind >= 0) & (behind < (length if context is None else context))


def near(length: int, window: int) -> Bool[Array, "length length"]:
    """Which positions each one sees: itself and those fewer than `window` away, before and after it."""
    return jnp.abs(jnp.arange(length)[:, None] - jnp.arange(length)) < window


def score(form: Attention, q: Queries, k: Keys, bias: Bias, temperature: Temperature = None) -> Weights:
    """Scores of queries against all positions, in fp32."""
    if form == "positional" and bias is not None:
        scores = bias[None].astype(jnp.float32)
    else:
        scores = jnp.einsum("nqhs,nkhs->nhqk", q, k, preferred_element_type=jnp.float32) / math.sqrt(q.shape[-1])
        scores = scores if bias is None else scores + bias.astype(jnp.float32)
    return cooled(scores, temperature)


def cooled(scores: Weights, temperature: Temperature) -> Weights:
    return scores if temperature is None else scores / jnp.exp(temperature.astype(scores.dtype))[:, None, None]


def weigh(
    form: Attention, scores: Float[Array, "*rows length"], visible: Visible, top_k: int | None = None
) -> Float[Array, "*rows length"]:
    """Attention weights from scores, over the visible positions; None: all are. Of these, with `top_k` each query only sees the
    ones with the `top_k` largest scores (and what equals the last of them); which these are is not differentiated."""
    if top_k is not None:
        seen = scores if visible is None else jnp.where(visible, scores, -jnp.inf)
        least = jax.lax.top_k(jax.lax.stop_gradient(seen), min(top_k, scores.shape[-1]))[0][..., -1:]
        visible = (seen >= least) & (seen > -jnp.inf)
    if form in ("linear", "sigmoid"):
        count = scores.shape[-1] if visible is None else jnp.sum(visible, -1, keepdims=True)
        weights = scores / count if form == "linear" else jax.nn.sigmoid(scores - jnp.log(jnp.asarray(count, scores.dtype)))
        return weights if visible is None else jnp.where(visible, weights, 0)
    if visible is not None:
        scores = jnp.where(visible, scores, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1)


def attend(weights: Weights, v: Keys) -> Queries:
    """Sums of values with these weights."""
    weights = jnp.broadcast_to(weights.astype(v.dtype), (len(v), *weights.shape[1:]))
    return jnp.einsum("nhqk,nkhs->nqhs", weights, v)


def attend_all(
    form: Attention,
    q: Keys,
    k: Keys,
    v: Keys,
    bias: Bias,
    visible: Visible,
    fused: bool,
    temperature: Temperature = None,
    top_k: int | None = None,
) -> Keys:
    """Attention of all positions. `fused` takes the GPU's own kernel where there is one that can be relied on; what is visible
    must then be what a causal mask leaves."""
    length, masked = q.shape[1], visible is not None
    kernel = fused and form == "softmax" and v.dtype == jnp.bfloat16 and not top_k
    if kernel and masked and length % _TILE == 1 and length > 1 and _tiles(length - 1, q.shape[-1], True):
        # One position more than whole tiles, as in recall: no other sees the last one, so that it can be computed apart.
        before = attend_all(form, q[:, :-1], k[:, :-1], v[:, :-1], bias, causal(length - 1), fused, temperature)
        last = attend(weigh(form, score(form, q[:, -1:], k, bias, temperature), None), v)
        return jnp.concatenate([before, last], 1)
    tiles = _tiles(length, q.shape[-1], masked) if kernel else 0
    if not tiles:
        return attend(weigh(form, score(form, q, k, bias, temperature), visible, top_k), v)
    if temperature is not None:
        q = (q / jnp.exp(temperature)[:, None]).astype(q.dtype)
    q, k, v = (jnp.pad(a, ((0, 0), (0, _TILE * tiles - length), (0, 0), (0, 0))) for a in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, is_causal=masked, implementation="cudnn")[:, :length]


def _tiles(length: int, size: int, masked: bool) -> int:
    """How many tiles cuDNN's attention is to be given for heads of this size, or 0: not to be used.

    It must not fill up a tile itself: those positions have score 0, whose weight exp(0 - log Σ exp score) overflows where all
    scores are below -88, and the gradient of the query is then NaN. With a causal mask what stands behind the last position is
    seen by none, so that the tile can be filled up beforehand; that is worth it where more than half of all tiles is used.
    """
    tiles = -(-length // _TILE)
    whole = length == _TILE * tiles or (masked and 2 * length > _TILE * tiles)
    return tiles if whole and size <= 128 and size % 8 == 0 else 0


def _angles(length: int, size: int) -> Float[Array, "length half"]:
    r"""Position t has the angles $t \cdot 10000^{-2i/\mathrm{size}}$, for i from 0 to size/2 - 1."""
    rate = jnp.exp(jnp.arange(0, size, 2, jnp.float32) * (-math.log(10_000) / size))
    return jnp.arange(length, dtype=jnp.float32)[:, None] * rate


def sinusoids(length: int, width: int) -> Float[Array, "length width"]:
    """Sines and cosines in turn (Vaswani et al. 2017, Section 3.5)."""
    angle = _angles(length, width)
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(length, width)


def rotate(x: Queries, length: int) -> Queries:
    """Rotary positions (RoPE; Su et al. 2021, Eq. 34) for the last positions of `length`: features 2i and 2i + 1 are turned by
    their position's i-th angle, so that a score depends on positions through their difference alone."""
    angle = _angles(length, x.shape[-1])[length - x.shape[1] :, None]
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    even, odd = x[..., ::2], x[..., 1::2]
    turned = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)
