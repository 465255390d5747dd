"""What the figures of trained chains share: how runs are trained, and their stages, measured."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...engine import Config, Optimizer, Run
from ...measure import Boundary, Division, Drop, boundary_of, departure, division, find_stages, group_mass, stage_boundaries
from ...models import ChainModel, ChainTransformer, MinimalAttention
from ...studies import Result, curve_frame
from ...tasks import Groups, MarkovChain

CHAIN, TWO = MarkovChain(), Groups((1, 1))
ADAMW = Optimizer("adamw", 0.08, clip=1.0)
SLOW = dataclasses.replace(ADAMW, learning_rate=0.04)
"""Of two layers."""
FULL = dataclasses.replace(ADAMW, learning_rate=3e-3)
"""Of the full Transformer."""


@dataclasses.dataclass(frozen=True)
class Training:
    """How the runs of a figure are trained; the defaults are the paper's, with five seeds instead of one."""

    task: MarkovChain = CHAIN
    optimizer: Optimizer = ADAMW
    batch: int = 3000
    samples: int | None = 9000
    steps: int = 2000
    tests: int = 3000
    seeds: int = 5
    windows: tuple[int, ...] | None = None
    """How many tokens the predictors of restricted context see that runs are compared with, if with any."""
    compared: int | None = None
    """How many of the runs are compared with these; None: all."""

    def config(self, model: ChainModel, compared: bool = True) -> Config:
        """No threshold is reached: all steps are trained."""
        windows = self.windows if compared else None
        more: dict[str, Any] = {"tests": self.tests, "samples": self.samples, "windows": windows}
        return Config(self.task, model, self.optimizer, self.batch, "fp32", self.steps, 0.0, **more)

    def minimal(self, **options: Any) -> MinimalAttention:
        return MinimalAttention(self.task.length - 1, self.task.vocabulary, **options)

    def full(self, **options: Any) -> ChainTransformer:
        return ChainTransformer(self.task.length - 1, self.task.vocabulary, **options)

    def runs(self, model: ChainModel) -> list[Run]:
        compared = self.seeds if self.compared is None else self.compared
        return [Run(self.config(model, seed < compared), seed) for seed in range(self.seeds)]


def initial(scale: float | None) -> dict[str, Any]:
    """The start of the minimal attention: of this scale; None: Xavier's."""
    return {"start": "xavier"} if scale is None else {"scale": scale}


def laptop(groups: Groups, **changes: Any) -> Training:
    """A small setting that shows the stages: 16 tokens, 12 of a sequence generated, batches of 256, fresh data."""
    options: dict[str, Any] = {"batch": 256, "samples": None, "steps": 1200, "tests": 512, "seeds": 2}
    return Training(MarkovChain(groups, 16, generated=12), **(options | changes))


def smoke(groups: Groups = TWO, **changes: Any) -> Training:
    """Every part of the way in a few seconds; figures share the program."""
    options: dict[str, Any] = {"batch": 32, "samples": None, "steps": 60, "tests": 64, "seeds": 2}
    return Training(MarkovChain(groups, 5, generated=4), **(options | changes))


LAPTOP = "16 tokens, 12 of them generated a sequence, batches of 256 of fresh data, 2 seeds"
SMOKE = "two groups of one or two positions, 5 tokens, batches of 32, at most 60 steps"


