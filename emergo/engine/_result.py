"""A finished run: what it was, when its attention became sparse, and its curves."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import __version__
from ..measure import Emergence, State, emergence
from ._config import Run


class Result(NamedTuple):
    """One finished run."""

    run: Run
    state: State
    """`reached` its threshold; `censored`: came to its last step without; `trained` to its last step, with no threshold asked
    for; `failed`: its loss was no longer finite, or it could not be trained."""
    plateau: Emergence
    """When it learned: the step at which `task.learned` came to the run's threshold, with an interval."""
    steps: int
    """How many were trained."""
    failed_step: int | None
    provenance: Mapping[str, Any]
    curves: Mapping[str, np.ndarray] | None
    """By name, one row per evaluation: `step`, `loss` (test), `train_loss` (mean since the evaluation before), the task's
    metrics and what probes measured; None where only the outcome was kept."""
    reason: str | None = None
    """Why it failed."""

    @classmethod
    def measured(cls, run: Run, curves: Mapping[str, np.ndarray], failed_step: int | None, device: str) -> "Result":
        """What became of a run, from its curves."""
        steps = int(curves["step"][-1])
        learned, threshold = run.config.task.learned, run.config.threshold
        plateau, state, reason = _NONE, "trained", None
        if learned is not None and isinstance(threshold, float):
            plateau = emergence(curves["step"], curves[learned.metric], threshold, learned.direction)
            state = plateau.state
        if failed_step is not None and state != "reached":
            plateau, state, reason = _NONE, "failed", f"the loss was not finite at step {failed_step}"
        return cls(run, state, plateau._replace(state=state), steps, failed_step, provenance(device), dict(curves), reason)

    @classmethod
    def untrained(cls, run: Run, reason: str, device: str) -> "Result":
        """A run that could not be trained at all."""
        return cls(run, "failed", _NONE._replace(state="failed"), 0, None, provenance(device), None, reason)


_NONE = Emergence(math.nan, math.nan, math.nan, "trained")


def provenance(device: str) -> dict[str, Any]:
    """Where and with what a run was trained."""
    return {"version": __version__, "jax": jax.__version__, "device": device}
