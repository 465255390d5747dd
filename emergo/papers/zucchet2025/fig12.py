"""Figure 12: learning curves of Transformers under cross-sample repetition."""

import dataclasses

import numpy as np
from matplotlib.figure import Figure as Plot

from ..._style import WIDTH, level, panel, shades
from ...engine import Config, Run
from ...measure import emergence
from ...studies import Result, grid_runs, provenance_of
from ...tasks import MarkovChain
from .._figure import Check, Figure, Outcome
from .._transformers import PAPER, SMALL, TINY, run_table
from .._work import Work
from .fig11 import attention_of, curve_table, curves_by


@dataclasses.dataclass(frozen=True)
class Settings:
    base: Config
    seeds: int = 3
    dim: int = 64
    length: int = 256
    repeats: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.4)


def runs(settings: Settings) -> list[Run]:
    base = dataclasses.replace(settings.base, beyond=0.25)
    return grid_runs(base, settings.seeds, length=(settings.length,), dim=(settings.dim,), repeat=settings.repeats)


def crossing(result: Result, level: float) -> float:
    """When the test loss falls to a level, or the last step observed."""
    assert result.curves is not None
    return emergence(result.curves["step"], result.curves["loss"], level).time


def repeat_of(result: Result) -> float:
    task = result.run.config.task
    assert not isinstance(task, MarkovChain)
    return task.repeat


def make(settings: Settings, work: Work) -> Outcome:
    results = work.results(runs(settings), curves=True)

    def mean(repeat: float, level: float) -> float:
        return float(np.mean([crossing(r, level) for r in results if repeat_of(r) == repeat]))

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
        tables={"runs": run_table(results), "curves": curve_table(results)},
        plot=draw(results, settings),
        checks=checks,
        precision=settings.base.precision,
        device=provenance_of({"runs": results}),
    )


def draw(results: list[Result], settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 2.4), layout="constrained")
    a, b, c = plot.subplots(1, 3)
    curves_by(a, results, "repeat", "$p$")
    level(a, 0.4, "threshold of Fig. 3 right", "--")
    panel(a, "a", "test loss, no repetition")
    colours = dict(zip(settings.repeats, shades(len(settings.repeats)), strict=True))
    for result in results:
        assert result.curves is not None
        colour, step = colours[repeat_of(result)], result.curves["step"]
        b.plot(step, attention_of(result), color=colour, lw=1, alpha=0.85)
        c.plot(step, result.curves["alignment"], color=colour, lw=1, alpha=0.85)
    b.set(xlabel="step", ylabel="attention to the relevant token", xscale="log", xlim=(20, None))
    panel(b, "b", f"d = {settings.dim}, T = {settings.length}")
    c.set(xlabel="step", ylabel="alignment of the value path", xscale="log", xlim=(20, None))
    panel(c, "c")
    return plot


FIGURE = Figure(
    id="zucchet2025/fig12",
    shows="learning curves of Transformers under cross-sample repetition",
    presets={
        "paper": Settings(dataclasses.replace(PAPER, steps=20_000)),
        "laptop": Settings(dataclasses.replace(SMALL, steps=1500), dim=16, length=32, repeats=(0.0, 0.2, 0.4)),
        "smoke": Settings(dataclasses.replace(TINY, steps=500), seeds=1, dim=4, length=8, repeats=(0.0, 0.4)),
    },
    make=make,
    runs=runs,
    seconds={"paper": 1e5, "laptop": 54, "smoke": 11},
    shrunk={
        "laptop": "width 64, batch 16, learning rate 1e-3, d = 16, T = 32",
        "smoke": "width 16, d = 4, T = 8, one seed",
    },
)
