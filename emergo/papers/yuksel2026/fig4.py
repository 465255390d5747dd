"""Figure 4: the initial scale decides when heads part; the importance decides how clear the plateaus are."""

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot

from ..._style import WIDTH, outside, shades
from ...engine import Run
from ...measure import find_stages
from ...studies import Result, provenance_of
from ...tasks import Groups
from .._figure import Check, Figure, Outcome
from .._work import Work
from ._chains import LAPTOP, SMOKE, Training, initial, laptop, smoke, table, weight


@dataclasses.dataclass(frozen=True)
class Settings:
    training: Training
    heads: int = 3
    scales: tuple[float, ...] = (1e-3, 1e-6, 1e-9, 0.0)
    """Beside Xavier's start."""
    importances: tuple[float, ...] = (1.0, 1.3, 1.5, 1.9, 2.1)
    scale: float | None = None
    """Of the runs with different importances; None: Xavier's start."""

    def parts(self) -> dict[str, list[Run]]:
        """Runs by what they are called in the plot."""
        found = {"Xavier": self.training.runs(self.training.minimal(heads=self.heads, start="xavier"))}
        for scale in self.scales:
            found[f"{scale:g}"] = self.training.runs(self.training.minimal(heads=self.heads, scale=scale))
        for m in self.importances:
            groups = dataclasses.replace(self.training.task.groups, importance=m)
            other = dataclasses.replace(self.training, task=dataclasses.replace(self.training.task, groups=groups))
            found[f"m = {m:g}"] = other.runs(other.minimal(heads=self.heads, **initial(self.scale)))
        return found


def runs(settings: Settings) -> list[Run]:
    return [run for part in settings.parts().values() for run in part]


def second_stage(result: Result, level: float) -> float:
    """The step at which the KL from the teacher falls to `level`; the last step where it does not."""
    assert result.curves is not None
    below = result.curves["excess"] <= level
    return float(result.curves["step"][np.argmax(below)] if below.any() else result.curves["step"][-1])


def later_plateaus(result: Result) -> float:
    """How long the plateaus after the second drop are together, in log step: from steepest point to next onset."""
    assert result.curves is not None
    drops = find_stages(result.curves["step"], result.curves["excess"])[1:]
    return float(sum(np.log(b.onset / a.steepest) for a, b in pairwise(drops)))


def make(settings: Settings, work: Work) -> Outcome:
    found = work.by_part(settings.parts(), curves=True)
    scales = ["Xavier", *(f"{s:g}" for s in settings.scales)]
    stuck = found[f"{settings.scales[-1]:g}"]
    level = 0.6 * float(np.mean([r.curves["excess"][-1] for r in stuck if r.curves is not None]))
    times = {name: float(np.mean([second_stage(r, level) for r in found[name]])) for name in scales}
    flat = {m: float(np.mean([later_plateaus(r) for r in found[f"m = {m:g}"]])) for m in settings.importances}
    ordered = list(times.values())
    alike = all(bool((heads == heads[:, :, :1]).all()) for r in stuck if r.curves for heads in [r.curves["lags"]])
    below = min(float(r.curves["excess"].min()) for r in stuck if r.curves is not None)
    return Outcome(
        tables={name.replace(" ", "").replace("=", "_"): table(results, part=name) for name, results in found.items()},
        plot=draw(found, scales, settings),
        checks=[
            Check(
                f"mean step at which the KL from the teacher is {level:.2g}, from Xavier's start to scale 0",
                ordered,
                "smaller initial scales, later second stage",
                bool(np.all(np.diff(ordered) > 0)),
            ),
            Check("scale 0: heads stay identical bit for bit", alike, None, alike, "they do"),
            Check(
                "scale 0: least KL from the teacher over the level that the others fall below",
                below / level,
                "never leaves the symmetric plateau",
                below > level,
            ),
            Check(
                "length in log step of the plateaus after the symmetric one, mean over seeds, by rising importance",
                [flat[m] for m in settings.importances],
                "larger m, clearer plateaus",
                flat[settings.importances[-1]] > flat[settings.importances[0]],
            ),
        ],
        precision="fp32",
        device=provenance_of(found),
    )


def draw(found: dict[str, list[Result]], scales: list[str], settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.7), layout="constrained")
    left, right = plot.subplots(1, 2, sharey=True)
    curves(left, {name: found[name] for name in scales}, "initial scale")
    curves(right, {f"{m:g}": found[f"m = {m:g}"] for m in settings.importances}, "importance $m$")
    left.set_title("left  initial scale")
    right.set_title("right  importance")
    left.set(ylabel="excess loss (KL from the teacher)")
    return plot


def curves(axes: Axes, parts: dict[str, list[Result]], title: str) -> None:
    entries: list[tuple[str, dict[str, Any]]] = []
    for (name, results), colour in zip(parts.items(), shades(len(parts)), strict=True):
        for i, result in enumerate(results):
            assert result.curves is not None
            axes.plot(result.curves["step"][1:], result.curves["excess"][1:], color=colour, **weight(i))
        entries.append((name, {"color": colour}))
    axes.set(xscale="log", yscale="log", xlabel="step")
    outside(axes, title, entries)


FIGURE = Figure(
    id="yuksel2026/fig4",
    shows="a smaller initial scale delays the second stage; a larger importance makes plateaus clearer",
    presets={
        "paper": Settings(Training()),
        "laptop": Settings(laptop(Groups(), seeds=1, batch=128, steps=1400), importances=(1.0, 1.5, 2.1), scale=1e-9),
        "smoke": Settings(smoke(seeds=1), heads=2, scales=(1e-2, 0.0), importances=(1.0, 2.0), scale=1e-3),
    },
    make=make,
    runs=runs,
    seconds={"paper": 70000, "laptop": 60, "smoke": 15},
    shrunk={
        "laptop": f"{LAPTOP}, three importances from an initial scale of 1e-9".replace("256", "128").replace(
            "2 seeds", "one seed"
        ),
        "smoke": SMOKE,
    },
)
