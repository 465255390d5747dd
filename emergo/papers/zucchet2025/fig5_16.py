"""Figures 5 and 16: repetition speeds recall up, on test data without repetition, where it may overfit, and in training."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t

from ..._style import WIDTH, level
from ...engine import Config, Result
from ...studies import Runs, Study
from ...tasks import Recall
from .._figure import Check, Figure, Outcome, Plot, Presets, RunSource, Studies
from .._panels import curves_by, panels
from .._recall import COLUMNS, PAPER, SMALL, TINY, criteria, passed, recall_task, step_limits
from .._source import curve, curve_table, distinct_results

LEVEL = 0.5
"""Accuracy at which curves are compared: in the middle of the transition."""
LEARNED = 0.9
"""Accuracy past the transition."""


BURSTS, REPEATS = (1.0, 2.0, 4.0, 8.0), (0.0, 0.1, 0.2, 0.4, 0.8)
"""Of the paper. A burst of 1 is no repetition: the query stands in the context once."""


def study(base: Config, seeds: int = 3, bursts: Sequence[float] = BURSTS, repeats: Sequence[float] = REPEATS) -> Studies:
    placements = ["once" if burst == 1 else "chance" for burst in bursts]
    return {
        "in_context": Study.of(base, zip={"burst": bursts, "placement": placements}, seeds=seeds),
        "across_samples": Study.of(base, grid={"repeat": repeats}, seeds=seeds),
    }


BY = {"in_context": "burst", "across_samples": "repeat"}


def with_training(results: Iterable[Result]) -> list[Result]:
    """Results that all have the accuracy on the training distribution; without repetition it is that of the test."""
    return [r._replace(curves={"accuracy_repeated": curve(r, "accuracy"), **(r.curves or {})}) for r in results]


def times(parts: Mapping[str, Sequence[Result]]) -> pd.DataFrame:
    """When accuracies pass a mark, one row per run.

    On test data: `LEVEL` (`test`), the paper's 5% (`plain`) and 5% of the way from guessing to perfect (`corrected`); on
    training data: `LEVEL` (`train`) and `LEARNED` (`learned`).
    """
    rows = []
    for part, results in parts.items():
        for result in with_training(results):
            test, train = curve(result, "accuracy"), curve(result, "accuracy_repeated")
            marks = {"test": passed(result, test, LEVEL), **criteria(result)}
            marks |= {"train": passed(result, train, LEVEL), "learned": passed(result, train, LEARNED)}
            rows.append(
                {"part": part, "amount": getattr(result.run.config.task, BY[part]), "seed": result.run.seed}
                | {name: mark.time for name, mark in marks.items()}
                | {f"{name}_censored": mark.censored for name, mark in marks.items()}
                | {"accuracy": float(test[-1])}
            )
    return pd.DataFrame(rows)


NONE = {"in_context": 1.0, "across_samples": 0.0}
"""The amount that is no repetition."""


class Gain(NamedTuple):
    """How many times sooner, its 95% interval over seeds, and the amount of repetition that gives it."""

    times: float
    low: float
    high: float
    amount: float


def speed_up(table: pd.DataFrame, part: str, kind: str) -> Gain | None:
    """The largest gain of repetition over none; a censored run counts as it stands. None where one of the two is not there.

    Seeds are taken to scatter alike in all cells that are not censored, in logarithms (Student's t). NaN where that cannot be
    told: with one seed, or where one of the two cells is censored.
    """
    rows = table[table["part"] == part]
    means = rows.groupby("amount")[kind].mean()
    if NONE[part] not in means.index or len(means) < 2:
        return None
    gains = means[NONE[part]] / means.drop(NONE[part])
    times, amount = float(gains.max()), float(gains.idxmax())
    whole = rows[~rows[f"{kind}_censored"].groupby(rows["amount"]).transform("any")]
    cells = pd.Series(np.log(whole[kind].clip(lower=1)), whole.index).groupby(whole["amount"])
    spare, counts = int((cells.count() - 1).sum()), cells.count()
    if not spare or not {NONE[part], amount} <= {*counts.index}:
        return Gain(times, math.nan, math.nan, amount)
    spread = math.sqrt(((counts - 1) * cells.var()).sum() / spare)
    half = float(t.ppf(0.975, spare)) * spread * math.sqrt(1 / counts[NONE[part]] + 1 / counts[amount])
    return Gain(times, times * math.exp(-half), times * math.exp(half), amount)


def overfitting(table: pd.DataFrame, burst: float) -> list[Check]:
    """Whether the runs of the largest burst learn the training distribution first, and begin to recall on test data later."""
    rows = table[(table["part"] == "in_context") & (table["amount"] == burst)]
    if not len(rows):
        return []
    gap, least = rows["test"].mean() / rows["train"].mean(), ", at least" if rows["test_censored"].any() else ""
    late = (~rows["corrected_censored"] & (rows["corrected"] > 1.1 * rows["learned"])).sum()
    name = f"of {len(rows)} runs of the largest burst, those that leave guessing in the test after {LEARNED:.0%} in training"
    return [
        Check(f"test over training emergence at the largest burst{least}", gap, "above 1: overfitting", gap > 1.1),
        Check(name, late, "it rises late: grokking", late > 0),
    ]


def make_5(studies: Studies, source: RunSource) -> Outcome:
    parts = source.runs(studies, curves=True)
    table = times(parts)
    marks = {"corrected": "5% of the way from guessing to perfect", "test": f"{LEVEL:.0%}"}
    if recall_task(parts[next(iter(parts))][0].run).pairs >= 20:  # with fewer, guessing passes it
        marks = {"plain": "5%"} | marks
    checks = []
    for part, published in (("in_context", 4.0), ("across_samples", 2.0)):
        for kind, mark in marks.items():
            gain = speed_up(table, part, kind)
            if gain is not None:
                name = f"largest gain by {BY[part]} (at {gain.amount:g}) of the steps to a test accuracy of {mark}"
                near = published / 1.5 < gain.times < published * 1.5
                checks.append(Check(name, [gain[:3]], f"about {published:g}", near))
    return outcome(parts, table, "accuracy", checks + overfitting(table, max(studies["in_context"].zip["burst"])))


def outcome(parts: Mapping[str, Runs], table: pd.DataFrame, name: str, checks: list[Check]) -> Outcome:
    tables = {"times": table, "curves": curve_table(distinct_results(parts), COLUMNS)}
    return Outcome(tables, draw(parts, name), checks=checks)


def draw(parts: Mapping[str, Runs], name: str) -> Plot:
    titles = {"in_context": "in-context repetition", "across_samples": "cross-sample repetition"}
    plot, row = panels(2.5, *(titles[part] for part in parts), width=WIDTH * 0.42 * len(parts), share=True)
    limits = step_limits(distinct_results(parts), 60 if name == "accuracy" else 600)
    label = "accuracy, test" if name == "accuracy" else "accuracy, training distribution"
    for axes, (part, results) in zip(row, parts.items(), strict=True):
        curves_by(axes, with_training(results), BY[part], name, "$B$" if part == "in_context" else "$p$", apart=True)
        level(axes, 1 / recall_task(results[0].run).pairs, "guess")
        axes.set(xlim=limits, ylim=(-0.03, 1.03), ylabel=label)
    return plot


MIDDLE = SMALL.replace(task=Recall(4, 16), steps=2000, overtrain=0.1)
PRESETS: Presets = {
    "paper": study(PAPER.replace(steps=300_000)),
    "laptop": study(MIDDLE, 2, (1.0, 2.0, 3.0), (0.0, 0.4, 0.8)),
    "smoke": study(TINY, 1, (1.0, 2.0), (0.0, 0.5)),
}
TITLE_5 = "repetition speeds recall up on test data without repetition, and may overfit"
FIGURE_5 = Figure("zucchet2025/fig5", TITLE_5, PRESETS, make_5, {"paper": 3e6, "laptop": 91, "smoke": 12}, curves=True)


def make_16(studies: Studies, source: RunSource) -> Outcome:
    parts = source.runs(studies, curves=True)
    table, checks = times(parts), []
    for part in parts:
        gain = speed_up(table, part, "train")
        if gain is None:
            continue
        name = f"largest gain by {BY[part]} (at {gain.amount:g}) of the steps to a training accuracy of {LEVEL:.0%}"
        checks.append(Check(name, [gain[:3]], "above 1", gain.times > 1))
        for kind, mark in (("train", LEVEL), ("learned", LEARNED)):
            means = table[table["part"] == part].groupby("amount")[kind].mean()
            slowest = (means.iloc[1:].to_numpy() / means.iloc[:-1].to_numpy()).max()
            name = f"largest ratio of the steps to {mark:.0%} at neighbouring amounts of {BY[part]}"
            checks.append(Check(name, slowest, "below 1: more is faster", slowest < 1.05))
    return outcome(parts, table, "accuracy_repeated", checks)


TITLE_16 = "repetition speeds recall up on the training distribution"
FIGURE_16 = Figure("zucchet2025/fig16", TITLE_16, PRESETS, make_16, {"paper": 3e6, "laptop": 110, "smoke": 12}, curves=True)
