"""Figure 12: learning curves of Transformers under cross-sample repetition."""

import dataclasses

import numpy as np
from matplotlib.figure import Figure as Plot

from ..._style import WIDTH, level, panel, shades
from ...engine import Config, Result
from ...measure import emergence
from ...studies import Runs, Study, provenance_of
from .._figure import Check, Figure, Outcome
from .._source import RunSource, curve
from .._transformers import PAPER, SMALL, TINY
from .fig11 import attention_of, curve_table, curves_by


@dataclasses.dataclass(frozen=True)
class Settings:
    base: Config
    seeds: int = 3
    dim: int = 64
    length: int = 256
    repeats: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.4)

    def studies(self) -> dict[str, Study]:
        base = self.base.replace(task__length=self.length, task__dim=self.dim, overtrain=0.25)
        return {"runs": Study.of(base, grid={"repeat": self.repeats}, seeds=self.seeds)}


def crossing(result: Result, level: float) -> float:
    """When the test loss falls to a level, or the last step observed."""
    return emergence(curve(result, "step"), curve(result, "loss"), level).time


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(settings.studies(), curves=True)
    runs = parts["runs"]

    def mean(repeat: float, level: float) -> float:
        return float(np.mean([crossing(result, level) for result in runs.where(repeat=repeat)]))

    first, last = min(settings.repeats), max(settings.repeats)
    early = mean(last, 0.4) / mean(first, 0.4)
    late = (mean(last, 0.1) - mean(last, 0.4)) / (mean(first, 0.1) - mean(first, 0.4))
    checks = [
        Check(f"steps to loss 0.4, p = {last:g} over p = {first:g}", early, "below 1: emergence is earlier", early < 1),
        Check(
            f"steps from loss 0.4 to 0.1, p = {last:g} over p = {first:g} (the last step counts where 0.1 is not reached)",
            late,
            "above 1: learning after emergence is slower",
            late > 1,
        ),
    ]
    return Outcome(
        tables={"runs": runs.table, "curves": curve_table(runs)},
        plot=draw(runs, settings),
        checks=checks,
        precision=settings.base.precision,
        device=provenance_of(parts),
    )


def draw(runs: Runs, settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.4), layout="constrained")
    a, b, c = plot.subplots(1, 3)
    curves_by(a, runs, "repeat", "$p$")
    level(a, 0.4, "threshold of Fig. 3 right", "--")
    panel(a, "a", "test loss, no repetition")
    colours = dict(zip(settings.repeats, shades(len(settings.repeats)), strict=True))
    for result, repeat in zip(runs, runs.table["repeat"], strict=True):
        step = curve(result, "step")
        b.plot(step, attention_of(result), color=colours[repeat], lw=1, alpha=0.85)
        c.plot(step, curve(result, "alignment"), color=colours[repeat], lw=1, alpha=0.85)
    b.set(xlabel="step", ylabel="attention to the relevant token", xscale="log", xlim=(20, None))
    panel(b, "b", f"d = {settings.dim}, T = {settings.length}")
    c.set(xlabel="step", ylabel="alignment of the value path", xscale="log", xlim=(20, None))
    panel(c, "c")
    return plot


FIGURE = Figure(
    id="zucchet2025/fig12",
    title="learning curves of Transformers under cross-sample repetition",
    presets={
        "paper": Settings(PAPER.replace(steps=20_000)),
        "laptop": Settings(SMALL.replace(steps=1500), dim=16, length=32, repeats=(0.0, 0.2, 0.4)),
        "smoke": Settings(TINY, seeds=1, dim=4, length=8, repeats=(0.0, 0.4)),
    },
    make=make,
    studies=Settings.studies,
    curves=True,
    seconds={"paper": 1e5, "laptop": 54, "smoke": 8},
    caveat={
        "laptop": "width 64, batch 16, learning rate 1e-3, d = 16, T = 32",
        "smoke": "one layer and head of width 16, d = 4, T = 8, one seed",
    },
)