@dataclasses.dataclass(frozen=True)
class Seen:
    """The runs of one setting, measured."""

    results: Sequence[Result]
    groups: Groups
    stages: list[list[Drop]]
    """Of the KL from the teacher, a list a run."""
    boundaries: list[Boundary]

    @property
    def curves(self) -> list[dict[str, np.ndarray]]:
        return [dict(r.curves) for r in self.results if r.curves is not None]

    @property
    def steps(self) -> np.ndarray:
        return self.curves[0]["step"]

    def heads(self, curve: dict[str, np.ndarray]) -> np.ndarray:
        """Attention of all heads of all layers by lag: (evaluation, head, lag)."""
        lags = curve["lags"]
        return lags.reshape(len(lags), -1, lags.shape[-1])

    def mass(self, curve: dict[str, np.ndarray]) -> np.ndarray:
        """And by group: (evaluation, head, group)."""
        return group_mass(self.heads(curve), self.groups.members)

    def covered(self, curve: dict[str, np.ndarray]) -> np.ndarray:
        """The attention of each head within the window of the chain at the end: (head,)."""
        return self.heads(curve)[-1].sum(-1)

    def division(self, curve: dict[str, np.ndarray]) -> Division:
        return division(self.mass(curve), np.array(self.groups.spans, float))

    @property
    def together(self) -> float:
        """The largest attention that all heads at once have on the strongest group before A_1 is left, least over seeds."""
        found, strongest = [], self.groups.ranking[0]
        for curve in self.curves:
            early = ~(curve["step"] >= self.departures(curve)[0])  # all steps where it is not left
            found.append(float(self.mass(curve)[early][:, :, strongest].min(1).max()))
        return min(found)

    @property
    def owners(self) -> int:
        """At the end of how many runs each group has a head of its own, the one that looks at it most."""
        ends = [self.mass(curve)[-1].argmax(0).tolist() for curve in self.curves]
        return sum(len(set(end)) == self.groups.count for end in ends)

    @property
    def last(self) -> np.ndarray:
        """KL from each reference at the end, mean over seeds."""
        return np.mean([curve["divergences"][-1] for curve in self.curves], 0)

    @property
    def nearest(self) -> np.ndarray:
        """The step at which the KL from each reference is least: (run, reference)."""
        return np.array([curve["step"][curve["divergences"].argmin(0)] for curve in self.curves])

    def departures(self, curve: dict[str, np.ndarray]) -> list[float]:
        """When a student leaves each reference but the teacher; NaN where it does not."""
        return [departure(curve["step"], kl) for kl in curve["divergences"].T[:-1]]

    @property
    def left(self) -> list[Boundary]:
        """The same over seeds."""
        every = np.reshape([self.departures(curve) for curve in self.curves], (-1, self.groups.count - 1))
        return [boundary_of(steps) for steps in every.T]

    @property
    def plateaus(self) -> list[float]:
        """The KL from the teacher on the plateaus between stages, mean over the runs that show as many stages as most do."""
        usual = len(self.boundaries) + 1
        levels = [[drop.level for drop in run[1:]] for run in self.stages if len(run) == usual]
        return np.mean(levels, 0).tolist() if usual > 1 else []

    def order(self) -> list[list[int]]:
        """Of each run, the groups in the order in which some head first gives them half of its attention, from 1; those that
        none does are left out."""
        found = []
        for curve in self.curves:
            most = self.mass(curve).max(1) >= 0.5
            first = {j: int(np.argmax(most[:, j])) for j in range(self.groups.count) if most[:, j].any()}
            found.append([j + 1 for j in sorted(first, key=lambda j: first[j])])
        return found


def watch(results: Sequence[Result]) -> Seen:
    task = results[0].run.config.task
    assert isinstance(task, MarkovChain)
    whole = [r for r in results if r.curves is not None and r.failed_step is None]
    stages = [find_stages(r.curves["step"], r.curves["excess"]) for r in whole if r.curves is not None]
    return Seen(whole, task.groups, stages, stage_boundaries(stages))


def table(results: Sequence[Result], **more: Any) -> pd.DataFrame:
    """All curves, a row an evaluation."""
    return pd.concat([curve_frame(r).assign(seed=r.run.seed, **more) for r in results], ignore_index=True)


def weight(i: int) -> dict[str, Any]:
    """How the line of the i-th seed is drawn: the first stands out."""
    return {"lw": 1.6} if i == 0 else {"lw": 0.7, "alpha": 0.45}
