"""The runs that forecasts are calibrated and judged on, and the steps at which they are asked."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ...core.json import digest
from ...measure import Direction, emergence, read_table
from ...papers import FIGURES, RunSource
from ...store import curve_frame, read_records
from ...tasks import Recall, SingleLocation
from ...training import Result
from .._drift import Curves, Look, look, probe_scale, read_curves
from .._runs import goal_of
from .._table import DROP

FOLDER = Path(__file__).parent
# Logs of PyTorch models, from `benchmarks/forecast_runs.py`.
CALIBRATION = FOLDER / "calibration.parquet"
JUDGED = FOLDER / "judged.parquet"
AGAIN = FOLDER / "again.parquet"  # more runs of parity, decided after the judged runs were read
FRESH = FOLDER / "fresh.parquet"  # runs that judge the rule that was added after these
# Figures with recorded curves of emergo's own tasks, whose data stay the same during a run.
OWN_FIGURES = ("emergo/attention", "emergo/capacity", "emergo/coupled")
LOGS = "logs"
LATER = "later"
NEW = "fresh runs"
OWN = "own"
CUTS = tuple(100 * 2 ** (k / 4) for k in range(41))


class Followed(NamedTuple):
    """A run and its outcome; `time` is the emergence step, or the last step if `censored`."""

    run: str
    family: str
    source: str
    shuffled: bool
    curves: Curves
    time: float
    censored: bool


def content(log: pd.DataFrame) -> str:
    """Hash the losses of a log, so that a run is recognised under any name."""
    return digest([float(f"{loss:.4g}") for loss in log["loss"]])


def follow_logs(path: Path, source: str = LOGS) -> list[Followed]:
    """Read a table of logs of PyTorch models; families of a later source are named so.

    Fresh runs are too few to be judged by family, and count as one.
    """
    followed = []
    for name, log in read_table(path).groupby("run", sort=False):
        job = json.loads(log["job"].iloc[0])
        threshold = float(log["threshold"].iloc[0])
        log = log.set_index("step").drop(columns=["run", "job", "threshold"])
        family = job["family"] if source == LOGS else f"{job['family']}, {source}"
        family = NEW if source == NEW else family
        about = str(name), family, source, bool(job["shuffled"])
        followed.append(_followed(about, log.pop("loss"), log, threshold, "below"))
    return followed


def own_results(judged: bool, every: int = 8) -> list[Result]:
    """Return an eighth of the recorded runs, chosen by identity: another one for judging."""
    source = RunSource("emergo/forecast", records=read_records())
    found: dict[str, Result] = {}
    for name in OWN_FIGURES:
        for runs in source.runs(FIGURES[name].studies("paper")).values():
            found |= {result.run.identity: result for result in runs}
    rest = every // 2 if judged else 0
    return [result for id, result in found.items() if int(id, 16) % every == rest]


def follow_own(results: Iterable[Result]) -> list[Followed]:
    """Prepare emergo's own runs; those without curves or a threshold are left out."""
    followed = []
    for result in results:
        task = result.run.config.task
        goal = goal_of(task, result.run.config.threshold)
        curves = result.curves
        if goal is None or curves is None or goal.metric not in curves:
            continue
        family = "regression" if isinstance(task, SingleLocation) else "chain"
        family = "recall" if isinstance(task, Recall) else family
        about = result.run.identity, family, OWN, False
        probes = curve_frame({name: curves[name] for name in curves if probe_scale(name)})
        value = pd.Series(curves[goal.metric], curves["step"])
        run = _followed(about, value, probes.set_index(value.index), goal.threshold, goal.direction)
        followed += [run] if np.isfinite(run.time) else []
    return followed


def _followed(
    about: tuple[str, str, str, bool],
    value: pd.Series,
    others: pd.DataFrame,
    threshold: float,
    direction: Direction,
) -> Followed:
    reached = emergence(value.index, value, threshold, direction)
    curves = read_curves(value, others, threshold, direction)
    return Followed(*about, curves, reached.time, reached.censored)


def moments_of(runs: Iterable[Followed]) -> pd.DataFrame:
    """Look at runs at the steps of `CUTS` before they emerge; see `fit_table` for the columns."""
    rows = []
    for run in runs:
        step = run.curves.step
        for cut in CUTS:
            if cut >= run.time or cut > step[-1]:
                break
            until = int(np.searchsorted(step, cut, side="right"))
            seen = look(run.curves, until)
            if seen is not None:
                about = {name: getattr(run, name) for name in Followed._fields if name != "curves"}
                about |= {"cut": cut, "rising": run.curves.rising}
                rows.append(about | seen._asdict() | _outcome(run, until, seen))
    return pd.DataFrame(rows)


def _outcome(run: Followed, until: int, seen: Look) -> dict[str, Any]:
    """Describe what followed after one step."""
    steps = run.curves.step[until:]
    fallen = run.curves.metric[until:] - run.curves.metric[:until][-3:].mean() >= DROP
    dropped = float(steps[fallen][0]) if fallen.any() else np.inf
    known = dropped < np.inf or (len(steps) and steps[-1] >= 2 * seen.now)
    return {
        "ratio": np.log(run.time / seen.now) / np.log1p(seen.ahead),
        "drop": float(dropped <= 2 * seen.now) if known else np.nan,
        "lead": dropped / seen.now - 1,
    }
