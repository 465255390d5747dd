"""Can repetition be used and then dropped? Repetition switched off, faded out, and given only while learning stands still.

In the flow more repetition is always faster. A Transformer has biases, which answer what is repeated without any attention; its
take-off is then fastest near p = 1/2, and p = 1 teaches attention nothing (`docs/theory.md`, "Repetition that changes"). A
special token of random sign has the same second moments but a mean of zero, so that no bias answers it (`signed`).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ...engine import Config, Ramp, Switch, WhenStuck
from ...measure import storable
from ...studies import Study
from ...tasks import Recall
from .. import _recall
from .._figure import Figure, Outcome, Presets, RunSource
from .._panels import panels
from .._transformers import PAPER, SMALL, TINY
from ..zucchet2025 import fig5_16_17

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
    signed: tuple[tuple[float, ...], tuple[int, ...]] = ((0.8, 1.0), (1000, 2000, 4000))
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

    def studies(self) -> dict[str, Study]:
        few, base = self.few_seeds, self.base.replace(task__length=self.length, task__dim=self.dim)
        parts = {
            "switched": self.study(base, self.repeats, self.at),
            "kept": self.study(base, [0.0, *self.repeats], [base.steps]),
            "signed, kept": self.study(base.replace(task__special="signed"), self.repeats, [base.steps]),
            "policy": Study.of(base, grid={"repeat": policies(self.amounts)}, seeds=self.seeds),
            "recall": self.recall_study([fading(*drop) for drop in self.drops]),
            "recall, policy": self.recall_study(policies(self.recall_amounts, ONCE)),
            "signed, switched": self.study(base.replace(task__special="signed"), *self.signed),
        }
        for cell in self.cells:
            there = base.replace(task__length=cell.length, task__dim=cell.dim)
            name = f"T = {cell.length}, d = {cell.dim}"
            parts[name] = self.study(there, self.cell_repeats, [*cell.at, base.steps], few)
            parts[f"{name}, policy"] = Study.of(there, grid={"repeat": policies(self.amounts[:1])}, seeds=few)
        return parts

    def study(self, base: Config, repeats: Sequence[float], at: Sequence[int], seeds: int | None = None) -> Study:
        """Each amount until each step; `at` the last step is to keep it, at 0 to have none. One kind of schedule for all, so
        that they share a program."""
        switches = [Switch(p, 0.0, at=step) for p in repeats for step in at if step > 0 or p == repeats[0]]
        return Study.of(base, grid={"repeat": switches}, seeds=seeds or self.seeds)

    def recall_study(self, bursts: Sequence[Any]) -> Study:
        return Study.of(self.recall.replace(task__placement="chance"), grid={"burst": bursts}, seeds=self.few_seeds)

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


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies(), curves=True)
    table = pd.concat([runs.table.assign(part=name) for name, runs in parts.items()], ignore_index=True)
    plot, _ = panels(2.6, "")
    return Outcome({"runs": storable(table)}, plot)


TITLE = "repetition used and then dropped: switched off, faded out, and given only while learning stands still"
PRESETS: Presets = {
    "paper": Settings(
        PAPER.replace(optimizer__learning_rate=3e-4, steps=20_000, threshold=0.4), _recall.PAPER.replace(steps=45_000)
    ),
    "laptop": Settings(
        SMALL.replace(threshold=0.4, steps=3000),
        _recall.SMALL.replace(task=Recall(4, 16), steps=1500),
        length=16,
        dim=16,
        seeds=2,
        repeats=(0.4, 1.0),
        at=(100, 400),
        constants=(),
        signed=((1.0,), (400,)),
        amounts=(0.5,),
        cells=(),
        few_seeds=2,
        bursts=(),
        drops=((3.0, 200, 0),),
        recall_amounts=(3.0,),
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
        signed=((1.0,), (100,)),
        amounts=(0.5,),
        cells=(),
        few_seeds=1,
        bursts=(),
        drops=((2.0, 100, 0),),
        recall_amounts=(2.0,),
    ),
}
FIGURE = Figure("emergo/schedule", TITLE, PRESETS, make, {"paper": 5e5, "laptop": 110, "smoke": 28}, curves=True)
