"""How fast a log moves now, compared with how it moved earlier in the same run.

The steps so far are divided into 16 blocks of equal length, and every column is averaged in each.
The *strength* of a drift is the move of the second half over the size that it would have if the
column were a random walk with the steps of the first half. A random walk has a strength above
`STRONG` in 0.3% of the cases, a curve that goes on at the same speed has 2.6, one that saturates
has less than 1. Quadratic growth has 5.8. Nothing has a unit of time, so slow and fast runs look
alike.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from ..measure import Direction

BLOCKS = 16
STRONG = 4.0  # the least strength of a drift that counts
STRONG_PROBE = 10.0  # the same for probes: there are many, and some drift without learning
RECENT = 0.5  # the least share of the move that came in the last 3 of its 7 blocks
GAIN = 0.05  # the least share of the way to the threshold that a metric has gone
FAR = 2.0  # the threshold may be ahead by at most this many times the steps so far
# A metric whose moves grew more than this has just begun to fall. How it goes on differs between
# tasks, so that no interval holds for all of them (docs/forecast.md).
SHARP = 8.0
SLOWEST = 1.0001  # bounds of the growth of moves
FASTEST = 50.0
ROUNDING = 1e-3  # the least size of an early move: probes are logged with few digits
FLOOR = 1e-6  # lower bound before taking logarithms: top-k attention has weights of 0


def _log(values: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(values, FLOOR))


def _minus_log(values: np.ndarray) -> np.ndarray:
    return -_log(values)


# The columns that are read beside the metric, without the indices of layer and head, and the scale
# on which they grow before a drop.
PROBES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "entropy": _minus_log,
    **dict.fromkeys(("attention", "attention_by_lag", "copying", "selecting"), _log),
    **dict.fromkeys(("induction", "previous", "same", "largest"), _log),
}


def probe_scale(column: str) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return the scale of a column by its name, or None if it is not a probe."""
    return PROBES.get(_stem(column))


class Drift(NamedTuple):
    """The movement of one column at one step.

    - `move`: how far it moved in the second half of the steps, upwards on its scale.
    - `strength`: the move over the size expected from the first half.
    - `recent`: the share of the move that came in the last three of its seven blocks.
    - `growth`: the move in these three blocks over that in the three blocks before.
    - `early`, `late`: the level in blocks 3 to 8, and in the last two.
    """

    move: float
    strength: float
    recent: float
    growth: float
    early: float
    late: float

    @property
    def strong(self) -> bool:
        return self.strength >= STRONG and self.recent >= RECENT


def drift_of(
    step: Float[np.ndarray, " n"], values: Float[np.ndarray, " n"], now: float
) -> Drift | None:
    """Measure the drift of a column up to the step `now`; None if a block has no evaluation."""
    if now <= 0:
        return None
    block = np.ceil(step / now * BLOCKS).astype(int) - 1
    inside = (block >= 0) & (block < BLOCKS) & np.isfinite(values)
    counts = np.bincount(block[inside], minlength=BLOCKS)
    if not counts.all():
        return None
    mean = np.bincount(block[inside], values[inside], BLOCKS) / counts
    half = BLOCKS // 2
    moves = np.diff(mean[2:half])
    # The size of the moves, not their spread: an early drift of constant speed counts as well.
    size = math.sqrt(float(moves @ moves) / len(moves) + ROUNDING**2)
    late = float(mean[-2:].mean())
    move = late - float(mean[half - 1 : half + 1].mean())
    recent = late - float(mean[-5:-3].mean())
    before = float(mean[-5:-3].mean() - mean[-8:-6].mean())
    return Drift(
        move,
        move / (size * math.sqrt(half - 1)),
        recent / move if move else 0.0,
        recent / before if before > 0 else math.inf,
        float(mean[2:half].mean()),
        late,
    )


def time_to(goal: float, drift: Drift) -> float:
    """Return the time until a column that keeps speeding up reaches a goal, over the steps so far.

    Moves in equal times are continued as a geometric series, with the growth of the last ones.
    """
    last = drift.recent * drift.move  # the move in three blocks
    growth = min(max(drift.growth, SLOWEST), FASTEST)
    way = (goal - drift.late) / last
    if not way > 0:
        return math.nan
    return math.log1p(way * (growth - 1) / growth) / math.log(growth) * 3 / BLOCKS


