"""What moves before the metric does: how far each column of a log has moved, how much of that of late, and how surely.

Three windows of the log are compared, at fixed shares of the time that has passed: early, half way, and now. So nothing here
has a unit of time, and a slow run and a quick one look alike. The logarithm of attention grows at first with the square of time
and diverges in finite time (docs/theory.md): how far it has grown tells which share of that time has passed.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from ._emergence import Direction

EARLY, MIDDLE, NOW = (1 / 8, 1 / 4), (0.4, 0.6), (0.85, 1.0)
"""Shares of the steps so far. Where learning starts with a transient, it has to be over by the first of them."""
FEWEST = 2  # evaluations in each window
EVIDENCE = 4.0  # standard errors that a column must have moved by
ROUNDING = 1e-3  # no mean is known better than this: probes are computed and kept with few digits
FLOOR = 1e-6  # before a logarithm is taken: top-k attention has weights of 0
METRIC = "metric"  # the kind of the metric itself


class Kind(NamedTuple):
    """Columns that are looked at alike."""

    names: tuple[str, ...]  # before the indices of layer and head, as in `attention_0_3`
    scale: Callable[[np.ndarray], np.ndarray]  # on which they grow towards emergence
    words: str  # that say how far


def _log(values: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(values, FLOOR))


_WEIGHTS = ("attention", "attention_by_lag", "copying", "selecting", "induction", "previous", "same", "largest")
KINDS: Mapping[str, Kind] = {
    "attention": Kind(_WEIGHTS, _log, "has grown by a factor of {factor}"),
    "entropy": Kind(("entropy",), lambda values: -_log(values), "has fallen by a factor of {factor}"),
    "agreement": Kind(("agreement_query_key", "agreement_value_output"), np.asarray, "has grown by {gain}"),
    "gradient": Kind(("gradient_query_key", "gradient_value_output"), _log, "has grown by a factor of {factor}"),
}
"""Besides the metric itself, which every log has. Those without an entry in `forecast.json` are not used."""


def kind_of(column: str) -> str | None:
    """The kind of a column of a log, by its name; None for one that is not known."""
    stem = re.sub(r"(_\d+)*$", "", column)
    return next((name for name, kind in KINDS.items() if stem in kind.names), None)


class Signal(NamedTuple):
    """How far a column has moved."""

    name: str
    kind: str
    gain: float  # since the early window, on the scale of its kind; of the metric, the share of its way to the threshold
    recent: float  # the share of the gain that came after half of the time: 0.58 of an even growth, 0.74 of a quadratic one
    evidence: float  # the gain over its standard error
    since: tuple[float, float]  # the steps of the early window


class Columns(NamedTuple):
    """Columns of one kind, with the steps that they were logged at."""

    names: list[str]
    step: Float[np.ndarray, " evaluations"]
    values: Float[np.ndarray, "evaluations columns"]


class Curves(NamedTuple):
    """A log on scales on which it can be read."""

    step: Float[np.ndarray, " evaluations"]
    metric: Float[np.ndarray, "evaluations 1"]
    goal: float  # the threshold, on the scale of the metric
    columns: Mapping[str, Columns]  # by kind


def read_curves(step: np.ndarray, metric: np.ndarray, columns: pd.DataFrame, threshold: float, direction: Direction) -> Curves:
    """Puts a log on its scales.

    - `step`, `metric`: increasing steps, and the finite values of what is to emerge.
    - `columns`: the other columns, by increasing steps as their index. Those of no known kind are left out. A kind may be
      logged at steps of its own; a column that is missing where others of its kind are there is left out.
    """
    scaled, goal = _metric_scale(np.asarray(metric, np.float64), threshold, direction)
    kinds = {str(column): kind_of(str(column)) for column in columns}
    by_kind = {}
    for name, kind in KINDS.items():
        members = [column for column, its_kind in kinds.items() if its_kind == name]
        if not members:
            continue
        values = columns[members].to_numpy(np.float64)
        logged = np.flatnonzero(np.isfinite(values).any(1))
        whole = np.flatnonzero(np.isfinite(values[logged]).all(0))
        if len(logged) and len(whole):
            own = columns.index.to_numpy(np.float64)[logged]
            by_kind[name] = Columns([members[i] for i in whole], own, kind.scale(values[np.ix_(logged, whole)]))
    return Curves(np.asarray(step, np.float64), scaled[:, None], goal, by_kind)


def _metric_scale(values: np.ndarray, threshold: float, direction: Direction) -> tuple[np.ndarray, float]:
    """A metric and its threshold on a scale on which falls by equal factors are equal: the logarithm of a positive loss, or of
    the errors 1 - accuracy. Other metrics stay as they are."""
    if direction == "below" and threshold > 0 and values.min() > 0:
        return np.log(values), float(np.log(threshold))
    if direction == "above" and threshold < 1 and values.min() >= 0 and values.max() <= 1:
        return _log(1 - values), float(np.log(1 - threshold))
    return values, threshold


class _Moves(NamedTuple):
    early: np.ndarray
    gain: np.ndarray
    recent: np.ndarray
    evidence: np.ndarray


def _moves(values: np.ndarray, windows: list[np.ndarray]) -> _Moves:
    """How far each column has moved between the windows."""
    means = [values[rows].mean(0) for rows in windows]
    # Neighbours in a window differ by noise; of normal noise the mean of |difference| is 2/sqrt(pi) standard deviations.
    noise = [np.abs(np.diff(values[rows], axis=0)).mean(0) * np.sqrt(np.pi) / 2 / np.sqrt(len(rows)) for rows in windows]
    gain = means[2] - means[0]
    recent = np.divide(means[2] - means[1], gain, out=np.zeros_like(gain), where=gain != 0)
    return _Moves(means[0], gain, recent, gain / np.sqrt(noise[0] ** 2 + noise[2] ** 2 + 2 * ROUNDING**2))


def _windows(step: np.ndarray, now: float) -> list[np.ndarray] | None:
    """The rows of the three windows; None where one of them has too few."""
    shares = step / now if now > 0 else np.zeros_like(step)
    windows = [np.flatnonzero((shares > low) & (shares <= high)) for low, high in (EARLY, MIDDLE, NOW)]
    return windows if min(map(len, windows)) >= FEWEST else None


def find_signals(curves: Curves, until: int | None = None) -> list[Signal] | None:
    """What has moved by an evaluation of the metric (by default the last), one signal per kind: of several columns the one that
    has moved furthest among those that have surely moved. None where evaluations are too few to tell."""
    step = curves.step[:until]
    now = float(step[-1]) if len(step) else 0.0
    windows = _windows(step, now)
    if windows is None:
        return None
    since = float(step[windows[0][0]]), float(step[windows[0][-1]])
    moves = _moves(curves.metric, windows)
    way = curves.goal - float(moves.early[0])
    share, towards = (float(moves.gain[0]) / way, math.copysign(1.0, way)) if way else (1.0, 1.0)
    found = [Signal("", METRIC, share, float(moves.recent[0]), towards * float(moves.evidence[0]), since)]
    for kind, columns in curves.columns.items():
        windows = _windows(columns.step, now)
        if windows is None:
            continue
        moves = _moves(columns.values, windows)
        sure = moves.evidence >= EVIDENCE
        best = int(np.argmax(np.where(sure, moves.gain, -np.inf) if sure.any() else moves.evidence))
        gain, recent, evidence = (float(part[best]) for part in (moves.gain, moves.recent, moves.evidence))
        found.append(Signal(columns.names[best], kind, gain, recent, evidence, since))
    return found
