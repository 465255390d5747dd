"""Figure 14: what tells the relevant token, its indicator or its position."""

import dataclasses

import pandas as pd
from matplotlib.figure import Figure as Plot

from ..._style import WIDTH
from ...engine import Config
from ...measure import Law, Published, fit_law
from ...studies import Study, provenance_of
from ...tasks import SingleLocation
from .._figure import Check, Comparison, Figure, Outcome
from .._source import RunSource
from .._transformers import PAPER, SMALL, TASK, TINY, Grid, any_censored, plateaus_by, shallow, write_law

KINDS: dict[str, tuple[SingleLocation, Published]] = {
    "indicator, random position": (TASK, Published("Fig. 14 left", 1.43, {"dim": 1.31, "length": 0.58}, 0.998)),
    "indicator, fixed position": (
        TASK.replace(position="fixed"),
        Published("Fig. 14 middle", 4.20, {"dim": 1.22, "length": 0.29}, 0.996),
    ),
    "no indicator, fixed position": (
        TASK.replace(position="fixed", indicator=False),
        Published("Fig. 14 right", 4.61, {"dim": 1.21, "length": 0.30}, 0.999),
    ),
}

ONE = shallow(PAPER)


@dataclasses.dataclass(frozen=True)
class Settings(Grid):
    base: Config = ONE

    def studies(self) -> dict[str, Study]:
        return {kind: self.study(self.base.replace(task=task)) for kind, (task, _) in KINDS.items()}


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies())
    tables = {kind: runs.table for kind, runs in parts.items()}
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
        precision=settings.base.precision,
        device=provenance_of(parts),
    )


def draw(tables: dict[str, pd.DataFrame], laws: dict[str, Law]) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.7), layout="constrained")
    panels = plot.subplots(1, 3, sharey=True)
    for axes, (kind, (_, published)) in zip(panels, KINDS.items(), strict=True):
        explained = any_censored(*tables.values())
        plateaus_by(axes, tables[kind], laws[kind], "length", "$T$", legend=axes is panels[-1], censored=explained)
        write_law(axes, laws[kind], published, {"dim": "d", "length": "T"})
        axes.set_title(kind, y=1.13)
        if axes is not panels[0]:
            axes.set_ylabel("")
    return plot


FIGURE = Figure(
    id="zucchet2025/fig14",
    title="plateau with and without the indicator, at random and fixed positions (one layer, one head)",
    presets={
        "paper": Settings(),
        "laptop": Settings(shallow(SMALL).replace(batch=32, steps=3000), seeds=3, dims=(4, 8, 16), lengths=(16, 64)),
        "smoke": Settings(TINY, seeds=1, dims=(2, 4), lengths=(4, 8)),
    },
    make=make,
    studies=Settings.studies,
    seconds={"paper": 1.5e4, "laptop": 66, "smoke": 20},
    caveat={
        "laptop": "width 64, learning rate 1e-3, d ≤ 16, T = 16 and 64, 3 seeds",
        "smoke": "one layer and head of width 16, d ≤ 4, T ≤ 8, one seed",
    },
)
