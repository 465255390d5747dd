"""Scores of attention heads, for arrays of NumPy, JAX and PyTorch alike.

A score is the weight that a head puts on the keys that its class of heads attends to, averaged over
sequences and over the queries that have such keys. It lies between 0 and 1 if the weights do.
"""

import sys
from typing import Any

from jaxtyping import Bool, Float, Int

# The first three are the names of classes of heads in TransformerLens.
HEAD_NAMES = (
    "previous_token_head",
    "duplicate_token_head",
    "induction_head",
    "first_token_head",
)


def head_scores(
    attention: Float[Any, "n *cells queries length"],
    tokens: Int[Any, "n length"] | None = None,
    counts: Bool[Any, "n *#cells queries"] | None = None,
) -> dict[str, Any]:
    """Score attention heads as previous-token, duplicate-token, induction and first-token heads.

    | score | keys | queries in the mean |
    | --- | --- | --- |
    | `previous_token_head` | the position before the query | all but the first position |
    | `duplicate_token_head` | earlier positions with the query's token | with such positions |
    | `induction_head` | positions right after those | with such positions |
    | `first_token_head` | the first position | all but the first position |

    TransformerLens's `detect_head` has the same keys, but averages over all queries, so that its
    scores are smaller if some queries lack such a key.

    **Arguments:**

    - `attention`: attention weights. The axes between sequences and queries may be heads, or layers
      and heads. Queries are the last positions of the sequence, possibly fewer than keys.
    - `tokens`: token ids. Without them, `duplicate_token_head` and `induction_head` are left out.
    - `counts`: True for queries that count, for example all but padding. None: all queries.

    **Returns:** the scores by name, with the shape of the axes between sequences and queries. A
    score is NaN if no query has such keys.

    >>> import numpy as np
    >>> tokens = np.array([[5, 3, 5, 3]])
    >>> attention = np.eye(4)[None, None, [0, 0, 1, 2]]  # (n, heads, queries, length)
    >>> {name: float(score[0]) for name, score in head_scores(attention, tokens).items()}
    {'previous_token_head': 1.0, 'duplicate_token_head': 0.0, 'induction_head': 1.0, ...}
    """
    xp = _namespace(attention)
    queries, length = attention.shape[-2:]
    itself = length - queries  # the offset of the diagonal on which a query meets itself
    # Masks have shape (n or 1, queries, length).
    ones = xp.ones_like(attention[(0,) * (attention.ndim - 2)])[None]
    earlier = xp.tril(ones, itself - 1) > 0
    before_previous = xp.tril(ones, itself - 2) > 0
    scores = {
        "previous_token_head": _mean_weight(attention, earlier & ~before_previous, counts),
        "first_token_head": _mean_weight(attention[..., :1], earlier[..., :1], counts),
    }
    if tokens is not None:
        alike = (tokens[:, itself:, None] == tokens[:, None, :]) & earlier
        scores["duplicate_token_head"] = _mean_weight(attention, alike, counts)
        # The key after an earlier one is at most the query itself.
        scores["induction_head"] = _mean_weight(attention[..., 1:], alike[..., :-1], counts)
    return {name: scores[name] for name in HEAD_NAMES if name in scores}


def _mean_weight(
    attention: Float[Any, "n *cells queries keys"],
    keys: Bool[Any, "#n queries keys"],
    counts: Bool[Any, "n *#cells queries"] | None,
) -> Any:
    """Average the weight on `keys` over the queries that count and have any."""
    xp = _namespace(attention)
    mask = keys[(slice(None), *(None,) * (attention.ndim - 3))]
    weight = (attention * mask).sum(-1)
    valid = xp.broadcast_to(mask.any(-1), weight.shape)
    if counts is not None:
        valid = valid & counts
    count = valid.sum((0, -1))
    mean = xp.where(valid, weight, 0).sum((0, -1)) / count.clip(1)
    return xp.where(count > 0, mean, float("nan"))


def _namespace(array: Any) -> Any:
    """Return the module of an array's functions. PyTorch does not follow the array API standard."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    return sys.modules[type(array).__module__.partition(".")[0]]
