"""Classes of attention heads over training: when a head became an induction head, for example.

A head belongs to a class as soon as it puts at least half of its weight on the keys of the class
(`emergo.core.heads`), in two scores in a row. Imports neither JAX nor NumPy.
"""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

THRESHOLD = 0.5
HOLD = 2  # rows in a row, so that a single lucky batch does not count
_COLUMN = re.compile(r"(\w+)_head_(\d+)_(\d+)")


class HeadClass(NamedTuple):
    """The step at which a head entered a class, between two rows of the log.

    >>> print(HeadClass("induction", 1, 2, 540.0, 520.0, 560.0))
    head 1.2 became an induction head at step 540 [520, 560]
    """

    name: str
    layer: int
    head: int
    step: float  # interpolated between the rows
    low: float  # the last row before; minus infinity if there is none
    high: float  # the first row after

    def __str__(self) -> str:
        kind = f"{'an' if self.name[0] in 'aeiou' else 'a'} {self.name.replace('_', '-')} head"
        if math.isinf(self.low):
            return f"head {self.layer}.{self.head} was {kind} in the first row, step {self.high:g}"
        return (
            f"head {self.layer}.{self.head} became {kind} at step {self.step:.0f} "
            f"[{self.low:g}, {self.high:g}]"
        )


class _Track:
    """The rows of one column around its crossing."""

    def __init__(self) -> None:
        self.below: tuple[float, float] | None = None  # step and score
        self.above: tuple[float, float] | None = None  # the first of the latest rows in a row
        self.rows = 0  # rows in a row above the threshold

    def crossing(self) -> tuple[float, float, float]:
        assert self.above is not None
        step, score = self.above
        if self.below is None:
            return step, -math.inf, step
        low, before = self.below
        return low + (THRESHOLD - before) / (score - before) * (step - low), low, step


class HeadClasses:
    """The classes of all heads, updated row by row; `found` lists them by column."""

    def __init__(self) -> None:
        self.found: dict[str, HeadClass] = {}
        self._tracks: dict[str, _Track] = {}

    def update(self, step: float, scores: Mapping[str, float]) -> list[HeadClass]:
        """Add a row of scores by column, and return what is new. NaN is not a score."""
        new = []
        for column, score in scores.items():
            match = _COLUMN.fullmatch(column)
            if match is None or column in self.found or math.isnan(score):
                continue
            track = self._tracks.setdefault(column, _Track())
            if score < THRESHOLD:
                track.below = (step, score)
                track.rows = 0
                continue
            if track.rows == 0:
                track.above = (step, score)
            track.rows += 1
            if track.rows == HOLD:
                place = int(match[2]), int(match[3])
                self.found[column] = HeadClass(match[1], *place, *track.crossing())
                new.append(self.found[column])
        return new
