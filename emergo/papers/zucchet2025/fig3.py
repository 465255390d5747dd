"""Figure 3: the plateau of trained Transformers against dim, length, burst and repeat."""

import dataclasses

import pandas as pd
from matplotlib.figure import Figure as Plot

from ..._style import WIDTH, subtitle
from ...measure import Law, Published, fit_law
from ...studies import Study, cell_means, provenance_of
from .._figure import Check, Comparison, Figure, Outcome
from .._source import RunSource
from .._transformers import SMALL, TINY, Grid, any_censored, plateaus_by, write_law

LAW = Published("Fig. 3 left and middle", 0.76, {"dim": 1.29, "length": 0.80, "burst": -0.80}, 0.995)


@dataclasses.dataclass(frozen=True)
class Settings(Grid):
    bursts: tuple[int, ...] = (1, 2, 4, 8, 16)
    length: int = 256
    """Of the middle and the right panel."""
    repeats: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.4)
    rates: tuple[float, ...] = (1e-4, 3e-4)
    """To choose from in the right panel (D.3)."""

    def studies(self) -> dict[str, Study]:
        return {
            "left": self.study(),
            "middle": self.study(length=[self.length], burst=self.bursts),
            "right": Study.of(
                self.base.replace(task__length=self.length, threshold=0.4),  # D.1: under cross-sample repetition
                grid={"dim": self.dims, "repeat": self.repeats},
                tune={"learning_rate": self.rates},
                seeds=self.seeds,
            ),
        }


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies())
    tables = {name: runs.table for name, runs in parts.items()}
    both = pd.concat([tables["left"], tables["middle"]]).drop_duplicates("identity")
    law = fit_law(both, x=["dim", "length/burst"])
    tuned = tables["right"][tables["right"]["chosen"]]
    means = cell_means(tuned, ["dim", "repeat"]).pivot(index="dim", columns="repeat", values="plateau").dropna()
    most = means.columns.max()
    speedup = means[0.0] / means[most]
    shortest = means.drop(columns=0.0).min(axis=1)
    burst_means = cell_means(tables["middle"], ["dim", "burst"]).pivot(index="dim", columns="burst", values="plateau").dropna()
    checks = [
        Check(
            "in-context repetition: plateau at the largest burst over that at 1, largest over dims",
            float((burst_means[burst_means.columns.max()] / burst_means[1]).max()),
            "below 1",
            bool((burst_means[burst_means.columns.max()] < burst_means[1]).all()),
        ),
        Check(
            "cross-sample repetition: best plateau with repetition over that without, largest over dims",
            float((shortest / means[0.0]).max()),
            "below 1",
            bool((shortest < means[0.0]).all()),
        ),
        Check(
            f"speed-up by p = {most:g} at the largest dim over that at the smallest",
            float(speedup.loc[speedup.index.max()] / speedup.loc[speedup.index.min()]),
            "above 1: the effect grows with d",
            bool(speedup.loc[speedup.index.max()] > speedup.loc[speedup.index.min()]),
        ),
    ]
    return Outcome(
        tables=tables | {"tuned": tuned},
        plot=draw(tables, tuned, law, settings),
        laws=[Comparison.of("without repetition and with in-context repetition", law, both, LAW)],
        checks=checks,
        precision=settings.base.precision,
        device=provenance_of(parts),
    )


def draw(tables: dict[str, pd.DataFrame], tuned: pd.DataFrame, law: Law, settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.7), layout="constrained")
    left, middle, right = plot.subplots(1, 3, sharey=True)
    plateaus_by(left, tables["left"], law, "length", "$T$", censored=False)
    plateaus_by(middle, tables["middle"], law, "burst", "$B$", censored=False)
    explained = any_censored(tables["left"], tables["middle"], tuned)  # once for all three
    plateaus_by(right, tuned, None, "repeat", "$p$", means=True, censored=explained)
    write_law(left, law, LAW, {"dim": "d", "length": "T", "burst": "B"})
    subtitle(middle, f"$T$ = {settings.length}, lines: the law on the left")
    subtitle(right, f"$T$ = {settings.length}, steps to a loss of 0.4,\nlines through the means")
    left.set_title("left  no repetition", y=1.13)
    middle.set_title("middle  in-context repetition", y=1.13)
    right.set_title("right  cross-sample repetition", y=1.13)
    for axes in (middle, right):
        axes.set_ylabel("")
    return plot


FIGURE = Figure(
    id="zucchet2025/fig3",
    title="plateau of trained Transformers against dim for lengths, bursts and repeats",
    presets={
        "paper": Settings(),
        "laptop": Settings(
            SMALL,
            seeds=2,
            dims=(4, 8, 16),
            lengths=(8, 16, 32),
            bursts=(1, 2, 4),
            length=16,
            repeats=(0.0, 0.2, 0.4),
            rates=(1e-3, 2e-3),
        ),
        "smoke": Settings(
            TINY, seeds=1, dims=(2, 4), lengths=(4, 8), bursts=(1, 2, 4), length=8, repeats=(0.0, 0.4), rates=(1e-2, 5e-3)
        ),
    },
    make=make,
    studies=Settings.studies,
    seconds={"paper": 1.1e6, "laptop": 96, "smoke": 10},
    caveat={
        "laptop": "width 64, batch 16, learning rates 1e-3 and 2e-3, d ≤ 16, T ≤ 32, 2 seeds",
        "smoke": "one layer and head of width 16, d ≤ 4, T ≤ 8, one seed",
    },
)
