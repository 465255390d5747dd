"""The end of the second plateau of the full Transformer of yuksel2026 (Fig. 3), by setting.

Each setting is one change away from the published one, on the published teacher. With the published
setting, the second plateau ends at half the published step. Of nine changes, one moves that step:
another initialisation, which makes the first stage too late as well.
"""

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from ...core.plotting import BLACK, GREY, RED, key, plain_ticks
from ...measure import Boundary, boundary_of, departure
from ...study import Study
from .._figure import Check, Figure, Outcome, Plot, RunSource, Studies
from .._panels import panels
from ..yuksel2026._chains import FULL, ChainRun, ChainRuns, by_part, smoke
from ..yuksel2026.stages_and_maps import FIG3, PLACES, SMALL, TINY_TRANSFORMER
from ._shared import entries, name_rows

BASE = "as published"
STEPS = 1000
HIDDEN = "dropout on hidden features instead of token plus position"
# The most important changes come first.
CHANGES: dict[str, dict[str, Any]] = {
    HIDDEN: {"model__dropout_at": ("attention", "added", "hidden")},
    "no dropout on token plus position": {"model__dropout_at": ("attention", "added")},
    "no dropout on attention weights": {"model__dropout_at": ("embedding", "added")},
    "no dropout": {"model__dropout": 0.0},
    "dropout in every step": {"model__dropout_every": None},
    "fresh data in every step": {"n_train": None},
    "no weight decay": {"optimizer": FULL.replace(options=(("weight_decay", 0.0),))},
    "PyTorch's start": {"model__start": None},
    "learning rate 0.002": {"optimizer__learning_rate": 2e-3},
}
# The boundaries that the paper draws (a run of the public code left the second plateau at 650), and
# the KL from A_1 at step 1,000.
FIRST = 65
PUBLISHED = 450
KL_1 = 3.05


@dataclasses.dataclass(frozen=True)
class Settings:
    """`base`: studies as published; `changed`: a study with the same setting, for each change."""

    base: Studies
    changed: Study
    changes: tuple[str, ...] = tuple(CHANGES)

    def studies(self) -> dict[str, Study]:
        base = {f"{BASE}, {name}": study for name, study in self.base.items()}
        return base | {how: self.changed.replace(**CHANGES[how]) for how in self.changes}


def make(settings: Settings, source: RunSource) -> Outcome:
    runs = by_part(source.runs(settings.studies(), curves=True))
    steps = settings.changed.base.steps
    table = pd.DataFrame([row_of(how, run, steps) for how, each in runs.items() for run in each])
    return Outcome({"runs": table}, draw(runs, table), checks=[*plateau_checks(table)])


def row_of(how: str, run: ChainRun, steps: int) -> dict[str, Any]:
    """Measure a run up to a step that all runs reach.

    The row has the steps at which it leaves each reference but the teacher, and the KL from the
    teacher on the second plateau and at the end.
    """
    early = run["step"] <= steps
    step = run["step"][early]
    kl = run["kl_teacher"][early]
    references = run["kl_references"][early]
    left = {f"left_{k}": departure(step, one) for k, one in enumerate(references.T[:-1], 1)}
    nearest = int(references[:, -2].argmin())  # to the last reference but the teacher
    row = {"how": how, "seed": run.seed, "plateau": float(kl[nearest]), "end": float(kl[-1])}
    return row | left | {"kl_1": float(references[-1, 0])}


def left_plateau(table: pd.DataFrame, how: str) -> Boundary:
    """Return the step at which a setting leaves the last reference but the teacher, over seeds."""
    last = table.filter(like="left_").columns[-1]
    return boundary_of(table.loc[table["how"] == how, last].tolist())


