"""Groups of past positions with graded importance: what the next token depends on (yuksel2026)."""

import math
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..core.errors import InputError
from ..core.pytree import Pytree, Schedule, option, per_run


class Groups(Pytree):
    r"""Spans of past positions $I(1), \dots, I(h)$, each with one strength and a weight $\alpha_i$
    for every position.

    Positions are counted as lags: 0 is the last token that is read. Groups are counted from the
    nearest on, whatever their strength.

    **Arguments:**

    - `spans`: how many positions each group has, the nearest group first.
    - `importance`: m, the ratio of the strengths of neighbouring groups, at least 1. The weakest
      has strength 1.
    - `strongest`: which end the strongest group is at.
    - `stride`: how many positions lie between the starts of neighbouring groups. None: each begins
      where the last one ends; smaller than a span: groups overlap.
    - `weights`: $\alpha_i$, one tuple per group, nearest position first. None: all 1, so that a
      group is a plain sum.

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
        if (
            not isinstance(self.spans, tuple)
            or not self.spans
            or not all(type(n) is int and n >= 1 for n in self.spans)
        ):
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
        if not isinstance(self.weights, tuple) or not all(
            isinstance(w, tuple) for w in self.weights
        ):
            raise InputError(
                f"Groups.weights {listed} with one tuple of numbers per group, got {self.weights!r}"
            )
        if tuple(len(w) for w in self.weights) != self.spans:
            per_position = f"one number per position of each group, spans {self.spans}"
            raise InputError(f"Groups.weights must have {per_position}, got {self.weights!r}")
        if not all(
            isinstance(a, float) and math.isfinite(a) and a > 0 for w in self.weights for a in w
        ):
            raise InputError(f"Groups.weights must be finite and positive, got {self.weights!r}")

    @property
    def count(self) -> int:
        """h, the number of groups."""
        return len(self.spans)

    @property
    def starts(self) -> tuple[int, ...]:
        """The nearest lag of each group."""
        return tuple(
            sum(self.spans[:k]) if self.stride is None else self.stride * k
            for k in range(self.count)
        )

    @property
    def window(self) -> int:
        """w, the number of past tokens that the next one depends on."""
        return max(start + span for start, span in zip(self.starts, self.spans, strict=True))

    @property
    def disjoint(self) -> bool:
        """Whether no position belongs to two groups."""
        return bool((self.members.sum(0) <= 1).all())

    @property
    def members(self) -> Bool[np.ndarray, "groups window"]:
        """Which lags belong to which group."""
        lags = np.arange(self.window)
        return np.array(
            [
                (lags >= start) & (lags < start + span)
                for start, span in zip(self.starts, self.spans, strict=True)
            ]
        )

    @property
    def mixing(self) -> Float[np.ndarray, "groups window"]:
        r"""$\alpha_i$ of every lag in its group, 0 elsewhere."""
        mixing = self.members.astype(np.float64)
        if self.weights is not None:
            for row, start, weights in zip(mixing, self.starts, self.weights, strict=True):
                row[start : start + len(weights)] = weights
        return mixing

    @property
    def strengths(self) -> Float[np.ndarray, " groups"] | Float[Array, " groups"]:
        """The scale of each group's map: m^(h-1), ..., m, 1 from the strongest to the weakest. In
        NumPy's float64; inside a program, where `importance` is traced, in JAX's float32."""
        powers = range(self.count) if self.strongest == "far" else range(self.count)[::-1]
        if isinstance(self.importance, int | float):
            return float(self.importance) ** np.array(powers)
        return jnp.stack([jnp.asarray(self.importance) ** k for k in powers]).astype(jnp.float32)

    @property
    def ranking(self) -> tuple[int, ...]:
        """The groups from the strongest to the weakest; equally strong ones in the same order."""
        return tuple(range(self.count)[:: 1 if self.strongest == "near" else -1])
