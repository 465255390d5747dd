"""Figure 4: the effect of the initial scale and of the importance on the stages."""

import dataclasses
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from ...measure import Drop
from ...models import MinimalAttention
from ...study import Study
from .._figure import Check, Figure, Outcome, Plot, Presets, RunSource
from .._panels import legend, panels
from ._chains import (
    ChainRun,
    ChainRuns,
    by_part,
    draw_parts,
    laptop,
    named,
    on_published_teacher,
    paper,
    smoke,
)

LEVELS = {"scale": 0.6, "importance": 0.3}
STEPS = {
    "Xavier": 180,
    "0.001": 250,
    "1e-06": 356,
    "1e-09": 361,
    "m = 1": 143,
    "m = 1.3": 232,
    "m = 1.5": 300,
}
"""The steps at which the excess loss falls to these levels, read off the published plots.

The level of `scale` lies between the symmetric plateau and the second one, that of `importance`
between the last plateau and the end."""
STUCK = (1000, 0.86)
"""The last plotted step, and the excess loss there for an initial scale of 0."""


@dataclasses.dataclass(frozen=True)
class Starts:
    """Studies of initial scales and importances.

    - `scales`: the initial scales, in addition to Xavier's; the last is 0.
    - `start`: the changes to the runs with different importances.
    - `published`: the number of seeds on the published teacher.
    """

    study: Study
    scales: tuple[float, ...] = (1e-3, 1e-6, 1e-9, 0.0)
    importances: tuple[float, ...] = (1.0, 1.3, 1.5, 1.9, 2.1)
    start: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"model__start": "xavier"})
    published: int = 0

    def studies(self) -> dict[str, Study]:
        """Return the studies by their names in the plot; `m = ` marks importances."""
        studies = {"Xavier": self.study.replace(model__start="xavier")}
        for scale in self.scales:
            studies[f"{scale:g}"] = self.study.replace(model__scale=scale)
        for m in self.importances:
            studies[f"m = {m:g}"] = self.study.replace(task__groups__importance=m, **self.start)
        return on_published_teacher(studies, self.published)


def first_below(run: ChainRun, level: float) -> float:
    """Return the step at which the KL from the teacher falls to `level`, or the last step."""
    below = run["kl_teacher"] <= level
    return float(run["step"][np.argmax(below) if below.any() else -1])


def later_plateaus(stages: list[Drop]) -> float:
    """Return the total length, in log step, of the plateaus after the second drop.

    A plateau lasts from the steepest point of one drop to the onset of the next.
    """
    return sum(np.log(b.onset / a.steepest) for a, b in pairwise(stages[1:]))


def make(settings: Starts, source: RunSource) -> Outcome:
    runs = by_part(source.runs(settings.studies(), curves=True))
    own = {name: part.on("drawn") for name, part in runs.items()}
    beside = {
        name: part.on("published")
        for name, part in runs.items()
        if any(run.maps == "published" for run in part)
    }
    checks = scale_checks(split(own)["scale"]) + importance_checks(split(own)["importance"])
    checks += named("published teacher", published_checks(beside))
    tables = {
        name.replace(" ", "").replace("=", "_"): part.table.assign(part=name)
        for name, part in runs.items()
    }
    return Outcome(tables, draw(split(runs)), checks=checks)


def split(runs: Mapping[str, ChainRuns]) -> dict[str, dict[str, ChainRuns]]:
    """Separate the runs with different initial scales from those with different importances."""
    parts: dict[str, dict[str, ChainRuns]] = {"scale": {}, "importance": {}}
    for name, part in runs.items():
        parts["importance" if name.startswith("m = ") else "scale"][name] = part
    return parts


def scale_checks(runs: Mapping[str, ChainRuns]) -> list[Check]:
    if "0" not in runs:
        return []
    stuck = runs["0"]
    level = 0.6 * float(stuck.mean(lambda run: run["kl_teacher"][-1]))
    times = [part.mean(lambda run: first_below(run, level)) for part in runs.values()]
    identical = all((run.attention == run.attention[:, :1]).all() for run in stuck)
    least = min(run["kl_teacher"].min() for run in stuck)
    return [
        Check(
            f"mean step at which the KL from the teacher is {level:.2g}, from Xavier's start to "
            f"scale 0",
            [float(time) for time in times],
            "smaller initial scales, later second stage",
            np.all(np.diff(times) > 0),
        ),
        Check("scale 0: heads stay identical bit for bit", identical, None, identical, "they do"),
        Check(
            "scale 0: least KL from the teacher over the level that the others fall below",
            least / level,
            "never leaves the symmetric plateau",
            least > level,
        ),
    ]


def importance_checks(runs: Mapping[str, ChainRuns]) -> list[Check]:
    lengths = [float(p.mean(lambda run: later_plateaus(run.stages))) for p in runs.values()]
    if not lengths:
        return []
    name = (
        "length in log step of the plateaus after the symmetric one, mean over seeds, by "
        "rising importance"
    )
    return [Check(name, lengths, "larger m, clearer plateaus", lengths[-1] > lengths[0])]


def published_checks(runs: Mapping[str, ChainRuns]) -> list[Check]:
    """Compare runs on the published teacher with numbers read off the published plots."""
    checks = []
    for what, parts in split(runs).items():
        level = LEVELS[what]
        theirs = {name: step for name, step in STEPS.items() if name in parts}
        ours = {
            name: float(np.mean([first_below(run, level) for run in parts[name]]))
            for name in theirs
        }
        near = all(1 / 1.25 < ours[name] / theirs[name] < 1.25 for name in ours)
        name = f"step at which the excess loss falls to {level:g}, by {what}"
        expected = "each within a factor of 1.25: one seed each"
        if ours:
            checks.append(Check(name, ours, theirs, near, expected))
    if "0" in runs:
        step, theirs = STUCK
        level = float(runs["0"].mean(lambda run: run["kl_teacher"][run.row(step)]))
        name = f"scale 0: excess loss at step {step}"
        checks.append(Check(name, level, theirs, abs(level / theirs - 1) < 0.05, "within 5%"))
    return checks


def draw(parts: Mapping[str, Mapping[str, ChainRuns]]) -> Plot:
    plot, row = panels(2.7, "left  initial scale", "right  importance", share=True)
    for axes, (what, runs) in zip(row, parts.items(), strict=True):
        legend(axes, what, draw_parts(axes, runs))
    row[0].set_ylabel("excess loss (KL from the teacher)")
    return plot


SMALL = laptop(MinimalAttention(), seeds=1, batch=128, steps=1400)
TINY = smoke(MinimalAttention(heads=2))
TITLE = (
    "a smaller initial scale delays the second stage; a larger importance makes plateaus clearer"
)
PRESETS: Presets = {
    "paper": Starts(paper(MinimalAttention()), published=1),
    "laptop": Starts(SMALL, importances=(1.0, 1.5, 2.1), start={"model__scale": 1e-9}),
    "smoke": Starts(TINY, scales=(1e-2, 0.0), importances=(1.0, 2.0), start={"model__scale": 1e-3}),
}
FIGURE = Figure(
    "yuksel2026/fig4",
    TITLE,
    PRESETS,
    make,
    {"paper": 84_000, "laptop": 60, "smoke": 8},
    curves=True,
)
