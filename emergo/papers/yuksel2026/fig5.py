"""Figure 5: with little data the best step falls while the student is still a truncated predictor."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import LogLocator, NullFormatter

from ..._random import fold_in, raw
from ..._style import BLACK, GREY, WIDTH, outside, shades
from ...engine import Run
from ...measure import Stop, best_so_far, early_stop, excess_loss, group_mass
from ...studies import Result, provenance_of
from ...tasks import Groups, MarkovChain, divergence
from .._figure import Check, Figure, Outcome
from .._work import Work
from ._chains import LAPTOP, SMOKE, Training, laptop, smoke, table, weight
from ._stage_figure import COLOURS

BEST = {"600": 1.33, "2000": 0.81, "9000": 0.09, "online": 0.02}
"""Printed: the best excess loss."""
STEPS = {"600": 70, "2000": 260, "9000": 760}
"""Printed: the step at which it is reached."""


@dataclasses.dataclass(frozen=True)
class Settings:
    training: Training
    sizes: tuple[int | None, ...] = (600, 2000, 9000, None)
    heads: int = 3
    scale: float = 1e-9

    def parts(self) -> dict[str, list[Run]]:
        found = {}
        for size in self.sizes:
            training = dataclasses.replace(self.training, samples=size)
            model = training.minimal(heads=self.heads, scale=self.scale)
            found["online" if size is None else f"{size}"] = training.runs(model)
        return found


def runs(settings: Settings) -> list[Run]:
    return [run for part in settings.parts().values() for run in part]


def excess(result: Result) -> np.ndarray:
    """Validation loss above the teacher's on the same sequences."""
    assert result.curves is not None
    return excess_loss(result.curves["loss"], result.curves["teacher_loss"])


def apart(task: MarkovChain, n: int = 512) -> np.ndarray:
    """KL between the references, of one draw of the maps: draws differ by a few hundredths."""
    key = raw(jax.random.key(0))
    truth = task.truth(fold_in(key, 0))
    references = task.references(truth, task.sample(fold_in(key, 1), n, truth))
    return np.array([[float(divergence(a, b).mean()) for b in references] for a in references])


def stops(results: list[Result], between: np.ndarray) -> list[Stop]:
    whole = [(r, r.curves) for r in results if r.curves is not None]
    return [early_stop(curves["step"], excess(r), curves["divergences"].T, between) for r, curves in whole]


def learned(result: Result, stop: Stop) -> int:
    """How many groups some head has half of its attention on at the best step."""
    task = result.run.config.task
    assert isinstance(task, MarkovChain)
    assert result.curves is not None
    lags = result.curves["lags"][int(np.searchsorted(result.curves["step"], stop.step))]
    return int((group_mass(lags, task.groups.members).max((0, 1)) >= 0.5).sum())


def nearest_window(result: Result, stop: Stop) -> int:
    """Which predictor of restricted context the student is nearest to at its best step, by the number of tokens it sees."""
    windows = result.run.config.windows
    assert windows is not None
    assert result.curves is not None
    at = int(np.searchsorted(result.curves["step"], stop.step))
    return windows[int(result.curves["restricted"][at].argmin())]


def make(settings: Settings, work: Work) -> Outcome:
    found = work.by_part(settings.parts(), curves=True)
    between = apart(settings.training.task)
    stopped = {name: stops(results, between) for name, results in found.items()}
    best = {name: float(np.mean([s.loss for s in each])) for name, each in stopped.items()}
    at = {name: float(np.exp(np.mean([np.log(max(s.step, 1)) for s in each]))) for name, each in stopped.items()}
    names, finite = list(found), [name for name in found if name != "online"]
    known = {name: [learned(r, s) for r, s in zip(found[name], stopped[name], strict=True)] for name in names}
    context = {name: [nearest_window(r, s) for r, s in zip(found[name], stopped[name], strict=True)] for name in names}
    means = [float(np.mean(context[name])) for name in names]
    count = settings.training.task.groups.count
    whole = names == list(BEST)
    close = whole and all(abs(best[n] - BEST[n]) < 0.05 + 0.15 * BEST[n] for n in names)
    near = whole and all(abs(np.log(at[n] / STEPS[n])) < np.log(1.5) for n in finite)
    rows = [
        {"samples": name, "seed": r.run.seed, **s._asdict()}
        for name in names
        for r, s in zip(found[name], stopped[name], strict=True)
    ]
    return Outcome(
        tables={
            "runs": pd.DataFrame(rows),
            "curves": pd.concat([table(results, samples=name) for name, results in found.items()], ignore_index=True),
        },
        plot=draw(found, stopped, settings),
        checks=[
            Check("best excess loss by number of samples", best, BEST if whole else None, close, "within 0.05 + 15%"),
            Check(
                "step of the best, geometric mean over seeds",
                {n: at[n] for n in finite},
                STEPS if whole else None,
                near,
                "within 1.5",
            ),
            Check(
                "more data, a better and later best: both orders hold",
                [best[n] for n in names],
                "early stopping acts as an implicit regularizer",
                bool(np.all(np.diff([best[n] for n in names]) < 0) and np.all(np.diff([at[n] for n in finite]) > 0)),
            ),
            Check(
                "groups that some head has half of its attention on at the best step: by seed, least and most data",
                [known[names[0]], known[names[-1]]],
                "biasing the model toward simpler classes: a truncated predictor with little data, all groups online",
                max(known[names[0]]) < count == min(known[names[-1]]),
            ),
            Check(
                "tokens that the nearest predictor of restricted context sees, at the best step, by seed",
                context,
                "early stopping biases the model toward simpler classes: more data, longer context",
                means[0] < means[-1] and bool(np.all(np.diff(means) >= 0)),
            ),
        ],
        precision="fp32",
        device=provenance_of(found),
    )


