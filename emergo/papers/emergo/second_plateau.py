"""When the full Transformer of yuksel2026 leaves its second plateau (Fig. 3): what depends on each part of the setting?

One change at a time away from the published setting, all on the published teacher. With the published setting that plateau is
left at half the published step. Of nine changes one moves that, another start; it makes the first stage too late as well.
"""

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from ..._style import BLACK, GREY, RED, key, plain_ticks
from ...measure import Boundary, boundary_of, departure
from ...studies import Study
from .._figure import Check, Figure, Outcome, Plot, Presets, RunSource, Studies
from .._panels import panels
from ..yuksel2026._chains import FULL, ChainRun, ChainRuns, by_part, smoke
from ..yuksel2026.stages_and_maps import FIG3, PLACES, SMALL, TINY_TRANSFORMER

BASE, STEPS = "as published", 1000
HIDDEN = "dropout on hidden features instead of token plus position"
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
"""Those that matter to the question first."""
FIRST, PUBLISHED, KL_1 = 65, 450, 3.05
"""The boundaries that the paper draws (a run of the public code left the second plateau at 650), and the KL from A_1 at step
1,000."""


@dataclasses.dataclass(frozen=True)
class Settings:
    base: Studies
    changed: Study
    """With the setting of `base`; one study for each change."""
    changes: tuple[str, ...] = tuple(CHANGES)

    def studies(self) -> dict[str, Study]:
        base = {f"{BASE}, {name}": study for name, study in self.base.items()}
        return base | {how: self.changed.replace(**CHANGES[how]) for how in self.changes}


def make(settings: Settings, source: RunSource) -> Outcome:
    runs = by_part(source.runs(settings.studies(), curves=True))
    table = pd.DataFrame([row_of(how, run, settings.changed.base.steps) for how, each in runs.items() for run in each])
    return Outcome({"runs": table}, draw(runs, table), checks=plateau_checks(table))


def row_of(how: str, run: ChainRun, steps: int) -> dict[str, Any]:
    """When a run leaves its first and second reference, and the levels of the KL from the teacher on the second plateau and at
    the end; all of the first `steps` steps, which all runs have."""
    early = run["step"] <= steps
    step, kl, references = run["step"][early], run["kl_teacher"][early], run["kl_references"][early]
    left = [departure(step, one) for one in references.T[:-1]]
    nearest = int(references[:, -2].argmin())  # to the last reference but the teacher
    row = {"how": how, "seed": run.seed, "plateau": float(kl[nearest]), "end": float(kl[-1])}
    return row | {f"left_{k}": at for k, at in enumerate(left, 1)} | {"kl_1": float(references[-1, 0])}


def left_plateau(table: pd.DataFrame, how: str) -> Boundary:
    """When the last reference but the teacher is left: over the seeds of a setting."""
    last = table.filter(like="left_").columns[-1]
    return boundary_of(table.loc[table["how"] == how, last].tolist())


def plateau_checks(table: pd.DataFrame) -> list[Check]:
    there = list(dict.fromkeys(table["how"]))
    if BASE not in there:
        return []
    base = left_plateau(table, BASE)
    name = "as published: step at which the second plateau is left, geometric mean over seeds, 95% interval"
    checks = [Check(name, base[:3], PUBLISHED, 1 / 1.5 < base.step / PUBLISHED < 1.5, "within a factor of 1.5")]
    kl = table.groupby("how", sort=False)["kl_1"].mean()
    nearest = (kl - KL_1).abs().idxmin() == BASE
    name = "KL from A_1 at the end of these steps, mean over seeds, by setting"
    checks.append(Check(name, {str(how): float(one) for how, one in kl.items()}, KL_1, nearest, "nearest as published"))
    for how in there[1:]:
        ours = left_plateau(table, how)
        name = f"{how}: step at which the second plateau is left, over that as published, and its 95% interval"
        expected = "the mean of either lies within the other's interval: makes no difference that three seeds show"
        checks.append(Check(name, [ours.step / base.step, *ours[:3]], None, not apart(ours, base), expected))
    return checks


