"""What the figures of trained chains share: their studies, and what is measured of their runs."""

import functools
from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import pandas as pd
from jaxtyping import Float

from ..._errors import InputError
from ...engine import Config, Optimizer, Result
from ...measure import Boundary, Division, Drop, boundary_of, departure, division, find_stages, group_mass, stage_boundaries
from ...models import MinimalAttention, Model
from ...studies import Study, curve_frame
from ...tasks import Groups, MarkovChain
from ._contexts import ContextPredictors

CHAIN, NEAR, PAIR = MarkovChain(), Groups(), Groups((1, 1))
ADAMW = Optimizer("adamw", 0.08, clip=1.0, weight_decay=0.01)
FULL = ADAMW.replace(learning_rate=3e-3)
"""The optimizer of the full Transformer."""
TINY = MinimalAttention(heads=2, scale=1e-3)
Curves = dict[str, np.ndarray]
"""What was measured of one run, by name, one row per evaluation."""


def paper(model: Model, task: MarkovChain = CHAIN, optimizer: Optimizer = ADAMW, **changes: Any) -> Study:
    """The paper's setting, with five seeds instead of one. No threshold ends a run: all steps are trained."""
    options: dict[str, Any] = {"batch": 3000, "n_train": 9000, "steps": 2000, "n_test": 3000, "seeds": 5}
    return Study(task, model, optimizer, precision="fp32", threshold=None, **(options | changes))


def laptop(model: Model, groups: Groups = NEAR, optimizer: Optimizer = ADAMW, **changes: Any) -> Study:
    """A small setting that shows the stages."""
    options: dict[str, Any] = {"batch": 256, "n_train": None, "steps": 1200, "n_test": 512, "seeds": 2}
    return paper(model, MarkovChain(groups, 16, generated=12), optimizer, **(options | changes))


def smoke(model: Model = TINY, groups: Groups = PAIR, optimizer: Optimizer = ADAMW, **changes: Any) -> Study:
    """A few seconds of training; most figures share the program."""
    options: dict[str, Any] = {"batch": 32, "n_train": None, "steps": 60, "n_test": 64, "seeds": 2}
    return paper(model, MarkovChain(groups, 5, generated=4), optimizer, **(options | changes))


def chain_of(config: Config) -> MarkovChain:
    """The task of a config; the figures of this paper have no other."""
    return cast(MarkovChain, config.task)


def sizes_of(study: Study) -> str:
    """The sizes of a small setting in words, for a caveat."""
    config, seeds = study.base, len(study.seeds)
    task = chain_of(config)
    parts = [
        f"groups of {', '.join(map(str, task.groups.spans))} positions",
        f"{task.vocabulary} tokens, {task.generated} of them generated per sequence",
        f"batches of {config.batch}" + (" of fresh data" if config.n_train is None else ""),
        f"{config.steps:,} steps",
        "one seed" if seeds == 1 else f"{seeds} seeds",
    ]
    return ", ".join(parts)


