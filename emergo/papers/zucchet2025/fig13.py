"""Figure 13: the plateau against the number of layers and heads."""

import dataclasses
import itertools

import pandas as pd
from matplotlib.figure import Figure as Plot

from ..._style import WIDTH
from ...engine import Optimizer, Precision, Run
from ...measure import Law, Published, fit_law
from ...models import Transformer
from ...studies import grid_runs, provenance_of
from .._figure import Check, Comparison, Figure, Outcome
from .._transformers import config, plateaus_by, run_table
from .._work import Work

LAW = Published("Fig. 13", 1.03, {"dim": 1.27, "length": 0.70, "layers": 0.06, "heads": 0.16}, 0.995)


@dataclasses.dataclass(frozen=True)
class Settings:
    model: Transformer = Transformer()
    optimizer: Optimizer = Optimizer()
    precision: Precision = "bf16"
    batch: int = 32
    steps: int = 50_000
    seeds: int = 5
    layers: tuple[int, ...] = (1, 2, 4)
    heads: tuple[int, ...] = (1, 4)
    dims: tuple[int, ...] = (16, 32, 64)
    lengths: tuple[int, ...] = (64, 128, 256)


def runs(settings: Settings) -> list[Run]:
    found = []
    for layers, heads in itertools.product(settings.layers, settings.heads):
        model = dataclasses.replace(settings.model, layers=layers, heads=heads)
        base = config(model, settings.optimizer, batch=settings.batch, precision=settings.precision, steps=settings.steps)
        found += grid_runs(base, settings.seeds, length=settings.lengths, dim=settings.dims)
    return found


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
        precision=settings.precision,
        device=provenance_of({"runs": results}),
    )


def draw(table: pd.DataFrame, law: Law, settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.1 * len(settings.heads) + 0.4), layout="constrained")
    grid = plot.subplots(len(settings.heads), len(settings.layers), sharex=True, sharey=True, squeeze=False)
    for i, heads in enumerate(settings.heads):
        for j, layers in enumerate(settings.layers):
            axes = grid[i][j]
            rows = table[(table["heads"] == heads) & (table["layers"] == layers)]
            plateaus_by(axes, rows, law, "length", "$T$", legend=i == 0 and j == len(settings.layers) - 1)
            axes.set_title(f"{layers} layer{'s' * (layers > 1)}, {heads} head{'s' * (heads > 1)}")
            if i < len(settings.heads) - 1:
                axes.set_xlabel("")
            if j:
                axes.set_ylabel("")
    e = law.exponents
    plot.suptitle(
        f"ours: {law.C:.2f} $d^{{{e['dim']:.2f}}} T^{{{e['length']:.2f}}} N_{{layers}}^{{{e['layers']:.2f}}}"
        f" N_{{heads}}^{{{e['heads']:.2f}}}$, $R^2$ = {law.r2:.3f}      published: 1.03 $d^{{1.27}} T^{{0.70}}"
        " N_{layers}^{0.06} N_{heads}^{0.16}$, $R^2$ = 0.995",
        fontsize=7.5,
        x=0.01,
        ha="left",
    )
    return plot


FIGURE = Figure(
    id="zucchet2025/fig13",
    shows="plateau of trained Transformers for numbers of layers and heads",
    presets={
        "paper": Settings(),
        "laptop": Settings(
            Transformer(width=32),
            Optimizer(learning_rate=2e-3),
            "fp32",
            batch=16,
            steps=2000,
            seeds=3,
            layers=(1, 2),
            dims=(4, 8),
            lengths=(8, 16),
        ),
        "smoke": Settings(
            Transformer(width=16),
            Optimizer(learning_rate=1e-2),
            "fp32",
            batch=16,
            steps=600,
            seeds=1,
            layers=(1, 2),
            heads=(1, 2),
            dims=(2, 4),
            lengths=(4, 8),
        ),
    },
    make=make,
    runs=runs,
    seconds={"paper": 4e5, "laptop": 110, "smoke": 76},
    shrunk={
        "laptop": "width 32, batch 16, learning rate 2e-3, 1 or 2 layers, d ≤ 8, T ≤ 16, 3 seeds",
        "smoke": "width 16, 1 or 2 layers and heads, d ≤ 4, T ≤ 8, one seed",
    },
)
