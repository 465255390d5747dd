"""What a study will take, before anything runs: programs, time at most, memory."""

import math
from typing import Any, NamedTuple

import jax

from .._terminal import counted, duration, memory
from ..engine import Run, groups_of, plan_group
from ..engine._check import check_config
from ._description import AXES
from ._study import Study

_GPU_BYTES = 40e9  # memory of the GPU that is planned with where there is none to ask


class GroupEstimate(NamedTuple):
    """Runs that share a program."""

    what: str
    runs: int
    units: int
    n_parallel: int  # trained at once on a device
    bytes: float  # of a device
    seconds: float  # of one device, if no run ends before its last step


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
        return self._asdict() | {"groups": groups, "seconds": self.seconds, "bytes": self.bytes}


def estimate(study: Study, finished: frozenset[str] = frozenset(), slurm: bool = False) -> Estimate:
    """What is left of a study takes this: here, or on the Slurm cluster it asks for."""
    asked, budget = study.slurm, None
    if not slurm:
        platform = jax.devices()[0].platform
    elif asked.gpus:
        platform, budget = "gpu", 0.9 * _GPU_BYTES
    else:
        platform, budget = "cpu", 0.5e9 * asked.memory_gb
    groups = groups_of([run for run in study.runs if run.identity not in finished])
    for group in groups[:1]:
        check_config(group[0].config)
    estimates = [_group(group, study, platform, budget) for group in groups]
    tasks = min(asked.tasks, max(1, sum(group.units for group in estimates)))  # a unit has one task
    devices = tasks * max(1, asked.gpus) if slurm else len(jax.devices())
    return Estimate(platform, devices, estimates)


def _group(runs: list[Run], study: Study, platform: str, budget: float | None) -> GroupEstimate:
    plan = plan_group(runs, platform, budget)
    n_parallel = min(plan.n_parallel, len(runs), study.unit)
    units = math.ceil(len(runs) / study.unit)
    seconds = sum(run.config.steps for run in runs) * plan.step_seconds + units * plan.compile_seconds
    config, inputs = runs[0].config, sorted({run.config.task.spec.inputs for run in runs})
    span = f"{inputs[0]}" if len(inputs) == 1 else f"{inputs[0]}-{inputs[-1]}"
    what = f"{type(config.task).__name__}, length {config.task.spec.length}, {span} inputs, {config.model!r}"
    what += f", batch {config.batch}, {config.optimizer.label}, {config.precision}"
    return GroupEstimate(what, len(runs), units, n_parallel, n_parallel * plan.run_bytes, seconds)


def describe_study(study: Study) -> str:
    """A study in a few lines: runs, programs, time and memory to expect here."""
    expected = estimate(study)
    cells, seeds = study.count // len(study.seeds), len(study.seeds)
    lines = [f"{study.name}: {counted(study.count, 'run')} = {counted(cells, 'cell')} x {counted(seeds, 'seed')}"]
    lines += [f"  {part}: {getattr(study.base, part)!r}" for part in ("task", "model", "optimizer")]
    for table in AXES:
        lines += [f"  {table} {name}: {', '.join(map(repr, values))}" for name, values in getattr(study, table).items()]
    count, where = len(expected.groups), f"{expected.devices} x {expected.platform.upper()}"
    most = f"at most about {duration(expected.seconds)} if no run ends before step {study.base.steps}"
    return "\n".join([*lines, f"  here ({where}): {counted(count, 'program')}, {memory(expected.bytes)}, {most}"])
