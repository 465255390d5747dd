"""Runs of one program on the devices of this machine: a stack of slots on each, filled from one queue.

When runs that have ended leave a quarter of the slots free, these are filled again; when the queue is empty and the rest fills
two thirds of the slots or less, it is gathered into a narrower stack.
"""

import dataclasses
import functools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from .._errors import InputError
from ..measure import past_threshold
from ._check import check_group
from ._config import Preparing, Result, Run, next_evaluation
from ._cost import (
    Compiled,
    Cost,
    Device,
    bytes_of,
    compile_chunk,
    memory_of,
    narrower_widths,
    need_memory,
    planned_parallel,
    step_cost,
    worth_narrowing,
    worth_tuning,
)
from ._parameters import unpadded
from ._program import Program, Slot, arithmetic, insert, largest_sizes, start

Snapshot = Callable[[Run, int, PyTree], None]
"""Called with a run, a step and its parameters, as arrays of the host."""
Launched = tuple[dict[str, Array], Array, Array]
"""What a chunk returns besides the slots: metrics, steps and, where a run has failed, its step."""


@dataclasses.dataclass
class Tracked:
    """A run in a stack, and what was measured of it."""

    run: Run
    steps: list[int] = dataclasses.field(default_factory=list)  # of its evaluations so far
    measured: dict[str, list[ArrayLike]] = dataclasses.field(default_factory=dict)
    total: float = 0.0  # sum of the training losses since the last evaluation
    at: int = 0  # the step it is at; `step` is that of its last evaluation

    @property
    def step(self) -> int:
        return self.steps[-1] if self.steps else 0

    @property
    def curves(self) -> dict[str, np.ndarray]:
        return {"step": np.array(self.steps, np.int64)} | {name: np.asarray(rows) for name, rows in self.measured.items()}

    @property
    def due(self) -> int:
        """The step of its next evaluation; the first is at step 0."""
        config = self.run.config
        return min(next_evaluation(self.step, config.task.eval_every), config.steps) if self.steps else 0

    @property
    def ended(self) -> bool:
        """Whether it has learned and gone on for as long as it was to, or is at its last step."""
        config, learned = self.run.config, self.run.config.task.learned
        if self.step >= config.steps or learned is None or not isinstance(config.threshold, float):
            return self.step >= config.steps
        passed = past_threshold(np.asarray(self.measured[learned.metric]), config.threshold, learned.direction)
        return bool(passed.any()) and self.step >= self.steps[int(np.argmax(passed))] * (1 + config.overtrain)

    def likely_end(self, typical: float) -> float:
        """A guess of the step at which it ends, if others took so many: one that has lasted for most of these may last as long
        again, but not beyond its last step."""
        return min(max(typical, 2.0 * self.step), self.run.config.steps)

    def note(self, metrics: Mapping[str, ArrayLike], step: int, variants: Sequence[str]) -> None:
        """Adds an evaluation, but for what was measured on those of the `variants` that only other runs have."""
        others = set(variants).difference(self.run.config.task.variants())
        foreign = {f"{name}_{variant}" for variant in others for name in metrics}
        since = step - self.step
        mean_loss = np.float32(self.total / since if since else math.nan)
        measured = {name: value for name, value in {**metrics, "train_loss": mean_loss}.items() if name not in foreign}
        if self.steps and set(measured) != set(self.measured):  # a checkpoint of probes that have changed since
            curves = ", ".join(sorted(set(measured) ^ set(self.measured)))
            why = f"the curves {curves} begin or end at step {self.step}: probes have changed since the checkpoint"
            raise InputError(f"{why}; remove it to begin anew")
        for name, value in measured.items():
            self.measured.setdefault(name, []).append(value)
        self.steps.append(step)
        self.total = 0.0