def apart(one: Boundary, other: Boundary) -> bool:
    """Whether the mean of neither lies within the other's interval; one seed has none, and shows nothing."""
    return any((other.step < one.low, other.step > one.high)) and any((one.step < other.low, one.step > other.high))


def draw(runs: Mapping[str, ChainRuns], table: pd.DataFrame) -> Plot:
    """Curves, and one row of dots per setting: black as published, red where the second plateau is left at another time."""
    plot, (curves, left, level) = panels(
        3.6, "a  KL from the teacher", "b  $A_1$ and $A_{1:2}$ are left", "c  KL from $A_1$, end"
    )
    base = left_plateau(table, BASE)
    colours = {how: BLACK if how == BASE else RED if apart(left_plateau(table, how), base) else GREY for how in runs}
    last = min(run["step"][-1] for each in runs.values() for run in each)
    for how, each in sorted(runs.items(), key=lambda item: (GREY, BLACK, RED).index(colours[item[0]])):
        for run in each:
            look = {"lw": 0.6, "alpha": 0.5} if colours[how] == GREY else {"lw": 1.2}
            curves.plot(run["step"][1:], run["kl_teacher"][1:], color=colours[how], **look)
    curves.set(xscale="log", xlabel="step", xlim=(min(20, last / 10), last), ylim=(0, 2))
    curves.xaxis.set_minor_formatter(NullFormatter())
    moved = [how for how, colour in colours.items() if colour == RED]
    names = {BLACK: BASE, RED: ",\n".join(moved), GREY: "other changes"}
    key(curves, [(name, {"color": colour}) for colour, name in names.items() if name], loc="upper right")
    draw_dots(left, table, "left_1", colours, FIRST, hollow=True)
    draw_dots(left, table, table.filter(like="left_").columns[-1], colours, PUBLISHED)
    left.set(xscale="log", xlabel="step (hollow: $A_1$)")
    plain_ticks(left.xaxis)
    draw_dots(level, table, "kl_1", colours, KL_1)
    level.set(xlim=(0, None), xlabel="KL (dotted: published)")
    left.set_yticks(range(len(colours)), [textwrap.fill(how, 24) for how in colours], fontsize=6)
    level.set_yticks(range(len(colours)), [""] * len(colours))
    return plot


def draw_dots(
    axes: Axes, table: pd.DataFrame, column: str, colours: Mapping[str, str], printed: float, hollow: bool = False
) -> None:
    """A column of the table, one row of dots per setting; dotted: what is published."""
    for row, (how, colour) in enumerate(colours.items()):
        values = table.loc[table["how"] == how, column]
        axes.plot(values, [row] * len(values), "o", color=colour, mfc="none" if hollow else colour, ms=3.5, alpha=0.8)
    axes.axvline(printed, color=BLACK, lw=0.8, ls=":")
    axes.set_ylim(len(colours) - 0.5, -0.5)


TITLE = "when the full Transformer leaves its second plateau, by one change of the published setting at a time"
ON_TEACHER = {name: study for name, study in FIG3.studies("paper").items() if name.startswith("published")}
LAPTOP = SMALL.replace(model__width=48, model__dropout=0.1, model__dropout_every=3, model__start="xavier", steps=2000)
LAPTOP = LAPTOP.replace(model__dropout_at=PLACES, n_train=2000)
TINY = smoke(TINY_TRANSFORMER.replace(dropout_every=3, dropout_at=PLACES), seeds=1, n_train=64)
PRESETS: Presets = {
    "paper": Settings(ON_TEACHER, next(iter(ON_TEACHER.values())).replace(seeds=3, steps=STEPS, probes=())),
    "laptop": Settings({"seed 0": LAPTOP}, LAPTOP, (HIDDEN, "no dropout", "fresh data in every step")),
    "smoke": Settings({"seed 0": TINY}, TINY, ("no dropout",)),
}
FIGURE = Figure("emergo/second-plateau", TITLE, PRESETS, make, {"paper": 250_000, "laptop": 110, "smoke": 30}, curves=True)
