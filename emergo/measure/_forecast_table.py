"""What became of runs that looked like this one: the distribution of the time that was left, by what had moved.

A signal gives a score, which is the expected logarithm of the time that is left over the time that has passed. How far runs
were from it is a distribution of its own for each range of scores, from sizes that the score was not fitted to, with runs that
did not end as lower bounds (Kaplan and Meier). `forecast.json` holds both; `benchmarks/forecast_table.py` makes it.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from ._censored import fit_censored
from ._signals import EVIDENCE, METRIC, Signal

FILE = Path(__file__).with_name("forecast.json")
LEVELS = (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975)
EDGES = (-2.0, -1.0, 0.0, 1.0, 2.0)
"""Of the ranges of scores: from a seventh of the time so far to seven times as long."""
GROWING = 0.6
"""The least share of a gain that came after half of the time. Even growth has 0.58, quadratic growth 0.74: what does not speed
up is not about to diverge."""
METRIC_GAIN = 0.1
"""The least share of its way to the threshold that the metric itself must have gone: losses drift on a plateau."""
FOLDS, FEWEST_RUNS = 6, 20


class Range(NamedTuple):
    """Scores that are alike: the quantiles of what runs were off by, at `LEVELS`, and how many runs these are of."""

    quantiles: tuple[float, ...]
    runs: int


class KindTable(NamedTuple):
    """How a kind of signal is read."""

    coefficients: tuple[float, ...]
    ranges: tuple[Range | None, ...]  # between `EDGES`; None where runs are too few

    def quantiles(self, signal: Signal) -> Float[np.ndarray, " levels"] | None:
        """Of the logarithm of the time that is left over the time that has passed; None where runs like this are too few."""
        score = float(np.dot(features(signal.kind, signal.gain, signal.recent), self.coefficients))
        chosen = self.ranges[int(np.digitize(score, EDGES))]
        return None if chosen is None else score + np.array(chosen.quantiles)


def usable(signal: Signal) -> bool:
    """Whether a signal says something of when: it has surely moved, and moves faster and faster."""
    least, most = (METRIC_GAIN, 1.0) if signal.kind == METRIC else (0.0, np.inf)
    return signal.evidence >= EVIDENCE and signal.recent >= GROWING and least <= signal.gain < most


def features(kind: str, gain: Any, recent: Any) -> Float[np.ndarray, "*rows terms"]:
    """What the score is a linear function of: the logarithms of the gain, of the share of it that is recent, and for the metric
    of what is left of its way."""
    gain, recent = np.asarray(gain, np.float64), np.clip(np.asarray(recent, np.float64), 0.05, 2.0)
    terms = [np.ones_like(gain), np.log(np.maximum(gain, 1e-4)), np.log(recent)]
    if kind == METRIC:
        terms.append(np.log(np.clip(1 - gain, 0.02, 1.0)))
    return np.stack(terms, -1)


@functools.cache
def shipped_table() -> Mapping[str, KindTable]:
    """The table of the package, by kind."""
    return table_from(json.loads(FILE.read_text())["kinds"])


def table_from(data: Mapping[str, Any]) -> dict[str, KindTable]:
    """The table from plain data; a bound that no number is known for is null."""

    def range_from(entry: Any) -> Range | None:
        return entry and Range(tuple(np.inf if q is None else q for q in entry["quantiles"]), entry["runs"])

    return {k: KindTable(tuple(d["coefficients"]), tuple(map(range_from, d["ranges"]))) for k, d in data.items()}


def table_data(table: Mapping[str, KindTable]) -> dict[str, Any]:
    """The table as plain data, rounded to what matters."""

    def data_of(entry: Range | None) -> Any:
        numbers = [] if entry is None else [round(q, 4) if np.isfinite(q) else None for q in entry.quantiles]
        return entry and {"runs": entry.runs, "quantiles": numbers}

    return {
        kind: {"coefficients": [round(c, 4) for c in one.coefficients], "ranges": [data_of(entry) for entry in one.ranges]}
        for kind, one in table.items()
    }


def fit_table(moments: pd.DataFrame) -> dict[str, KindTable]:
    """A table from moments of runs, for the kinds of signal that enough runs have.

    - `moments`: one row per run, step and usable signal: `run`, `cell`, `block`, `kind`, `gain`, `recent`, `left` (the
      logarithm of the time that was left over the time that had passed) and `censored` (it is at least that). Every cell counts
      once, in however many rows; what runs were off by is measured on blocks of cells that the score was not fitted to.
    """
    kinds = {str(kind): _fit_kind(str(kind), rows) for kind, rows in moments.groupby("kind")}
    return {kind: fitted for kind, fitted in kinds.items() if fitted is not None}


def _fit_kind(kind: str, rows: pd.DataFrame) -> KindTable | None:
    """None where runs are too few."""
    blocks = {block: i % FOLDS for i, block in enumerate(sorted(rows["block"].unique()))}
    if len(blocks) < FOLDS or rows["run"].nunique() < FEWEST_RUNS:
        return None
    design, fold = features(kind, rows["gain"], rows["recent"]), rows["block"].map(blocks).to_numpy()
    left, censored = rows["left"].to_numpy(np.float64), rows["censored"].to_numpy(bool)
    weight = 1 / rows.groupby("cell")["cell"].transform("size").to_numpy(np.float64)  # the next run is of a new cell

    def coefficients(chosen: np.ndarray) -> np.ndarray:
        return fit_censored(design[chosen], left[chosen], censored[chosen], weight[None, chosen])[0][0]

    score = np.empty(len(rows))
    for i in range(FOLDS):
        score[fold == i] = design[fold == i] @ coefficients(fold != i)
    inside, ranges = np.digitize(score, EDGES), []
    for i in range(len(EDGES) + 1):
        own = inside == i
        runs = rows["run"][own].nunique()
        off = censored_quantiles((left - score)[own], censored[own], weight[own], LEVELS) if runs >= FEWEST_RUNS else None
        ranges.append(None if off is None else Range(tuple(off.tolist()), runs))
    return KindTable(tuple(coefficients(np.ones(len(rows), bool)).tolist()), tuple(ranges))


def censored_quantiles(
    values: Float[np.ndarray, " n"], censored: Bool[np.ndarray, " n"], weights: Float[np.ndarray, " n"], levels: Sequence[float]
) -> Float[np.ndarray, " levels"]:
    """Quantiles of values of which some are only known to be larger (Kaplan and Meier); infinite where the data end before.

    >>> censored_quantiles(np.arange(4.0), np.array([False, True, False, False]), np.ones(4), [0.25, 0.5, 0.9])
    array([0., 2., 3.])
    """
    order = np.lexsort((censored, values))
    values, censored, weights = values[order], censored[order], weights[order]
    at_risk = np.cumsum(weights[::-1])[::-1]
    reached = 1 - np.cumprod(np.where(censored, 1.0, 1 - weights / at_risk))
    first = np.searchsorted(reached, np.asarray(levels) - 1e-9)
    return np.append(values, np.inf)[first]