def plateau_checks(table: pd.DataFrame) -> Iterator[Check]:
    first, *changes = dict.fromkeys(table["how"])
    if first != BASE:
        return
    base = left_plateau(table, BASE)
    yield Check(
        "as published: step at which the second plateau is left, geometric mean over seeds, "
        "95% interval",
        base[:3],
        PUBLISHED,
        1 / 1.5 < base.step / PUBLISHED < 1.5,
        "within a factor of 1.5",
    )
    kl = table.groupby("how", sort=False)["kl_1"].mean()
    yield Check(
        "KL from A_1 at the end of these steps, mean over seeds, by setting",
        kl.to_dict(),
        KL_1,
        (kl - KL_1).abs().idxmin() == BASE,
        "nearest as published",
    )
    for how in changes:
        ours = left_plateau(table, how)
        yield Check(
            f"{how}: step at which the second plateau is left, over that as published, and "
            f"its 95% interval",
            [ours.step / base.step, *ours[:3]],
            None,
            not apart(ours, base),
            "the mean of either lies within the other's interval: makes no difference that three "
            "seeds show",
        )


def apart(one: Boundary, other: Boundary) -> bool:
    """Return True if neither mean lies within the other's interval.

    The interval of a single seed is unknown, so the result is False.
    """
    return all(
        mean.step < interval.low or mean.step > interval.high
        for mean, interval in ((one, other), (other, one))
    )


def draw(runs: Mapping[str, ChainRuns], table: pd.DataFrame) -> Plot:
    """Draw the curves, and one row of dots per setting."""
    plot, (curves, left, level) = panels(
        3.6, "a  KL from the teacher", "b  $A_1$ and $A_{1:2}$ are left", "c  KL from $A_1$, end"
    )
    base = left_plateau(table, BASE)
    colours = {how: RED if apart(left_plateau(table, how), base) else GREY for how in runs}
    colours |= {BASE: BLACK} if BASE in runs else {}
    for how, each in reversed([*runs.items()]):
        for run in each:
            curves.plot(run["step"][1:], run["kl_teacher"][1:], color=colours[how], lw=0.8)
    last = min(run["step"][-1] for each in runs.values() for run in each)
    curves.set(xscale="log", xlabel="step", xlim=(min(20, last / 10), last), ylim=(0, 2))
    curves.xaxis.set_minor_formatter(NullFormatter())
    names = {BASE: BLACK, "leaves at another step": RED, "other changes": GREY}
    key(curves, entries(names), loc="upper right")
    draw_dots(left, table, "left_1", colours, FIRST, mfc="none")
    draw_dots(left, table, table.filter(like="left_").columns[-1], colours, PUBLISHED)
    left.set(xscale="log", xlabel="step (hollow: $A_1$)")
    plain_ticks(left.xaxis)
    draw_dots(level, table, "kl_1", colours, KL_1)
    level.set(xlim=(0, None), xlabel="KL (dotted: published)")
    name_rows(left, [textwrap.fill(how, 24) for how in colours], fontsize=6)
    name_rows(level, [""] * len(colours))
    return plot


def draw_dots(
    axes: Axes,
    table: pd.DataFrame,
    column: str,
    colours: Mapping[str, str],
    printed: float,
    **look: Any,
) -> None:
    """Draw a column of the table, one row per setting, and the published value (dotted)."""
    for row, (how, colour) in enumerate(colours.items()):
        values = table.loc[table["how"] == how, column]
        axes.plot(values, [row] * len(values), "o", color=colour, **look)
    axes.axvline(printed, color=BLACK, lw=0.8, ls=":")


FIRST_STUDIES = FIG3.studies("paper").items()
ON_TEACHER = {name: study for name, study in FIRST_STUDIES if "published teacher" in name}
CHANGED = next(iter(ON_TEACHER.values())).replace(seeds=3, steps=STEPS, probes=())
LAPTOP = SMALL.replace(
    model__width=48, model__dropout=0.1, model__dropout_every=3, model__start="xavier", steps=2000
).replace(model__dropout_at=PLACES, n_train=2000)
TINY = smoke(TINY_TRANSFORMER.replace(dropout_every=3, dropout_at=PLACES), seeds=1, n_train=64)
FIGURE = Figure(
    "emergo/second-plateau",
    "when the full Transformer leaves its second plateau, by one change of the published "
    "setting at a time",
    {
        "paper": Settings(ON_TEACHER, CHANGED),
        "laptop": Settings(
            {"seed 0": LAPTOP}, LAPTOP, (HIDDEN, "no dropout", "fresh data in every step")
        ),
        "smoke": Settings({"seed 0": TINY}, TINY, ("no dropout",)),
    },
    make,
    {"paper": 250_000, "laptop": 110, "smoke": 30},
    curves=True,
)
