"""A source of hand-made runs of single-location regression."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from emergo.papers import RunSource
from emergo.training import Result, Run, _config


def evaluations(steps: int) -> np.ndarray:
    """Return the steps at which a run is evaluated."""
    found = [0]
    while found[-1] < steps:
        found.append(min(_config.next_evaluation(found[-1]), steps))
    return np.array(found)


def falling(step: np.ndarray, at: float, sharp: float = 12.0, floor: float = 0.0) -> np.ndarray:
    """Return a loss of 0.5 that falls from its plateau to 0.1 at a step."""
    return floor + (0.5 - floor) / (1 + 4 * (step / at) ** sharp)


def finished(run: Run, loss: np.ndarray, alignment: float = 0.0) -> Result:
    """Return a run with this loss, which ends at the first evaluation past its threshold."""
    config: Any = run.config
    step = evaluations(config.steps)
    last = len(loss)
    if config.threshold is not None and (loss <= config.threshold).any():
        last = int(np.argmax(loss <= config.threshold)) + 1
    heads = np.full((last, config.model.layers, config.model.heads), 1 / config.task.length)
    curves = {
        "step": step[:last],
        "loss": loss[:last],
        "alignment": np.full(last, alignment),
        "attention": heads,
    }
    return Result.measured(run, curves, None, "by hand")


@dataclasses.dataclass(frozen=True)
class MadeRuns(RunSource):
    """A source that makes its results with a function, which returns None for missing runs."""

    make: Callable[[Run], Result | None] = lambda run: None

    def _results(self, runs, curves):
        return {run.identity: result for run in runs if (result := self.make(run)) is not None}