@dataclasses.dataclass
class DeviceStack:
    """The slots of one device."""

    scheduler: "Scheduler"
    device: Device
    compiled: Compiled
    slots: Slot
    tracked: list[Tracked | None]  # which run is in each slot

    @property
    def live(self) -> list[Tracked]:
        return [t for t in self.tracked if t is not None]

    def fill(self, queue: deque[Run]) -> bool:
        """Takes runs from the queue into free slots, if enough are free; says whether it took any."""
        free = [i for i, t in enumerate(self.tracked) if t is None]
        if not queue or not free or (self.live and len(free) < math.ceil(len(self.tracked) / 4)):
            return False
        for index in free[: len(queue)]:
            run = queue.popleft()
            self.slots = insert(self.slots, np.int32(index), jax.device_put(self.scheduler.start(run), self.device))
            self.tracked[index] = Tracked(run)
        return True

    def launch(self, count: int) -> Launched:
        """Starts a chunk of so many steps; `collect` waits for what this returns."""
        due = np.array([t.due if t else -1 for t in self.tracked], jnp.int32)
        self.slots, metrics = self.compiled.run(self.slots, *jax.device_put((np.int32(count), due), self.device))
        return metrics, self.slots.step, self.slots.failed

    def collect(self, pending: Launched) -> list[Result]:
        """Notes what was measured of runs whose own evaluation is due, and returns the results of those that have ended."""
        metrics, steps, failed = jax.tree.map(np.asarray, pending)
        results = []
        for i, tracked in enumerate(self.tracked):
            if tracked is None:
                continue
            tracked.total += float(metrics["train_loss"][i])
            tracked.at = step = int(steps[i])
            if step != tracked.due:
                continue
            before = tracked.step if tracked.steps else -1
            self.scheduler.steps += step - tracked.step
            tracked.note({name: values[i] for name, values in metrics.items()}, step, self.scheduler.program.variants)
            broken = bool(failed[i] >= 0 or not np.isfinite(metrics["loss"][i]))
            ended = broken or tracked.ended
            keep = self.scheduler.keep
            if keep is not None and (ended or any(before < kept <= step for kept in keep)):
                params = jax.tree.map(lambda x, i=i: np.asarray(x[i]), self.slots.params)
                self.scheduler.snapshot(tracked.run, step, unpadded(tracked.run, params))
            if ended:
                failed_step = (int(failed[i]) if failed[i] >= 0 else step) if broken else None
                results.append(Result.measured(tracked.run, tracked.curves, failed_step, self.device.device_kind))
                self.tracked[i] = None
        return results

    def narrow(self) -> None:
        """Gathers the runs that are left into a narrower stack, where that pays."""
        n_parallel, live = len(self.tracked), [i for i, t in enumerate(self.tracked) if t is not None]
        if not live:
            return
        width = min((width for width in narrower_widths(n_parallel) if width >= len(live)), default=n_parallel)
        longest, cost = max(t.step for t in self.live), self.scheduler.cost
        if width == n_parallel or not worth_narrowing(cost, self.device.platform, n_parallel, width, longest):
            return
        self.compiled = self._narrower(width)
        spare = width - len(live)
        indices = np.array(live + [live[0]] * spare)
        # Put together on the host: no program is compiled for it.
        self.slots = jax.device_put(jax.tree.map(lambda x: x[indices], jax.device_get(self.slots)), self.device)
        self.tracked = [self.tracked[i] for i in live] + [None] * spare

    def _narrower(self, width: int) -> Compiled:
        return compile_chunk(self.scheduler.program, one_of(self.slots), width, self.device)

    def narrower(self) -> list[Callable[[], object]]:
        """What compiles the programs that `narrow` may ask for, each unless the stack is narrower by then."""
        steps, n_parallel = max(t.run.config.steps for t in self.live), len(self.tracked)
        worth = functools.partial(worth_narrowing, self.scheduler.cost, self.device.platform, n_parallel)
        widths = [width for width in narrower_widths(n_parallel) if worth(width, steps)]
        return [lambda width=width: width < len(self.tracked) and self._narrower(width) for width in widths]


