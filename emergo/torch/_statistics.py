"""Statistics of attention per head: sparsity, and the positions that receive the weight."""

import functools
import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ._scores import Scores, later_keys

# A score this far below the largest has weight 0 in any precision: the key is masked.
_HIDDEN = 1000.0


class Visible(NamedTuple):
    """What queries see. An axis of one head stands for all heads."""

    hidden: Bool[Tensor, "n #heads queries keys"] | None  # keys without weight; None: no key
    others: Bool[Tensor, "n #heads queries keys"]  # visible keys at other positions
    queries: Bool[Tensor, "n #heads queries"]  # the queries that count
    keys: Float[Tensor, "n #heads queries 1"]  # the number of visible keys, at least 1
    root: Float[Tensor, "n #heads queries"]  # its square root
    # Numbers of queries that count: all, without those at the first position, and those that see
    # several keys.
    total: Float[Tensor, " #heads"]
    later: Float[Tensor, " #heads"]
    several: Float[Tensor, " #heads"]


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
    n, _, queries, keys = scores.values.shape
    aligned = scores.n_queries == keys
    visible, weights = attention_of(scores, own=aligned)
    # A sum over sequences and queries, and the number of queries in it.
    values = {
        "entropy": (torch.special.entr(weights).sum((0, 2, 3)), visible.total),
        "largest": (weights.amax(-1).sum((0, 2)), visible.total),
    }
    if aligned:
        previous = weights.diagonal(keys - queries - 1, -2, -1)
        values["previous"] = previous.sum((0, 2)), visible.later
        if tokens is not None and tokens.shape == (scores.n_sequences, keys):
            words = tokens[:n]
            alike = words[:, None, keys - queries :, None] == words[:, None, None]
            alike = alike & visible.others
            values["same"] = (weights * alike).sum((0, 2, 3)), alike.any(-1).sum((0, 2))
    values["score_scale"] = _spread(scores.values, visible).sum((0, 2)), visible.several
    sums, counts = (torch.stack(each) for each in zip(*values.values(), strict=True))
    return dict(zip(values, (sums / counts).unbind(), strict=True))


def attention_of(
    scores: Scores, own: bool
) -> tuple[Visible, Float[Tensor, "sequences heads queries keys"]]:
    """Return what queries see, and their weights.

    With `own`, only queries that see their own position count. The others have weights of 0.
    """
    raw = scores.values
    weights = raw.softmax(-1)
    if scores.causal is not None:
        shape = len(raw), raw.shape[2], scores.n_queries, raw.shape[3]
        return _known(*shape, scores.causal, raw.device), weights
    visible = _visible(raw, own)
    assert visible.hidden is not None
    return visible, weights.masked_fill_(visible.hidden, 0)


def _visible(raw: Float[Tensor, "n heads queries keys"], own: bool) -> Visible:
    queries, keys = raw.shape[2:]
    seen = raw > raw.amax(-1, keepdim=True) - _HIDDEN
    counts = seen.any(-1)
    others = seen
    if own:
        counts &= seen.diagonal(keys - queries, -2, -1)
        seen = seen & counts.unsqueeze(-1)
        others = seen & _others(queries, keys, raw.device)
    number = seen.sum(-1, keepdim=True)
    keys_seen = number.clamp(min=1).float()
    first = int(queries == keys)  # whether the first query is at the first position
    return Visible(
        ~seen,
        others,
        counts,
        keys_seen,
        keys_seen.squeeze(-1).sqrt(),
        counts.sum((0, 2)),
        counts[..., first:].sum((0, 2)),
        (number > 1).sum((0, 2, 3)),
    )


@functools.lru_cache(maxsize=8)  # built once, so that a later row does not pay for it
def _known(
    n: int, observed: int, n_queries: int, keys: int, causal: bool, device: torch.device
) -> Visible:
    """Return what queries see under the causal mask, or without a mask."""
    raw = torch.zeros(n, 1, observed, keys, device=device)
    if not causal:
        return _visible(raw, n_queries == keys)._replace(hidden=None)
    raw.masked_fill_(later_keys(observed, n_queries, keys, device), -math.inf)
    return _visible(raw, n_queries == keys)


@functools.lru_cache(maxsize=8)
def _others(queries: int, keys: int, device: torch.device) -> Bool[Tensor, "queries keys"]:
    """Return False for the own position of each of the last queries."""
    own = torch.arange(keys, device=device)[-queries:, None]
    return own != torch.arange(keys, device=device)


def _spread(
    raw: Float[Tensor, "n heads queries keys"], visible: Visible
) -> Float[Tensor, "n heads queries"]:
    """Return the standard deviation of the scores over the keys that a query sees."""
    if visible.hidden is None:
        return torch.linalg.vector_norm(raw - raw.mean(-1, keepdim=True), dim=-1) / visible.root
    raw = raw.masked_fill(visible.hidden, 0)
    mean = raw.sum(-1, keepdim=True) / visible.keys
    differences = (raw - mean).masked_fill_(visible.hidden, 0)
    return torch.linalg.vector_norm(differences, dim=-1) / visible.root
