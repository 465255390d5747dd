"""The calibration: conformal quantiles of the remaining time, and probabilities of a drop.

Calibration is over runs. Each family of runs has the same weight, each run of a family, and each
moment of a run, because the next run to be forecast is a new run and not a new moment of an old
one. `benchmarks/forecast_table.py` writes the table to `forecast.json`.
"""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from ._drift import Look

FILE = Path(__file__).with_name("forecast.json")
LEVELS = (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975)
# A drop: the metric falls by a fifth of its value before the run is twice as long.
DROP = -math.log(0.8)

Table = Mapping[str, Any]


class Drop(NamedTuple):
    """The chance that a drop is coming: that the metric falls by a fifth before twice the steps.

    - `probability`: the share of similar calibration runs in which it came.
    - `false_alarms`: the share of moments of runs with shuffled labels that look the same.
    - `lead`: the time from such a moment to the drop, over the steps so far; the median.
    - `signal`: the column that moves.
    """

    probability: float
    false_alarms: float
    lead: float
    signal: str


@functools.cache
def shipped_table() -> Table:
    return json.loads(FILE.read_text())


def emergence_steps(seen: Look, table: Table) -> Float[np.ndarray, " levels"]:
    """Return the quantiles of the emergence step."""
    ratio = np.array([np.inf if q is None else q for q in table["quantiles"]])
    return seen.now * (1 + seen.ahead) ** ratio


def drop_of(seen: Look, metric: str, table: Table) -> Drop | None:
    """Return the chance of a drop; None if neither the metric nor a probe has a strong drift."""
    found = []
    if seen.metric:
        found.append(Drop(**table["drop"]["metric"], signal=metric))
    if seen.probe:
        found.append(Drop(**table["drop"]["probe"], signal=seen.name))
    return max(found, key=lambda drop: drop.probability, default=None)


def fit_table(moments: pd.DataFrame) -> dict[str, Any]:
    """Fit the table to the moments of the calibration runs.

    **Arguments:**

    - `moments`: one row per run and step: `run`, `family`, `shuffled`,
      `ratio` and `censored` (log(emergence step / steps so far) over log(1 + `ahead`), and whether
      it is a lower bound; NaN without a forecast), `metric` and `probe` (the
      strengths), `drop` (1 if a drop came, 0 if not, NaN if the log is too short), `lead`.
    """
    learning = moments[~moments["shuffled"]]
    table: dict[str, Any] = {"levels": list(LEVELS)}
    told = learning[learning["ratio"].notna()]
    new = 1 / max(told["run"].nunique(), 1)
    quantiles = conformal_quantiles(
        told["ratio"].to_numpy(), told["censored"].to_numpy(bool), weights_of(told), new
    )
    table["quantiles"] = [float(q) if np.isfinite(q) else None for q in quantiles]
    table["drop"] = {kind: _chance(moments, kind) for kind in ("metric", "probe")}
    return table


def _chance(moments: pd.DataFrame, kind: str) -> dict[str, float]:
    """Describe what followed strong drifts of the metric, or of a probe."""
    known = moments[~moments["shuffled"] & moments["drop"].notna() & (moments[kind] > 0)]
    shuffled = moments[moments["shuffled"]]
    return {
        "probability": float(weights_of(known) @ known["drop"]),
        # The rule of succession, so that no rate is reported as zero.
        "false_alarms": (int((shuffled[kind] > 0).sum()) + 1) / (len(shuffled) + 2),
        "lead": float(known.loc[known["drop"] == 1, "lead"].median()),
    }


def weights_of(moments: pd.DataFrame) -> Float[np.ndarray, " n"]:
    """Weight moments so that families have equal weight, runs of a family, and moments of a run."""
    weight = 1 / moments.groupby("run")["run"].transform("size").to_numpy(np.float64)
    weight /= moments.groupby("family")["run"].transform("nunique").to_numpy(np.float64)
    return weight / weight.sum() if len(weight) else weight


def conformal_quantiles(
    values: Float[np.ndarray, " n"],
    censored: Bool[np.ndarray, " n"],
    weights: Float[np.ndarray, " n"],
    new: float,
    levels: Sequence[float] = LEVELS,
) -> Float[np.ndarray, " levels"]:
    """Compute quantiles that hold for a new run: split conformal prediction.

    The new run, with the weight `new`, may be smaller or larger than all calibration runs. It
    counts as 0 for levels below the median, and as infinite for levels above. Right-censored values
    count by Kaplan and Meier.

    >>> values = np.arange(1.0, 10.0)
    >>> conformal_quantiles(values, values < 0, np.ones(9) / 9, 1 / 9, [0.05, 0.1, 0.5, 0.9, 0.95])
    array([ 0.,  1.,  5.,  9., inf])
    """
    found = []
    for level in levels:
        unknown = np.inf if level > 0.5 else 0.0
        extra = 0.0 if level == 0.5 else new
        found.append(
            _censored_quantile(
                np.append(values, unknown),
                np.append(censored, False),
                np.append(weights, extra),
                # On a tie, the end of the interval lies inwards.
                level + (1e-9 if level < 0.5 else -1e-9),
            )
        )
    return np.array(found)


def _censored_quantile(
    values: np.ndarray, censored: np.ndarray, weights: np.ndarray, level: float
) -> float:
    """Compute a Kaplan-Meier quantile; infinite beyond the last value."""
    order = np.lexsort((censored, values))
    at_risk = weights[order][::-1].cumsum()[::-1]
    share = np.divide(weights[order], at_risk, out=np.zeros(len(order)), where=at_risk > 0)
    reached = 1 - np.cumprod(np.where(censored[order], 1.0, 1 - share))
    return float(np.append(values[order], np.inf)[np.searchsorted(reached, level)])
