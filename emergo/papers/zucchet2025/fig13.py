"""Figure 13: the plateau against the number of layers and heads."""

import dataclasses

import pandas as pd
from matplotlib.figure import Figure as Plot

from ..._style import WIDTH
from ...measure import Law, Published, fit_law
from ...studies import Study, provenance_of
from .._figure import Check, Comparison, Figure, Outcome
from .._source import RunSource
from .._transformers import SMALL, TINY, Grid, any_censored, law_words, plateaus_by

LAW = Published("Fig. 13", 1.03, {"dim": 1.27, "length": 0.70, "layers": 0.06, "heads": 0.16}, 0.995)


@dataclasses.dataclass(frozen=True)
class Settings(Grid):
    dims: tuple[int, ...] = (16, 32, 64)
    lengths: tuple[int, ...] = (64, 128, 256)
    models: tuple[tuple[int, int], ...] = ((1, 1), (2, 1), (4, 1), (1, 4), (2, 4), (4, 4))
    """Layers and heads."""

    def studies(self) -> dict[str, Study]:
        layers, heads = zip(*self.models, strict=True)
        return {"runs": self.study().replace(zip={"layers": layers, "heads": heads})}


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies())
    table = parts["runs"].table
    law = fit_law(table, x=["dim", "length", "layers", "heads"])
    width, depth = law.exponents["heads"], law.exponents["layers"]
    checks = [Check("exponent of heads less that of layers", width - depth, "above 0: heads matter more", bool(width > depth))]
    return Outcome(
        tables={"runs": table},
        plot=draw(table, law, settings),
        laws=[Comparison.of("layers and heads", law, table, LAW)],
        checks=checks,
        precision=settings.base.precision,
        device=provenance_of(parts),
    )


def draw(table: pd.DataFrame, law: Law, settings: Settings) -> Plot:
    depths, widths = (sorted(set(numbers)) for numbers in zip(*settings.models, strict=True))
    plot = Plot(figsize=(WIDTH, 2.1 * len(widths) + 0.4), layout="constrained")
    grid = plot.subplots(len(widths), len(depths), sharex=True, sharey=True, squeeze=False)
    for i, heads in enumerate(widths):
        for j, layers in enumerate(depths):
            axes = grid[i][j]
            rows = table[(table["heads"] == heads) & (table["layers"] == layers)]
            keyed = i == 0 and j == len(depths) - 1
            plateaus_by(axes, rows, law, "length", "$T$", legend=keyed, censored=any_censored(table))
            axes.set_title(f"{layers} layer{'s' * (layers > 1)}, {heads} head{'s' * (heads > 1)}")
            if i < len(widths) - 1:
                axes.set_xlabel("")
            if j:
                axes.set_ylabel("")
    names = {"dim": "d", "length": "T", "layers": "N_{layers}", "heads": "N_{heads}"}
    both = f"ours: {law_words(law, names)}      published: {law_words(LAW, names)}"
    plot.suptitle(both, fontsize=7.5, x=0.01, ha="left")
    return plot


FIGURE = Figure(
    id="zucchet2025/fig13",
    title="plateau of trained Transformers for numbers of layers and heads",
    presets={
        "paper": Settings(),
        "laptop": Settings(
            SMALL.replace(model__width=32, optimizer__learning_rate=2e-3),
            seeds=3,
            dims=(4, 8),
            lengths=(8, 16),
            models=((1, 1), (2, 1), (1, 4), (2, 4)),
        ),
        "smoke": Settings(TINY, seeds=1, dims=(2, 4), lengths=(4, 8), models=((1, 1), (2, 1), (1, 2))),
    },
    make=make,
    studies=Settings.studies,
    seconds={"paper": 4e5, "laptop": 94, "smoke": 25},
    caveat={
        "laptop": "width 32, batch 16, learning rate 2e-3, 1 or 2 layers, d ≤ 8, T ≤ 16, 3 seeds",
        "smoke": "width 16, 1 or 2 layers and heads, d ≤ 4, T ≤ 8, one seed",
    },
)
