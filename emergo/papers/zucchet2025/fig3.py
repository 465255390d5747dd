"""Figure 3: the plateau of trained Transformers against dim, length, burst and repeat."""

import dataclasses

import pandas as pd

from ...core.plotting import subtitle
from ...measure import Published, fit_law
from ...study import Study
from ...study.cells import cell_means
from .._figure import Check, Comparison, Figure, Outcome, Plot, RunSource
from .._panels import any_censored, law_lines, panels, plateaus_by
from ..transformers import SMALL, TINY, Grid

LAW = Published(
    "Fig. 3 left and middle", 0.76, {"dim": 1.29, "length": 0.80, "burst": -0.80}, 0.995
)


@dataclasses.dataclass(frozen=True)
class Settings(Grid):
    """Grids of the three panels.

    - `length`: the length in the middle and right panels.
    - `rates`: the learning rates to choose from in the right panel (D.3).
    """

    bursts: tuple[int, ...] = (1, 2, 4, 8, 16)
    length: int = 256
    repeats: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.4)
    rates: tuple[float, ...] = (1e-4, 3e-4)

    def studies(self) -> dict[str, Study]:
        # The threshold is 0.4 under cross-sample repetition (D.1).
        base = self.base.replace(task__length=self.length, threshold=0.4)
        return {
            "left": self.study(),
            "middle": self.study(length=[self.length], burst=self.bursts),
            "right": Study.of(
                base,
                grid={"dim": self.dims, "repeat": self.repeats},
                tune={"learning_rate": self.rates},
                seeds=self.seeds,
            ),
        }


def make(settings: Settings, source: RunSource) -> Outcome:
    tables = {name: runs.table for name, runs in source.runs(settings.studies()).items()}
    both = pd.concat([tables["left"], tables["middle"]]).drop_duplicates("identity")
    law = fit_law(both, x=["dim", "length/burst"])
    tuned = tables["right"][tables["right"]["chosen"]]
    by_burst = means_by(tables["middle"], "burst")
    by_repeat = means_by(tuned, "repeat")
    shortened = (by_burst.iloc[:, -1] / by_burst[1]).max()
    best = (by_repeat.drop(columns=0.0).min(axis=1) / by_repeat[0.0]).max()
    speedup = by_repeat[0.0] / by_repeat.iloc[:, -1]
    growth = speedup.iloc[-1] / speedup.iloc[0]
    across = (
        "cross-sample repetition: best plateau with repetition over that without, largest over dims"
    )
    most = f"speed-up by p = {by_repeat.columns[-1]:g} at the largest dim over that at the smallest"
    within = "in-context repetition: plateau at the largest burst over that at 1, largest over dims"
    checks = [
        Check(within, shortened, "below 1", shortened < 1),
        Check(across, best, "below 1", best < 1),
        Check(most, growth, "above 1: the effect grows with d", growth > 1),
    ]
    compared = Comparison("without repetition and with in-context repetition", law, LAW)
    return Outcome(
        tables | {"tuned": tuned}, draw(tables, tuned, compared, settings), [compared], checks
    )


def means_by(table: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Return the mean plateau, one row per dim, one column per value of an axis.

    Dims that lack a value are left out.
    """
    return (
        cell_means(table, ["dim", axis]).pivot(index="dim", columns=axis, values="plateau").dropna()
    )


def draw(
    tables: dict[str, pd.DataFrame], tuned: pd.DataFrame, both: Comparison, settings: Settings
) -> Plot:
    titles = (
        "left  no repetition",
        "middle  in-context repetition",
        "right  cross-sample repetition",
    )
    plot, (left, middle, right) = panels(2.7, *titles, y=1.13, share=True)
    plateaus_by(left, tables["left"], both.law.best, "length", "$T$", censored=False)
    plateaus_by(middle, tables["middle"], both.law.best, "burst", "$B$", censored=False)
    explained = any_censored(tables["left"], tables["middle"], tuned)  # one legend for all three
    plateaus_by(right, tuned, None, "repeat", "$p$", explained)
    subtitle(left, law_lines(both, {"dim": "d", "length": "T", "burst": "B"}))
    subtitle(middle, f"$T$ = {settings.length}, lines: the law on the left")
    subtitle(right, f"$T$ = {settings.length}, steps to a loss of 0.4,\nlines through the means")
    for axes in (middle, right):
        axes.set_ylabel("")
    return plot


FIGURE = Figure(
    "zucchet2025/fig3",
    "plateau of trained Transformers against dim for lengths, bursts and repeats",
    {
        "paper": Settings(),
        "laptop": Settings(
            SMALL, 2, (4, 8, 16), (8, 16, 32), (1, 2, 4), 16, (0.0, 0.2, 0.4), rates=(1e-3, 2e-3)
        ),
        "smoke": Settings(TINY, 1, (2, 4), (4, 8), (1, 2, 4), 8, (0.0, 0.4), rates=(1e-2, 5e-3)),
    },
    make,
    {"paper": 1.1e6, "laptop": 96, "smoke": 10},
)
