"""Do emergence times depend on the precision of the products? The same runs, the same seeds, under
bf16, tf32 and fp32."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd

from ...core.plotting import BLUE, GREY, ORANGE, WIDTH, outside
from ...models import Transformer
from ...study import Study
from ...training import Config, Precision
from .._figure import Check, Figure, Outcome, Plot, Presets, RunSource
from .._panels import panels
from ..transformers import PAPER, SMALL, TINY

ONE_HEAD = Transformer(layers=1, heads=1)
CELL = ["layers", "heads", "length", "dim"]


@dataclasses.dataclass(frozen=True)
class Settings:
    base: Config
    models: tuple[tuple[Transformer, tuple[int, ...]], ...] = (
        (Transformer(), (16, 32, 64)),
        (ONE_HEAD, (32, 64)),
    )
    """Models, each with the dims it is trained at."""
    seeds: int = 5
    precisions: tuple[Precision, ...] = ("bf16", "tf32", "fp32")

    def studies(self) -> dict[str, Study]:
        axes = {"precision": self.precisions}
        models = [(self.base.replace(model=model), dims) for model, dims in self.models]
        return {
            str(i): Study.of(base, grid=axes | {"dim": dims}, seeds=self.seeds)
            for i, (base, dims) in enumerate(models)
        }


def against_fp32(table: pd.DataFrame) -> pd.DataFrame:
    """The mean plateau of each cell and precision beside that of fp32, over all seeds and as a
    ratio by seed (`paired`)."""
    wide = table.pivot(index=[*CELL, "seed"], columns="precision", values="plateau")
    frames = []
    for precision in wide.columns.drop("fp32"):
        cells = wide.assign(paired=wide[precision] / wide["fp32"]).groupby(level=CELL)
        means = cells[[precision, "fp32", "paired"]].mean().rename(columns={precision: "plateau"})
        frames.append(
            means.assign(precision=precision, fp32_spread=cells["fp32"].std()).reset_index()
        )
    return pd.concat(frames, ignore_index=True)[
        [*CELL, "precision", "plateau", "fp32", "fp32_spread", "paired"]
    ]


def make(settings: Settings, source: RunSource) -> Outcome:
    table = pd.concat(
        [runs.table for runs in source.runs(settings.studies()).values()], ignore_index=True
    )
    cells = against_fp32(table)
    checks = []
    words = "below 1: the precision moves emergence by less than the seed does"
    for precision, rows in cells.groupby("precision"):
        apart = ((rows["plateau"] - rows["fp32"]).abs() / rows["fp32_spread"]).max()
        name = (
            f"mean plateau in {precision} less that in fp32, in standard deviations of the "
            f"seeds, largest over cells"
        )
        checks.append(Check(name, apart, None, apart < 1, words))
    tables = {"runs": table, "cells": cells}
    return Outcome(
        tables,
        draw(table),
        (),
        checks,
        {"plateaus": summary(table)},
        precision=", ".join(settings.precisions),
    )


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Mean plateau and its standard deviation over seeds, and plateaus over those of fp32, seed by
    seed: mean, least, most."""
    rows = []
    for (layers, dim), cell in table.groupby(["layers", "dim"]):
        seeds = cell.pivot(index="seed", columns="precision", values="plateau")
        row: dict[str, Any] = {"layers": layers, "d": dim}
        row |= {
            str(name): f"{steps.mean():.0f} ± {steps.std():.0f}" for name, steps in seeds.items()
        }
        for name in seeds.columns.drop("fp32"):
            ratio = seeds[name] / seeds["fp32"]
            row[f"{name} over fp32"] = (
                f"{ratio.mean():.3f} ({ratio.min():.3f} to {ratio.max():.3f})"
            )
        rows.append(row)
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame) -> Plot:
    plot, (axes,) = panels(2.6, "", width=WIDTH * 0.6)
    colours = {
        p: c
        for p, c in {"bf16": ORANGE, "tf32": BLUE, "fp32": GREY}.items()
        if p in set(table["precision"])
    }
    cells = [rows for _, rows in table.groupby(CELL)]
    for place, rows in enumerate(cells):
        middle = rows.loc[rows["precision"] == "fp32", "plateau"].mean()
        for offset, (precision, colour) in enumerate(colours.items()):
            ratios = rows[rows["precision"] == precision].sort_values("seed")["plateau"] / middle
            at = place + 0.22 * (offset - 1)
            axes.plot(
                np.full(len(ratios), at),
                ratios,
                "o",
                color=colour,
                mec="white",
                mew=0.4,
                ms=4,
                zorder=3,
            )
            axes.plot([at - 0.08, at + 0.08], [ratios.mean()] * 2, color=colour, lw=1.6, zorder=4)
    axes.axhline(1, color=GREY, lw=0.8, ls=":")
    firsts = [rows.iloc[0] for rows in cells]
    labels = [
        f"{f['layers']} layer{'s' if f['layers'] > 1 else ''}\n$d$ = {f['dim']}" for f in firsts
    ]
    axes.set_xticks(range(len(cells)), labels)
    axes.set(ylabel="plateau over the mean\nof the same cell in fp32")
    outside(
        axes,
        "products in",
        [(name, {"color": colour, "marker": "o"}) for name, colour in colours.items()],
    )
    return plot


SMALL_MODELS = ((Transformer(width=32), (4, 8)), (ONE_HEAD.replace(width=64), (4, 8)))
ON_CPU: tuple[Precision, ...] = ("bf16", "fp32")
TITLE = "plateaus of the same runs under bf16, tf32 and fp32"
PRESETS: Presets = {
    "paper": Settings(PAPER.replace(task__length=64)),
    "laptop": Settings(
        SMALL.replace(task__length=16, optimizer__learning_rate=2e-3), SMALL_MODELS, 3, ON_CPU
    ),
    "smoke": Settings(
        TINY.replace(task__length=4), ((ONE_HEAD.replace(width=16), (4,)),), 2, ON_CPU
    ),
}
FIGURE = Figure("emergo/precision", TITLE, PRESETS, make, {"paper": 5e4, "laptop": 60, "smoke": 8})
