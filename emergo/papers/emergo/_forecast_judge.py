"""Forecasts beside what became of the runs, and beside what can be said without one."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from ...measure._censored import fit_censored
from ...measure._forecast import INTERVALS, predict
from ...measure._forecast_table import KindTable, fit_table
from ...measure._signals import METRIC
from ._forecast_moments import CUTS, Followed, block_of, fit_moments

FOLDS = 8
LEVELS = {"metric": (METRIC,), "1": (METRIC, "entropy"), "2": ()}
"""What forecasts may rest on: the metric alone, as in `emergo forecast` without `--probes` (this was added when the two levels
had been judged); level 1, entropies too; level 2, all that is known, attention to named tokens too."""
QUANTILES = ("low95", "low80", "low50", "step", "high50", "high80", "high95")
BASELINES = {"again": "as long again", "law": "law of the config", "seeds": "median of other seeds"}
TERMS = ("dim", "length", "width", "layers", "learning_rate")

Tables = Callable[[Followed], Mapping[str, KindTable]]
Law = Callable[[Followed], tuple[float, float]]


def without_own_sizes(runs: Sequence[Followed]) -> tuple[Tables, Law]:
    """For each run the table and the law that are fitted to the others of these, in `FOLDS` parts by their sizes."""
    blocks = sorted({block_of(run.sizes) for run in runs})
    fold = {block: i % FOLDS for i, block in enumerate(blocks)}
    moments = fit_moments(runs)
    kept = [[run for run in runs if fold[block_of(run.sizes)] != i] for i in range(FOLDS)]
    tables = [fit_table(moments[moments["block"].map(fold) != i]) for i in range(FOLDS)]
    laws = [config_law(rest) for rest in kept]
    return lambda run: tables[fold[block_of(run.sizes)]], lambda run: laws[fold[block_of(run.sizes)]](run)


def config_law(runs: Sequence[Followed]) -> Law:
    """A power law of the sizes, as the mean and the spread of the logarithm of the plateau; NaN for runs without such sizes."""

    def design(of: Iterable[Followed]) -> np.ndarray:
        sizes = [[float(run.sizes[name] or np.nan) for name in TERMS] for run in of]
        return np.column_stack([np.ones(len(sizes)), np.log(np.array(sizes).reshape(-1, len(TERMS)))])

    x = design(runs)
    plateau, censored = np.log([run.plateau for run in runs]), np.array([run.censored for run in runs])
    coefficients, spread = (part[0] for part in fit_censored(x, plateau, censored, np.ones((1, len(runs)))))
    return lambda run: (float((design([run]) @ coefficients)[0]), float(spread))


def longer_than(now: float, mean: float, spread: float) -> float:
    """The median of a log-normal plateau that is known to be longer than `now`."""
    passed = ndtr((np.log(now) - mean) / spread)
    return float(np.exp(mean + spread * ndtri((1 + passed) / 2)))


def judge(runs: Sequence[Followed], tables: Tables | None = None, law: Law | None = None) -> pd.DataFrame:
    """One row per run, level and step of `CUTS` at which the run has not emerged: the forecast, NaN where there is none, and
    what the baselines say. Without `tables`, the package's is asked."""
    cells: dict[str, list[Followed]] = {}
    for run in runs:
        cells.setdefault(run.cell, []).append(run)
    rows = []
    for run in runs:
        seeds = np.array([other.plateau for other in cells[run.cell] if other is not run])
        for cut in CUTS:
            until = run.evaluations(cut)
            if until is None:
                break
            now = float(run.curves.step[until - 1])
            about = {"run": run.run, "cell": run.cell, "group": run.group, "cut": cut, "now": now, "plateau": run.plateau}
            others = seeds[seeds > now]
            mean, spread = law(run) if law is not None else (np.nan, np.nan)
            about |= {"censored": run.censored, "again": 2 * now, "law": longer_than(now, mean, spread)}
            about |= {"seeds": float(np.median(others)) if len(others) else np.nan}
            for level, kinds in LEVELS.items():
                answer = predict(run.curves, kinds, until, None if tables is None else tables(run))
                steps, kind = (np.full(7, np.nan), "") if isinstance(answer, str) else (answer[0], answer[1].kind)
                rows.append(about | {"level": level, "kind": kind} | dict(zip(QUANTILES, steps.tolist(), strict=True)))
    return pd.DataFrame(rows)


def factor(said: pd.Series, truth: pd.Series) -> float:
    """The median factor between two columns, either way."""
    return float(np.exp(np.nanmedian(np.abs(np.log(said / truth))))) if len(said.dropna()) else np.nan


def inside(moments: pd.DataFrame, share: int) -> pd.Series:
    """Whether the plateau lies in the interval of that many per cent."""
    return moments["plateau"].between(moments[f"low{share}"], moments[f"high{share}"])


def summarise(moments: pd.DataFrame) -> pd.DataFrame:
    """One row per group and level."""
    rows = []
    for (group, level), all_rows in moments.groupby(["group", "level"], sort=False):
        ended, open_ended = all_rows[~all_rows["censored"]], all_rows[all_rows["censored"]]
        told = ended[ended["step"].notna()]
        row = {"group": group, "level": level, "runs": all_rows["run"].nunique(), "moments": len(ended), "told": len(told)}
        row |= {"told_runs": told["run"].nunique(), "error": factor(told["step"], told["plateau"])}
        row |= {f"error_{name}": factor(told[name], told["plateau"]) for name in BASELINES}
        row |= {f"held{share}": inside(told, share).mean() for share in INTERVALS}
        row |= {"held80_by_cell": inside(told, 80).groupby(told["cell"]).mean().mean(), "lead": lead(ended)}
        row |= {"negatives": open_ended["run"].nunique(), "false_alarms": false_alarms(open_ended)}
        rows.append(row)
    return pd.DataFrame(rows)


def lead(ended: pd.DataFrame, widest: float = np.inf) -> float:
    """The share of the plateau that is left at the first forecast, median over runs that emerge; 0 for one without any.

    - `widest`: forecasts whose 80% interval spans a larger factor do not count.
    """
    told = ended[ended["high80"] <= widest * ended["low80"]]
    first = told.groupby("run")["now"].min().reindex(ended["run"].unique())
    plateau = ended.groupby("run")["plateau"].first().reindex(first.index)
    return float((1 - first / plateau).fillna(0.0).median()) if len(first) else np.nan


def false_alarms(open_ended: pd.DataFrame, widest: float = np.inf) -> float:
    """The share of the runs that do not emerge which were given an 80% interval that ends before their last step."""
    wrong = (open_ended["high80"] < open_ended["plateau"]) & (open_ended["high80"] <= widest * open_ended["low80"])
    return float(wrong.groupby(open_ended["run"]).any().mean()) if len(open_ended) else np.nan
