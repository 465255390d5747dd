"""Repetition that is used and then dropped: switched off, faded out, or applied only when stuck.

In the flow, more repetition is always faster. A Transformer has biases, which fit what is repeated
without any attention; its take-off is fastest near p = 1/2, and p = 1 teaches attention nothing
(docs/theory.md, "Repetition that changes"). A special token of random sign has the same second
moments but a mean of zero, so no bias can fit it (`signed`).
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ... import theory
from ...study import Study
from ...tasks import Recall
from ...training import Config, Ramp, Switch, WhenStuck
from .. import _recall
from .._figure import Check, Figure, Outcome, RunSource
from ..transformers import PAPER, SMALL, TINY
from ..zucchet2025 import fig5_16_17
from ._repetition import LEVELS, RANDOM_SIGN, Repetition, effect, kept_flow, row_of
from ._schedule_plot import draw

# The loss at which the plateau ends, relative to the first test loss: 0.4 of 0.5.
LEARNED = 0.8
# A burst so small that chance never places the query, which then belongs to one pair drawn
# uniformly, as in the test.
ONCE = 1e-6
# The amounts of repetition that `zucchet2025/fig3` and `fig5` keep throughout.
CONSTANTS = (0.0, 0.05, 0.1, 0.2, 0.4)
BURSTS = (1.0, 2.0, 4.0, 8.0)
# The amounts of the policy, which repeats while learning is stuck; the first was fixed before.
AMOUNTS = (0.5, 0.2, 0.8)
RECALL_AMOUNTS = (8.0, 4.0, 16.0)
# Other sizes, which test how general the findings are: length, dim, and when repetition ends. A
# switch at step 0 stands for no repetition in cells that no other figure has trained.
CELLS = (
    (256, 32, (500, 1000, 2000)),
    (256, 128, (4000, 8000)),
    (128, 64, (0, 1000, 2000)),
)
# A burst, the step at which it starts to fall, and the step at which it is gone.
Drop = tuple[float, int, int]
# Bursts of recall and thousands of steps after which they end, near the take-off of each burst: a
# screen with two seeds, and its best five cells, which new seeds confirm.
SCREENED = {
    2.0: (20, 28, 40),
    4.0: (12, 16, 20, 24, 28, 32, 40),
    8.0: (12, 16, 20, 24, 28, 32, 40),
    16.0: (12, 16, 20),
}
BEST = {4.0: (24, 28), 8.0: (20, 24, 28)}
AGAIN = {4.0: (24, 28), 8.0: (24, 28)}  # also trained with two more seeds in the screen
CONFIRMING = tuple(range(4, 12))


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the figure.

    - `repeats`, `at`: amounts p, and the steps at which they are switched off.
    - `drops`: bursts of recall.
    - `full`: also train other cells, other amounts of the policy and switches with a special token
      of random sign, and show runs of other figures.
    """

    base: Config
    recall: Config
    length: int = 256
    dim: int = 64
    seeds: int = 5
    repeats: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    at: tuple[int, ...] = (500, 1000, 2000, 3000, 4000)
    drops: tuple[Drop, ...] = (
        (8.0, 2000, 0),
        (8.0, 4000, 0),
        (8.0, 8000, 0),
        (4.0, 8000, 0),
        (4.0, 16_000, 0),
        (16.0, 1000, 0),
        (8.0, 2000, 16_000),
        (16.0, 1000, 16_000),
    )
    full: bool = True

    def studies(self) -> dict[str, Study]:
        few = min(self.seeds, 3)
        base = self.base.replace(task__length=self.length, task__dim=self.dim)
        signed = base.replace(task__special="signed")
        recall = self.recall.replace(task__placement="chance")
        end = [base.steps]
        amounts = AMOUNTS if self.full else AMOUNTS[:1]
        parts: dict[str, tuple[Config, Sequence[Any], int]] = {
            "switched": (base, switches(self.repeats, self.at), self.seeds),
            "kept": (base, switches([0.0, *self.repeats], end), self.seeds),
            "signed, kept": (signed, switches(self.repeats, end), self.seeds),
            "policy": (base, policies(amounts), self.seeds),
            "recall": (recall, [fading(*drop) for drop in self.drops], few),
        }
        if self.full:
            parts["recall, policy"] = recall, policies(RECALL_AMOUNTS, ONCE), few
            signs = switches((0.8, 1.0), (1000, 2000, 4000))
            parts["signed, switched"] = signed, signs, self.seeds
        for length, dim, at in CELLS if self.full else ():
            there = base.replace(task__length=length, task__dim=dim)
            name = f"T = {length}, d = {dim}"
            parts[name] = there, switches((0.4, 0.8), [*at, *end]), few
            parts[f"{name}, policy"] = there, policies(AMOUNTS[:1]), few
        studies = {}
        for name, (config, values, seeds) in parts.items():
            axis = "burst" if isinstance(config.task, Recall) else "repeat"
            studies[name] = Study.of(config, grid={axis: values}, seeds=seeds)
        if self.full:
            longer = recall.replace(steps=90_000)
            studies["recall, screen"] = dropped(longer, SCREENED, (0, 1))
            studies["recall, screen again"] = dropped(longer, AGAIN, (2, 3))
            studies["recall, confirmed"] = dropped(longer, BEST, CONFIRMING)
        return studies

    def references(self) -> dict[str, Study]:
        """Return runs of other figures, which keep an amount throughout."""
        if not self.full:
            return {}
        base = self.base.replace(task__length=self.length, steps=50_000)
        dims = sorted({self.dim, *(dim for length, dim, _ in CELLS if length == self.length)})
        grid = {"dim": dims, "repeat": CONSTANTS}
        bursts = fig5_16_17.study(self.recall.replace(steps=300_000), 3, BURSTS)
        return {
            "constant": Study.of(base, grid=grid, seeds=self.seeds),
            "recall, constant": bursts["in_context"],
        }


