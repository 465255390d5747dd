"""How alike the heads of a layer are, and whether they compete or cooperate. Pure functions of attention weights."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from .._errors import InputError


def group_mass(
    attention: Float[np.ndarray, "*cells positions"], members: Bool[np.ndarray, "groups window"]
) -> Float[np.ndarray, "*cells groups"]:
    """The total weight on the positions of each group.

    **Arguments:**

    - `attention`: weights by position or lag.
    - `members`: which of the first `window` positions belong to each group, as in `tasks.Groups`. Positions beyond the
      window belong to none; a window longer than the attention is an `InputError`.

    >>> group_mass(np.array([0.25, 0.5, 0.25]), np.array([[True, False], [False, True]])).tolist()
    [0.25, 0.5]
    """
    groups, window = members.shape
    if window > attention.shape[-1]:
        raise InputError(f"groups reach over {window} positions, attention over {attention.shape[-1]}")
    return np.stack([attention[..., :window][..., members[j]].sum(-1) for j in range(groups)], -1)


def head_similarity(attention: Float[np.ndarray, "*cells heads positions"]) -> Float[np.ndarray, "*cells"]:
    """Mean cosine between the patterns of two heads: 1 when all look alike, 0 when no two share a position.

    >>> head_similarity(np.eye(2)).tolist()
    0.0
    """
    heads = attention.shape[-2]
    if heads < 2:
        raise InputError("similarity is between heads: there must be at least 2")
    unit = attention / np.linalg.norm(attention, axis=-1, keepdims=True)
    cosines = np.einsum("...ap,...bp->...ab", unit, unit)
    return np.asarray((cosines.sum((-2, -1)) - heads) / (heads * (heads - 1)))


class Division(NamedTuple):
    """How heads divide the groups among them: three shares that add up to 1.

    >>> division(np.array([[1.0, 0.0], [1.0, 0.0]])).competition.tolist()
    1.0
    """

    competition: Float[np.ndarray, "*cells"]
    """Heads together favour some groups over others: 1 when all look at one and the same."""
    cooperation: Float[np.ndarray, "*cells"]
    """Heads favour different groups: 1 when each looks at one and together at all of them equally."""
    indecision: Float[np.ndarray, "*cells"]
    """Single heads look at several groups: 1 when each looks at all of them equally."""


def division(mass: Float[np.ndarray, "*cells heads groups"], sizes: Float[np.ndarray, " groups"] | None = None) -> Division:
    r"""Competition and cooperation of heads from their weight on each group.

    With $p_k$ the weights of head k over the $G$ groups, normalised, and $\bar p$ their mean over heads,

    $$\log G = \underbrace{\log G - H(\bar p)}_{\text{competition}}
    + \underbrace{H(\bar p) - \overline{H(p_k)}}_{\text{cooperation}}
    + \underbrace{\overline{H(p_k)}}_{\text{indecision}},$$

    each divided by $\log G$. The middle one is the Jensen-Shannon divergence of the heads.

    **Arguments:**

    - `mass`: from [`emergo.measure.group_mass`][]; weight outside the groups does not count.
    - `sizes`: positions of each group, if weights are to be taken per position, so that uniform attention favours none.

    >>> [float(share) for share in division(np.eye(2))]
    [0.0, 1.0, 0.0]
    """
    groups = mass.shape[-1]
    if groups < 2:
        raise InputError("there must be at least 2 groups to divide")
    weights = mass if sizes is None else mass / sizes
    total = weights.sum(-1, keepdims=True)
    if not (np.isfinite(weights).all() and (weights >= 0).all() and (total > 0).all()):
        raise InputError("weights must be finite and not negative, and every head must look at some group")
    p = weights / total

    def entropy(q: np.ndarray) -> np.ndarray:
        return np.asarray(-np.sum(np.where(q > 0, q * np.log(np.where(q > 0, q, 1)), 0), -1) / np.log(groups))

    of_mean, mean_of_heads = entropy(p.mean(-2)), np.asarray(entropy(p).mean(-1))
    return Division(*(np.asarray(share) for share in (1 - of_mean, of_mean - mean_of_heads, mean_of_heads)))
