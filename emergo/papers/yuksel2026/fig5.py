"""Figure 5: with little data the best step falls while the student is still a truncated predictor."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import LogLocator, NullFormatter

from ..._random import fold_in, raw
from ..._style import BLACK, GREY, WIDTH, outside, shades
from ...measure import best_so_far, early_stop, excess_loss, group_mass
from ...models import MinimalAttention
from ...studies import Study, provenance_of
from ...tasks import MarkovChain, divergence
from .._figure import Check, Figure, Outcome
from .._source import RunSource
from ._chains import ChainRuns, Curves, chain_of, laptop, line_of_seed, paper, smoke
from ._contexts import ContextPredictors
from ._stage_figure import COLOURS, caveats

BEST = {"600": 1.33, "2000": 0.81, "9000": 0.09, "online": 0.02}
"""Printed: the best excess loss."""
STEPS = {"600": 70, "2000": 260, "9000": 760}
"""Printed: the step at which it is reached."""


@dataclasses.dataclass(frozen=True)
class Settings:
    study: Study
    sizes: tuple[int | None, ...] = (600, 2000, 9000, None)
    """Numbers of training sequences; None: every step draws new ones."""


def studies(settings: Settings) -> dict[str, Study]:
    return {"online" if n is None else f"{n}": settings.study.replace(n_train=n) for n in settings.sizes}


def excess(curve: Curves) -> np.ndarray:
    """Validation loss above the teacher's on the same sequences."""
    return excess_loss(curve["loss"], curve["teacher_loss"])


@functools.lru_cache(maxsize=4)
def reference_distances(task: MarkovChain, n: int = 512) -> Float[np.ndarray, "references references"]:
    """KL between the references, of one draw of the maps: draws differ by a few hundredths."""
    key = raw(jax.random.key(0))
    truth = task.truth(fold_in(key, 0))
    references = task.references(truth, task.sample(fold_in(key, 1), n, truth))
    return np.array([[float(divergence(a, b).mean()) for b in references] for a in references])


