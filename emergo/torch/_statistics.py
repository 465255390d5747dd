"""Statistics of attention per head: sparsity, and the positions that receive the weight."""

import math

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
    visible, logs, weights = attention_of(scores)
    count = visible.sum(-1)
    counts = count > 0
    own = None
    if scores.n_queries == raw.shape[-1]:
        # The positions of the observed queries, which are the last ones.
        own = torch.arange(scores.n_queries, device=raw.device)[-raw.shape[-2] :]
        counts = counts & _at(visible, own)
    result = {
        "entropy": _mean(-(weights * logs).sum(-1), counts),
        "largest": _mean(weights.amax(-1), counts),
    }
    if own is not None:
        result["previous"] = _mean(_at(weights, (own - 1).clamp(min=0)), counts & (own > 0))
        if tokens is not None and tokens.shape == (scores.n_sequences, raw.shape[-1]):
            words = tokens[: len(raw)]
            alike = words[:, own, None] == words[:, None, :]
            others = torch.arange(raw.shape[-1], device=raw.device) != own[:, None]
            alike = visible & (alike & others).unsqueeze(1)
            result["same"] = _mean((weights * alike).sum(-1), counts & alike.any(-1))
    mean = torch.where(visible, raw, 0).sum(-1, keepdim=True) / count.unsqueeze(-1)
    variance = torch.where(visible, raw - mean, 0).square().sum(-1) / count
    result["score_scale"] = _mean(variance.sqrt(), counts & (count > 1))
    return result


def attention_of(scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
    """Return which keys are visible, the logarithms of the weights (0 if hidden), and the weights.

    All have the shape (sequences, heads, queries, keys).
    """
    raw = scores.values
    visible = raw > raw.amax(-1, keepdim=True) - _HIDDEN
    logs = torch.where(visible, raw, -math.inf).log_softmax(-1)
    logs = torch.where(visible, logs, 0)
    return visible, logs, torch.where(visible, logs.exp(), 0)


def _at(
    rows: Float[Tensor, "s heads queries keys"] | Bool[Tensor, "s heads queries keys"],
    position: Int[Tensor, " queries"],
) -> Tensor:
    """Return the entry at a position for each query."""
    return rows.gather(-1, position[:, None].expand(*rows.shape[:-1], 1)).squeeze(-1)


def _mean(
    values: Float[Tensor, "s heads queries"], counts: Bool[Tensor, "s heads queries"]
) -> Float[Tensor, " heads"]:
    """Average over the queries that count; NaN without any."""
    return torch.where(counts, values, 0).sum((0, 2)) / counts.sum((0, 2))
