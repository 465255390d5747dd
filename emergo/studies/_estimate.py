"""What a study will take, before anything runs: groups, time at most, memory."""

import math
from typing import Any, NamedTuple

import jax

from ..engine import Run, Shape, compile_seconds, memory_of, planned_width, run_bytes, step_seconds
from ..tasks import SingleLocation
from ._plan import groups_of
from ._study import Study

_GPU_BYTES = 40e9
"""Memory of the GPU that is planned with where there is none to ask."""


class GroupEstimate(NamedTuple):
    """Runs that share a program."""

    what: str
    runs: int
    units: int
    together: int
    """Trained at once on a device."""
    bytes: float
    """Of a device."""
    seconds: float
    """Of one device, if no run ends before its last step."""


class Estimate(NamedTuple):
    platform: str
    devices: int
    groups: list[GroupEstimate]

    @property
    def seconds(self) -> float:
        """At most, on all devices together."""
        return sum(group.seconds for group in self.groups) / self.devices

    @property
    def bytes(self) -> float:
        """Of a device, at most."""
        return max((group.bytes for group in self.groups), default=0.0)

    def data(self) -> dict[str, Any]:
        groups = [group._asdict() for group in self.groups]
        return {
            "platform": self.platform,
            "devices": self.devices,
            "groups": groups,
            "seconds": self.seconds,
            "bytes": self.bytes,
        }


def estimate(study: Study, finished: frozenset[str] = frozenset(), slurm: bool = False) -> Estimate:
    """What is left of a study takes this: here, or on the Slurm cluster it asks for."""
    if slurm:
        platform, budget = ("gpu", 0.9 * _GPU_BYTES) if study.slurm.gpus else ("cpu", 0.5e9 * study.slurm.memory_gb)
        devices = study.slurm.tasks * max(1, study.slurm.gpus)
    else:
        device = jax.devices()[0]
        platform, budget, devices = device.platform, memory_of(device), len(jax.devices())
    groups = groups_of([run for run in study.runs if run.identity not in finished])
    made = [_group(group, study, platform, budget) for group in groups]
    if slurm:  # a unit has one task
        devices = min(devices, max(1, sum(group.units for group in made)) * max(1, study.slurm.gpus))
    return Estimate(platform, devices, made)


def _group(runs: list[Run], study: Study, platform: str, budget: float) -> GroupEstimate:
    shape = Shape.of([run.config for run in runs])
    together = min(planned_width(shape, platform, budget), len(runs), study.unit)
    steps = sum(run.config.steps for run in runs)
    units = math.ceil(len(runs) / study.unit)
    seconds = steps * step_seconds(shape, platform) + units * compile_seconds(platform)
    model, task = shape.model, shape.hull
    dims = sorted({run.config.task.inputs for run in runs})
    span = f"{dims[0]}" if len(dims) == 1 else f"{dims[0]}-{dims[-1]}"
    size = "dim" if isinstance(task, SingleLocation) else "vocabulary"
    what = f"length {task.length}, {size} {span}, layers {model.layers}, heads {model.heads}, width {model.width}"
    what += f", batch {shape.batch}, {shape.optimizer.method}, {shape.precision}"
    return GroupEstimate(what, len(runs), units, together, together * run_bytes(shape), seconds)