def one_of(slots: Slot) -> Slot:
    """The shapes of one slot of a stack."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), slots)


@dataclasses.dataclass
class Scheduler:
    """All runs of one program, on all devices. The arguments are those of [`emergo.engine.train`][]."""

    runs: Sequence[Run]
    devices: Sequence[Device]
    n_parallel: int | None
    keep: Sequence[int] | None
    snapshot: Snapshot

    def __post_init__(self) -> None:
        configs = [run.config for run in self.runs]
        self.queue, self.program, self.sizes = deque(self.runs), Program.of(*configs), largest_sizes(configs)
        self.stacks: list[DeviceStack] = []
        self.steps = 0  # that all runs together have taken since this was made

    @property
    def live(self) -> list[Tracked]:
        return [tracked for stack in self.stacks for tracked in stack.live]

    @property
    def shapes(self) -> Slot:
        """Those of a run in this program, but for what probes prepare."""
        return self.shapes_of(self.sizes)

    def shapes_of(self, sizes: Mapping[str, int]) -> Slot:
        """The same in a program for other sizes."""
        with arithmetic(self.program.precision):
            return jax.eval_shape(lambda: start(self.program, self.runs[0], sizes))

    @functools.cached_property
    def cost(self) -> Cost:
        return step_cost(self.program, self.shapes)

    @functools.cached_property
    def tuned(self) -> bool:
        """Whether the compiler searches for the best kernels, for which it needs the device."""
        platform = self.devices[0].platform
        return platform != "cpu" and worth_tuning(self.cost, platform, self.runs)

    def start(self, run: Run) -> Slot:
        """A run before its first step, with what its probes prepare."""
        prepared = []
        for probe in (p for p in run.config.all_probes if isinstance(p, Preparing)):
            arrays = probe.prepare(run)
            if not isinstance(arrays, Mapping):
                wrong = f"must return a dictionary of named arrays, got a {type(arrays).__name__}"
                raise InputError(f"{type(probe).__name__}.prepare {wrong}")
            prepared.append({name: jnp.asarray(array) for name, array in arrays.items()})
        return start(self.program, run, self.sizes)._replace(prepared=tuple(prepared))

    def compile(self, slot: Slot, device: Device, n_parallel: int, budget: float = math.inf) -> Compiled:
        """The program for so many slots like this one, or for fewer where they would not fit."""
        return compile_chunk(self.program, slot, n_parallel, device, budget, self.tuned)

    def compile_first(self, slot: Slot, device: Device, budget: float) -> Compiled:
        """The program that a device begins with."""
        share = math.ceil(len(self.runs) / min(len(self.devices), len(self.runs)))
        wanted = self.n_parallel or share
        if wanted > 1 and self.n_parallel is None:  # counting takes a moment
            wanted = planned_parallel(self.cost, self.runs[0].config.task.eval_every, device.platform, budget)
        return self.compile(slot, device, min(wanted, share), budget)

    def compile_ahead(self, room: bool) -> None:
        """Compiles what `advance` will ask for on the devices when they are free; without room to try kernels only what needs
        none."""
        if self.tuned and not room:
            return
        if not any(isinstance(probe, Preparing) for probe in self.runs[0].config.all_probes):  # else its shapes are not known
            for device in self.devices[: len(self.runs)]:
                self.compile_first(self.shapes, device, memory_of(device, when_free=True))
        self.rehearse()

    def rehearse(self) -> None:
        """Does what comes before the first chunk once, so that it has been traced and compiled when it is done in earnest; but
        draws no training set, which may be large."""
        check_group(self.runs, self.devices[0].platform)
        if self.program.n_train is None:
            with arithmetic(self.program.precision):
                start(self.program, self.runs[0], self.sizes)

    def narrower(self) -> list[Callable[[], object]]:
        """What compiles the programs that `advance` may ask for when runs have ended and none waits."""
        return [program for stack in self.stacks if stack.live for program in stack.narrower()]

    def _open(self, device: Device) -> DeviceStack:
        """A stack on a device that has none, with the first runs that wait."""
        budget = memory_of(device)
        need_memory(bytes_of(self.shapes), budget)
        slots = [jax.device_get(self.start(self.queue[0]))]
        compiled = self.compile_first(slots[0], device, budget)
        if compiled.n_parallel == 1:
            need_memory(compiled.bytes, 2 * budget)  # on a CPU the budget is half of what is free
        runs = [self.queue.popleft() for _ in range(min(compiled.n_parallel, len(self.queue)))]
        # Put together on the host: no program is compiled for it.
        slots += [jax.device_get(self.start(run)) for run in runs[1:]]
        spare = compiled.n_parallel - len(runs)
        stack: Slot = jax.tree.map(lambda *rows: np.stack(rows), *slots, *slots[:1] * spare)
        tracked = [*map(Tracked, runs), *[None] * spare]
        return DeviceStack(self, device, compiled, jax.device_put(stack, device), tracked)

    def close(self) -> None:
        """Frees what the devices hold of it at once, whatever still refers to it: a program to come may need the memory."""
        for stack in self.stacks:
            for array in jax.tree.leaves(stack.slots):
                array.delete()
            stack.tracked = []
        self.stacks = []

    def advance(self) -> list[Result]:
        """One chunk on every device; returns the runs that ended in it."""
        fresh = [stack for stack in self.stacks if stack.fill(self.queue)]
        while self.queue and len(self.stacks) < len(self.devices):
            fresh.append(self._open(self.devices[len(self.stacks)]))
            self.stacks.append(fresh[-1])
        results = _run([(stack, 0) for stack in fresh])
        busy = [stack for stack in self.stacks if stack.live]
        results += _run([(stack, min(t.due - t.at for t in stack.live)) for stack in busy])
        if not self.queue:
            for stack in busy:
                stack.narrow()
        return results


def _run(counts: Sequence[tuple[DeviceStack, int]]) -> list[Result]:
    """So many steps of each stack, on all devices at once; returns the runs that ended."""
    pending = [(stack, stack.launch(count)) for stack, count in counts]
    return [result for stack, launched in pending for result in stack.collect(launched)]
