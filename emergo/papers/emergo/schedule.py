"""Can repetition be used and then dropped? Repetition switched off, faded out, and given only while learning stands still.

In the flow more repetition is always faster. A Transformer has biases, which answer what is repeated without any attention; its
take-off is then fastest near p = 1/2, and p = 1 teaches attention nothing (`docs/theory.md`, "Repetition that changes"). A
special token of random sign has the same second moments but a mean of zero, so that no bias answers it (`signed`).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ... import theory
from ...engine import Config, Ramp, Switch, WhenStuck
from ...studies import Study
from ...tasks import Recall
from .. import _recall
from .._figure import Check, Figure, Outcome, Presets, RunSource
from .._transformers import PAPER, SMALL, TINY
from ..zucchet2025 import fig5_16_17
from ._repetition import RANDOM_SIGN, Effect, Repetition, effect, row_of
from ._schedule_plot import draw

LEARNED = 0.8
"""The share of the first test loss at which the plateau ends: 0.4 of 0.5."""
ONCE = 1e-6
"""A burst so small that chance places the query nowhere, and so at one pair drawn uniformly: as in the test."""
Drop = tuple[float, int, int]
"""A burst, when it begins to fall, and when it is gone."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """Other sizes, to see how far what was found carries: a length, a dim, and when repetition is switched off."""

    length: int
    dim: int
    at: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Settings:
    base: Config
    recall: Config
    length: int = 256
    dim: int = 64
    seeds: int = 5
    repeats: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    at: tuple[int, ...] = (500, 1000, 2000, 3000, 4000)
    constants: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.4)
    """Amounts that `zucchet2025/fig3` keeps all along."""
    signed: tuple[tuple[float, ...], tuple[int, ...]] | None = ((0.8, 1.0), (1000, 2000, 4000))
    """Amounts and switches of a special token of random sign, besides keeping it; None: no such runs."""
    amounts: tuple[float, ...] = (0.5, 0.2, 0.8)
    """That the policy repeats with while learning stands still, the one that it was made with first."""
    cells: tuple[Cell, ...] = (Cell(256, 32, (500, 1000, 2000)), Cell(256, 128, (4000, 8000)), Cell(128, 64, (0, 1000, 2000)))
    """Where the policy is judged. Switched off at 0 is no repetition, where no other figure has it."""
    cell_repeats: tuple[float, ...] = (0.4, 0.8)
    few_seeds: int = 3
    bursts: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    """That `zucchet2025/fig5` keeps all along."""
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
    recall_amounts: tuple[float, ...] = (8.0, 4.0, 16.0)
    points: int = 23
    """Of the flows."""

    def studies(self) -> dict[str, Study]:
        few, base = self.few_seeds, self.base.replace(task__length=self.length, task__dim=self.dim)
        signed = base.replace(task__special="signed")
        parts = {
            "switched": self.study(base, self.repeats, self.at),
            "kept": self.study(base, [0.0, *self.repeats], [base.steps]),
            "signed, kept": self.study(signed, self.repeats if self.signed else (), [base.steps]),
            "policy": self.part(base, "repeat", policies(self.amounts), self.seeds),
            "recall": self.recall_study([fading(*drop) for drop in self.drops]),
            "recall, policy": self.recall_study(policies(self.recall_amounts, ONCE)),
            "signed, switched": self.study(signed, *(self.signed or ((), ()))),
        }
        for cell in self.cells:
            there = base.replace(task__length=cell.length, task__dim=cell.dim)
            name = f"T = {cell.length}, d = {cell.dim}"
            parts[name] = self.study(there, self.cell_repeats, [*cell.at, base.steps], few)
            parts[f"{name}, policy"] = self.part(there, "repeat", policies(self.amounts[:1]), few)
        return {name: study for name, study in parts.items() if study is not None}

    def study(self, base: Config, repeats: Sequence[float], at: Sequence[int], seeds: int | None = None) -> Study | None:
        """Each amount until each step; `at` the last step is to keep it, at 0 to have none. One kind of schedule for all, so
        that they share a program."""
        switches = [Switch(p, 0.0, at=step) for p in repeats for step in at if step > 0 or p == repeats[0]]
        return self.part(base, "repeat", switches, seeds or self.seeds)

    def recall_study(self, bursts: Sequence[Any]) -> Study | None:
        return self.part(self.recall.replace(task__placement="chance"), "burst", bursts, self.few_seeds)

    def part(self, base: Config, axis: str, values: Sequence[Any], seeds: int) -> Study | None:
        """None where a preset leaves it out."""
        return Study.of(base, grid={axis: values}, seeds=seeds) if values else None

    def references(self) -> dict[str, Study]:
        """What other figures train: amounts kept all along."""
        if not self.constants or not self.bursts:
            return {}
        base = self.base.replace(task__length=self.length, steps=50_000)
        dims = sorted({self.dim, *(cell.dim for cell in self.cells if cell.length == self.length)})
        grid = {"dim": dims, "repeat": self.constants}
        bursts = fig5_16_17.study(self.recall.replace(steps=300_000), self.few_seeds, self.bursts)
        return {"constant": Study.of(base, grid=grid, seeds=self.seeds), "recall, constant": bursts["in_context"]}


def policies(amounts: Sequence[float], none: float = 0.0) -> list[WhenStuck]:
    return [WhenStuck("loss", stuck=amount, moving=none) for amount in amounts]


def fading(burst: float, begin: int, end: int) -> Ramp:
    """Gone at `end`, or at once if that is 0."""
    return Ramp(burst, ONCE, begin=begin - 1 if end == 0 else begin, end=end or begin)


RUN = ["cell", "signed", *Repetition._fields, "seed"]
METHODS = {"none": ("none",), "best constant": ("none", "kept"), "best switch": ("switched", "faded"), "policy": ("policy",)}
"""Ways to repeat, and the kinds of runs that the best is chosen from, after they were seen."""


def methods_table(table: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """One row per cell and way to repeat, with its gains over no repetition and over the best constant. Without repetition
    there is no special token, so that one cell without it serves both kinds."""
    rows = []
    for cell, runs in table.groupby("cell", sort=False):
        plain = table[(table["cell"] == str(cell).removesuffix(RANDOM_SIGN)) & (table["kind"] == "none")]
        runs, best = pd.concat([runs[runs["kind"] != "none"], plain]), {}
        for method, kinds in METHODS.items():
            chosen = runs[runs["kind"].isin(kinds)]
            if method == "policy":  # its amount was fixed before
                amounts = settings.recall_amounts if str(cell).startswith("recall") else settings.amounts
                chosen = chosen[chosen["amount"].isin(amounts[:1])]
            cells = [each for _, each in chosen.groupby(["kind", "amount", "at", "end"])]
            if cells:
                best[method] = min(cells, key=lambda each: (each["censored"].sum(), each["time"].mean()))
        for method, each in best.items():
            row = {"cell": cell, "method": method, **each.iloc[0][["kind", "amount", "at", "end"]], "seeds": len(each)}
            row |= {"time": each["time"].mean(), "censored": int(each["censored"].sum())}
            for name, against in (("gain", "none"), ("over_constant", "best constant")):
                gain = effect(best[against], each) if against in best else Effect(*3 * (math.nan,))
                row |= {name: gain.times, f"{name}_low": gain.low, f"{name}_high": gain.high}
                row[f"{name}_bound"] = bound(best.get(against), each)
            rows.append(row)
    return pd.DataFrame(rows)


def bound(slow: pd.DataFrame | None, fast: pd.DataFrame) -> str:
    """What censored runs make of a gain."""
    if fast["censored"].any():
        return "at most"
    return "at least" if slow is not None and slow["censored"].any() else ""


def flow_table(settings: Settings) -> pd.DataFrame:
    """Take-off under repetition that ends, integrated and in closed form, in units of the plateau without repetition."""
    frames, T, d = [], settings.length, settings.dim
    unit = float(theory.takeoff_time(theory.cells(T, d)))
    for bias in (False, True):
        for p in settings.repeats:
            kept = float(theory.takeoff_time(theory.cells(T, d, 1, p), bias))
            at = np.linspace(0, 1.1, settings.points) * min(kept, unit)
            cell = theory.cells(T, d, 1, np.full(len(at), p))
            flow = theory.switched(cell, cell._replace(repeat=0 * cell.repeat), at, bias, LEARNED)
            times = {
                "at": at,
                "takeoff": flow.takeoff,
                "plateau": flow.plateau,
                "derived": theory.switched_takeoff(cell, at, bias),
            }
            columns = {"bias": bias, "repeat": p, "share": at / min(kept, unit)}
            frames.append(pd.DataFrame(columns | {name: time / unit for name, time in times.items()}))
    return pd.concat(frames, ignore_index=True)


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies(), curves=True)
    results = [result for runs in parts.values() for result in runs]
    references = settings.references()
    for name, curves in (("constant", False), ("recall, constant", True)):
        if name in references:
            results += list(source.runs({name: references[name]}, curves)[name])
    # An amount that is kept is the same run as a number and as a switch at the last step; those with curves come first.
    table = pd.DataFrame([row_of(result) for result in results]).drop_duplicates(RUN, ignore_index=True)
    source.report("flow", 0.9)
    flow, methods = flow_table(settings), methods_table(table, settings)
    checks = flow_checks(flow) + level_checks(table) + switch_checks(table, settings) + method_checks(methods)
    tables = {"runs": table, "methods": methods, "flow": flow}
    return Outcome(tables, draw(table, methods, flow, settings.length, settings.dim), checks=checks)


def flow_checks(flow: pd.DataFrame) -> list[Check]:
    """`share` is that of the take-off time of repetition that stays, or without repetition where that is sooner."""
    checks = []
    for bias, rows in flow[flow["share"] <= 0.8].groupby("bias"):
        off, kind = (rows["takeoff"] - rows["derived"]).abs().max(), "with" if bias else "without"
        name = f"flow {kind} a bias: take-off less the closed form, in plateaus without repetition, largest"
        checks.append(Check(name, off, None, off < 0.06, "below 0.06 for switches until 0.8 of the take-off time"))
    return checks


def level_checks(table: pd.DataFrame) -> list[Check]:
    """Losses on the plateau against those of the best constant answer: a bias has learned it, attention has learned nothing."""
    constant = ~table["signed"] & table["kind"].isin(("kept", "switched"))
    rows, checks = table[constant & table["test_level"].notna()], []
    for name, sign, words in (("test", 1, "(1 + p²)/2"), ("train", -1, "(1 - p²)/2")):
        means = rows.groupby("amount")[f"{name}_level"].mean()
        means = means[means.index < 1] if sign < 0 else means  # at p = 1 nothing is left
        if len(means):
            off = means / (0.5 * (1 + sign * means.index.to_numpy() ** 2)) - 1
            worst, expected = float(off.iloc[off.abs().argmax()]), "within 0.15: a bias answers the mean of what is repeated"
            name = f"{name} loss on the plateau over {words}, less 1, largest over p"
            checks.append(Check(name, worst, None, abs(worst) < 0.15, expected))
    return checks


def switch_checks(table: pd.DataFrame, settings: Settings) -> list[Check]:
    """What the theory with a bias says of the base cell."""
    cell = f"T = {settings.length}, d = {settings.dim}"
    drawn, signed, checks = table[table["cell"] == cell], table[table["cell"] == cell + RANDOM_SIGN], []
    none, full = drawn[drawn["kind"] == "none"], drawn[(drawn["amount"] == 1) & (drawn["kind"] == "switched")]
    if len(none) and len(full):
        lost = effect(full.assign(time=full["time"] - full["at"]), none)
        name = "p = 1, then none: steps from the switch to the end of the plateau over those without any repetition"
        name += ", at least" * bool(full["censored"].any())
        words = "1 within the interval: p = 1 teaches attention nothing"
        checks.append(Check(name, [lost], None, lost.low < 1 < lost.high, words))
    for name, rows in (("one special token", drawn), ("special token of random sign", signed)):
        kept = rows[rows["kind"].isin(("none", "kept"))].dropna(subset="takeoff")
        times = kept.groupby("amount")["takeoff"].median()
        if len(times) > 1:
            first, most = float(times.index[int(times.argmin())]), float(times.index.max())
            words = "below 1: biases answer p = 1" if rows is drawn else f"{most:g}: no constant answers it"
            holds = first < 1 if rows is drawn else first == most
            checks.append(Check(f"{name}: p that takes off first if kept, by the median over seeds", first, None, holds, words))
            checks += gain_checks(name, times, drawn, settings, rows is drawn)
    both = [rows[(rows["amount"] == 1) & (rows["kind"] == "kept")]["takeoff"] for rows in (drawn, signed)]
    if all(map(len, both)):
        counts = [int(np.isfinite(one).sum()) for one in both]
        words = "none, and all of them"
        name = f"p = 1 kept, of {len(both[0])} runs each: those that take off with one special token, and with random signs"
        checks.append(Check(name, counts, None, counts == [0, len(both[1])], words))
    return checks


EXPECTED = {
    ("best switch", "over_constant"): ("the best constant", "above 1 with its interval"),
    ("policy", "gain"): ("no repetition", "above 1 with its interval"),
    ("policy", "over_constant"): ("the best constant", "at least 0.8: little is lost by not knowing how much to repeat"),
}


def gain_checks(name: str, times: pd.Series, none: pd.DataFrame, settings: Settings, bias: bool) -> list[Check]:
    """How many times sooner attention takes off if p is kept, over what is derived; no take-off is a gain of 0, as derived."""
    base, kept = none[none["kind"] == "none"]["takeoff"].median(), times[(times.index > 0) & np.isfinite(times)]
    if not len(kept) or not math.isfinite(base):
        return []
    cell = theory.cells(settings.length, settings.dim, 1, kept.index.to_numpy())
    ratios = base / kept * theory.takeoff_time(cell, bias) / theory.takeoff_time(theory.cells(settings.length, settings.dim))
    words = f"{name}: gain of take-off over p = 0 if p is kept, over that of the flow with{'' if bias else 'out'} a bias, by p"
    within = 2 if bias else 1.25
    return [Check(words, ratios, None, ratios.between(1 / within, within).all(), f"1 within a factor of {within:g}")]


def method_checks(methods: pd.DataFrame) -> list[Check]:
    checks = []
    for cell, rows in methods.groupby("cell", sort=False):
        by = rows.set_index("method")
        for (method, column), (against, words) in EXPECTED.items():
            if method in by.index and by[column].notna()[method]:
                gain = tuple(float(by[f"{column}{end}"][method]) for end in ("", "_low", "_high"))
                bounded = str(by[f"{column}_bound"][method])
                name = f"{cell}: {method} over {against}, times sooner{', ' * bool(bounded)}{bounded}"
                holds = gain[0] >= 0.8 if "0.8" in words else gain[1] > 1
                checks.append(Check(name, [gain], None, holds and bounded != "at most", words))
    return checks


TITLE = "repetition used and then dropped: switched off, faded out, and given only while learning stands still"
PRESETS: Presets = {
    "paper": Settings(
        PAPER.replace(optimizer__learning_rate=3e-4, steps=20_000, threshold=0.4), _recall.PAPER.replace(steps=45_000)
    ),
    "laptop": Settings(
        SMALL.replace(threshold=0.4, steps=1500),
        _recall.SMALL.replace(task=Recall(4, 16), steps=1500),
        length=32,
        dim=16,
        seeds=2,
        repeats=(0.5, 1.0),
        at=(100, 400),
        constants=(),
        signed=((), ()),
        amounts=(0.5,),
        cells=(),
        few_seeds=2,
        bursts=(),
        drops=((3.0, 200, 0),),
        recall_amounts=(),
        points=12,
    ),
    "smoke": Settings(
        TINY.replace(threshold=0.4, steps=200),
        _recall.TINY.replace(steps=200),
        length=8,
        dim=4,
        seeds=1,
        repeats=(0.5,),
        at=(100,),
        constants=(),
        signed=None,
        amounts=(0.5,),
        cells=(),
        few_seeds=1,
        bursts=(),
        drops=(),
        recall_amounts=(),
        points=8,
    ),
}
FIGURE = Figure("emergo/schedule", TITLE, PRESETS, make, {"paper": 5e5, "laptop": 100, "smoke": 20}, curves=True)