@dataclasses.dataclass(frozen=True, eq=False)
class Curves:
    """A log on its scales, on which everything grows towards emergence.

    - `goal`: the threshold; NaN without one.
    - `probes`: steps and values of the probes, by column.
    - `relative`: whether a move of the metric is the logarithm of a ratio.
    - `rising`: whether the metric has to rise to the threshold. No step is named then: recall's
      accuracy is the only rising metric that was judged, and none of its intervals held the truth.
    """

    step: Float[np.ndarray, " n"]
    metric: Float[np.ndarray, " n"]
    goal: float
    probes: Mapping[str, tuple[np.ndarray, np.ndarray]]
    relative: bool
    rising: bool = False


def read_curves(
    value: pd.Series, others: pd.DataFrame, threshold: float | None, direction: Direction
) -> Curves:
    """Transform a metric and the other columns of a log, indexed by increasing steps.

    Positive losses, and errors 1 - accuracy, become logarithms. Other metrics stay unchanged.
    Columns that are no probes are dropped.
    """
    probes = {}
    for name in map(str, others):
        scale = probe_scale(name)
        column = others[name].dropna()
        if scale is not None and len(column):
            probes[name] = (
                column.index.to_numpy(np.float64),
                scale(column.to_numpy(np.float64)),
            )
    step = value.index.to_numpy(np.float64)
    values = value.to_numpy(np.float64)
    goal = math.nan if threshold is None else threshold
    if direction == "above":
        if len(values) and values.min() >= 0 and values.max() <= 1 and not goal >= 1:
            return Curves(
                step, _minus_log(1 - values), -math.log(1 - goal), probes, True, rising=True
            )
        return Curves(step, values, goal, probes, False, rising=True)
    if len(values) and values.min() > 0 and not goal <= 0:
        return Curves(step, -np.log(values), -math.log(goal), probes, True)
    return Curves(step, -values, -goal, probes, False)


class Look(NamedTuple):
    """What a log shows at one step.

    - `ahead`: the time to the threshold if the metric keeps speeding up, over the steps so far; NaN
      if it does not surely move towards the threshold, or has just begun to.
    - `gain`: the share of its way to the threshold that the metric has gone.
    - `metric`, `probe`: the strength of the drift of the metric, and of the strongest probe; 0
      without a drift that counts.
    - `name`: the strongest probe.
    """

    now: float
    ahead: float
    gain: float
    metric: float
    probe: float
    name: str


def look(curves: Curves, until: int | None = None, twin: Curves | None = None) -> Look | None:
    """Look at the first `until` evaluations of a log; None if they are too few.

    The moves of the strongest probe of `twin`, a run with shuffled labels, at the same step are
    subtracted from those of the probes.
    """
    step = curves.step[:until]
    now = float(step[-1]) if len(step) else 0.0
    metric = drift_of(step, curves.metric[:until], now)
    if metric is None:
        return None
    ahead = gain = math.nan
    if metric.strong:
        way = curves.goal - metric.early
        gain = (metric.late - metric.early) / way if way else math.nan
        ahead = time_to(curves.goal, metric)
        if not (ahead <= FAR and gain >= GAIN and metric.growth <= SHARP):
            ahead = math.nan
    moved = {} if twin is None else _largest_moves(twin, now)
    strengths = {"": 0.0}
    for name, (steps, values) in curves.probes.items():
        drift = drift_of(steps, values, now)
        if drift is not None and drift.strong and drift.move > 0:
            common = max(moved.get(_stem(name), 0.0), 0.0)
            strengths[name] = drift.strength * (1 - common / drift.move)
    name = max(strengths, key=lambda each: strengths[each])
    strong = strengths[name] if strengths[name] >= STRONG_PROBE else 0.0
    return Look(now, ahead, gain, metric.strength if metric.strong else 0.0, strong, name)


def _stem(column: str) -> str:
    return re.sub(r"(_\d+)*$", "", column)


def _largest_moves(twin: Curves, now: float) -> dict[str, float]:
    """Return the largest move of the probes of a twin, by kind."""
    moves: dict[str, float] = {}
    for name, (step, values) in twin.probes.items():
        drift = drift_of(step, values, min(now, float(step[-1])))
        if drift is not None:
            moves[_stem(name)] = max(moves.get(_stem(name), 0.0), drift.move)
    return moves
