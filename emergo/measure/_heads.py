"""Similarity of attention heads, and their division of labour."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from ..core.errors import InputError


def group_mass(
    attention: Float[np.ndarray, "*cells positions"], members: Bool[np.ndarray, "groups window"]
) -> Float[np.ndarray, "*cells groups"]:
    """Return the total attention on each group.

    **Arguments:**

    - `attention`: attention weights; the last axis is the position (or lag).
    - `members`: marks the positions of each group, among the first `window` (`tasks.Groups`).
    """
    window = members.shape[-1]
    if window > attention.shape[-1]:
        raise InputError(
            f"groups reach over {window} positions, attention over {attention.shape[-1]}"
        )
    return np.stack([attention[..., :window][..., group].sum(-1) for group in members], -1)


def head_similarity(
    attention: Float[np.ndarray, "*cells heads positions"],
) -> Float[np.ndarray, "*cells"]:
    """Return the mean cosine between the attention patterns of two heads.

    It is 1 if all heads attend alike, and 0 if no two heads share a position.
    """
    heads = attention.shape[-2]
    if heads < 2:
        raise InputError("similarity is between heads: there must be at least 2")
    unit = attention / np.linalg.norm(attention, axis=-1, keepdims=True)
    cosines = np.einsum("...ap,...bp->...ab", unit, unit)
    return np.asarray((cosines.sum((-2, -1)) - heads) / (heads * (heads - 1)))


class Division(NamedTuple):
    """Division of groups among heads: three shares that sum to 1."""

    # 1 if all heads attend to one and the same group
    competition: Float[np.ndarray, "*cells"]
    # 1 if each head attends to one group, and the heads together to all groups equally
    cooperation: Float[np.ndarray, "*cells"]
    # 1 if every head attends to all groups equally
    indecision: Float[np.ndarray, "*cells"]


def division(
    mass: Float[np.ndarray, "*cells heads groups"],
    sizes: Float[np.ndarray, " groups"] | None = None,
) -> Division:
    r"""Measure competition and cooperation of heads.

    With $p_k$ the normalised weights of head k on the $G$ groups, and $\bar p$ their mean over
    heads,

    $$\log G = \underbrace{\log G - H(\bar p)}_{\text{competition}}
    + \underbrace{H(\bar p) - \overline{H(p_k)}}_{\text{cooperation}}
    + \underbrace{\overline{H(p_k)}}_{\text{indecision}},$$

    each divided by $\log G$. Cooperation is the Jensen-Shannon divergence of the heads.

    **Arguments:**

    - `mass`: attention of every head to every group, from [`emergo.measure.group_mass`][].
    - `sizes`: sizes of the groups. If given, weights are taken per position, so that uniform
      attention favours no group.
    """
    from scipy.special import xlogy  # here, because it is slow to import

    weights = mass if sizes is None else mass / sizes
    total = weights.sum(-1, keepdims=True)
    if mass.shape[-1] < 2 or not ((weights >= 0).all() and (total > 0).all()):
        raise InputError(
            "division is between at least 2 groups, and every head must look at some group"
        )
    p = weights / total

    def entropy(q: np.ndarray) -> Any:
        return -np.sum(xlogy(q, q), -1) / np.log(mass.shape[-1])

    of_mean = entropy(p.mean(-2))
    of_heads = entropy(p).mean(-1)
    return Division(*map(np.asarray, (1 - of_mean, of_mean - of_heads, of_heads)))
