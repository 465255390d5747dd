"""The public names of tasks, models and training without their types.

Tests put schedules where numbers are annotated, and wrong values where they must be refused; a type
checker would object.
"""

from typing import Any

from emergo import models, tasks, training


def __getattr__(name: str) -> Any:
    for subpackage in (training, models, tasks):
        if hasattr(subpackage, name):
            return getattr(subpackage, name)
    raise AttributeError(f"no subpackage has {name}")