def dropped(recall: Config, ends: Mapping[float, Sequence[int]], seeds: Sequence[int]) -> Study:
    """Return recall with bursts that are switched off after these thousands of steps."""
    bursts = [fading(b, 1000 * at, 0) for b, every in ends.items() for at in every]
    return Study.of(recall, grid={"burst": bursts}, seeds=list(seeds))


def switches(repeats: Sequence[float], at: Sequence[int]) -> list[Switch]:
    """Create switches from each amount to none at each step.

    A switch at the last step keeps the amount; one at step 0 means none. Using one type of schedule
    for all runs lets them share a program.
    """
    return [Switch(p, 0.0, at=step) for p in repeats for step in at if step > 0 or p == repeats[0]]


def policies(amounts: Sequence[float], none: float = 0.0) -> list[WhenStuck]:
    return [WhenStuck("loss", stuck=amount, moving=none) for amount in amounts]


def fading(burst: float, begin: int, end: int) -> Ramp:
    """Create a burst that falls from `begin` to `end`, or is gone at once if `end` is 0."""
    return Ramp(burst, ONCE, begin=begin - 1 if end == 0 else begin, end=end or begin)


RUN = ["cell", "signed", *Repetition._fields, "seed"]
# Ways to repeat, and the kinds of runs among which the best is chosen post hoc.
METHODS = {
    "none": ("none",),
    "best constant": ("none", "kept"),
    "best switch": ("switched", "faded"),
    "policy": ("policy",),
}
# The reference of each gain.
GAINS = {"gain": "none", "over_constant": "best constant"}


def methods_table(table: pd.DataFrame) -> pd.DataFrame:
    """Tabulate the best way to repeat of each method and cell, with its gains.

    No special token is drawn without repetition, so the same runs serve both kinds of tokens.
    """
    rows = []
    for cell, runs in table.groupby("cell", sort=False):
        same = table["cell"] == str(cell).removesuffix(RANDOM_SIGN)
        plain = table[same & (table["kind"] == "none")]
        runs = pd.concat([runs[runs["kind"] != "none"], plain])
        best: dict[str, pd.DataFrame] = {}
        for method, kinds in METHODS.items():
            chosen = runs[runs["kind"].isin(kinds)]
            if method == "policy":  # its amount was fixed in advance
                amounts = RECALL_AMOUNTS if str(cell).startswith("recall") else AMOUNTS
                chosen = chosen[chosen["amount"] == amounts[0]]
            cells = [each for _, each in chosen.groupby(["kind", "amount", "at", "end"])]
            if cells:
                best[method] = min(cells, key=lambda c: (c["censored"].sum(), c["time"].mean()))
        for method, each in best.items():
            row = {"cell": cell, "method": method, **each.iloc[0][["kind", "amount", "at", "end"]]}
            row |= {"seeds": len(each), "time": each["time"].mean()}
            row |= {"censored": int(each["censored"].sum())}
            for name, reference in GAINS.items():
                slow = best.get(reference)
                gain = effect(each.iloc[:0] if slow is None else slow, each)
                row |= {name: gain.times, f"{name}_low": gain.low, f"{name}_high": gain.high}
                row[f"{name}_bound"] = bound(slow, each)
            rows.append(row)
    return pd.DataFrame(rows)


