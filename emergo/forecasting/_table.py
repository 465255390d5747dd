"""The calibration table: the distribution of the remaining time, given what has moved so far.

A score is the expected logarithm of (remaining time / elapsed time), a linear function of a
signal's features. For each range of scores the table holds the distribution of the residuals,
measured on sizes that the score was not fitted to. Runs that did not emerge count as right-censored
(Kaplan-Meier). `benchmarks/forecast_table.py` writes the table to `forecast.json`.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from ..measure import fit_censored
from ._signals import EVIDENCE, METRIC, Signal

FILE = Path(__file__).with_name("forecast.json")
LEVELS = (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975)
# Limits of the ranges of scores: from a seventh of the elapsed time to seven times as long.
EDGES = (-2.0, -1.0, 0.0, 1.0, 2.0)
# The minimal `recent` fraction of a gain. Linear growth has 0.58, quadratic growth 0.74; a signal
# that does not accelerate is not about to diverge.
GROWING = 0.6
# The minimal gain of the metric itself: losses drift on a plateau.
METRIC_GAIN = 0.1
FOLDS = 6
FEWEST_RUNS = 20


# The calibration of one kind of signal: the `coefficients` of the score, and for each of the
# `ranges` between `EDGES` the `quantiles` of the residuals at `LEVELS` and the number of `runs`.
# None stands for an infinite quantile, and for a range with too few runs.
KindTable = Mapping[str, Any]


def predict_left(table: KindTable, signal: Signal) -> Float[np.ndarray, " levels"] | None:
    """Return quantiles of log(remaining / elapsed time), or None with too few similar runs."""
    terms = features(signal.kind, signal.gain, signal.recent)
    score = float(np.dot(terms, table["coefficients"]))
    residuals = table["ranges"][int(np.digitize(score, EDGES))]
    if residuals is None:
        return None
    return score + np.array([np.inf if q is None else q for q in residuals["quantiles"]])


def usable(signal: Signal) -> bool:
    """Return True if a signal predicts emergence: it has surely moved, and it accelerates."""
    least, most = (METRIC_GAIN, 1.0) if signal.kind == METRIC else (0.0, np.inf)
    return signal.evidence >= EVIDENCE and signal.recent >= GROWING and least <= signal.gain < most


def features(kind: str, gain: Any, recent: Any) -> Float[np.ndarray, "*rows terms"]:
    """Compute the features of the score.

    They are the logarithms of the gain, of its recent fraction and, for the metric, of the
    remaining distance to the threshold.
    """
    gain = np.asarray(gain, np.float64)
    recent = np.clip(np.asarray(recent, np.float64), 0.05, 2.0)
    terms = [np.ones_like(gain), np.log(np.maximum(gain, 1e-4)), np.log(recent)]
    if kind == METRIC:
        terms.append(np.log(np.clip(1 - gain, 0.02, 1.0)))
    return np.stack(terms, -1)


@functools.cache
def shipped_table() -> Mapping[str, KindTable]:
    """Read the package's table, by kind."""
    return json.loads(FILE.read_text())["kinds"]


def fit_table(moments: pd.DataFrame) -> dict[str, KindTable]:
    """Fit a table, for the kinds of signal with enough runs.

    **Arguments:**

    - `moments`: one row per run, step and usable signal: `run`, `cell`, `block`, `kind`, `gain`,
      `recent`, `left` (the logarithm of remaining over elapsed time) and `censored` (`left` is a
      lower bound). All cells have equal weight, whatever their number of rows. Residuals are
      cross-validated over blocks of cells.
    """
    kinds = {str(kind): _fit_kind(str(kind), rows) for kind, rows in moments.groupby("kind")}
    return {kind: fitted for kind, fitted in kinds.items() if fitted is not None}


def _fit_kind(kind: str, rows: pd.DataFrame) -> KindTable | None:
    blocks = {block: i % FOLDS for i, block in enumerate(sorted(rows["block"].unique()))}
    if len(blocks) < FOLDS or rows["run"].nunique() < FEWEST_RUNS:
        return None
    design = features(kind, rows["gain"], rows["recent"])
    fold = rows["block"].map(blocks).to_numpy()
    left = rows["left"].to_numpy(np.float64)
    censored = rows["censored"].to_numpy(bool)
    # Equal weight per cell: the next run to be forecast is of a new cell.
    weight = 1 / rows.groupby("cell")["cell"].transform("size").to_numpy(np.float64)

    def coefficients(chosen: np.ndarray) -> np.ndarray:
        weights = weight[None, chosen]
        return fit_censored(design[chosen], left[chosen], censored[chosen], weights)[0][0]

    score = np.empty(len(rows))
    for i in range(FOLDS):
        score[fold == i] = design[fold == i] @ coefficients(fold != i)
    within = np.digitize(score, EDGES)
    ranges: list[Any] = []
    for i in range(len(EDGES) + 1):
        own = within == i
        runs = rows["run"][own].nunique()
        if runs < FEWEST_RUNS:
            ranges.append(None)
            continue
        off = censored_quantiles((left - score)[own], censored[own], weight[own], LEVELS)
        quantiles = [q if np.isfinite(q) else None for q in off.tolist()]
        ranges.append({"quantiles": quantiles, "runs": runs})
    return {"coefficients": coefficients(np.ones(len(rows), bool)).tolist(), "ranges": ranges}


def censored_quantiles(
    values: Float[np.ndarray, " n"],
    censored: Bool[np.ndarray, " n"],
    weights: Float[np.ndarray, " n"],
    levels: Sequence[float],
) -> Float[np.ndarray, " levels"]:
    """Compute Kaplan-Meier quantiles of right-censored values.

    A quantile beyond the last value is infinite.

    >>> values, censored = np.arange(4.0), np.array([False, True, False, False])
    >>> censored_quantiles(values, censored, np.ones(4), [0.25, 0.5, 0.9])
    array([0., 2., 3.])
    """
    order = np.lexsort((censored, values))
    values = values[order]
    censored = censored[order]
    weights = weights[order]
    at_risk = np.cumsum(weights[::-1])[::-1]
    reached = 1 - np.cumprod(np.where(censored, 1.0, 1 - weights / at_risk))
    first = np.searchsorted(reached, np.asarray(levels) - 1e-9)
    return np.append(values, np.inf)[first]
