"""Figure 14: what tells the relevant token, its indicator or its position."""

import dataclasses

import pandas as pd
from matplotlib.figure import Figure as Plot

from ..._style import WIDTH
from ...engine import Optimizer, Precision, Run
from ...measure import Law, Published, fit_law
from ...models import Transformer
from ...studies import grid_runs, provenance_of
from ...tasks import SingleLocation
from .._figure import Check, Comparison, Figure, Outcome
from .._transformers import TASK, config, plateaus_by, run_table, write_law
from .._work import Work

KINDS: dict[str, tuple[SingleLocation, Published]] = {
    "indicator, random position": (TASK, Published("Fig. 14 left", 1.43, {"dim": 1.31, "length": 0.58}, 0.998)),
    "indicator, fixed position": (
        dataclasses.replace(TASK, position="fixed"),
        Published("Fig. 14 middle", 4.20, {"dim": 1.22, "length": 0.29}, 0.996),
    ),
    "no indicator, fixed position": (
        dataclasses.replace(TASK, position="fixed", indicator=False),
        Published("Fig. 14 right", 4.61, {"dim": 1.21, "length": 0.30}, 0.999),
    ),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    model: Transformer = Transformer(layers=1, heads=1)
    optimizer: Optimizer = Optimizer()
    precision: Precision = "bf16"
    batch: int = 32
    steps: int = 50_000
    seeds: int = 5
    dims: tuple[int, ...] = (16, 32, 64, 128)
    lengths: tuple[int, ...] = (32, 64, 128, 256, 512)

    def parts(self) -> dict[str, list[Run]]:
        made = {}
        for kind, (task, _) in KINDS.items():
            base = config(self.model, self.optimizer, batch=self.batch, precision=self.precision, steps=self.steps, task=task)
            made[kind] = grid_runs(base, self.seeds, length=self.lengths, dim=self.dims)
        return made


def runs(settings: Settings) -> list[Run]:
    return [run for part in settings.parts().values() for run in part]


def make(settings: Settings, work: Work) -> Outcome:
    parts = work.by_part(settings.parts())
    tables = {kind: run_table(results) for kind, results in parts.items()}
    laws = {kind: fit_law(table, x=["dim", "length"]) for kind, table in tables.items()}
    random, fixed, blind = (laws[kind].exponents["length"] for kind in KINDS)
    checks = [
        Check("exponent of length, random over fixed position", random / fixed, 0.58 / 0.29, bool(random > 1.5 * fixed)),
        Check(
            "exponent of length at a fixed position, without over with the indicator",
            blind / fixed,
            0.30 / 0.29,
            bool(abs(blind - fixed) < 0.1),
        ),
    ]
    return Outcome(
        tables={kind.replace(", ", "_").replace(" ", "_"): table for kind, table in tables.items()},
        plot=draw(tables, laws),
        laws=[Comparison.of(kind, laws[kind], tables[kind], published) for kind, (_, published) in KINDS.items()],
        checks=checks,
        precision=settings.precision,
        device=provenance_of(parts),
    )


def draw(tables: dict[str, pd.DataFrame], laws: dict[str, Law]) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.7), layout="constrained")
    panels = plot.subplots(1, 3, sharey=True)
    for axes, (kind, (_, published)) in zip(panels, KINDS.items(), strict=True):
        plateaus_by(axes, tables[kind], laws[kind], "length", "$T$", legend=axes is panels[-1])
        printed = f"{published.C:.2f} $d^{{{published.exponents['dim']:.2f}}} T^{{{published.exponents['length']:.2f}}}$"
        write_law(axes, laws[kind], f"{printed}, $R^2$ = {published.r2:.3f}", {"dim": "d", "length": "T"})
        axes.set_title(kind, y=1.13)
        if axes is not panels[0]:
            axes.set_ylabel("")
    return plot


FIGURE = Figure(
    id="zucchet2025/fig14",
    shows="plateau with and without the indicator, at random and fixed positions (one layer, one head)",
    presets={
        "paper": Settings(),
        "laptop": Settings(
            Transformer(layers=1, heads=1, width=64),
            Optimizer(learning_rate=1e-3),
            "fp32",
            steps=3000,
            seeds=3,
            dims=(4, 8, 16),
            lengths=(16, 64),
        ),
        "smoke": Settings(
            Transformer(layers=1, heads=1, width=16),
            Optimizer(learning_rate=1e-2),
            "fp32",
            batch=16,
            steps=600,
            seeds=1,
            dims=(2, 4),
            lengths=(4, 8),
        ),
    },
    make=make,
    runs=runs,
    seconds={"paper": 1.5e4, "laptop": 92, "smoke": 36},
    shrunk={
        "laptop": "width 64, learning rate 1e-3, d ≤ 16, T = 16 and 64, 3 seeds",
        "smoke": "width 16, d ≤ 4, T ≤ 8, one seed",
    },
)
