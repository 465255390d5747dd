"""Runs of one program on the devices of this machine: a stack of slots on each, filled from one queue.

A run that has ended leaves its slot; when a quarter of the slots is free they are filled again, and when the queue is empty and
the rest fills half of the slots or less, it is gathered into a narrower stack.
"""

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import InputError
from ..measure import past_threshold
from ._config import Run
from ._cost import (
    Compiled,
    Cost,
    Device,
    compile_chunk,
    memory_of,
    next_evaluation,
    planned_parallel,
    step_cost,
    worth_narrowing,
    worth_tuning,
)
from ._parameters import unpadded
from ._program import Program, Slot, gather, insert, largest_sizes, shared_program, start
from ._result import Result

Snapshot = Callable[[Run, int, Any], None]
"""Called with a run, a step and its parameters, as arrays of the host."""


@dataclasses.dataclass
class Tracked:
    """A run in a stack, and what was measured of it."""

    run: Run
    curves: dict[str, list[Any]] = dataclasses.field(default_factory=lambda: {"step": []})
    total: float = 0.0
    """Sum of the training losses since the last evaluation."""
    at: int = 0
    """The step it is at; `step` is that of its last evaluation."""

    @property
    def step(self) -> int:
        return int(self.curves["step"][-1]) if self.curves["step"] else 0

    @property
    def due(self) -> int:
        """The step of its next evaluation; the first is at step 0."""
        if not self.curves["step"]:
            return 0
        config = self.run.config
        return min(next_evaluation(self.step, config.task.eval_every), config.steps)

    @property
    def ended(self) -> bool:
        """Whether it has learned and gone on for as long as it was to, or is at its last step."""
        config = self.run.config
        if self.step >= config.steps:
            return True
        learned = config.task.learned
        if learned is None or not isinstance(config.threshold, float):
            return False
        passed = past_threshold(np.asarray(self.curves[learned.metric]), config.threshold, learned.direction)
        return bool(passed.any()) and self.step >= self.curves["step"][int(np.argmax(passed))] * (1 + config.overtrain)

    def note(self, metrics: Mapping[str, Any], step: int, variants: Sequence[str]) -> None:
        """Adds an evaluation to the curves. `variants` are the further test distributions that some run of the program has;
        what was measured on those that this run does not have is left out."""
        others = set(variants).difference(self.run.config.task.variants())
        foreign = {f"{name}_{variant}" for variant in others for name in metrics}
        since = step - self.step
        row = {name: value for name, value in metrics.items() if name not in foreign}
        row["train_loss"] = np.float32(self.total / since if since else math.nan)
        self.total = 0.0
        for name, value in (row | {"step": step}).items():
            self.curves.setdefault(name, []).append(value)


