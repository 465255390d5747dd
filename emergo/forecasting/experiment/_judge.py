"""Forecasts compared with the outcomes of the runs, and with baselines."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from ...measure import fit_censored
from .._forecast import INTERVALS, predict
from .._signals import METRIC
from .._table import KindTable, fit_table
from ._moments import CUTS, Followed, fit_moments

FOLDS = 8
# The signals that forecasts may use: the metric alone, as in `emergo forecast` without `--probes`
# (added after the other two levels had been judged); level 1, also entropies; level 2, everything,
# including attention to specific tokens.
LEVELS = {"metric": (METRIC,), "1": (METRIC, "entropy"), "2": ()}
QUANTILES = ("low95", "low80", "low50", "step", "high50", "high80", "high95")
BASELINES = {"again": "as long again", "law": "law of the config", "seeds": "median of other seeds"}
TERMS = ("dim", "length", "width", "layers", "learning_rate")

Tables = Callable[[Followed], Mapping[str, KindTable]]
Law = Callable[[Followed], tuple[float, float]]


def without_own_sizes(runs: Sequence[Followed]) -> tuple[Tables, Law]:
    """Cross-validate: return the table and the law that were fitted without the block of a run."""
    fold = {block: i % FOLDS for i, block in enumerate(sorted({run.block for run in runs}))}
    moments = fit_moments(runs)
    tables = [fit_table(moments[moments["block"].map(fold) != i]) for i in range(FOLDS)]
    laws = [config_law([run for run in runs if fold[run.block] != i]) for i in range(FOLDS)]
    return lambda run: tables[fold[run.block]], lambda run: laws[fold[run.block]](run)


def config_law(runs: Sequence[Followed]) -> Law:
    """Fit a power law of the sizes.

    Returns a function from a run to the mean and standard deviation of its log plateau; NaN for
    runs without these sizes.
    """

    def design(of: Iterable[Followed]) -> np.ndarray:
        sizes = np.array([[float(run.sizes[name] or np.nan) for name in TERMS] for run in of])
        return np.column_stack([np.ones(len(sizes)), np.log(sizes.reshape(-1, len(TERMS)))])

    plateau = np.log([run.plateau for run in runs])
    censored = np.array([run.censored for run in runs])
    coefficients, spread = fit_censored(design(runs), plateau, censored, np.ones((1, len(runs))))
    return lambda run: (float((design([run]) @ coefficients[0])[0]), float(spread[0]))


def longer_than(now: float, mean: float, spread: float) -> float:
    """Return the median of a log-normal plateau, given that it is longer than `now`."""
    passed = ndtr((np.log(now) - mean) / spread)
    return float(np.exp(mean + spread * ndtri((1 + passed) / 2)))


def judge(
    runs: Sequence[Followed], tables: Tables | None = None, law: Law | None = None
) -> pd.DataFrame:
    """Forecast runs at the steps of `CUTS` before they emerge.

    Returns one row per run, level and step: the quantiles of the forecast (NaN without one) and the
    baselines. Without `tables`, the package's table is used.
    """
    rows = []
    for run in runs:
        seeds = np.array(
            [other.plateau for other in runs if other.cell == run.cell and other is not run]
        )
        for cut in CUTS:
            until = run.evaluations(cut)
            if until is None:
                break
            now = float(run.curves.step[until - 1])
            others = seeds[seeds > now]
            mean, spread = law(run) if law is not None else (np.nan, np.nan)
            about = {name: getattr(run, name) for name in ("run", "cell", "group")}
            about |= {"cut": cut, "now": now, "plateau": run.plateau, "censored": run.censored}
            about |= {"again": 2 * now, "law": longer_than(now, mean, spread)}
            about |= {"seeds": float(np.median(others)) if len(others) else np.nan}
            table = None if tables is None else tables(run)
            for level, kinds in LEVELS.items():
                row = about | {"level": level, "kind": ""} | dict.fromkeys(QUANTILES, np.nan)
                answer = predict(run.curves, kinds, until, table)
                if not isinstance(answer, str):
                    steps, signal = answer
                    row |= {"kind": signal.kind} | dict(zip(QUANTILES, steps, strict=True))
                rows.append(row)
    return pd.DataFrame(rows)


def factor(predicted: pd.Series, truth: pd.Series) -> float:
    """Return the median factor between two columns, in either direction."""
    if not len(predicted.dropna()):
        return np.nan
    return float(np.exp(np.nanmedian(np.abs(np.log(predicted / truth)))))


def inside(moments: pd.DataFrame, percent: int) -> pd.Series:
    """Return True for the moments whose interval contains the plateau."""
    return moments["plateau"].between(moments[f"low{percent}"], moments[f"high{percent}"])


def summarise(moments: pd.DataFrame) -> pd.DataFrame:
    """Summarise the moments: one row per group and level."""
    rows = []
    for (group, level), every in moments.groupby(["group", "level"], sort=False):
        ended = every[~every["censored"]]
        negative = every[every["censored"]]
        told = ended[ended["step"].notna()]
        by_cell = inside(told, 80).groupby(told["cell"]).mean()
        row = {"group": group, "level": level, "runs": every["run"].nunique()}
        row |= {"moments": len(ended), "told": len(told), "told_runs": told["run"].nunique()}
        row |= {"error": factor(told["step"], told["plateau"])}
        row |= {f"error_{name}": factor(told[name], told["plateau"]) for name in BASELINES}
        row |= {f"held{percent}": inside(told, percent).mean() for percent in INTERVALS}
        row |= {"held80_by_cell": by_cell.mean(), "lead": lead(ended)}
        row |= {"negatives": negative["run"].nunique(), "false_alarms": false_alarms(negative)}
        rows.append(row)
    return pd.DataFrame(rows)


def lead(ended: pd.DataFrame, widest: float = np.inf) -> float:
    """Return the fraction of the plateau that remains at the first forecast.

    This is the median over the runs that emerge; a run without a forecast counts as 0. Forecasts
    are ignored if the ends of their 80% interval differ by more than the factor `widest`.
    """
    told = ended[ended["high80"] <= widest * ended["low80"]]
    first = told.groupby("run")["now"].min().reindex(ended["run"].unique())
    plateau = ended.groupby("run")["plateau"].first().reindex(first.index)
    return float((1 - first / plateau).fillna(0.0).median()) if len(first) else np.nan


def false_alarms(negative: pd.DataFrame, widest: float = np.inf) -> float:
    """Return the fraction of the runs without emergence that had a false alarm.

    A false alarm is an 80% interval, no wider than the factor `widest`, that ends before the last
    step.
    """
    early = negative["high80"] < negative["plateau"]
    wrong = early & (negative["high80"] <= widest * negative["low80"])
    return float(wrong.groupby(negative["run"]).any().mean()) if len(negative) else np.nan
