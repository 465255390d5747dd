"""Figure 13: the plateau against the number of layers and heads."""

import dataclasses
import itertools

import pandas as pd
from matplotlib.figure import Figure as Plot

from ..._style import WIDTH
from ...engine import Optimizer, Run
from ...measure import Law, Published, fit_law
from ...models import Transformer
from ...studies import provenance_of
from .._figure import Check, Comparison, Figure, Outcome
from .._transformers import SMALL, TINY, Grid, any_censored, law_words, plateaus_by, run_table
from .._work import Work

LAW = Published("Fig. 13", 1.03, {"dim": 1.27, "length": 0.70, "layers": 0.06, "heads": 0.16}, 0.995)


@dataclasses.dataclass(frozen=True)
class Settings(Grid):
    dims: tuple[int, ...] = (16, 32, 64)
    lengths: tuple[int, ...] = (64, 128, 256)
    layers: tuple[int, ...] = (1, 2, 4)
    heads: tuple[int, ...] = (1, 4)


def runs(settings: Settings) -> list[Run]:
    kinds = itertools.product(settings.layers, settings.heads)
    models = [dataclasses.replace(settings.base.model, layers=layers, heads=heads) for layers, heads in kinds]
    return [run for model in models for run in settings.runs(model=model)]


def make(settings: Settings, work: Work) -> Outcome:
    results = work.results(runs(settings))
    table = run_table(results)
    law = fit_law(table, x=["dim", "length", "layers", "heads"])
    width, depth = law.exponents["heads"], law.exponents["layers"]
    checks = [
        Check("exponent of heads less that of layers", width - depth, "above 0: heads matter more", bool(width > depth)),
    ]
    return Outcome(
        tables={"runs": table},
        plot=draw(table, law, settings),
        laws=[Comparison.of("layers and heads", law, table, LAW)],
        checks=checks,
        precision=settings.base.precision,
        device=provenance_of({"runs": results}),
    )


def draw(table: pd.DataFrame, law: Law, settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.1 * len(settings.heads) + 0.4), layout="constrained")
    grid = plot.subplots(len(settings.heads), len(settings.layers), sharex=True, sharey=True, squeeze=False)
    for i, heads in enumerate(settings.heads):
        for j, layers in enumerate(settings.layers):
            axes = grid[i][j]
            rows = table[(table["heads"] == heads) & (table["layers"] == layers)]
            keyed = i == 0 and j == len(settings.layers) - 1
            plateaus_by(axes, rows, law, "length", "$T$", legend=keyed, censored=any_censored(table))
            axes.set_title(f"{layers} layer{'s' * (layers > 1)}, {heads} head{'s' * (heads > 1)}")
            if i < len(settings.heads) - 1:
                axes.set_xlabel("")
            if j:
                axes.set_ylabel("")
    names = {"dim": "d", "length": "T", "layers": "N_{layers}", "heads": "N_{heads}"}
    said = f"ours: {law_words(law, names)}      published: {law_words(LAW, names)}"
    plot.suptitle(said, fontsize=7.5, x=0.01, ha="left")
    return plot


FIGURE = Figure(
    id="zucchet2025/fig13",
    shows="plateau of trained Transformers for numbers of layers and heads",
    presets={
        "paper": Settings(),
        "laptop": Settings(
            dataclasses.replace(SMALL, model=Transformer(width=32), optimizer=Optimizer(learning_rate=2e-3)),
            seeds=3,
            dims=(4, 8),
            lengths=(8, 16),
            layers=(1, 2),
        ),
        "smoke": Settings(TINY, seeds=1, dims=(2, 4), lengths=(4, 8), layers=(1, 2), heads=(1, 2)),
    },
    make=make,
    runs=runs,
    seconds={"paper": 4e5, "laptop": 94, "smoke": 76},
    shrunk={
        "laptop": "width 32, batch 16, learning rate 2e-3, 1 or 2 layers, d ≤ 8, T ≤ 16, 3 seeds",
        "smoke": "width 16, 1 or 2 layers and heads, d ≤ 4, T ≤ 8, one seed",
    },
)
