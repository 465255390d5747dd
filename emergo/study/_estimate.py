"""Estimate of the programs, memory and time that a study takes, before anything is trained."""

import math
from typing import Any, NamedTuple

import jax

from ..core.terminal import counted, duration, memory
from ..training import Run, check_config, groups_of, plan_group
from ._study import Study
from .description import AXES

_GPU_BYTES = 40e9  # assumed memory of a GPU on a cluster


class GroupEstimate(NamedTuple):
    """The cost of the runs that share a program."""

    what: str
    runs: int
    units: int
    n_parallel: int  # runs that a device trains at once
    bytes: float  # memory of a device
    seconds: float  # of one device, if every run trains to its last step


class Estimate(NamedTuple):
    """The cost of a study on some devices."""

    platform: str
    devices: int
    groups: list[GroupEstimate]

    @property
    def seconds(self) -> float:
        """Upper bound of the time, with all devices at work."""
        return sum(group.seconds for group in self.groups) / self.devices

    @property
    def bytes(self) -> float:
        """Upper bound of the memory of a device."""
        return max((group.bytes for group in self.groups), default=0.0)

    def data(self) -> dict[str, Any]:
        """Return the estimate as plain data."""
        groups = [group._asdict() for group in self.groups]
        return self._asdict() | {"groups": groups, "seconds": self.seconds, "bytes": self.bytes}


def estimate(study: Study, finished: frozenset[str] = frozenset(), slurm: bool = False) -> Estimate:
    """Estimate the cost of the remaining runs of a study.

    **Arguments:**

    - `finished`: identities of the finished runs.
    - `slurm`: whether to train on the Slurm cluster that the study asks for, instead of here.
    """
    asked = study.slurm
    budget = None
    if not slurm:
        platform = jax.devices()[0].platform
    elif asked.gpus:
        platform = "gpu"
        budget = 0.9 * _GPU_BYTES
    else:
        platform = "cpu"
        budget = 0.5e9 * asked.memory_gb
    groups = groups_of([run for run in study.runs if run.identity not in finished])
    for group in groups[:1]:
        check_config(group[0].config)
    devices = len(jax.devices())
    if slurm:
        units = sum(math.ceil(len(group) / study.unit) for group in groups)
        devices = min(asked.tasks, max(1, units)) * max(1, asked.gpus)  # a task per unit at most
    estimates = [_group(group, study, platform, budget, devices) for group in groups]
    return Estimate(platform, devices, estimates)


def _group(
    runs: list[Run], study: Study, platform: str, budget: float | None, devices: int
) -> GroupEstimate:
    plan = plan_group(runs, platform, budget)
    n_parallel = min(plan.n_parallel, len(runs), study.unit)
    units = math.ceil(len(runs) / study.unit)
    steps = sum(run.config.steps for run in runs)
    # A process compiles a program once, for all units that it trains.
    seconds = steps * plan.step_seconds + min(units, devices) * plan.compile_seconds
    needed = n_parallel * plan.run_bytes + plan.shared_bytes
    config = runs[0].config
    inputs = sorted({run.config.task.spec.inputs for run in runs})
    span = f"{inputs[0]}" if len(inputs) == 1 else f"{inputs[0]}-{inputs[-1]}"
    what = (
        f"{type(config.task).__name__}, length {config.task.spec.length}, {span} inputs, "
        f"{config.model!r}, batch {config.batch}, {config.optimizer.label}, {config.precision}"
    )
    return GroupEstimate(what, len(runs), units, n_parallel, needed, seconds)


def describe_study(study: Study) -> str:
    """Describe a study in a few lines: its runs and axes, and its cost on this machine."""
    expected = estimate(study)
    cells = counted(study.count // len(study.seeds), "cell")
    seeds = counted(len(study.seeds), "seed")
    lines = [f"{study.name}: {counted(study.count, 'run')} = {cells} x {seeds}"]
    lines += [f"  {part}: {getattr(study.base, part)!r}" for part in ("task", "model", "optimizer")]
    for table in AXES:
        for name, values in getattr(study, table).items():
            lines.append(f"  {table} {name}: {', '.join(map(repr, values))}")
    lines.append(
        f"  here ({expected.devices} x {expected.platform.upper()}): "
        f"{counted(len(expected.groups), 'program')}, {memory(expected.bytes)}, at most about "
        f"{duration(expected.seconds)} if no run ends before step {study.base.steps}"
    )
    return "\n".join(lines)
