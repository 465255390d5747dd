"""Where heads look, how alike they are, and whether they compete or cooperate. Pure functions of attention weights."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from .._errors import InputError


def lag_attention(
    attention: Float[np.ndarray, "*cells queries keys"], window: int, first: int = 0
) -> Float[np.ndarray, "*cells window"]:
    """The mean weight from a position to the one that lies 0, 1, ... `window` - 1 before it, over positions from `first` on."""
    queries, keys = attention.shape[-2:]
    if not 1 <= window <= keys or not max(first, window - 1) < queries:
        raise InputError(f"window {window} from position {first} on does not fit into a map of {queries} by {keys}")
    rows = np.arange(max(first, window - 1), queries)
    return np.stack([attention[..., rows, rows - lag].mean(-1) for lag in range(window)], -1)


def group_mass(
    attention: Float[np.ndarray, "*cells positions"], members: Bool[np.ndarray, "groups window"]
) -> Float[np.ndarray, "*cells groups"]:
    """The weight on all positions of each group; `members` as in `tasks.Groups`. Positions beyond their window are in none."""
    groups, window = members.shape
    if window > attention.shape[-1]:
        raise InputError(f"groups reach over {window} positions, attention over {attention.shape[-1]}")
    return np.stack([attention[..., :window][..., members[j]].sum(-1) for j in range(groups)], -1)


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

    competition: Float[np.ndarray, "*cells"]
    """Heads together favour some groups over others: 1 when all look at one and the same."""
    cooperation: Float[np.ndarray, "*cells"]
    """Heads favour different groups: 1 when each looks at one and together at all of them equally."""
    indecision: Float[np.ndarray, "*cells"]
    """Single heads look at several groups: 1 when each looks at all of them equally."""

    @property
    def balance(self) -> Float[np.ndarray, "*cells"]:
        """Cooperation less competition: -1 when all heads are on one group, 0 at the start, 1 when each has its own."""
        return np.asarray(self.cooperation - self.competition)


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
    """
    groups = mass.shape[-1]
    if groups < 2:
        raise InputError("there must be at least 2 groups to divide")
    share = mass if sizes is None else mass / np.asarray(sizes)
    total = share.sum(-1, keepdims=True)
    if not (np.isfinite(share).all() and (share >= 0).all() and (total > 0).all()):
        raise InputError("weights must be finite and not negative, and every head must look at some group")
    p = share / total

    def entropy(q: np.ndarray) -> np.ndarray:
        return np.asarray(-np.sum(np.where(q > 0, q * np.log(np.where(q > 0, q, 1)), 0), -1) / np.log(groups))

    together, alone = entropy(p.mean(-2)), np.asarray(entropy(p).mean(-1))
    return Division(*(np.asarray(share) for share in (1 - together, together - alone, alone)))
