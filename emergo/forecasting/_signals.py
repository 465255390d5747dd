"""Signals of coming emergence: how far, how recently and how surely each column of a log moved.

Three windows of a log are compared, at fixed fractions of the elapsed steps: early, middle and now.
No quantity has a unit of time, so slow and fast runs look alike. The logarithm of attention first
grows with the square of time and then diverges in finite time (docs/theory.md), so its growth tells
how much of the plateau has passed.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from ..measure import Direction

EARLY = (1 / 8, 1 / 4)
MIDDLE = (0.4, 0.6)
# Windows, as fractions of the elapsed steps. The early window begins late enough to skip initial
# transients.
NOW = (0.85, 1.0)
FEWEST = 2  # evaluations per window
EVIDENCE = 4.0  # minimal movement of a column, in standard errors
ROUNDING = 1e-3  # lower bound of a standard error: probes are computed and stored with few digits
FLOOR = 1e-6  # lower bound before taking logarithms: top-k attention has weights of 0
METRIC = "metric"  # the kind of the metric itself


class Kind(NamedTuple):
    """Columns that are treated alike."""

    names: tuple[str, ...]  # without the indices of layer and head, as in `attention_0_3`
    scale: Callable[[np.ndarray], np.ndarray]  # the scale on which they grow before emergence
    verb: str  # names the movement


def _log(values: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(values, FLOOR))


_WEIGHTS = (
    *("attention", "attention_by_lag", "copying", "selecting"),
    *("induction", "previous", "same", "largest"),
)
# All kinds except the metric.
KINDS: Mapping[str, Kind] = {
    "attention": Kind(_WEIGHTS, _log, "grown"),
    "entropy": Kind(("entropy",), lambda values: -_log(values), "fallen"),
}


@functools.cache
def kind_of(column: str) -> str | None:
    """Return the kind of a column by its name, or None for unknown columns."""
    stem = re.sub(r"(_\d+)*$", "", column)
    return next((name for name, kind in KINDS.items() if stem in kind.names), None)


class Signal(NamedTuple):
    """The movement of one column.

    - `gain`: the movement since the early window, on the scale of the kind. For the metric: the
      fraction of its distance to the threshold.
    - `recent`: the fraction of the gain that came after half of the time: 0.58 for linear growth,
      0.74 for quadratic growth.
    - `evidence`: the gain over its standard error.
    - `since`: the first and last step of the early window.
    """

    name: str
    kind: str
    gain: float
    recent: float
    evidence: float
    since: tuple[float, float]


class Columns(NamedTuple):
    """Columns of one kind and the steps at which they were logged."""

    names: list[str]
    step: Float[np.ndarray, " evaluations"]
    values: Float[np.ndarray, "evaluations columns"]


@dataclasses.dataclass(frozen=True, eq=False)
class Curves:
    """A log on its scales: the metric, its threshold (`goal`) and the other columns by kind."""

    step: Float[np.ndarray, " evaluations"]
    metric: Float[np.ndarray, "evaluations 1"]
    goal: float
    columns: Mapping[str, Columns]


def read_curves(
    step: np.ndarray,
    metric: np.ndarray,
    columns: pd.DataFrame,
    threshold: float,
    direction: Direction,
) -> Curves:
    """Transform a log to its scales.

    **Arguments:**

    - `step`, `metric`: increasing steps, and the finite values of the metric.
    - `columns`: the other columns, indexed by increasing steps. Unknown kinds are dropped. Each
      kind may be logged at different steps. A column with gaps where others of its kind have values
      is dropped.
    """
    scaled, goal = _metric_scale(np.asarray(metric, np.float64), threshold, direction)
    names = [name for name in map(str, columns) if kind_of(name) is not None]
    known = columns[names].to_numpy(np.float64)
    steps = columns.index.to_numpy(np.float64)
    by_kind = {}
    for kind, how in KINDS.items():
        members = [i for i, name in enumerate(names) if kind_of(name) == kind]
        finite = np.isfinite(known[:, members])
        logged = np.flatnonzero(finite.any(1))
        whole = np.array(members, int)[finite[logged].all(0)]
        if len(logged) and len(whole):
            values = how.scale(known[np.ix_(logged, whole)])
            by_kind[kind] = Columns([names[i] for i in whole], steps[logged], values)
    return Curves(np.asarray(step, np.float64), scaled[:, None], goal, by_kind)


def _metric_scale(
    values: np.ndarray, threshold: float, direction: Direction
) -> tuple[np.ndarray, float]:
    """Transform a metric and its threshold so that reductions by equal factors have equal size.

    Positive losses, and errors 1 - accuracy, become logarithms. Other metrics stay unchanged.
    """
    if direction == "below" and threshold > 0 and values.min() > 0:
        return np.log(values), float(np.log(threshold))
    if direction == "above" and threshold < 1 and values.min() >= 0 and values.max() <= 1:
        return _log(1 - values), float(np.log(1 - threshold))
    return values, threshold


def _moves(values: np.ndarray, windows: list[slice]) -> np.ndarray:
    """Measure how each column moves between the windows.

    The rows are the early mean, the gain, the recent fraction of the gain and the evidence.
    """
    first, half_way, now = (values[rows] for rows in windows)
    early, middle, late = (_mean(rows) for rows in (first, half_way, now))
    gain = late - early
    noise = _noise(first) ** 2 + _noise(now) ** 2
    recent = np.divide(late - middle, gain, out=np.zeros_like(gain), where=gain != 0)
    return np.stack([early, gain, recent, gain / np.sqrt(noise + 2 * ROUNDING**2)])


def _mean(rows: np.ndarray) -> np.ndarray:
    """Compute `rows.mean(0)`, in a third of its time when rows are few."""
    return np.add.reduce(rows, 0) / len(rows)


def _noise(rows: np.ndarray) -> np.ndarray:
    """Estimate the standard error of the mean.

    Neighbouring rows differ by noise. For normal noise, the mean of |difference| is 2/sqrt(pi)
    standard deviations.
    """
    return _mean(np.abs(rows[1:] - rows[:-1])) * (math.sqrt(math.pi) / 2 / math.sqrt(len(rows)))


def _windows(step: np.ndarray, now: float) -> list[slice] | None:
    """Find the rows of the three windows, or return None if one has too few."""
    fractions = step / now if now > 0 else np.zeros_like(step)
    ends = fractions.searchsorted((*EARLY, *MIDDLE, *NOW), side="right").tolist()
    windows = [slice(*ends[i : i + 2]) for i in (0, 2, 4)]
    return windows if all(rows.stop - rows.start >= FEWEST for rows in windows) else None


@functools.lru_cache(maxsize=256)  # every forecast asks for the past of the same log again
def find_signals(curves: Curves, until: int | None = None) -> list[Signal] | None:
    """Measure one signal per kind, from the first `until` evaluations of the metric (default: all).

    A kind is represented by the column with the largest gain among those with enough evidence.
    Returns None with too few evaluations.
    """
    step = curves.step[:until]
    now = float(step[-1]) if len(step) else 0.0
    windows = _windows(step, now)
    if windows is None:
        return None
    since = float(step[windows[0].start]), float(step[windows[0].stop - 1])
    early, gain, recent, evidence = _moves(curves.metric, windows)[:, 0].tolist()
    distance = curves.goal - early
    evidence *= math.copysign(1.0, distance) if distance else 1.0
    found = [Signal("", METRIC, gain / distance if distance else 1.0, recent, evidence, since)]
    for kind, columns in curves.columns.items():
        windows = _windows(columns.step, now)
        if windows is None:
            continue
        moves = _moves(columns.values, windows)
        _, gains, _, sureness = moves
        sure = sureness >= EVIDENCE
        best = int(np.argmax(np.where(sure, gains, -np.inf) if sure.any() else sureness))
        _, gain, recent, evidence = moves[:, best].tolist()
        found.append(Signal(columns.names[best], kind, gain, recent, evidence, since))
    return found
