"""Figure 4: the initial scale decides when heads part; the importance decides how clear the plateaus are."""

import dataclasses
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ..._style import outside, shades
from ...measure import Drop
from ...models import MinimalAttention
from ...studies import Study
from .._figure import Check, Figure, Outcome, Plot, RunSource
from .._panels import panels
from ._chains import ChainRun, ChainRuns, draw_seeds, laptop, paper, smoke


@dataclasses.dataclass(frozen=True)
class Settings:
    study: Study
    scales: tuple[float, ...] = (1e-3, 1e-6, 1e-9, 0.0)
    """Initial scales, beside Xavier's start; the last is 0."""
    importances: tuple[float, ...] = (1.0, 1.3, 1.5, 1.9, 2.1)
    start: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"model__start": "xavier"})
    """Of the runs with different importances."""

    def studies(self) -> dict[str, Study]:
        """By their names in the plot; those with different importances begin with `m = `."""
        scaled = {f"{scale:g}": self.study.replace(model__scale=scale) for scale in self.scales}
        weighed = {f"m = {m:g}": self.study.replace(task__groups__importance=m, **self.start) for m in self.importances}
        return {"Xavier": self.study.replace(model__start="xavier")} | scaled | weighed


def first_below(run: ChainRun, level: float) -> float:
    """The step at which the KL from the teacher falls to `level`; the last step where it does not."""
    below = run["kl_teacher"] <= level
    return float(run["step"][np.argmax(below) if below.any() else -1])


def later_plateaus(stages: list[Drop]) -> float:
    """How long the plateaus after the second drop are together, in log step: from steepest point to next onset."""
    return sum(np.log(b.onset / a.steepest) for a, b in pairwise(stages[1:]))


def make(settings: Settings, source: RunSource) -> Outcome:
    runs = {name: ChainRuns(part) for name, part in source.runs(settings.studies(), curves=True).items()}
    scaled = {name: part for name, part in runs.items() if not name.startswith("m = ")}
    weighed = {name.removeprefix("m = "): part for name, part in runs.items() if name.startswith("m = ")}
    tables = {name.replace(" ", "").replace("=", "_"): part.table.assign(part=name) for name, part in runs.items()}
    return Outcome(tables, draw(scaled, weighed), checks=scale_checks(scaled) + importance_checks(weighed))


def scale_checks(runs: Mapping[str, ChainRuns]) -> list[Check]:
    if "0" not in runs:
        return []
    stuck = runs["0"]
    level = 0.6 * float(np.mean([run["kl_teacher"][-1] for run in stuck]))
    times = [np.mean([first_below(run, level) for run in part]) for part in runs.values()]
    identical = all((run.attention == run.attention[:, :1]).all() for run in stuck)
    least = min(run["kl_teacher"].min() for run in stuck)
    name = f"mean step at which the KL from the teacher is {level:.2g}, from Xavier's start to scale 0"
    later = Check(name, times, "smaller initial scales, later second stage", np.all(np.diff(times) > 0))
    same = Check("scale 0: heads stay identical bit for bit", identical, None, identical, "they do")
    name = "scale 0: least KL from the teacher over the level that the others fall below"
    return [later, same, Check(name, least / level, "never leaves the symmetric plateau", least > level)]


def importance_checks(runs: Mapping[str, ChainRuns]) -> list[Check]:
    lengths = [np.mean([later_plateaus(run.stages) for run in part]) for part in runs.values()]
    if not lengths:
        return []
    name = "length in log step of the plateaus after the symmetric one, mean over seeds, by rising importance"
    return [Check(name, lengths, "larger m, clearer plateaus", lengths[-1] > lengths[0])]


def draw(scaled: Mapping[str, ChainRuns], weighed: Mapping[str, ChainRuns]) -> Plot:
    plot, (left, right) = panels(2.7, "left  initial scale", "right  importance", share=True)
    draw_curves(left, scaled, "initial scale")
    draw_curves(right, weighed, "importance $m$")
    left.set(ylabel="excess loss (KL from the teacher)")
    return plot


def draw_curves(axes: Axes, parts: Mapping[str, ChainRuns], title: str) -> None:
    colours = dict(zip(parts, shades(len(parts)), strict=True))
    for name, runs in parts.items():
        draw_seeds(axes, runs, [run["kl_teacher"] for run in runs], colours[name])
    axes.set(xscale="log", yscale="log", xlabel="step")
    outside(axes, title, [(name, {"color": colour}) for name, colour in colours.items()])


SMALL, TINY = laptop(MinimalAttention(), seeds=1, batch=128, steps=1400), smoke(MinimalAttention(heads=2))
FIGURE = Figure(
    "yuksel2026/fig4",
    "a smaller initial scale delays the second stage; a larger importance makes plateaus clearer",
    presets={
        "paper": Settings(paper(MinimalAttention())),
        "laptop": Settings(SMALL, importances=(1.0, 1.5, 2.1), start={"model__scale": 1e-9}),
        "smoke": Settings(TINY, scales=(1e-2, 0.0), importances=(1.0, 2.0), start={"model__scale": 1e-3}),
    },
    make=make,
    seconds={"paper": 70000, "laptop": 60, "smoke": 8},
    studies=Settings.studies,
    curves=True,
)
