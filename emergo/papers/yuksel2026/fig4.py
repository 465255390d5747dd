"""Figure 4: the initial scale decides when heads part; the importance decides how clear the plateaus are."""

import dataclasses
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot

from ..._style import WIDTH, outside, shades
from ...measure import Drop
from ...models import MinimalAttention
from ...studies import Study, provenance_of
from .._figure import Check, Figure, Outcome
from .._source import RunSource
from ._chains import ChainRuns, Curves, laptop, line_of_seed, paper, smoke
from ._stage_figure import caveats


@dataclasses.dataclass(frozen=True)
class Settings:
    study: Study
    scales: tuple[float, ...] = (1e-3, 1e-6, 1e-9, 0.0)
    """Initial scales, beside Xavier's start; the last is 0."""
    importances: tuple[float, ...] = (1.0, 1.3, 1.5, 1.9, 2.1)
    start: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"model__start": "xavier"})
    """Of the runs with different importances."""

    @property
    def by_scale(self) -> dict[str, Study]:
        """The studies by their names in the plot."""
        scaled = {f"{scale:g}": self.study.replace(model__scale=scale) for scale in self.scales}
        return {"Xavier": self.study.replace(model__start="xavier")} | scaled

    @property
    def by_importance(self) -> dict[str, Study]:
        return {f"m = {m:g}": self.study.replace(task__groups__importance=m, **self.start) for m in self.importances}


def studies(settings: Settings) -> dict[str, Study]:
    return settings.by_scale | settings.by_importance


def first_below(curve: Curves, level: float) -> float:
    """The step at which the KL from the teacher falls to `level`; the last step where it does not."""
    below = curve["kl_teacher"] <= level
    return float(curve["step"][np.argmax(below)] if below.any() else curve["step"][-1])


def later_plateaus(stages: list[Drop]) -> float:
    """How long the plateaus after the second drop are together, in log step: from steepest point to next onset."""
    return float(sum(np.log(b.onset / a.steepest) for a, b in pairwise(stages[1:])))


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(studies(settings), curves=True)
    runs = {name: ChainRuns(part) for name, part in parts.items()}
    scaled = {name: runs[name] for name in settings.by_scale if name in runs}
    weighed = {name: runs[name] for name in settings.by_importance if name in runs}
    return Outcome(
        tables={name.replace(" ", "").replace("=", "_"): one.table.assign(part=name) for name, one in runs.items()},
        plot=draw(scaled, weighed),
        checks=scale_checks(scaled) + importance_checks(weighed),
        precision="fp32",
        device=provenance_of(parts),
    )


def scale_checks(runs: Mapping[str, ChainRuns]) -> list[Check]:
    if "0" not in runs:
        return []
    stuck = runs["0"].curves
    level = 0.6 * float(np.mean([curve["kl_teacher"][-1] for curve in stuck]))
    times = [float(np.mean([first_below(curve, level) for curve in one.curves])) for one in runs.values()]
    identical = all(bool((heads == heads[:, :, :1]).all()) for heads in (curve["attention_by_lag"] for curve in stuck))
    least = min(float(curve["kl_teacher"].min()) for curve in stuck)
    return [
        Check(
            f"mean step at which the KL from the teacher is {level:.2g}, from Xavier's start to scale 0",
            times,
            "smaller initial scales, later second stage",
            bool(np.all(np.diff(times) > 0)),
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
    lengths = [float(np.mean([later_plateaus(stages) for stages in one.stages])) for one in runs.values()]
    if not lengths:
        return []
    name = "length in log step of the plateaus after the symmetric one, mean over seeds, by rising importance"
    return [Check(name, lengths, "larger m, clearer plateaus", lengths[-1] > lengths[0])]


def draw(scaled: Mapping[str, ChainRuns], weighed: Mapping[str, ChainRuns]) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.7), layout="constrained")
    left, right = plot.subplots(1, 2, sharey=True)
    draw_curves(left, scaled, "initial scale")
    draw_curves(right, {name.removeprefix("m = "): runs for name, runs in weighed.items()}, "importance $m$")
    left.set_title("left  initial scale")
    right.set_title("right  importance")
    left.set(ylabel="excess loss (KL from the teacher)")
    return plot


def draw_curves(axes: Axes, parts: Mapping[str, ChainRuns], title: str) -> None:
    colours = shades(len(parts))
    for runs, colour in zip(parts.values(), colours, strict=True):
        for i, curve in enumerate(runs.curves):
            axes.plot(curve["step"][1:], curve["kl_teacher"][1:], color=colour, **line_of_seed(i))
    axes.set(xscale="log", yscale="log", xlabel="step")
    outside(axes, title, [(name, {"color": colour}) for name, colour in zip(parts, colours, strict=True)])


SMALL, TINY = laptop(MinimalAttention(), seeds=1, batch=128, steps=1400), smoke(MinimalAttention(heads=2))
FIGURE = Figure(
    id="yuksel2026/fig4",
    title="a smaller initial scale delays the second stage; a larger importance makes plateaus clearer",
    presets={
        "paper": Settings(paper(MinimalAttention())),
        "laptop": Settings(SMALL, importances=(1.0, 1.5, 2.1), start={"model__scale": 1e-9}),
        "smoke": Settings(TINY, scales=(1e-2, 0.0), importances=(1.0, 2.0), start={"model__scale": 1e-3}),
    },
    make=make,
    seconds={"paper": 70000, "laptop": 60, "smoke": 8},
    caveat=caveats(SMALL, TINY, "three importances from an initial scale of 1e-9"),
    studies=studies,
    curves=True,
)
