"""The public names of tasks, models and the engine without their types.

Tests put schedules where numbers are annotated, and wrong values where they must be refused; a type checker would object.
"""

from typing import Any

from emergo import engine, models, tasks


def __getattr__(name: str) -> Any:
    for room in (engine, models, tasks):
        if hasattr(room, name):
            return getattr(room, name)
    raise AttributeError(f"none of the rooms has {name}")
