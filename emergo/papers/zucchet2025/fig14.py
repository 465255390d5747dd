"""Figure 14: what tells the relevant token, its indicator or its position."""

import dataclasses

import pandas as pd
from matplotlib.figure import Figure as Plot

from ..._style import WIDTH
from ...engine import Config, Run
from ...measure import Law, Published, fit_law
from ...studies import provenance_of
from ...tasks import SingleLocation
from .._figure import Check, Comparison, Figure, Outcome
from .._transformers import PAPER, SMALL, TASK, TINY, Grid, any_censored, distinct, plateaus_by, run_table, shallow, write_law
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

ONE = shallow(PAPER)


@dataclasses.dataclass(frozen=True)
class Settings(Grid):
    base: Config = ONE

    def parts(self) -> dict[str, list[Run]]:
        return {kind: self.runs(task=task) for kind, (task, _) in KINDS.items()}


def runs(settings: Settings) -> list[Run]:
    return distinct(settings.parts())


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
        precision=settings.base.precision,
        device=provenance_of(parts),
    )


def draw(tables: dict[str, pd.DataFrame], laws: dict[str, Law]) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.7), layout="constrained")
    panels = plot.subplots(1, 3, sharey=True)
    for axes, (kind, (_, published)) in zip(panels, KINDS.items(), strict=True):
        told = any_censored(*tables.values())
        plateaus_by(axes, tables[kind], laws[kind], "length", "$T$", legend=axes is panels[-1], censored=told)
        write_law(axes, laws[kind], published, {"dim": "d", "length": "T"})
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
            dataclasses.replace(shallow(SMALL), batch=32, steps=3000),
            seeds=3,
            dims=(4, 8, 16),
            lengths=(16, 64),
        ),
        "smoke": Settings(shallow(TINY), seeds=1, dims=(2, 4), lengths=(4, 8)),
    },
    make=make,
    runs=runs,
    seconds={"paper": 1.5e4, "laptop": 66, "smoke": 36},
    shrunk={
        "laptop": "width 64, learning rate 1e-3, d ≤ 16, T = 16 and 64, 3 seeds",
        "smoke": "width 16, d ≤ 4, T ≤ 8, one seed",
    },
)
