"""Figure 5: repetition speeds recall up on test data without repetition, and may overfit."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Plot
from scipy.stats import t

from ..._style import WIDTH, level
from ...engine import Config, Result
from ...studies import Runs, Study, provenance_of
from ...tasks import Recall
from .._figure import Check, Figure, Outcome, Preset
from .._recall import PAPER, SMALL, TINY, criteria, curves_by, passed, recall_curves, recall_task, step_limits
from .._source import RunSource, curve, distinct_results

LEVEL = 0.5
"""Accuracy at which curves are compared: in the middle of the transition."""
LEARNED = 0.9
"""Accuracy past the transition."""


@dataclasses.dataclass(frozen=True)
class Settings:
    base: Config
    seeds: int = 3
    bursts: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    """A burst of 1 is no repetition: the query stands in the context once."""
    repeats: tuple[float, ...] = (0.0, 0.1, 0.2, 0.4, 0.8)

    def studies(self) -> dict[str, Study]:
        placements = ["once" if burst == 1 else "chance" for burst in self.bursts]
        return {
            "in_context": Study.of(self.base, zip={"burst": self.bursts, "placement": placements}, seeds=self.seeds),
            "across_samples": Study.of(self.base, grid={"repeat": self.repeats}, seeds=self.seeds),
        }


BY = {"in_context": "burst", "across_samples": "repeat"}


def training_accuracy(result: Result) -> np.ndarray:
    """Accuracy on the training distribution: that of the test where nothing is repeated."""
    repeated = "accuracy_repeated" in (result.curves or ())
    return curve(result, "accuracy_repeated" if repeated else "accuracy")


def times(parts: Mapping[str, Sequence[Result]]) -> pd.DataFrame:
    """When accuracies pass a mark, one row per run.

    On test data: `LEVEL` (`test`), the paper's 5% (`plain`) and 5% of the way from guessing to perfect (`corrected`); on
    training data: `LEVEL` (`train`) and `LEARNED` (`learned`).
    """
    rows = []
    for part, results in parts.items():
        for result in results:
            test, train = curve(result, "accuracy"), training_accuracy(result)
            marks = {
                "test": passed(result, test, LEVEL),
                **criteria(result),
                "train": passed(result, train, LEVEL),
                "learned": passed(result, train, LEARNED),
            }
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

    @property
    def interval(self) -> list[list[float]]:
        return [[self.times, self.low, self.high]]


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
    gap, least = float(rows["test"].mean() / rows["train"].mean()), ", at least" if rows["test_censored"].any() else ""
    late = rows[~rows["corrected_censored"] & (rows["corrected"] > 1.1 * rows["learned"])]
    return [
        Check(f"test over training emergence at the largest burst{least}", gap, "above 1: overfitting", bool(gap > 1.1)),
        Check(
            f"of {len(rows)} runs of the largest burst, those that leave guessing in the test after {LEARNED:.0%} in training",
            len(late),
            "it rises late: grokking",
            len(late) > 0,
        ),
    ]


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies(), curves=True)
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
                near = bool(published / 1.5 < gain.times < published * 1.5)
                checks.append(Check(name, gain.interval, f"about {published:g}", near))
    checks += overfitting(table, max(settings.bursts))
    return Outcome(
        tables={"times": table, "curves": recall_curves(distinct_results(parts))},
        plot=draw(parts, "accuracy"),
        checks=checks,
        precision=settings.base.precision,
        device=provenance_of(parts),
    )


def draw(parts: Mapping[str, Runs], name: str) -> Plot:
    plot = Plot(figsize=(WIDTH * 0.42 * len(parts), 2.5), layout="constrained")
    titles = {"in_context": ("in-context repetition", "$B$"), "across_samples": ("cross-sample repetition", "$p$")}
    limits = step_limits(distinct_results(parts), 60 if name == "accuracy" else 600)
    for axes, (part, results) in zip(plot.subplots(1, len(parts), sharey=True, squeeze=False)[0], parts.items(), strict=True):
        curves_by(axes, _with_training(results), BY[part], name, titles[part][1])
        level(axes, 1 / recall_task(results[0].run).pairs, "guess")
        axes.set(xlim=limits, ylim=(-0.03, 1.03))
        axes.set(ylabel="accuracy, test" if name == "accuracy" else "accuracy, training distribution")
        axes.set_title(titles[part][0])
    return plot


def _with_training(results: Sequence[Result]) -> list[Result]:
    """Results that all have the accuracy on the training distribution; without repetition it is that of the test."""
    return [r._replace(curves={"accuracy_repeated": training_accuracy(r), **(r.curves or {})}) for r in results]


PRESETS: dict[Preset, Settings] = {
    "paper": Settings(PAPER.replace(steps=300_000)),
    "laptop": Settings(
        SMALL.replace(task=Recall(4, 16), steps=2000, overtrain=0.1), seeds=2, bursts=(1.0, 2.0, 3.0), repeats=(0.0, 0.4, 0.8)
    ),
    "smoke": Settings(TINY, seeds=1, bursts=(1.0, 2.0), repeats=(0.0, 0.5)),
}
CAVEAT: dict[Preset, str] = {
    "laptop": "2 layers, 2 heads, width 64, PyTorch's start, learning rate 1e-3, 4 pairs of 16 tokens, 2 seeds",
    "smoke": "width 16, one head, 3 pairs of 6 tokens, one seed",
}
FIGURE = Figure(
    id="zucchet2025/fig5",
    title="repetition speeds recall up on test data without repetition, and may overfit",
    presets=PRESETS,
    make=make,
    studies=Settings.studies,
    curves=True,
    seconds={"paper": 3e6, "laptop": 91, "smoke": 12},
    caveat=CAVEAT,
)
