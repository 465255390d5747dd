"""Read the scores of attention from calls of PyTorch functions.

Supported are `F.scaled_dot_product_attention`, `nn.MultiheadAttention`, and explicit attention with
a softmax.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


class Part(NamedTuple):
    """The part of a batch that is observed, so that the cost does not grow with the batch."""

    sequences: int  # first sequences of the batch
    queries: int  # last queries of each sequence
    batch: int | None = None  # sequences of the whole batch, if known


class Scores(NamedTuple):
    """The inputs of the softmax, for a part of the batch."""

    # Masked keys have -inf or very small scores.
    values: Float[Tensor, "sequences heads queries keys"]
    n_sequences: int  # of the whole call
    n_queries: int
    folded: int = 0  # heads that were folded into the first axis; 0 if heads have an axis
    # True for the causal mask, False without a mask, None for other masks.
    causal: bool | None = None


class Products(NamedTuple):
    """Queries and keys whose products are the scores, for a part of the batch."""

    query: Float[Tensor, "sequences heads queries size"]
    key: Float[Tensor, "sequences heads keys size"]
    scale: float
    causal: bool
    n_sequences: int
    n_queries: int
    folded: int = 0


def sources(found: "Scores | Products") -> list[Tensor]:
    """Return the tensors of the model that must not change until the scores are joined."""
    return [found.query, found.key] if isinstance(found, Products) else [found.values]


def alike(found: "Scores | Products") -> tuple[Any, ...]:
    """Return a key that is equal for scores that can be joined."""
    whole = (type(found), found.n_sequences, found.n_queries)
    if isinstance(found, Scores):
        return (*whole, len(found.values), found.values.shape[2:], found.values.device)
    q, k = found.query, found.key
    shapes = (len(q), q.shape[2:], len(k), k.shape[2:], q.dtype, k.dtype, q.device)
    return (*whole, shapes, found.scale, found.causal)


def join(found: "Sequence[Scores | Products]") -> Scores:
    """Return the scores of several layers as one, with the heads of all layers side by side.

    Statistics are per head, so they need as many operations for all layers as for one.
    """
    first = found[0]
    if isinstance(first, Scores):
        values = [each.values for each in found if isinstance(each, Scores)]
        return first._replace(values=values[0] if len(values) == 1 else torch.cat(values, 1))
    products = [each for each in found if isinstance(each, Products)]
    q = torch.cat([each.query for each in products], 1).float()
    k = torch.cat([each.key for each in products], 1).float()
    scores = q @ k.mT * first.scale
    if first.causal:
        later = later_keys(q.shape[-2], first.n_queries, k.shape[-2], q.device)
        scores.masked_fill_(later, -math.inf)
    return Scores(scores, first.n_sequences, first.n_queries, causal=first.causal)


def _of_products(
    part: Part,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Scores | Products | None:
    """Read the scores of `F.scaled_dot_product_attention` from its arguments.

    The shapes are (n, ..., heads, length, size), or without heads.
    """
    if query.is_nested or query.ndim < 3:
        return None
    n_queries = query.shape[-2]
    n_keys = key.shape[-2]
    heads = _folded_heads(part, query)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:-1], n_keys)

    def as_heads(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, heads or 1)) if x.ndim == 3 else x.flatten(0, -4)

    def observed(x: Tensor) -> Tensor:
        return as_heads(x)[: part.sequences, :, -part.queries :]

    n_sequences = len(query) // (heads or 1) if query.ndim == 3 else query.shape[:-3].numel()
    q = observed(query)
    k = as_heads(key)[: part.sequences]
    if k.shape[1] < q.shape[1]:  # grouped queries
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    elif q.shape[1] < k.shape[1]:
        q = q.expand(-1, k.shape[1], -1, -1)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if attn_mask is None:
        return Products(q, k, scale, is_causal, n_sequences, n_queries, heads)
    scores = _masked(q.float() @ k.float().mT * scale, observed(attn_mask))
    if is_causal:
        later = later_keys(q.shape[-2], n_queries, n_keys, q.device)
        scores = scores.masked_fill(later, -math.inf)
    return Scores(scores, n_sequences, n_queries, heads)


@functools.lru_cache(maxsize=8)  # built once, so that a later row does not pay for it
def later_keys(
    observed: int, n_queries: int, n_keys: int, device: torch.device
) -> Bool[Tensor, "observed keys"]:
    """Return the keys that a causal mask hides from the last queries."""
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).triu(1)[-observed:]


def _folded_heads(part: Part, x: Tensor) -> int:
    """Return the number of heads in the first of three axes, (sequences x heads); 0 for none."""
    folded = x.ndim == 3 and part.batch and len(x) > part.batch and len(x) % part.batch == 0
    return len(x) // (part.batch or 1) if folded else 0


def _masked(scores: Tensor, mask: Bool[Tensor, "..."] | Float[Tensor, "..."]) -> Tensor:
    """Apply a mask: True for visible keys, or numbers to add."""
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, -math.inf)
    return scores + mask.float()


def _of_softmax(
    part: Part, input: Tensor, dim: int | None = None, *_: Any, **__: Any
) -> Scores | None:
    """Read a softmax over the last of four axes (n, heads, queries, keys).

    Three axes count if the numbers of queries and keys are equal. Any other softmax belongs to a
    classifier, a router or a sampler. Whether this one is attention is seen later, by the product
    of its result with values.
    """
    square = input.ndim == 3 and input.shape[-1] == input.shape[-2]
    if dim not in (-1, input.ndim - 1) or not (input.ndim == 4 or square):
        return None
    heads = _folded_heads(part, input)
    scores = input.unflatten(0, (-1, heads or 1)) if square else input
    observed = scores[: part.sequences, :, -part.queries :].float()
    return Scores(observed, len(scores), scores.shape[2], heads)


def _of_multi_head(
    part: Part,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    *_: Any,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    **__: Any,
) -> Scores | None:
    """Compute the scores of `F.multi_head_attention_forward` from its arguments.

    The shapes are (length, n, width), or without n. Queries and keys are computed again for the
    part. Modules that add keys (`add_bias_kv`, `add_zero_attn`) are not supported.
    """
    if bias_k is not None or add_zero_attn or static_k is not None:
        return None
    if query.ndim == 2:
        query = query.unsqueeze(1)
        key = key.unsqueeze(1)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    n_queries, n, width = query.shape
    if in_proj_weight is not None:
        q_proj_weight, k_proj_weight = in_proj_weight.chunk(3)[:2]
    assert q_proj_weight is not None
    assert k_proj_weight is not None
    q_bias, k_bias = (None, None) if in_proj_bias is None else in_proj_bias.float().chunk(3)[:2]

    def heads(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        mapped = F.linear(x.float(), weight.float(), bias)
        return mapped.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)

    q = heads(query[-part.queries :, : part.sequences], q_proj_weight, q_bias)
    k = heads(key[:, : part.sequences], k_proj_weight, k_bias)
    scores = q @ k.mT / math.sqrt(width // num_heads)
    # In these masks True means hidden.
    if attn_mask is not None:
        mask = attn_mask
        if mask.ndim == 3:
            mask = mask.unflatten(0, (n, num_heads))[: part.sequences]
        scores = _masked(scores, _visible(mask)[..., -part.queries :, :])
    if key_padding_mask is not None:
        scores = _masked(scores, _visible(key_padding_mask[: part.sequences, None, None]))
    return Scores(scores, n, n_queries)


def _visible(mask: Tensor) -> Tensor:
    return ~mask if mask.dtype == torch.bool else mask


Reader = Callable[..., Scores | Products | None]
READERS: dict[Any, Reader] = {
    F.scaled_dot_product_attention: _of_products,
    F.multi_head_attention_forward: _of_multi_head,
}
"""Functions that compute attention, with readers for the scores of a call."""
SOFTMAX: dict[Any, Reader] = dict.fromkeys(
    (F.softmax, torch.softmax, torch.special.softmax, Tensor.softmax), _of_softmax
)
"""Functions that compute attention weights if their result is multiplied with values."""
