"""Do emergence times depend on the precision of the products? The same runs, the same seeds, under bf16, tf32 and fp32."""

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Plot

from ..._style import BLUE, GREY, ORANGE, WIDTH, outside
from ...engine import Config, Precision
from ...models import Transformer
from ...studies import Study, provenance_of
from .._figure import Check, Figure, Outcome
from .._source import RunSource
from .._transformers import PAPER, SMALL, TINY

CELL = ["layers", "heads", "length", "dim"]


@dataclasses.dataclass(frozen=True)
class Settings:
    base: Config
    models: tuple[tuple[Transformer, tuple[int, ...]], ...] = (
        (Transformer(), (16, 32, 64)),
        (Transformer(layers=1, heads=1), (32, 64)),
    )
    """Models, each with the dims it is trained at."""
    seeds: int = 5
    precisions: tuple[Precision, ...] = ("bf16", "tf32", "fp32")

    def studies(self) -> dict[str, Study]:
        axes = {"precision": self.precisions}
        models = [(self.base.replace(model=model), dims) for model, dims in self.models]
        return {str(i): Study.of(base, grid=axes | {"dim": dims}, seeds=self.seeds) for i, (base, dims) in enumerate(models)}


def against_fp32(table: pd.DataFrame) -> pd.DataFrame:
    """One row per cell and precision: its mean plateau, and that of fp32 with its standard deviation over seeds.

    `paired` is the mean over seeds of the plateau over that of the same seed under fp32: same draws, same start.
    """
    wide = table.pivot(index=[*CELL, "seed"], columns="precision", values="plateau")
    fp32 = wide["fp32"].groupby(level=CELL)
    frames = []
    for precision in [p for p in wide.columns if p != "fp32"]:
        columns = {
            "precision": precision,
            "plateau": wide[precision].groupby(level=CELL).mean(),
            "fp32": fp32.mean(),
            "fp32_spread": fp32.std(),
            "paired": (wide[precision] / wide["fp32"]).groupby(level=CELL).mean(),
        }
        frames.append(pd.DataFrame(columns).reset_index())
    return pd.concat(frames, ignore_index=True)


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies())
    table = pd.concat([runs.table for runs in parts.values()], ignore_index=True)
    cells = against_fp32(table)
    checks = []
    for precision, rows in cells.groupby("precision"):
        apart = float(((rows["plateau"] - rows["fp32"]).abs() / rows["fp32_spread"]).max())
        checks.append(
            Check(
                f"mean plateau in {precision} less that in fp32, in standard deviations of the seeds, largest over cells",
                apart,
                None,
                apart < 1,
                "below 1: the precision moves emergence by less than the seed does",
            )
        )
    return Outcome(
        tables={"runs": table, "cells": cells},
        plot=draw(table),
        checks=checks,
        precision=", ".join(settings.precisions),
        device=provenance_of(parts),
    )


def draw(table: pd.DataFrame) -> Plot:
    plot = Plot(figsize=(WIDTH * 0.6, 2.6), layout="constrained")
    axes = plot.subplots()
    colours = {p: c for p, c in {"bf16": ORANGE, "tf32": BLUE, "fp32": GREY}.items() if p in set(table["precision"])}
    cells = [rows for _, rows in table.groupby(CELL)]
    for place, rows in enumerate(cells):
        middle = rows.loc[rows["precision"] == "fp32", "plateau"].mean()
        for offset, (precision, colour) in enumerate(colours.items()):
            ratios = rows[rows["precision"] == precision].sort_values("seed")["plateau"] / middle
            at = place + 0.22 * (offset - 1)
            axes.plot(np.full(len(ratios), at), ratios, "o", color=colour, mec="white", mew=0.4, ms=4, zorder=3)
            axes.plot([at - 0.08, at + 0.08], [ratios.mean()] * 2, color=colour, lw=1.6, zorder=4)
    axes.axhline(1, color=GREY, lw=0.8, ls=":")
    firsts = [rows.iloc[0] for rows in cells]
    labels = [f"{f['layers']} layer{'s' if f['layers'] > 1 else ''}\n$d$ = {f['dim']}" for f in firsts]
    axes.set_xticks(range(len(cells)), labels)
    axes.set(ylabel="plateau over the mean\nof the same cell in fp32")
    outside(axes, "products in", [(name, {"color": colour, "marker": "o"}) for name, colour in colours.items()])
    return plot


FIGURE = Figure(
    id="emergo/precision",
    title="plateaus of the same runs under bf16, tf32 and fp32",
    presets={
        "paper": Settings(PAPER.replace(task__length=64)),
        "laptop": Settings(
            SMALL.replace(task__length=16, optimizer__learning_rate=2e-3),
            ((Transformer(width=32), (4, 8)), (Transformer(layers=1, heads=1, width=64), (4, 8))),
            seeds=3,
            precisions=("bf16", "fp32"),
        ),
        "smoke": Settings(
            TINY.replace(task__length=4),
            ((Transformer(layers=1, heads=1, width=16), (4,)),),
            seeds=2,
            precisions=("bf16", "fp32"),
        ),
    },
    make=make,
    studies=Settings.studies,
    seconds={"paper": 5e4, "laptop": 60, "smoke": 8},
    caveat={
        "laptop": "width 32 and 64, batch 16, learning rate 2e-3, d ≤ 8, T = 16, 3 seeds; no tf32, which needs a GPU",
        "smoke": "one layer and head of width 16, d = T = 4, 2 seeds, no tf32",
    },
)
