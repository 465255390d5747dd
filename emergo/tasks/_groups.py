"""Groups of past positions with graded importance (yuksel2026)."""

import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..core.errors import InputError
from ..core.pytree import Pytree, Schedule, option, per_run


class Groups(Pytree):
    r"""Spans of past positions $I(1), \dots, I(h)$ on which the next token depends.

    Each group has a strength, and each of its positions a weight $\alpha_i$. Positions are lags: 0
    is the last token that is read. Groups are numbered from the nearest to the farthest.

    **Arguments:**

    - `spans`: number of positions of each group, the nearest group first.
    - `importance`: m, the ratio of the strengths of neighbouring groups, at least 1. The weakest
      group has strength 1.
    - `strongest`: the end at which the strongest group is, `"near"` or `"far"`.
    - `stride`: number of positions between the starts of neighbouring groups. None: groups follow
      each other without gaps. With a stride smaller than a span, groups overlap.
    - `weights`: $\alpha_i$, one tuple per group, the nearest position first. None: all 1.

    >>> groups = em.Groups(spans=(1, 2), importance=2.0)
    >>> groups.window, groups.strengths.tolist()
    (3, [2.0, 1.0])
    """

    spans: tuple[int, ...] = (2, 2, 2)
    importance: float = per_run(default=1.7, low=1)
    strongest: Literal["near", "far"] = "near"
    stride: int | None = option(default=None, low=1)
    weights: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        listed = "must be a tuple (in TOML a list)"
        if not self.spans or not all(type(n) is int and n >= 1 for n in self.spans):
            raise InputError(
                f"Groups.spans {listed} of whole numbers of at least 1, one per group, got "
                f"{self.spans!r}"
            )
        if isinstance(self.importance, Schedule):
            raise InputError(
                "Groups.importance cannot be a schedule: the teacher is drawn once, when a run "
                "starts"
            )
        if self.weights is None:
            return
        numbers, nesting = jax.tree.flatten(self.weights)
        wanted = jax.tree.structure(tuple((0,) * n for n in self.spans))
        if nesting != wanted or not all(isinstance(a, float) and 0 < a < math.inf for a in numbers):
            raise InputError(
                f"Groups.weights {listed} with one tuple per group, of a finite, positive number "
                f"per position (spans {self.spans}), got {self.weights!r}"
            )

    @property
    def count(self) -> int:
        """Return h, the number of groups."""
        return len(self.spans)

    @property
    def starts(self) -> tuple[int, ...]:
        """Return the nearest lag of each group."""
        return tuple(
            sum(self.spans[:k]) if self.stride is None else self.stride * k
            for k in range(self.count)
        )

    @property
    def window(self) -> int:
        """Return w, the number of past tokens on which the next one depends."""
        return int(np.add(self.starts, self.spans).max())

    @property
    def disjoint(self) -> bool:
        """Return True if groups share no position."""
        return bool((self.members.sum(0) <= 1).all())

    @property
    def members(self) -> Bool[np.ndarray, "groups window"]:
        """Return a mask of the lags of each group."""
        lags = np.arange(self.window) - np.array(self.starts)[:, None]
        return (lags >= 0) & (lags < np.array(self.spans)[:, None])

    @property
    def mixing(self) -> Float[np.ndarray, "groups window"]:
        r"""Return $\alpha_i$ of every lag in its group, and 0 elsewhere."""
        mixing = self.members.astype(np.float64)
        if self.weights is not None:
            mixing[self.members] = np.concatenate(self.weights)
        return mixing

    @property
    def strengths(self) -> Float[np.ndarray, " groups"] | Float[Array, " groups"]:
        """Return the scale of each group's map: m^(h-1), ..., m, 1, from strong to weak.

        The result is float64 in NumPy, or float32 in JAX if `importance` is traced.
        """
        powers = range(self.count) if self.strongest == "far" else range(self.count)[::-1]
        if isinstance(self.importance, int | float):
            return float(self.importance) ** np.array(powers)
        return jnp.stack([jnp.asarray(self.importance) ** k for k in powers]).astype(jnp.float32)

    @property
    def ranking(self) -> tuple[int, ...]:
        """Return the groups from the strongest to the weakest."""
        return tuple(range(self.count)[:: 1 if self.strongest == "near" else -1])
