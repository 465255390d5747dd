"""Statistics of attention per head: sparsity, and the positions that receive the weight."""

import functools
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ._scores import Scores

# A score this far below the largest has weight 0 in any precision: the key is masked.
_HIDDEN = 1000.0


def head_statistics(
    scores: Scores, tokens: Int[Tensor, "n length"] | None = None
) -> dict[str, Float[Tensor, " heads"]]:
    """Return means over sequences and queries.

    - `entropy`: entropy of the weights, in nats.
    - `largest`: largest weight.
    - `previous`: weight on the token before the query.
    - `same`: weight on other positions with the query's token, over queries that have some.
    - `score_scale`: standard deviation of the scores over visible keys.

    Queries whose own position is masked, such as padding, do not count. `previous` and `same` need
    queries and keys at the same positions, and `same` needs `tokens`; otherwise they are left out.
    """
    raw = scores.values
    n, _, queries, keys = raw.shape
    visible, weights = attention_of(scores)
    hidden = ~visible
    count = visible.sum(-1)
    counts = count > 0
    values = {}
    aligned = scores.n_queries == keys
    if aligned:
        counts &= visible.diagonal(keys - queries, -2, -1)
    values["entropy"] = torch.xlogy(weights, weights).sum(-1).neg_(), counts
    values["largest"] = weights.amax(-1), counts
    if aligned:
        positions = _positions(queries, keys, raw.device)
        index = positions.previous.expand(*weights.shape[:-1], 1)
        values["previous"] = weights.gather(-1, index).squeeze(-1), counts & positions.later
        if tokens is not None and tokens.shape == (scores.n_sequences, keys):
            words = tokens[:n]
            alike = words[:, keys - queries :, None] == words[:, None]
            alike &= positions.others
            alike = visible & alike.unsqueeze(1)
            values["same"] = (weights * alike).sum(-1), alike.any(-1).logical_and_(counts)
    mean = raw.masked_fill(hidden, 0).sum(-1, keepdim=True) / count.unsqueeze(-1)
    spread = (raw - mean).masked_fill_(hidden, 0).norm(dim=-1) / count.sqrt()
    values["score_scale"] = spread, (count > 1).logical_and_(counts)
    stacks = [torch.stack(each) for each in zip(*values.values(), strict=True)]
    return dict(zip(values, means(*stacks).unbind(), strict=True))


class _Positions(NamedTuple):
    """Constants of the last `queries` of `keys` positions."""

    previous: Int[Tensor, "queries 1"]  # the position before; 0 for the first one
    later: Bool[Tensor, " queries"]  # False for the first position
    others: Bool[Tensor, "queries keys"]  # False for the query's own position


@functools.lru_cache(maxsize=8)  # built once, so that a later row does not pay for it
def _positions(queries: int, keys: int, device: torch.device) -> _Positions:
    own = torch.arange(keys, device=device)[-queries:, None]
    others = own != torch.arange(keys, device=device)
    return _Positions((own - 1).clamp(min=0), own[:, 0] > 0, others)


def attention_of(scores: Scores) -> tuple[Tensor, Tensor]:
    """Return which keys are visible, and the weights, with shape (sequences, heads, queries, keys).

    A query without visible keys has no meaningful weights.
    """
    raw = scores.values
    return raw > raw.amax(-1, keepdim=True) - _HIDDEN, raw.softmax(-1)


def means(
    values: Float[Tensor, "kinds n heads queries"], counts: Bool[Tensor, "kinds n heads queries"]
) -> Float[Tensor, "kinds heads"]:
    """Average over the queries that count; NaN without any."""
    return values.masked_fill(~counts, 0).sum((1, 3)) / counts.sum((1, 3))