def bound(slow: pd.DataFrame | None, fast: pd.DataFrame) -> str:
    """Return whether censored runs make a gain an upper or a lower bound."""
    if fast["censored"].any():
        return "at most"
    return "at least" if slow is not None and slow["censored"].any() else ""


POINTS = 23  # of each flow


def flow_table(settings: Settings) -> pd.DataFrame:
    """Compute the take-off under repetition that ends, integrated and in closed form.

    Times are relative to the plateau without repetition. `share` is the switch relative to the
    take-off with repetition that stays, or without repetition if that is sooner.
    """
    frames = []
    T = settings.length
    d = settings.dim
    unit = float(theory.takeoff_time(theory.cells(T, d)))
    for bias in (False, True):
        for p in settings.repeats:
            kept = float(theory.takeoff_time(theory.cells(T, d, 1, p), bias))
            at = np.linspace(0, 1.1, POINTS) * min(kept, unit)
            cell = theory.cells(T, d, 1, np.full(len(at), p))
            flow = theory.switched(cell, cell._replace(repeat=0 * cell.repeat), at, bias, LEARNED)
            columns = {
                "bias": bias,
                "repeat": p,
                "share": at / min(kept, unit),
                "at": at / unit,
                "takeoff": flow.takeoff / unit,
                "plateau": flow.plateau / unit,
                "derived": theory.switched_takeoff(cell, at, bias) / unit,
            }
            frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies(), curves=True)
    results = [result for runs in parts.values() for result in runs]
    for name, study in settings.references().items():
        results += source.runs({name: study}, curves=name != "constant")[name]
    # A constant amount may be a number or a switch at the last step; rows with curves come first.
    table = pd.DataFrame([row_of(result) for result in results])
    table = table.drop_duplicates(RUN, ignore_index=True)
    source.report("flow", 0.9)
    flow = flow_table(settings)
    methods = methods_table(table)
    checks = [
        *(*flow_checks(flow), *level_checks(table)),
        *(*switch_checks(table, settings), *method_checks(methods)),
    ]
    plot = draw(table, methods, flow, settings.length, settings.dim)
    return Outcome({"runs": table, "methods": methods, "flow": flow}, plot, checks=checks)


def flow_checks(flow: pd.DataFrame) -> Iterator[Check]:
    for bias, rows in flow[flow["share"] <= 0.8].groupby("bias"):
        off = (rows["takeoff"] - rows["derived"]).abs().max()
        yield Check(
            f"flow {'with' if bias else 'without'} a bias: take-off less the closed form, in "
            f"plateaus without repetition, largest",
            off,
            None,
            off < 0.06,
            "below 0.06 for switches until 0.8 of the take-off time",
        )


def level_checks(table: pd.DataFrame) -> Iterator[Check]:
    """Compare the losses on the plateau with the losses of the best constant answer.

    Equal losses mean that a bias has learned this answer and attention has learned nothing.
    """
    constant = ~table["signed"] & table["kind"].isin(("kept", "switched"))
    rows = table[constant & table["test_level"].notna()]
    for name, sign, words in (("test", 1, "(1 + p²)/2"), ("train", -1, "(1 - p²)/2")):
        means = rows.groupby("amount")[f"{name}_level"].mean()
        means = means[means.index < 1] if sign < 0 else means  # p = 1 leaves no training loss
        if len(means):
            off = means / (0.5 * (1 + sign * means.index.to_numpy() ** 2)) - 1
            worst = off.iloc[off.abs().argmax()]
            name = f"{name} loss on the plateau over {words}, less 1, largest over p"
            yield Check(
                name,
                worst,
                None,
                abs(worst) < 0.15,
                "within 0.15: a bias answers the mean of what is repeated",
            )