class DeviceStack:
    """The slots of one device."""

    def __init__(self, scheduler: "Scheduler", device: Device, n_parallel: int, budget: float | None = None) -> None:
        self.scheduler, self.device = scheduler, device
        self._budget = memory_of(device) if budget is None else budget
        self._wanted, self._compiled = n_parallel, None
        self.tracked: list[Tracked | None] = []
        self.slots: Slot | None = None
        self._pending: Any = None

    @property
    def live(self) -> list[Tracked]:
        return [t for t in self.tracked if t is not None]

    @property
    def bytes(self) -> int:
        return self._compiled.bytes if self._compiled else 0

    def compile(self, slot: Slot) -> Compiled:
        """The program for slots like this one; the first call makes the slots."""
        if self._compiled is None:
            scheduler = self.scheduler
            tuned = worth_tuning(scheduler.cost, self.device.platform, scheduler.runs)
            self._compiled = compile_chunk(scheduler.program, slot, self._wanted, self.device, self._budget, tuned)
            self.tracked = [None] * self._compiled.n_parallel
        return self._compiled

    def fill(self, queue: deque[Run]) -> bool:
        """Takes runs from the queue into free slots, if enough are free; says whether it took any."""
        started: dict[str, Slot] = {}
        if self._compiled is None and queue:
            started[queue[0].identity] = self.scheduler.start(queue[0])
            self.compile(started[queue[0].identity])
        free = [i for i, t in enumerate(self.tracked) if t is None]
        if not queue or not free or (self.live and len(free) < math.ceil(len(self.tracked) / 4)):
            return False
        for index in free:
            if not queue:
                break
            run = queue.popleft()
            slot = started.pop(run.identity) if run.identity in started else self.scheduler.start(run)
            slot = jax.device_put(slot, self.device)
            if self.slots is None:
                self.slots = jax.tree.map(lambda x: jnp.repeat(x[None], len(self.tracked), 0), slot)
            self.slots = insert(self.slots, jnp.int32(index), slot)
            self.tracked[index] = Tracked(run)
        return True

    def next_count(self) -> int:
        """Steps until the next evaluation that a run of this stack is due for."""
        return min(t.due - t.at for t in self.live)

    def launch(self, count: int) -> None:
        """Starts a chunk; `collect` waits for it."""
        due = jnp.array([t.due if t else -1 for t in self.tracked], jnp.int32)
        arguments = jax.device_put((jnp.int32(count), due), self.device)
        assert self._compiled is not None
        assert self.slots is not None
        slots, metrics = self._compiled.run(self.slots, *arguments)
        self.slots = slots
        self._pending = (metrics, slots.step, slots.failed)

    def collect(self) -> list[Result]:
        """Notes what was measured, frees the slots of runs that have ended and returns their results.

        A run is looked at only where its own evaluation is due, so that its neighbours do not matter.
        """
        metrics, steps, failed = jax.tree.map(np.asarray, self._pending)
        results = []
        for i, tracked in enumerate(self.tracked):
            if tracked is None:
                continue
            tracked.total += float(metrics["train_loss"][i])
            tracked.at = step = int(steps[i])
            if step != tracked.due:
                continue
            before = tracked.step if tracked.curves["step"] else -1
            tracked.note({name: values[i] for name, values in metrics.items()}, step, self.scheduler.program.variants)
            broken = bool(failed[i] >= 0 or not np.isfinite(metrics["loss"][i]))
            ended = broken or tracked.ended
            self._snapshot(i, tracked, before, ended)
            if ended:
                failed_step = (int(failed[i]) if failed[i] >= 0 else step) if broken else None
                curves = {name: np.asarray(values) for name, values in tracked.curves.items()}
                results.append(Result.measured(tracked.run, curves, failed_step, self.device.device_kind))
                self.tracked[i] = None
        return results

    def _snapshot(self, index: int, tracked: Tracked, before: int, ended: bool) -> None:
        """Hands out the parameters where a step that is to be kept has been passed since the last evaluation."""
        keep = self.scheduler.keep
        if keep is not None and self.slots is not None and (ended or any(before < s <= tracked.step for s in keep)):
            params = jax.tree.map(lambda x: np.asarray(x[index]), self.slots.params)
            self.scheduler.snapshot(tracked.run, tracked.step, unpadded(tracked.run, params))

    def narrow(self) -> None:
        """Gathers the runs that are left into a narrower stack, where that pays."""
        n_parallel, live = len(self.tracked), [i for i, t in enumerate(self.tracked) if t is not None]
        if self.slots is None or not live or 2 * len(live) > n_parallel:
            return
        longest = max(t.step for t in self.live)
        if not worth_narrowing(self.scheduler.cost, self.device.platform, n_parallel, longest):
            return
        while 2 * len(live) <= n_parallel:
            n_parallel //= 2
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self.slots)
        self._compiled = compile_chunk(self.scheduler.program, one, n_parallel, self.device, self._budget)
        spare = self._compiled.n_parallel - len(live)
        self.slots = gather(self.slots, jnp.array(live + [live[0]] * spare))
        self.tracked = [self.tracked[i] for i in live] + [None] * spare

    def restore(self, slots: Slot, tracked: list[Tracked | None]) -> None:
        """Puts back what a checkpoint holds."""
        self._wanted = len(tracked)
        self.compile(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), slots))
        self.slots, self.tracked = jax.device_put(slots, self.device), tracked


def _prepared(probe: Any, run: Run) -> dict[str, Any]:
    """What a probe prepares for a run, as arrays."""
    arrays = probe.prepare(run)
    if not isinstance(arrays, Mapping):
        kind = type(arrays).__name__
        raise InputError(f"{type(probe).__name__}.prepare must return a dictionary of named arrays, got a {kind}")
    return {name: jnp.asarray(array) for name, array in arrays.items()}


class Scheduler:
    """All runs of one program, on all devices.

    **Arguments:**

    - `n_parallel`: how many runs to train at once on a device; by default what its memory holds and its cores need.
    - `sizes`: what the program is made for, where that is not what the runs need themselves.
    - `keep`: the steps at which parameters are handed to `snapshot`, at the first evaluation from each on and at the end.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        devices: Sequence[Device],
        n_parallel: int | None = None,
        sizes: Mapping[str, int] | None = None,
        keep: Sequence[int] | None = None,
        snapshot: Snapshot = lambda run, step, params: None,
    ) -> None:
        self.runs, self.queue = list(runs), deque(runs)
        configs = [run.config for run in runs]
        self.program: Program = shared_program(configs)
        self.sizes = largest_sizes(configs) if sizes is None else dict(sizes)
        self.keep, self.snapshot = keep, snapshot
        self.cost: Cost = step_cost(self.program, jax.eval_shape(lambda: start(self.program, runs[0], self.sizes)))
        self.stacks = []
        share = math.ceil(len(runs) / min(len(devices), len(runs)))
        for device in devices[: len(runs)]:
            planned = planned_parallel(self.cost, configs[0].task.eval_every, device.platform, memory_of(device))
            self.stacks.append(DeviceStack(self, device, min(n_parallel or planned, share)))

    def start(self, run: Run) -> Slot:
        """A run before its first step, with what its probes prepare."""
        slot = start(self.program, run, self.sizes)
        return slot._replace(prepared=tuple(_prepared(p, run) for p in run.config.all_probes if hasattr(p, "prepare")))

    @property
    def live(self) -> list[Tracked]:
        return [tracked for stack in self.stacks for tracked in stack.live]

    def advance(self) -> list[Result]:
        """One chunk on every device; returns the runs that ended in it."""
        results = []
        fresh = [stack for stack in self.stacks if stack.fill(self.queue)]
        for stack in fresh:
            stack.launch(0)
        for stack in fresh:
            results += stack.collect()
        busy = [stack for stack in self.stacks if stack.live]
        for stack in busy:
            stack.launch(stack.next_count())
        for stack in busy:
            results += stack.collect()
        if not self.queue:
            for stack in busy:
                stack.narrow()
        return results