class StoppedRuns:
    """The runs with one number of training sequences, and what each of them is at its best step."""

    def __init__(self, runs: ChainRuns) -> None:
        self.runs = runs
        apart = reference_distances(chain_of(runs.results[0].run.config))
        self.stops = [early_stop(c["step"], excess(c), c["kl_references"].T, apart) for c in runs.curves]

    @property
    def loss(self) -> float:
        """The best excess loss, mean over seeds."""
        return float(np.mean([stop.loss for stop in self.stops]))

    @property
    def step(self) -> float:
        """The step at which it is reached, geometric mean over seeds."""
        return float(np.exp(np.mean([np.log(max(stop.step, 1)) for stop in self.stops])))

    def at_best(self, name: str) -> list[np.ndarray]:
        """What a curve is at the best step of each run."""
        pairs = zip(self.runs.curves, self.stops, strict=True)
        return [curve[name][int(np.searchsorted(curve["step"], stop.step))] for curve, stop in pairs]

    @property
    def groups_learned(self) -> list[int]:
        """How many groups some head has half of its attention on at the best step, one number per run."""
        members = self.runs.groups.members
        return [int((group_mass(lags, members).max((0, 1)) >= 0.5).sum()) for lags in self.at_best("attention_by_lag")]

    @property
    def nearest_contexts(self) -> list[int]:
        """How many tokens the predictor sees that the student is nearest to at its best step, one number per run."""
        return [self.runs.contexts[int(kl.argmin())] for kl in self.at_best("kl_contexts")]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per run."""
        columns = zip(self.runs.results, self.stops, self.groups_learned, self.nearest_contexts, strict=True)
        return [{"seed": r.run.seed, **s._asdict(), "groups": g, "context": c} for r, s, g, c in columns]


def make(settings: Settings, source: RunSource) -> Outcome:
    parts = source.runs(studies(settings), curves=True)
    stopped = {name: StoppedRuns(ChainRuns(part)) for name, part in parts.items()}
    rows = [{"n_train": name} | row for name, one in stopped.items() for row in one.rows]
    curves = [one.runs.table.assign(n_train=name) for name, one in stopped.items()]
    return Outcome(
        tables={"runs": pd.DataFrame(rows), "curves": pd.concat(curves, ignore_index=True)},
        plot=draw(stopped),
        checks=[*loss_checks(stopped), *predictor_checks(stopped)],
        precision="fp32",
        device=provenance_of(parts),
    )


def loss_checks(stopped: Mapping[str, StoppedRuns]) -> list[Check]:
    """How good the best is, and when."""
    best = {name: one.loss for name, one in stopped.items()}
    steps = {name: one.step for name, one in stopped.items() if name != "online"}
    printed = list(best) == list(BEST)
    close = printed and all(abs(best[n] - BEST[n]) < 0.05 + 0.15 * BEST[n] for n in best)
    near = printed and all(abs(np.log(steps[n] / STEPS[n])) < np.log(1.5) for n in steps)
    losses, times = list(best.values()), list(steps.values())
    return [
        Check("best excess loss by number of samples", best, BEST if printed else None, close, "within 0.05 + 15%"),
        Check("step of the best, geometric mean over seeds", steps, STEPS if printed else None, near, "within 1.5"),
        Check(
            "more data, a better and later best: both orders hold",
            losses,
            "early stopping acts as an implicit regularizer",
            bool(np.all(np.diff(losses) < 0) and np.all(np.diff(times) > 0)),
        ),
    ]


def predictor_checks(stopped: Mapping[str, StoppedRuns]) -> list[Check]:
    """What the student is at its best step."""
    contexts = {name: one.nearest_contexts for name, one in stopped.items()}
    means = [float(np.mean(each)) for each in contexts.values()]
    learned, count = [one.groups_learned for one in stopped.values()], next(iter(stopped.values())).runs.groups.count
    return [
        Check(
            "groups that some head has half of its attention on at the best step: by seed, least and most data",
            [learned[0], learned[-1]],
            "biasing the model toward simpler classes: a truncated predictor with little data, all groups online",
            max(learned[0]) < count == min(learned[-1]),
        ),
        Check(
            "tokens that the nearest predictor of restricted context sees, at the best step, by seed",
            contexts,
            "early stopping biases the model toward simpler classes: more data, longer context",
            means[0] < means[-1] and bool(np.all(np.diff(means) >= 0)),
        ),
    ]


def draw(stopped: Mapping[str, StoppedRuns]) -> Plot:
    plot = Plot(figsize=(WIDTH, 4.4), layout="constrained")
    parts: Any = plot.subfigures(2, 1, height_ratios=(1.15, 1))
    top, bottom = parts
    left, right = top.subplots(1, 2)
    draw_losses(left, right, stopped)
    panels = np.ravel(bottom.subplots(1, len(stopped), sharey=True, squeeze=False))
    for axes, (name, one) in zip(panels, stopped.items(), strict=True):
        draw_student(axes, one)
        axes.set_title(name if name == "online" else f"{name} samples", fontsize=7.5)
    panels[0].set(ylabel="KL(restricted ‖ student)")
    contexts = next(iter(stopped.values())).runs.contexts
    lines = [(f"{c} tokens", {"color": colour}) for c, colour in zip(contexts, COLOURS, strict=False)]
    others = [("teacher", {"color": GREY, "lw": 0.9}), ("best step", {"color": BLACK, "lw": 0.8, "ls": "--"})]
    outside(panels[-1], "student of", [*lines, *others])
    words = "right  KL from students of restricted context, first seed"
    bottom.suptitle(words, x=0.01, ha="left", fontsize=8.5, fontweight="bold")
    return plot


def draw_losses(left: Axes, right: Axes, stopped: Mapping[str, StoppedRuns]) -> None:
    colours = shades(len(stopped))
    for one, colour in zip(stopped.values(), colours, strict=True):
        for i, curve in enumerate(one.runs.curves):
            left.plot(curve["step"][1:], best_so_far(excess(curve))[1:], color=colour, **line_of_seed(i))
            right.plot(curve["step"][1:], excess(curve)[1:], color=colour, **line_of_seed(i))
    for axes, title in ((left, "left  best excess loss so far"), (right, "excess loss")):
        axes.set(xscale="log", yscale="log", xlabel="step")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_title(title)
    outside(right, "samples", [(name, {"color": colour}) for name, colour in zip(stopped, colours, strict=True)])


def draw_student(axes: Axes, one: StoppedRuns) -> None:
    """The first seed: KL from the teacher and from the predictors of restricted context."""
    curve = one.runs.curves[0]
    axes.plot(curve["step"][1:], curve["kl_teacher"][1:], color=GREY, lw=0.9)
    for values, colour in zip(curve["kl_contexts"].T, COLOURS, strict=False):
        axes.plot(curve["step"][1:], values[1:], color=colour, lw=1.3)
    axes.axvline(max(one.stops[0].step, 1), color=BLACK, lw=0.8, ls="--")
    axes.set(xscale="log", xlabel="step", ylim=(0, 4))


PROBES = (ContextPredictors((2, 4, 6)),)
SMALL = laptop(MinimalAttention(), seeds=1, batch=128, steps=800, probes=PROBES)
TINY = smoke(seeds=1, probes=(ContextPredictors((1, 2)),))
FIGURE = Figure(
    id="yuksel2026/fig5",
    title="with little data the best step falls while the student is still a truncated predictor",
    presets={
        "paper": Settings(paper(MinimalAttention(), probes=PROBES)),
        "laptop": Settings(SMALL, sizes=(100, 400, None)),
        "smoke": Settings(TINY, sizes=(16, None)),
    },
    make=make,
    seconds={"paper": 45000, "laptop": 66, "smoke": 18},
    caveat=caveats(SMALL, TINY, "100 and 400 samples besides fresh data"),
    studies=studies,
    curves=True,
)
