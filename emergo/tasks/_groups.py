"""Groups of past positions with graded importance: what the next token depends on (yuksel2026)."""

import dataclasses
import math
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Float

from .._errors import InputError, check_numbers, unknown

Strongest = Literal["near", "far"]


@dataclasses.dataclass(frozen=True)
class Groups:
    r"""Spans of past positions $I(1), \dots, I(h)$, each with one strength and a weight $\alpha_i$ for every position.

    Positions are counted as lags: 0 is the last token that is seen. Groups are counted from the nearest on, whatever their
    strength.

    **Arguments:**

    - `spans`: how many positions each group has, the nearest group first.
    - `importance`: m, the ratio of the strengths of neighbouring groups. The weakest has strength 1.
    - `strongest`: which end the strongest group is at.
    - `stride`: how far apart neighbouring groups begin. None: each begins where the last one ends; smaller than a
      span: groups overlap.
    - `weights`: $\alpha_i$, one tuple a group, nearest position first. None: all 1, so that a group is a plain sum.
    """

    spans: tuple[int, ...] = (2, 2, 2)
    importance: float = 1.7
    strongest: Strongest = "near"
    stride: int | None = None
    weights: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.spans, tuple) or not self.spans:
            raise InputError(f"spans must be a tuple (in TOML a list) with one number of positions a group, got {self.spans!r}")
        whole = (*self.spans, *(() if self.stride is None else (self.stride,)))
        if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in whole):
            raise InputError(f"spans and stride must be whole numbers of at least 1, got {self.spans!r} and {self.stride!r}")
        check_numbers(self)
        if not (math.isfinite(self.importance) and self.importance >= 1):
            raise InputError(f"importance must be a finite number of at least 1, got {self.importance!r}")
        if self.strongest not in get_args(Strongest):
            raise unknown("end of the strongest group", str(self.strongest), get_args(Strongest))
        if self.weights is None:
            return
        if not isinstance(self.weights, tuple) or not all(isinstance(w, tuple) for w in self.weights):
            raise InputError(f"weights must be a tuple (in TOML a list) with one of numbers a group, got {self.weights!r}")
        if tuple(len(w) for w in self.weights) != self.spans:
            raise InputError(f"weights must have one number a position of each group, spans {self.spans}, got {self.weights!r}")
        if not all(isinstance(a, float | int) and math.isfinite(a) and a > 0 for w in self.weights for a in w):
            raise InputError(f"weights must be finite and positive, got {self.weights!r}")

    @property
    def count(self) -> int:
        """h, the number of groups."""
        return len(self.spans)

    @property
    def starts(self) -> tuple[int, ...]:
        """The nearest lag of each group."""
        if self.stride is not None:
            return tuple(self.stride * k for k in range(self.count))
        return tuple(sum(self.spans[:k]) for k in range(self.count))

    @property
    def window(self) -> int:
        """w: the next token depends on so many past ones."""
        return max(start + span for start, span in zip(self.starts, self.spans, strict=True))

    @property
    def disjoint(self) -> bool:
        """Whether no position belongs to two groups."""
        return bool((self.members.sum(0) <= 1).all())

    @property
    def members(self) -> Bool[np.ndarray, "groups window"]:
        """Which lags belong to which group."""
        lags = np.arange(self.window)
        return np.array([(lags >= start) & (lags < start + span) for start, span in zip(self.starts, self.spans, strict=True)])

    @property
    def mixing(self) -> Float[np.ndarray, "groups window"]:
        r"""$\alpha_i$ of every lag in its group, 0 elsewhere."""
        mixing = self.members.astype(np.float64)
        if self.weights is not None:
            for row, start, weights in zip(mixing, self.starts, self.weights, strict=True):
                row[start : start + len(weights)] = weights
        return mixing

    @property
    def strengths(self) -> Float[np.ndarray, " groups"]:
        """The scale of each group's map: m^(h-1), ..., m, 1 from the strongest to the weakest."""
        rising = float(self.importance) ** np.arange(self.count)
        return rising[::-1].copy() if self.strongest == "near" else rising

    @property
    def ranking(self) -> tuple[int, ...]:
        """The groups from the strongest to the weakest; of equal ones, in the same order."""
        return tuple(range(self.count)) if self.strongest == "near" else tuple(reversed(range(self.count)))

    def strongest_of(self, keep: int | None) -> Bool[np.ndarray, " groups"]:
        """Which groups are among the `keep` strongest; None keeps all."""
        if keep is not None and (not isinstance(keep, int) or isinstance(keep, bool) or not 0 <= keep <= self.count):
            raise InputError(f"keep must be a number of groups from 0 to {self.count}, got {keep!r}")
        kept = np.zeros(self.count, bool)
        kept[list(self.ranking[:keep])] = True
        return kept