class ChainRuns:
    """The runs of one setting, measured. Runs that failed are left out."""

    def __init__(self, results: Iterable[Result]) -> None:
        every = list(results)
        self.results = [r for r in every if r.curves is not None and r.failed_step is None]
        if not self.results:
            raise InputError(f"all {len(every)} runs of this setting failed, or were recorded without their curves")
        self.curves: list[Curves] = [dict(r.curves or {}) for r in self.results]
        self.groups = chain_of(self.results[0].run.config).groups

    @property
    def seeds(self) -> int:
        """How many there are."""
        return len(self.results)

    @property
    def steps(self) -> Float[np.ndarray, " evaluations"]:
        return self.curves[0]["step"].astype(float)

    @property
    def contexts(self) -> tuple[int, ...]:
        """How many tokens the predictors see that some of the runs are compared with; empty where none is."""
        probes = [probe for result in self.results for probe in result.run.config.probes]
        return next((probe.contexts for probe in probes if isinstance(probe, ContextPredictors)), ())

    @property
    def table(self) -> pd.DataFrame:
        """All curves, one row per evaluation."""
        return pd.concat([curve_frame(r.curves).assign(seed=r.run.seed) for r in self.results], ignore_index=True)

    def attention(self, curve: Curves) -> Float[np.ndarray, "evaluations heads lags"]:
        """Attention by lag of all heads of all layers."""
        lags = curve["attention_by_lag"]
        return lags.reshape(len(lags), -1, lags.shape[-1])

    def group_attention(self, curve: Curves) -> Float[np.ndarray, "evaluations heads groups"]:
        return group_mass(self.attention(curve), self.groups.members)

    def division(self, curve: Curves) -> Division:
        return division(self.group_attention(curve), np.array(self.groups.spans, float))

    @functools.cached_property
    def stages(self) -> list[list[Drop]]:
        """The drops of the KL from the teacher, one list per run."""
        return [find_stages(curve["step"], curve["kl_teacher"]) for curve in self.curves]

    @functools.cached_property
    def boundaries(self) -> list[Boundary]:
        """The ends of the plateaus over seeds."""
        return stage_boundaries(self.stages)

    @property
    def plateau_levels(self) -> list[float]:
        """The KL from the teacher on the plateaus between stages, mean over the runs that show as many stages as most do."""
        usual = len(self.boundaries) + 1
        levels = [[drop.level for drop in run[1:]] for run in self.stages if len(run) == usual]
        return np.mean(levels, 0).tolist() if usual > 1 else []

    def departures(self, curve: Curves) -> list[float]:
        """When a student leaves each reference but the teacher; NaN where it does not."""
        return [departure(curve["step"], kl) for kl in curve["kl_references"].T[:-1]]

    @property
    def departure_boundaries(self) -> list[Boundary]:
        """The same over seeds."""
        every = np.reshape([self.departures(curve) for curve in self.curves], (-1, self.groups.count - 1))
        return [boundary_of(steps) for steps in every.T]

    @property
    def nearest_steps(self) -> np.ndarray:
        """The step at which the KL from each reference is least: (run, reference)."""
        return np.array([curve["step"][curve["kl_references"].argmin(0)] for curve in self.curves])

    @property
    def final_kl(self) -> np.ndarray:
        """The KL from each reference at the end, mean over seeds."""
        return np.mean([curve["kl_references"][-1] for curve in self.curves], 0)

    @property
    def shared_attention(self) -> float:
        """The largest attention that all heads at once have on the strongest group before A_1 is left, least over seeds."""
        largest, strongest = [], self.groups.ranking[0]
        for curve in self.curves:
            early = ~(curve["step"] >= self.departures(curve)[0])  # all steps where it is not left
            largest.append(float(self.group_attention(curve)[early][:, :, strongest].min(1).max()))
        return min(largest)

    @property
    def specialised(self) -> int:
        """In how many runs each group has a head of its own at the end, the one that looks at it most."""
        owners = [self.group_attention(curve)[-1].argmax(0).tolist() for curve in self.curves]
        return sum(len(set(heads)) == self.groups.count for heads in owners)

    @property
    def learning_order(self) -> list[list[int]]:
        """The groups in the order in which some head first gives them half of its attention, counted from 1, one list per run;
        groups that no head does are left out."""
        orders = []
        for curve in self.curves:
            learned = self.group_attention(curve).max(1) >= 0.5
            first = {j: int(np.argmax(learned[:, j])) for j in range(self.groups.count) if learned[:, j].any()}
            orders.append([j + 1 for j in sorted(first, key=lambda j: first[j])])
        return orders


def line_of_seed(i: int) -> dict[str, Any]:
    """How the line of the i-th seed is drawn: the first stands out."""
    return {"lw": 1.6} if i == 0 else {"lw": 0.7, "alpha": 0.45}
