"""Emergence times under bf16, tf32 and fp32: the same runs with the same seeds."""

import dataclasses
from typing import Any

import pandas as pd

from ...core.plotting import BLUE, GREY, ORANGE, WIDTH, outside
from ...models import Transformer
from ...study import Study
from ...training import Config, Precision
from .._figure import Check, Figure, Outcome, Plot, RunSource
from .._panels import panels
from ..transformers import PAPER, SMALL, TINY
from ._shared import DOT, entries

ONE_HEAD = Transformer(layers=1, heads=1)
CELL = ["layers", "heads", "length", "dim"]
COLOURS = {"bf16": ORANGE, "tf32": BLUE, "fp32": GREY}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the figure; `models`: each with its dims."""

    base: Config
    models: tuple[tuple[Transformer, tuple[int, ...]], ...] = (
        (Transformer(), (16, 32, 64)),
        (ONE_HEAD, (32, 64)),
    )
    seeds: int = 5
    precisions: tuple[Precision, ...] = ("bf16", "tf32", "fp32")

    def studies(self) -> dict[str, Study]:
        parts = {}
        for i, (model, dims) in enumerate(self.models):
            grid = {"precision": self.precisions, "dim": dims}
            parts[str(i)] = Study.of(self.base.replace(model=model), grid=grid, seeds=self.seeds)
        return parts


def against_fp32(table: pd.DataFrame) -> pd.DataFrame:
    """Compare the mean plateau of each cell and precision with that in fp32.

    `paired` is the mean ratio of runs with the same seed.
    """
    wide = table.pivot(index=[*CELL, "seed"], columns="precision", values="plateau")
    frames = []
    for precision in wide.columns.drop("fp32"):
        cells = wide.assign(paired=wide[precision] / wide["fp32"]).groupby(level=CELL)
        means = cells[[precision, "fp32", "paired"]].mean().rename(columns={precision: "plateau"})
        spread = cells["fp32"].std()
        frames.append(means.assign(precision=precision, fp32_spread=spread).reset_index())
    columns = [*CELL, "precision", "plateau", "fp32", "fp32_spread", "paired"]
    return pd.concat(frames, ignore_index=True)[columns]


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies()).values()
    table = pd.concat([runs.table for runs in parts], ignore_index=True)
    cells = against_fp32(table)
    checks = []
    for precision, rows in cells.groupby("precision"):
        apart = ((rows["plateau"] - rows["fp32"]).abs() / rows["fp32_spread"]).max()
        name = (
            f"mean plateau in {precision} less that in fp32, in standard deviations of the "
            f"seeds, largest over cells"
        )
        words = "below 1: the precision moves emergence by less than the seed does"
        checks.append(Check(name, apart, None, apart < 1, words))
    return Outcome(
        {"runs": table, "cells": cells},
        draw(table),
        checks=checks,
        summary={"plateaus": summary(table)},
        precision=", ".join(settings.precisions),
    )


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Summarise the plateau by precision, and its ratio to fp32 over seeds (mean, range)."""
    rows = []
    for (layers, dim), cell in table.groupby(["layers", "dim"]):
        seeds = cell.pivot(index="seed", columns="precision", values="plateau")
        row: dict[str, Any] = {"layers": layers, "d": dim}
        for name, steps in seeds.items():
            row[str(name)] = f"{steps.mean():.0f} ± {steps.std():.0f}"
        for name in seeds.columns.drop("fp32"):
            ratio = seeds[name] / seeds["fp32"]
            words = f"{ratio.mean():.3f} ({ratio.min():.3f} to {ratio.max():.3f})"
            row[f"{name} over fp32"] = words
        rows.append(row)
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame) -> Plot:
    plot, (axes,) = panels(2.6, "", width=WIDTH * 0.6)
    names = []
    for place, (_, rows) in enumerate(table.groupby(CELL)):
        layers, dim = rows[["layers", "dim"]].iloc[0]
        middle = rows.loc[rows["precision"] == "fp32", "plateau"].mean()
        for offset, (precision, colour) in enumerate(COLOURS.items()):
            ratios = rows[rows["precision"] == precision]["plateau"] / middle
            at = place + 0.22 * (offset - 1)
            axes.plot([at] * len(ratios), ratios, color=colour, **DOT)
            axes.plot([at - 0.08, at + 0.08], [ratios.mean()] * 2, color=colour)
        names.append(f"{layers} layer{'s' if layers > 1 else ''}\n$d$ = {dim}")
    axes.axhline(1, color=GREY, lw=0.8, ls=":")
    axes.set_xticks(range(len(names)), names)
    axes.set(ylabel="plateau over the mean\nof the same cell in fp32")
    outside(axes, "products in", entries(COLOURS, marker="o"))
    return plot


SMALL_BASE = SMALL.replace(task__length=16, optimizer__learning_rate=2e-3)
SMALL_MODELS = ((Transformer(width=32), (4, 8)), (ONE_HEAD.replace(width=64), (4, 8)))
TINY_MODELS = ((ONE_HEAD.replace(width=16), (4,)),)
ON_CPU: tuple[Precision, ...] = ("bf16", "fp32")
FIGURE = Figure(
    "emergo/precision",
    "plateaus of the same runs under bf16, tf32 and fp32",
    {
        "paper": Settings(PAPER.replace(task__length=64)),
        "laptop": Settings(SMALL_BASE, SMALL_MODELS, 3, ON_CPU),
        "smoke": Settings(TINY.replace(task__length=4), TINY_MODELS, 2, ON_CPU),
    },
    make,
    {"paper": 5e4, "laptop": 60, "smoke": 8},
)
