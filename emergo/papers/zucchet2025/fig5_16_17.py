"""Figures 5, 16 and 17: repetition speeds up recall, and recall emerges with its attention."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...core.plotting import GREY, WIDTH, level, plain_ticks
from ...measure import Ratio, judge, paired_ratio
from ...study import Runs, Study
from ...tasks import Recall
from ...training import Config, Result
from .. import _recall as recall
from .._figure import Check, Figure, Outcome, Plot, Presets, RunSource, Studies
from .._panels import colours_of, curves_by, legend, panels, strongest
from .._recall import PAPER, SMALL, TINY, passed, recall_task
from .._source import curve, curve_table, distinct_results

LEVEL = 0.5
LEARNED = 0.9
"""An accuracy in the middle of the transition, where curves are compared, and one past it."""
BURSTS = (1.0, 2.0, 4.0, 8.0)
REPEATS = (0.0, 0.1, 0.2, 0.4, 0.8)
"""The paper's values. A burst of 1 means no repetition: the query occurs in the context once."""
BY = {"in_context": "burst", "across_samples": "repeat"}
NONE = {"in_context": 1.0, "across_samples": 0.0}
"""The axis of each part, and its value without repetition."""


def study(
    base: Config,
    seeds: int = 3,
    bursts: Sequence[float] = BURSTS,
    repeats: Sequence[float] = REPEATS,
) -> Studies:
    placements = ["once" if burst == 1 else "chance" for burst in bursts]
    return {
        "in_context": Study.of(base, zip={"burst": bursts, "placement": placements}, seeds=seeds),
        "across_samples": Study.of(base, grid={"repeat": repeats}, seeds=seeds),
    }


def with_training(results: Iterable[Result]) -> list[Result]:
    """Give all results the accuracy on the training distribution.

    It equals the test accuracy if tokens are not repeated.
    """
    return [
        r._replace(curves={"accuracy_repeated": curve(r, "accuracy"), **(r.curves or {})})
        for r in results
    ]


def times(parts: Mapping[str, Sequence[Result]]) -> pd.DataFrame:
    """Return when accuracies pass a mark, one row per run.

    On test data the marks are `LEVEL` (`test`), 5% at the first evaluation, which is the paper's
    (`first`), or at three in a row (`plain`), and 5% of the way from guessing to perfect
    (`corrected`); on training data `LEVEL` (`train`) and `LEARNED` (`learned`).
    """
    rows = []
    for part, results in parts.items():
        for result in with_training(results):
            test = curve(result, "accuracy")
            train = curve(result, "accuracy_repeated")
            marks = {
                "test": passed(result, test, LEVEL),
                **recall.criteria(result),
                "train": passed(result, train, LEVEL),
                "learned": passed(result, train, LEARNED),
            }
            amount = getattr(result.run.config.task, BY[part])
            rows.append(
                {"part": part, "amount": amount, "seed": result.run.seed}
                | {name: mark.time for name, mark in marks.items()}
                | {f"{name}_censored": mark.censored for name, mark in marks.items()}
                | {"accuracy": float(test[-1])}
            )
    return pd.DataFrame(rows)


def speed_up(table: pd.DataFrame, part: str, kind: str) -> tuple[Ratio, float] | None:
    """Return the largest speed-up by repetition, paired by seed, and the amount that gives it.

    Censored runs count with the steps they were trained for; a speed-up from or to a cell with some
    has no interval. None without runs to compare.
    """
    rows = table[table["part"] == part]
    none = NONE[part]
    cells = {
        float(amount): rows[rows["amount"] == amount].set_index("seed")[kind].clip(lower=1)
        for amount in np.unique(rows["amount"])
    }
    if none not in cells or len(cells) < 2:
        return None
    slow = cells.pop(none)
    gains = {amount: paired_ratio(slow, fast) for amount, fast in cells.items()}
    amount = max(gains, key=lambda amount: gains[amount].times)
    compared = rows[rows["amount"].isin((none, amount))]
    gain = gains[amount]
    if compared[f"{kind}_censored"].any():
        gain = gain._replace(low=math.nan, high=math.nan)
    return gain, amount


def gain_check(
    table: pd.DataFrame, part: str, kind: str, mark: str, published: float | None = None
) -> list[Check]:
    """Compare the largest speed-up with the published one; by default it is above 1."""
    found = speed_up(table, part, kind)
    if found is None:
        return []
    gain, amount = found
    name = f"largest gain by {BY[part]} (at {amount:g}) of the steps to a {mark}"
    if published is None:
        return [Check(name, [gain[:3]], "above 1", gain.times > 1)]
    near = judge(gain.times, gain[1:3], published / 1.5, published * 1.5, published)
    return [Check(name, [gain[:3]], f"about {published:g}", near)]


