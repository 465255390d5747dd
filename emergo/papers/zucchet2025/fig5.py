"""Figure 5: repetition speeds recall up on test data without repetition, and may overfit."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Plot
from scipy.stats import t

from ..._style import WIDTH, level
from ...engine import Run
from ...studies import Result, provenance_of
from ...tasks import Recall
from .._figure import Check, Figure, Outcome, Preset
from .._recall import SMALL, TINY, Training, criteria, curves_by, passed, recall_curves, step_limits
from .._work import Work

LEVEL = 0.5
"""Accuracy at which curves are compared: in the middle of the transition."""
LEARNED = 0.9
"""Accuracy past the transition."""


@dataclasses.dataclass(frozen=True)
class Settings:
    training: Training
    rate: float = 1e-4
    seeds: int = 3
    pairs: int = 32
    vocabulary: int = 256
    bursts: tuple[float, ...] = (1, 2, 4, 8)
    """A burst of 1 is no repetition: the query stands in the context once."""
    repeats: tuple[float, ...] = (0.0, 0.1, 0.2, 0.4, 0.8)

    def parts(self) -> dict[str, list[Run]]:
        once = Recall(self.pairs, self.vocabulary)
        in_context = [
            once if burst == 1 else dataclasses.replace(once, burst=float(burst), placement="chance") for burst in self.bursts
        ]
        across = [dataclasses.replace(once, repeat=repeat) for repeat in self.repeats]
        seeds = range(self.seeds)
        return {
            "in_context": self.training.runs(in_context, [self.rate], seeds),
            "across_samples": self.training.runs(across, [self.rate], seeds),
        }


BY = {"in_context": "burst", "across_samples": "repeat"}


def runs(settings: Settings) -> list[Run]:
    return list({run.identity: run for part in settings.parts().values() for run in part}.values())


def training_accuracy(result: Result) -> np.ndarray:
    """Accuracy on the training distribution: that of the test where nothing is repeated."""
    assert result.curves is not None
    return result.curves.get("accuracy_repeated", result.curves["accuracy"])


def times(parts: dict[str, list[Result]]) -> pd.DataFrame:
    """When accuracies pass a mark, a row a run. On test data: [`LEVEL`][] (`test`), the paper's 5% (`plain`) and 5% of the way
    from guessing to perfect (`corrected`); on training data: [`LEVEL`][] (`train`) and [`LEARNED`][] (`learned`)."""
    rows = []
    for part, results in parts.items():
        for result in results:
            assert result.curves is not None
            test, train = result.curves["accuracy"], training_accuracy(result)
            found = {
                "test": passed(result, test, LEVEL),
                **criteria(result),
                "train": passed(result, train, LEVEL),
                "learned": passed(result, train, LEARNED),
            }
            rows.append(
                {"part": part, "amount": getattr(result.run.config.task, BY[part]), "seed": result.run.seed}
                | {name: mark.time for name, mark in found.items()}
                | {f"{name}_censored": mark.censored for name, mark in found.items()}
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


def make(settings: Settings, work: Work) -> Outcome:
    parts = work.by_part(settings.parts(), curves=True)
    table = times(parts)
    marks = {"corrected": "5% of the way from guessing to perfect", "test": f"{LEVEL:.0%}"}
    if settings.pairs >= 20:  # with fewer, guessing passes it
        marks = {"plain": "5%"} | marks
    checks = []
    for part, published in (("in_context", 4.0), ("across_samples", 2.0)):
        for kind, mark in marks.items():
            found = speed_up(table, part, kind)
            if found is not None:
                name = f"largest gain by {BY[part]} (at {found.amount:g}) of the steps to a test accuracy of {mark}"
                near = bool(published / 1.5 < found.times < published * 1.5)
                checks.append(Check(name, found.interval, f"about {published:g}", near))
    checks += overfitting(table, max(settings.bursts))
    return Outcome(
        tables={"times": table, "curves": recall_curves(list({r.run.identity: r for p in parts.values() for r in p}.values()))},
        plot=draw(parts, "accuracy"),
        checks=checks,
        precision=settings.training.precision,
        device=provenance_of(parts),
    )


def draw(parts: dict[str, list[Result]], curve: str) -> Plot:
    plot = Plot(figsize=(WIDTH * 0.42 * len(parts), 2.5), layout="constrained")
    titles = {"in_context": ("in-context repetition", "$B$"), "across_samples": ("cross-sample repetition", "$p$")}
    limits = step_limits([result for results in parts.values() for result in results], 60 if curve == "accuracy" else 600)
    for axes, (part, results) in zip(plot.subplots(1, len(parts), sharey=True, squeeze=False)[0], parts.items(), strict=True):
        curves_by(axes, _with_training(results), BY[part], curve, titles[part][1])
        task = results[0].run.config.task
        assert isinstance(task, Recall)
        level(axes, 1 / task.pairs, "guess")
        axes.set(xlim=limits, ylim=(-0.03, 1.03))
        axes.set(ylabel="accuracy, test" if curve == "accuracy" else "accuracy, training distribution")
        axes.set_title(titles[part][0])
    return plot


def _with_training(results: Sequence[Result]) -> list[Result]:
    """Results that all have the accuracy on the training distribution; without repetition it is that of the test."""
    return [r._replace(curves={"accuracy_repeated": training_accuracy(r), **(r.curves or {})}) for r in results]


PRESETS: dict[Preset, Settings] = {
    "paper": Settings(Training(steps=300_000)),
    "laptop": Settings(
        Training(SMALL, "fp32", steps=2000, tests=256, beyond=0.1),
        rate=1e-3,
        seeds=2,
        pairs=4,
        vocabulary=16,
        bursts=(1, 2, 3),
        repeats=(0.0, 0.4, 0.8),
    ),
    "smoke": Settings(
        Training(TINY, "fp32", batch=16, steps=200, threshold=0.6, tests=64),
        rate=1e-2,
        seeds=1,
        pairs=3,
        vocabulary=6,
        bursts=(1, 2),
        repeats=(0.0, 0.5),
    ),
}
SHRUNK: dict[Preset, str] = {
    "laptop": "2 layers, 2 heads, width 64, PyTorch's start, learning rate 1e-3, 4 pairs of 16 tokens, 2 seeds",
    "smoke": "width 16, one head, 3 pairs of 6 tokens, one seed",
}
FIGURE = Figure(
    id="zucchet2025/fig5",
    shows="repetition speeds recall up on test data without repetition, and may overfit",
    presets=PRESETS,
    make=make,
    runs=runs,
    seconds={"paper": 3e6, "laptop": 91, "smoke": 20},
    shrunk=SHRUNK,
)