def draw(found: dict[str, list[Result]], stopped: dict[str, list[Stop]], settings: Settings) -> Plot:
    plot = Plot(figsize=(WIDTH, 4.4), layout="constrained")
    parts: Any = plot.subfigures(2, 1, height_ratios=(1.15, 1))
    top, bottom = parts
    left, right = top.subplots(1, 2)
    entries: list[tuple[str, dict[str, Any]]] = []
    for (name, results), colour in zip(found.items(), shades(len(found)), strict=True):
        for i, result in enumerate(results):
            assert result.curves is not None
            left.plot(result.curves["step"][1:], best_so_far(excess(result))[1:], color=colour, **weight(i))
            right.plot(result.curves["step"][1:], excess(result)[1:], color=colour, **weight(i))
        entries.append((name, {"color": colour}))
    for axes, title in ((left, "left  best excess loss so far"), (right, "excess loss")):
        axes.set(xscale="log", yscale="log", xlabel="step")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_title(title)
    outside(right, "samples", entries)
    panels = np.ravel(bottom.subplots(1, len(found), sharey=True, squeeze=False))
    for axes, name in zip(panels, found, strict=True):
        student(axes, found[name][0], stopped[name][0])
        axes.set_title(f"{name}" + (" samples" if name != "online" else ""), fontsize=7.5)
    panels[0].set(ylabel="KL(restricted ‖ student)")
    windows = settings.training.windows or ()
    shown = [(f"{c} tokens", {"color": colour}) for c, colour in zip(windows, COLOURS, strict=False)]
    dashed = [("teacher", {"color": GREY, "lw": 0.9}), ("best step", {"color": BLACK, "lw": 0.8, "ls": "--"})]
    outside(panels[-1], "student of", [*shown, *dashed])
    words = "right  KL from students of restricted context, first seed"
    bottom.suptitle(words, x=0.01, ha="left", fontsize=8.5, fontweight="bold")
    return plot


def student(axes: Axes, result: Result, stop: Stop) -> None:
    assert result.curves is not None
    axes.plot(result.curves["step"][1:], result.curves["excess"][1:], color=GREY, lw=0.9)
    for values, colour in zip(result.curves["restricted"].T, COLOURS, strict=False):
        axes.plot(result.curves["step"][1:], values[1:], color=colour, lw=1.3)
    axes.axvline(max(stop.step, 1), color=BLACK, lw=0.8, ls="--")
    axes.set(xscale="log", xlabel="step", ylim=(0, 4))


FIGURE = Figure(
    id="yuksel2026/fig5",
    shows="with little data the best step falls while the student is still a truncated predictor",
    presets={
        "paper": Settings(Training(windows=(2, 4, 6))),
        "laptop": Settings(laptop(Groups(), seeds=1, batch=128, steps=800, windows=(2, 4, 6)), sizes=(100, 400, None)),
        "smoke": Settings(smoke(seeds=1, windows=(1, 2)), sizes=(16, None), heads=2, scale=1e-3),
    },
    make=make,
    runs=runs,
    seconds={"paper": 45000, "laptop": 66, "smoke": 15},
    shrunk={
        "laptop": f"100 and 400 samples, {LAPTOP}".replace("256 of fresh data, 2 seeds", "128 at most, one seed"),
        "smoke": SMOKE,
    },
)
