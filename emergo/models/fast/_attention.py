"""Attention of all positions, by cuDNN's fused kernel where it can be trusted."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._attention import (
    Attention,
    Form,
    Keys,
    Queries,
    Temperature,
    Visible,
    attend,
    causal,
    score,
    weigh,
)

_TILE = 128  # positions that cuDNN's kernel processes at a time
_BLOCK = 64  # queries per block without the kernel


def attend_all(
    form: Form | Attention,
    q: Keys,
    k: Keys,
    v: Keys,
    bias: Float[Array, "heads queries length"] | None,
    visible: Visible,
    fused: bool,
    temperature: Temperature = None,
    top_k: int | None = None,
) -> Keys:
    """Compute the attention of all positions.

    `fused` allows the GPU's own kernel. `visible` must then be None or a plain causal mask.
    """
    length = q.shape[1]
    masked = visible is not None
    kernel = fused and form == "softmax" and v.dtype == jnp.bfloat16 and not top_k
    one_more = masked and length % _TILE == 1 and length > 1
    if kernel and one_more and _tiles(length - 1, q.shape[-1], True):
        # One position more than whole tiles, as in recall. No earlier position sees the last one,
        # so it can be computed separately.
        seen = causal(length - 1)
        before = attend_all(form, q[:, :-1], k[:, :-1], v[:, :-1], bias, seen, fused, temperature)
        last = attend(weigh(form, score(form, q[:, -1:], k, bias, temperature), None), v)
        return jnp.concatenate([before, last], 1)
    tiles = _tiles(length, q.shape[-1], masked) if kernel else 0
    if not tiles:
        return attend(weigh(form, score(form, q, k, bias, temperature), visible, top_k), v)
    if temperature is not None:
        q = (q / jnp.exp(temperature)[:, None]).astype(q.dtype)
    padding = ((0, 0), (0, _TILE * tiles - length), (0, 0), (0, 0))
    q, k, v = (jnp.pad(a, padding) for a in (q, k, v))
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=masked, implementation="cudnn")
    return mixed[:, :length]


def attend_causally(q: Keys, k: Keys, v: Keys, on_gpu: bool) -> Keys:
    """Compute causal softmax attention of all positions without keeping patterns."""
    length = q.shape[1]
    if on_gpu and v.dtype == jnp.bfloat16 and _tiles(length, q.shape[-1], True):
        return attend_all("softmax", q, k, v, None, causal(length), True)

    @jax.checkpoint
    def attend_block(q: Queries, k: Keys, v: Keys) -> Queries:
        seen = causal(k.shape[1])[-q.shape[1] :]
        return attend(weigh("softmax", score("softmax", q, k, None), seen), v)

    ends = [min(start + _BLOCK, length) for start in range(0, length, _BLOCK)]
    queries = jnp.split(q, ends[:-1], 1)
    blocks = [attend_block(q, k[:, :end], v[:, :end]) for q, end in zip(queries, ends, strict=True)]
    return jnp.concatenate(blocks, 1)


def _tiles(length: int, size: int, masked: bool) -> int:
    """Return how many tiles to give cuDNN for heads of this size, or 0 if it must not be used.

    cuDNN must not pad a tile itself: padded positions get score 0, whose weight
    exp(0 - log Σ exp score) overflows if all scores are below -88, and the gradient of the query
    becomes NaN. With a causal mask no query sees what follows the last position, so we pad the tile
    ourselves. That pays if more than half of all tiles is used.
    """
    tiles = -(-length // _TILE)
    whole = length == _TILE * tiles or (masked and 2 * length > _TILE * tiles)
    return tiles if whole and size <= 128 and size % 8 == 0 else 0