def overfitting(table: pd.DataFrame, burst: float) -> list[Check]:
    """Check whether the runs of the largest burst learn the training distribution first."""
    rows = table[(table["part"] == "in_context") & (table["amount"] == burst)]
    if not len(rows):
        return []
    gap = rows["test"].mean() / rows["train"].mean()
    least = ", at least" if rows["test_censored"].any() else ""
    late = (~rows["corrected_censored"] & (rows["corrected"] > 1.1 * rows["learned"])).sum()
    name = (
        f"of {len(rows)} runs of the largest burst, those that leave guessing in the test "
        f"after {LEARNED:.0%} in training"
    )
    return [
        Check(
            f"test over training emergence at the largest burst{least}",
            gap,
            "above 1: overfitting",
            gap > 1.1,
        ),
        Check(name, late, "it rises late: grokking", late > 0),
    ]


def make_5(studies: Studies, source: RunSource) -> Outcome:
    parts = source.runs(studies, curves=True)
    table = times(parts)
    marks = {"corrected": "5% of the way from guessing to perfect", "test": f"{LEVEL:.0%}"}
    if recall_task(parts[next(iter(parts))][0].run).pairs >= 20:  # otherwise guessing passes 5%
        marks = {"first": "5% (first evaluation)", "plain": "5% (three in a row)"} | marks
    checks = []
    for part, published in (("in_context", 4.0), ("across_samples", 2.0)):
        for kind, mark in marks.items():
            checks += gain_check(table, part, kind, f"test accuracy of {mark}", published)
    checks += overfitting(table, max(studies["in_context"].zip["burst"]))
    return outcome(parts, table, "accuracy", checks)


