"""When the full Transformer of yuksel2026 leaves its second plateau (Fig. 3): what depends on each part of the setting?

One change at a time away from the published setting, all on the published teacher. Until dropout was put where the public code
has it, ours left that plateau too early.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.ticker import NullFormatter

from ..._style import WIDTH, hues
from ...measure import Boundary, boundary_of, departure
from ...studies import Study
from .._figure import Check, Figure, Outcome, Plot, Presets, RunSource, Studies
from .._panels import legend, panels
from ..yuksel2026._chains import FULL, ChainRun, ChainRuns, by_part, draw_seeds, smoke
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
PUBLISHED, KL_1 = 450, 3.05
"""The boundary that the paper draws (a run of the public code left at 650), and the KL from A_1 at step 1,000."""


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
    return Outcome({"runs": table}, draw(runs), checks=plateau_checks(table))


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
        apart = not ours.low <= base.step <= ours.high and not base.low <= ours.step <= base.high
        expected = "the mean of either lies within the other's interval: makes no difference that three seeds show"
        checks.append(Check(name, [ours.step / base.step, *ours[:3]], None, not apart, expected))
    return checks


def draw(runs: Mapping[str, ChainRuns]) -> Plot:
    plot, row = panels(3.0, "a  KL from the teacher", "b  KL from $A_1$", width=WIDTH)
    colours = dict(zip(runs, hues(len(runs)), strict=True))
    for axes, reference in zip(row, (-1, 0), strict=True):
        for how, each in runs.items():
            draw_seeds(axes, each, [run["kl_references"][:, reference] for run in each], colours[how])
        last = min(run["step"][-1] for each in runs.values() for run in each)
        axes.set(xscale="log", xlabel="step", xlim=(min(100, last / 10), last), ylim=(0, None))
        axes.xaxis.set_minor_formatter(NullFormatter())
    row[0].set_ylim(0, 1)
    legend(row[1], "", {how.replace(" instead", "\ninstead").replace(" on ", "\non ", 1): c for how, c in colours.items()})
    return plot


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
FIGURE = Figure("emergo/second-plateau", TITLE, PRESETS, make, {"paper": 250_000, "laptop": 300, "smoke": 30}, curves=True)
