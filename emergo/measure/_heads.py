"""How alike the heads of a layer are, and whether they compete or cooperate. Pure functions of attention weights."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import xlogy

from .._errors import InputError


def group_mass(
    attention: Float[np.ndarray, "*cells positions"], members: Bool[np.ndarray, "groups window"]
) -> Float[np.ndarray, "*cells groups"]:
    """The total attention on each group, whose `members` are among the first `window` positions or lags (`tasks.Groups`)."""
    window = members.shape[-1]
    if window > attention.shape[-1]:
        raise InputError(f"groups reach over {window} positions, attention over {attention.shape[-1]}")
    return np.stack([attention[..., :window][..., group].sum(-1) for group in members], -1)


def head_similarity(attention: Float[np.ndarray, "*cells heads positions"]) -> Float[np.ndarray, "*cells"]:
    """Mean cosine between the patterns of two heads: 1 when all look alike, 0 when no two share a position."""
    heads = attention.shape[-2]
    if heads < 2:
        raise InputError("similarity is between heads: there must be at least 2")
    unit = attention / np.linalg.norm(attention, axis=-1, keepdims=True)
    cosines = np.einsum("...ap,...bp->...ab", unit, unit)
    return np.asarray((cosines.sum((-2, -1)) - heads) / (heads * (heads - 1)))


class Division(NamedTuple):
    """How heads divide the groups among them: three shares that add up to 1."""

    competition: Float[np.ndarray, "*cells"]  # heads together favour some groups: 1 when all look at one and the same
    cooperation: Float[np.ndarray, "*cells"]  # heads favour different groups: 1 when each looks at one, together at all equally
    indecision: Float[np.ndarray, "*cells"]  # single heads look at several groups: 1 when each looks at all of them equally


def division(mass: Float[np.ndarray, "*cells heads groups"], sizes: Float[np.ndarray, " groups"] | None = None) -> Division:
    r"""Competition and cooperation of heads from their weight on each group.

    With $p_k$ the weights of head k over the $G$ groups, normalised, and $\bar p$ their mean over heads,

    $$\log G = \underbrace{\log G - H(\bar p)}_{\text{competition}}
    + \underbrace{H(\bar p) - \overline{H(p_k)}}_{\text{cooperation}}
    + \underbrace{\overline{H(p_k)}}_{\text{indecision}},$$

    each divided by $\log G$. The middle one is the Jensen-Shannon divergence of the heads. `mass` is that of
    [`emergo.measure.group_mass`][]; with the `sizes` of the groups, weights are taken per position, so that uniform attention
    favours none.
    """
    groups = mass.shape[-1]
    if groups < 2:
        raise InputError("there must be at least 2 groups to divide")
    weights = mass if sizes is None else mass / sizes
    total = weights.sum(-1, keepdims=True)
    if not (np.isfinite(weights).all() and (weights >= 0).all() and (total > 0).all()):
        raise InputError("weights must be finite and not negative, and every head must look at some group")
    p = weights / total

    def entropy(q: np.ndarray) -> Any:
        return -np.sum(xlogy(q, q), -1) / np.log(groups)

    of_mean, of_heads = entropy(p.mean(-2)), entropy(p).mean(-1)
    return Division(*map(np.asarray, (1 - of_mean, of_mean - of_heads, of_heads)))
