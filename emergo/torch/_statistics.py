"""How sparse attention is and where it goes: a few numbers per head."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ._scores import Scores

STATISTICS = ("entropy", "largest", "previous", "same", "score_scale")
# a key whose score is this far below the largest has weight 0 in any precision: it is masked
_HIDDEN = 1000.0


def head_statistics(
    scores: Scores, tokens: Int[Tensor, "n length"] | None = None
) -> dict[str, Float[Tensor, " heads"]]:
    """Means over sequences and queries of

    - `entropy`: the entropy of the weights, in nats;
    - `largest`: the largest weight;
    - `previous`: the weight on the token before the query's;
    - `same`: the weight on other positions that hold the query's token, where there are such;
    - `score_scale`: the standard deviation of the scores over the keys that are not masked.

    A query whose own position is masked, as padding is, does not count. Where queries and keys are
    not the same positions, `previous` and `same` are left out; `same` also without the `tokens` of
    the sequences.
    """
    raw = scores.values
    visible = raw > raw.amax(-1, keepdim=True) - _HIDDEN
    logs = torch.where(visible, raw, -math.inf).log_softmax(-1)
    logs = torch.where(visible, logs, 0)
    weights = torch.where(visible, logs.exp(), 0)
    count = visible.sum(-1)
    counts = count > 0
    own = None
    if scores.n_queries == raw.shape[-1]:
        own = torch.arange(
            scores.n_queries - raw.shape[-2], scores.n_queries, device=raw.device
        )  # the queries' positions
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
            alike = visible & (
                alike & (torch.arange(raw.shape[-1], device=raw.device) != own[:, None])
            ).unsqueeze(1)
            result["same"] = _mean((weights * alike).sum(-1), counts & alike.any(-1))
    mean = torch.where(visible, raw, 0).sum(-1, keepdim=True) / count.unsqueeze(-1)
    variance = torch.where(visible, raw - mean, 0).square().sum(-1) / count
    result["score_scale"] = _mean(variance.sqrt(), counts & (count > 1))
    return result


def _at(
    rows: Float[Tensor, "s heads queries keys"] | Bool[Tensor, "s heads queries keys"],
    position: Int[Tensor, " queries"],
) -> Tensor:
    """Of each query's row the entry at its position."""
    return rows.gather(-1, position[:, None].expand(*rows.shape[:-1], 1)).squeeze(-1)


def _mean(
    values: Float[Tensor, "s heads queries"], counts: Bool[Tensor, "s heads queries"]
) -> Float[Tensor, " heads"]:
    """Over the queries that count; NaN where none does."""
    return torch.where(counts, values, 0).sum((0, 2)) / counts.sum((0, 2))
