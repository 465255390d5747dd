"""Studies: grids of runs that are planned, trained, stored and summarised, here or on Slurm."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._estimate import estimate
    from ._live import Forecaster, Watcher, live_progress
    from ._runs import Runs, concat
    from ._study import Fit, Slurm, Study
    from ._writers import RunLog
    from .cells import cell_summary, study_curves, study_law, study_table
    from .description import load_plugins
    from .executor import Executor, check_platform, run_plan
    from .plan import find_inputs
    from .slurm import build_slurm, check_slurm, submit_plan

# Imported on first use, so that commands that only read files do not wait for JAX.
_MODULES = {
    "_estimate": ("estimate",),
    "_live": ("Forecaster", "Watcher", "live_progress"),
    "_runs": ("Runs", "concat"),
    "_study": ("Fit", "Slurm", "Study"),
    "_writers": ("RunLog",),
    "cells": ("cell_summary", "study_curves", "study_law", "study_table"),
    "description": ("load_plugins",),
    "executor": ("Executor", "check_platform", "run_plan"),
    "plan": ("find_inputs",),
    "slurm": ("build_slurm", "check_slurm", "submit_plan"),
}
__all__ = [
    "Executor",
    "Fit",
    "Forecaster",
    "RunLog",
    "Runs",
    "Slurm",
    "Study",
    "Watcher",
    "build_slurm",
    "cell_summary",
    "check_platform",
    "check_slurm",
    "concat",
    "estimate",
    "find_inputs",
    "live_progress",
    "load_plugins",
    "run_plan",
    "study_curves",
    "study_law",
    "study_table",
    "submit_plan",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            globals()[name] = getattr(importlib.import_module(f".{module}", __name__), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