def outcome(
    parts: Mapping[str, Runs], table: pd.DataFrame, name: str, checks: list[Check]
) -> Outcome:
    """Return an outcome with a plot of one accuracy, one panel per kind of repetition."""
    words = {"in_context": ("in-context", "$B$"), "across_samples": ("cross-sample", "$p$")}
    titles = [f"{words[part][0]} repetition" for part in parts]
    plot, row = panels(2.5, *titles, width=WIDTH * 0.42 * len(parts), share=True)
    every = distinct_results(parts)
    limits = recall.step_limits(every, 60 if name == "accuracy" else 600)
    label = "accuracy, test" if name == "accuracy" else "accuracy, training distribution"
    for axes, (part, results) in zip(row, parts.items(), strict=True):
        curves_by(axes, with_training(results), BY[part], name, words[part][1])
        level(axes, 1 / recall_task(results[0].run).pairs, "guess")
        axes.set(xlim=limits, ylim=(-0.03, 1.03), ylabel=label)
    tables = {"times": table, "curves": curve_table(every, recall.COLUMNS)}
    return Outcome(tables, plot, checks=checks, summary={"steps": summary(table)})


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return the steps of each seed by amount of repetition, and the speed-ups.

    A mark that a seed does not reach is None.
    """
    rows = []
    marks = {
        "first": "test 5%, first",
        "plain": "test 5%, three in a row",
        "test": "test 50%",
        "train": "training 50%",
    }
    for (part, amount), seeds in table.groupby(["part", "amount"], sort=False):
        row: dict[str, Any] = {"": f"{'B' if part == 'in_context' else 'p'} = {amount:g}"}
        none = table[(table["part"] == part) & (table["amount"] == NONE[str(part)])]
        for kind, words in marks.items():
            late = seeds[f"{kind}_censored"]
            row[words] = [
                None if censored else step for step, censored in zip(seeds[kind], late, strict=True)
            ]
            mean = float(seeds[kind].mean())
            # The mean is 0 if the mark is met from the start.
            gain = float(none[kind].mean()) / mean if mean else math.nan
            row[f"gain, {words}"] = f"below {gain:.2g}" if late.any() else gain
        rows.append(row)
    return pd.DataFrame(rows)


MIDDLE = SMALL.replace(task=Recall(4, 16), steps=2000, overtrain=0.1)
PRESETS: Presets = {
    "paper": study(PAPER.replace(steps=300_000)),
    "laptop": study(MIDDLE, 2, (1.0, 2.0, 3.0), (0.0, 0.4, 0.8)),
    "smoke": study(TINY, 1, (1.0, 2.0), (0.0, 0.5)),
}
FIGURE_5 = Figure(
    "zucchet2025/fig5",
    "repetition speeds recall up on test data without repetition, and may overfit",
    PRESETS,
    make_5,
    {"paper": 3e6, "laptop": 91, "smoke": 12},
    curves=True,
)


def make_16(studies: Studies, source: RunSource) -> Outcome:
    parts = source.runs(studies, curves=True)
    table = times(parts)
    checks = []
    for part in parts:
        gain = gain_check(table, part, "train", f"training accuracy of {LEVEL:.0%}")
        if not gain:
            continue
        checks += gain
        for kind, mark in (("train", LEVEL), ("learned", LEARNED)):
            means = table[table["part"] == part].groupby("amount")[kind].mean().to_numpy()
            slowest = (means[1:] / means[:-1]).max()
            name = f"largest ratio of the steps to {mark:.0%} at neighbouring amounts of {BY[part]}"
            checks.append(Check(name, slowest, "below 1: more is faster", slowest < 1.05))
    return outcome(parts, table, "accuracy_repeated", checks)


FIGURE_16 = Figure(
    "zucchet2025/fig16",
    "repetition speeds recall up on the training distribution",
    PRESETS,
    make_16,
    {"paper": 3e6, "laptop": 110, "smoke": 12},
    curves=True,
)


PROBES = {
    "copying": "attention of the\nrelevant value to its key",
    "selecting": "attention of the query\nto the relevant value",
    "previous": "attention to the\ntoken before",
    "induction": "attention to what\nfollowed a token before",
}


def holders(result: Result) -> dict[str, int]:
    """Return the layers (from 1) with the strongest copying and selecting head at the end."""
    return {
        name: int(np.argmax(curve(result, name)[-1].max(-1))) + 1
        for name in ("copying", "selecting")
    }


def half_times(result: Result) -> dict[str, float]:
    """Return when accuracy, copying and selecting are halfway between their start and end."""
    curves = {name: strongest(result, name) for name in ("copying", "selecting", "accuracy")}
    return {name: passed(result, c, float(c[0] + c[-1]) / 2).time for name, c in curves.items()}


def make_17(studies: Studies, source: RunSource) -> Outcome:
    results = source.runs(studies, curves=True)["runs"]
    rows = []
    for result in results:
        row = {"seed": result.run.seed, "accuracy": float(curve(result, "accuracy")[-1])}
        row |= {f"{name}_half": time for name, time in half_times(result).items()}
        for name, layer in holders(result).items():
            row |= {f"{name}_layer": layer, f"{name}_end": float(curve(result, name)[-1].max())}
        rows.append(row)
    table = pd.DataFrame(rows)
    apart = np.exp((table["copying_half"] / table["selecting_half"]).apply(np.log).abs().max())
    selects = table["selecting_layer"]
    copies = table["copying_layer"]
    end = table["selecting_end"].min()
    last = curve(results[0], "selecting").shape[1]
    before = f"{last - 1}: the one before"
    half = "copying and selecting attention half way: largest ratio of their times"
    name = "attention of the strongest selecting head at the end, smallest over runs"
    checks = [
        Check(half, apart, "1: learned at the same time", apart < 1.5),
        Check("layer that selects, by seed", selects, f"{last}: the last", (selects == last).all()),
        Check("layer that copies, by seed", copies, before, (copies == last - 1).all()),
        Check(name, end, None, end > 0.5, "above one half"),
    ]
    tables = {"runs": table, "curves": curve_table(results, recall.COLUMNS)}
    return Outcome(tables, draw_17(results), checks=checks)


def draw_17(results: Sequence[Result]) -> Plot:
    """Draw all heads of the first seed, and the strongest head of the other seeds in grey."""
    result = results[0]
    task = recall_task(result.run)
    curves = {"accuracy": f"test accuracy\n{task.pairs} pairs, {task.vocabulary} tokens"}
    curves |= PROBES | {"loss": "test loss"}
    plot, grid = panels(4.2, *(f"{'abcdef'[i]}  {name}" for i, name in enumerate(curves)), rows=2)
    step = curve(result, "step")[1:]
    colours = colours_of(range(1, curve(result, "copying").shape[1] + 1))
    for axes, (name, label) in zip(grid, curves.items(), strict=True):
        values = curve(result, name)[1:]
        layers = values.swapaxes(0, 1) if name in PROBES else [values]
        for heads, colour in zip(layers, colours.values(), strict=False):
            axes.plot(step, heads, color=colour, lw=1)
        for other in results[1:]:
            strong = strongest(other, name)[1:]
            axes.plot(curve(other, "step")[1:], strong, color=GREY, lw=0.8, ls="--", zorder=1)
        axes.set(ylabel=label, xlabel="step", ylim=(0, None if name == "loss" else 1.03))
        # A short part of the plateau, so that curves can be told apart where they rise.
        axes.set(xscale="log", xlim=recall.step_limits(results, 12))
        plain_ticks(axes.xaxis)
    level(grid[0], 1 / task.pairs, "guess")
    legend(grid[2], "layer", colours, ("other\nseeds", {"ls": "--"}))
    return plot


FIGURE_17 = Figure(
    "zucchet2025/fig17",
    "recall emerges together with copying and selecting attention",
    {
        "paper": {"runs": Study.of(PAPER.replace(steps=300_000), seeds=3)},
        "laptop": {"runs": Study.of(SMALL.replace(task=Recall(4, 16), overtrain=0.5), seeds=2)},
        "smoke": {"runs": Study.of(TINY, seeds=2)},
    },
    make_17,
    {"paper": 4e5, "laptop": 31, "smoke": 8},
    curves=True,
)