def switch_checks(table: pd.DataFrame, settings: Settings) -> Iterator[Check]:
    """Compare the base cell with the theory of a bias."""
    cell = f"T = {settings.length}, d = {settings.dim}"
    drawn = table[table["cell"] == cell]
    signed = table[table["cell"] == cell + RANDOM_SIGN]
    none = drawn[drawn["kind"] == "none"]
    full = drawn[(drawn["amount"] == 1) & (drawn["kind"] == "switched")]
    if len(none) and len(full):
        lost = effect(full.assign(time=full["time"] - full["at"]), none)
        name = (
            "p = 1, then none: steps from the switch to the end of the plateau over those "
            "without any repetition"
        )
        name += ", at least" * bool(full["censored"].any())
        yield Check(
            name,
            [lost],
            None,
            lost.low < 1 < lost.high,
            "1 within the interval: p = 1 teaches attention nothing",
        )
    for name, rows in (("one special token", drawn), ("special token of random sign", signed)):
        kept = rows[rows["kind"].isin(("none", "kept"))].dropna(subset="takeoff")
        times = kept.groupby("amount")["takeoff"].median()
        if len(times) > 1:
            first = float(times.index[int(times.argmin())])
            most = float(times.index.max())
            holds = first < 1
            words = "below 1: biases answer p = 1"
            if rows is signed:
                holds = first == most
                words = f"{most:g}: no constant answers it"
            yield Check(
                f"{name}: p that takes off first if kept, by the median over seeds",
                first,
                None,
                holds,
                words,
            )
            for column in LEVELS:
                gained = kept.groupby("amount")[column].median()
                yield from gain_checks(name, gained, none[column].median(), settings, column)
    both = [rows[(rows["amount"] == 1) & (rows["kind"] == "kept")] for rows in (drawn, signed)]
    if all(map(len, both)):
        counts = [int(np.isfinite(rows["takeoff"]).sum()) for rows in both]
        yield Check(
            f"p = 1 kept, of {len(both[0])} runs each: those that take off with one special "
            f"token, and with random signs",
            counts,
            None,
            counts == [0, len(both[1])],
            "none, and all of them",
        )


def gain_checks(
    name: str, times: pd.Series, base: float, settings: Settings, column: str
) -> Iterator[Check]:
    """Compare the gain of take-off if p is kept with that of the flow, at the same attention.

    No take-off is a gain of 0, as in the flow with a bias.
    """
    bias = "random" not in name
    kept = times[(times.index > 0) & np.isfinite(times)]
    if len(kept) and math.isfinite(base):
        flow = kept_flow(settings.length, settings.dim, kept.index.to_numpy(), bias, column)
        ratios = base / kept / flow
        within = 2 if bias else 1.25
        yield Check(
            f"{name}: gain of take-off (attention {LEVELS[column]:g}) over p = 0 if p is kept, "
            f"over that of the flow with{'' if bias else 'out'} a bias, by p",
            ratios,
            None,
            ratios.between(1 / within, within).all(),
            f"1 within a factor of {within:g}",
        )


EXPECTED = {
    ("best switch", "over_constant"): ("the best constant", "above 1 with its interval"),
    ("policy", "gain"): ("no repetition", "above 1 with its interval"),
    ("policy", "over_constant"): (
        "the best constant",
        "at least 0.8: little is lost by not knowing how much to repeat",
    ),
}


def method_checks(methods: pd.DataFrame) -> Iterator[Check]:
    for cell, rows in methods.groupby("cell", sort=False):
        by = rows.set_index("method")
        for (method, column), (reference, words) in EXPECTED.items():
            if method in by.index and by[column].notna()[method]:
                gain = tuple(float(by[f"{column}{end}"][method]) for end in ("", "_low", "_high"))
                limit = str(by[f"{column}_bound"][method])
                name = f"{cell}: {method} over {reference}, times sooner"
                name += f", {limit}" if limit else ""
                holds = gain[0] >= 0.8 if "0.8" in words else gain[1] > 1
                yield Check(name, [gain], None, holds and limit != "at most", words)


BASE = PAPER.replace(optimizer__learning_rate=3e-4, steps=20_000, threshold=0.4)
LAPTOP = Settings(
    SMALL.replace(threshold=0.4, steps=1500),
    _recall.SMALL.replace(task=Recall(4, 16), steps=1500),
    length=32,
    dim=16,
    seeds=2,
    repeats=(0.5, 1.0),
    at=(100, 400),
    drops=((3.0, 200, 0),),
    full=False,
)
SMOKE = dataclasses.replace(
    LAPTOP,
    base=TINY.replace(threshold=0.4, steps=200),
    recall=_recall.TINY.replace(steps=200),
    length=8,
    dim=4,
    seeds=1,
    repeats=(0.5,),
    at=(100,),
    drops=((3.0, 100, 0),),
)
FIGURE = Figure(
    "emergo/schedule",
    "repetition used and then dropped: switched off, faded out, and given only while "
    "learning stands still",
    {
        "paper": Settings(BASE, _recall.PAPER.replace(steps=45_000)),
        "laptop": LAPTOP,
        "smoke": SMOKE,
    },
    make,
    {"paper": 5e5, "laptop": 100, "smoke": 20},
    curves=True,
)
