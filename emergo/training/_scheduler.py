"""The runs of one program on all devices of this machine.

Every device has a stack of slots. All stacks are filled from one queue of runs. A call of
`Scheduler.advance` trains one chunk on every device, and returns the runs that have ended. Idle
slots cost as much as busy ones, so two rules keep them few:

- When a quarter of the slots of a stack is free, they are filled from the queue.
- When the queue is empty and two thirds of the slots would do, the remaining runs move to a
  narrower stack, if that saves more time than it takes to compile its program.

A run is evaluated on its own grid of steps. Runs of different ages are due at different steps, so a
chunk ends at the first step at which any of its runs is due.
"""

import dataclasses
import functools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct
from jaxtyping import Array, ArrayLike, PyTree

from ..core.curves import find_curve
from ..core.errors import InputError
from ..measure import past_threshold
from ._check import check_group
from ._config import Result, Run, next_evaluation
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
    stack_size_on,
    step_cost,
    worth_narrowing,
    worth_tuning,
)
from ._parameters import Trained, snapshot_of, warm_start
from ._program import (
    Program,
    Slot,
    arithmetic,
    insert,
    largest_sizes,
    shapes_of,
    shared_data,
    start,
)
from ._verify import verify_path

Snapshot = Callable[[Trained], None]
"""Called with the model of a run at a step: its parameters and, at the end of the run, the rest of
its state, as NumPy arrays."""
Launched = tuple[dict[str, Array], Array, Array]
"""Results of a chunk without its slots: curves, steps, and the steps at which runs failed."""


@dataclasses.dataclass
class Tracked:
    """A run in a stack, and its measurements so far."""

    run: Run
    steps: list[int] = dataclasses.field(default_factory=list)  # of its evaluations
    measured: dict[str, list[ArrayLike]] = dataclasses.field(default_factory=dict)
    total: float = 0.0  # sum of the training losses since the last evaluation
    at: int = 0  # the current step; `step` is the step of the last evaluation

    @property
    def step(self) -> int:
        return self.steps[-1] if self.steps else self.at

    @property
    def curves(self) -> dict[str, np.ndarray]:
        curves = {name: np.asarray(rows) for name, rows in self.measured.items()}
        return {"step": np.array(self.steps, np.int64)} | curves

    @property
    def due(self) -> int:
        """The step of the next evaluation. The first is before the first step."""
        if not self.steps:
            return self.at
        config = self.run.config
        return min(next_evaluation(self.step, config.task.eval_every), config.steps)

    @property
    def ended(self) -> bool:
        """True at the last step, and after the threshold was crossed (and `overtrain` is over)."""
        config = self.run.config
        learned = config.task.learned
        if self.step >= config.steps:
            return True
        if learned is None or not isinstance(config.threshold, float):
            return False
        metric = find_curve(self.curves, learned.metric)
        (passed,) = np.nonzero(past_threshold(metric, config.threshold, learned.direction))
        return passed.size > 0 and self.step >= self.steps[passed[0]] * (1 + config.overtrain)

    def note(self, metrics: Mapping[str, ArrayLike], step: int, variants: Sequence[str]) -> None:
        """Add an evaluation.

        **Arguments:**

        - `metrics`: curves of the evaluation.
        - `variants`: the test distributions of the program. Curves on test distributions that this
          run lacks are dropped.
        """
        others = set(variants).difference(self.run.config.task.variants())
        foreign = {f"{name}_{variant}" for variant in others for name in metrics}
        since = step - self.step
        mean_loss = np.float32(self.total / since if since else math.nan)
        measured = {**metrics, "train_loss": mean_loss}
        measured = {name: value for name, value in measured.items() if name not in foreign}
        if self.steps and set(measured) != set(self.measured):
            curves = ", ".join(sorted(set(measured) ^ set(self.measured)))
            raise InputError(
                f"the curves {curves} begin or end at step {self.step}: probes have changed; "
                f"remove the checkpoint to start again"
            )
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
    tracked: list[Tracked | None]  # the run in each slot
    shared: PyTree = None  # the data that all runs share, on the device

    @property
    def live(self) -> list[Tracked]:
        return [t for t in self.tracked if t is not None]

    def fill(self, queue: deque[Run]) -> bool:
        """Put runs from the queue into free slots, if a quarter is free; return True if it did."""
        free = [i for i, t in enumerate(self.tracked) if t is None]
        least = math.ceil(len(self.tracked) / 4) if self.live else 1
        if not queue or len(free) < least:
            return False
        for index in free[: len(queue)]:
            run = queue.popleft()
            slot = jax.device_put(self.scheduler.start(run), self.device)
            self.slots = insert(self.slots, np.int32(index), slot)
            self.tracked[index] = Tracked(run, at=int(slot.step))
        return True

    def launch(self, count: int) -> Launched:
        """Start a chunk of `count` steps without waiting for it; pass the result to `collect`."""
        # Schedules of a resumed run have already reacted to the evaluation at its first step.
        due = [t.due if t and (t.steps or not t.at) else -1 for t in self.tracked]
        steps, at = jax.device_put((np.int32(count), np.array(due, jnp.int32)), self.device)
        self.slots, metrics = self.compiled.run(self.slots, steps, at, self.shared)
        return metrics, self.slots.step, self.slots.failed

    def collect(self, pending: Launched) -> list[Result]:
        """Wait for a chunk, note the evaluations that are due, and return the runs that ended."""
        metrics, steps, failed = jax.tree.map(np.asarray, pending)
        scheduler = self.scheduler
        stops = metrics.pop("stop", np.zeros(len(self.tracked), bool))
        results = []
        for i, tracked in enumerate(self.tracked):
            if tracked is None:
                continue
            tracked.total += float(metrics["train_loss"][i])
            tracked.at = int(steps[i])
            if tracked.at != tracked.due:
                continue
            before = tracked.step if tracked.steps else -1
            scheduler.steps += tracked.at - tracked.step
            own = {name: values[i] for name, values in metrics.items()}
            tracked.note(own, tracked.at, scheduler.program.variants)
            failed_step = int(failed[i]) if failed[i] >= 0 else None
            if failed_step is None and not np.isfinite(own["loss"]):
                failed_step = tracked.at
            ended = failed_step is not None or tracked.ended or bool(stops[i])
            keep = scheduler.keep
            if keep is not None and (ended or any(before < step <= tracked.at for step in keep)):
                slot = jax.tree.map(lambda x, i=i: x[i], self.slots)
                trained = snapshot_of(tracked.run, slot, with_state=ended)
                scheduler.snapshot(trained)
            if ended:
                self.tracked[i] = None
                kind = self.device.device_kind
                results.append(Result.measured(tracked.run, tracked.curves, failed_step, kind))
        return results

    def narrow(self) -> None:
        """Move the remaining runs to a narrower stack, if that pays."""
        live = [i for i, t in enumerate(self.tracked) if t is not None]
        steps = max((t.step for t in self.live), default=0)
        width = min((w for w in self.widths(steps) if w >= len(live)), default=None)
        if not live or width is None:
            return
        self.compiled = self.narrower(width)
        self.scheduler.verify(self.compiled, self.device)
        spare = width - len(live)
        indices = np.array(live + [live[0]] * spare)
        # NumPy gathers the slots: a JAX program for it would have to be compiled.
        gathered = jax.tree.map(lambda x: x[indices], jax.device_get(self.slots))
        self.slots = jax.device_put(gathered, self.device)
        self.tracked = [self.tracked[i] for i in live] + [None] * spare

    def widths(self, steps: int) -> list[int]:
        """Return the widths that pay for runs that last for `steps` more steps."""
        platform = self.device.platform
        wide = len(self.tracked)
        return [
            width
            for width in narrower_widths(wide)
            if worth_narrowing(self.scheduler.cost, platform, wide, width, steps)
        ]

    def narrower(self, width: int) -> Compiled:
        """Compile the program for a narrower stack."""
        return self.scheduler.compile(one_of(self.slots), self.device, width, tuned=False)


def one_of(slots: Slot) -> Slot:
    """Return the shapes of one slot of a stack."""
    return jax.tree.map(lambda x: ShapeDtypeStruct(x.shape[1:], x.dtype), slots)


@dataclasses.dataclass
class Scheduler:
    """All runs of one program, on all devices.

    See [`emergo.training.train`][] for the arguments.
    """

    runs: Sequence[Run]
    devices: Sequence[Device]
    n_parallel: int | None
    keep: Sequence[int] | None
    snapshot: Snapshot

    def __post_init__(self) -> None:
        configs = [run.config for run in self.runs]
        self.queue = deque(self.runs)
        self.program = Program.of(*configs)
        self.sizes = largest_sizes(configs)
        self.stacks: list[DeviceStack] = []
        self.steps = 0  # taken by all runs together

    @property
    def live(self) -> list[Tracked]:
        return [tracked for stack in self.stacks for tracked in stack.live]

    @property
    def shapes(self) -> Slot:
        """The shapes of a slot, without the arrays that probes prepare."""
        with arithmetic(self.program.precision):
            return jax.eval_shape(lambda: start(self.program, self.runs[0], self.sizes))

    @property
    def shared(self) -> PyTree:
        """The data that all runs share."""
        return shared_data(self.runs[0].config.task)

    @functools.cached_property
    def cost(self) -> Cost:
        with arithmetic(self.program.precision):
            return step_cost(self.program, self.shapes._replace(shared=shapes_of(self.shared)))

    @functools.cached_property
    def tuned(self) -> bool:
        """True if XLA should autotune, which needs an idle device."""
        platform = self.devices[0].platform
        return platform != "cpu" and worth_tuning(self.cost, platform, self.runs)

    def start(self, run: Run) -> Slot:
        """Return a run before its first step, with the arrays that its probes prepare."""
        prepared = []
        for probe in run.config.all_probes:
            prepare = getattr(probe, "prepare", None)
            if prepare is not None:
                arrays = prepare(run).items()
                prepared.append({name: jnp.asarray(array) for name, array in arrays})
        slot = start(self.program, run, self.sizes)._replace(prepared=tuple(prepared))
        return slot if run.config.start is None else warm_start(slot, run)

    def compile(
        self,
        slot: Slot,
        device: Device,
        n_parallel: int,
        budget: float = math.inf,
        tuned: bool | None = None,
    ) -> Compiled:
        """Compile the program for a stack of slots like this one.

        The stack is narrower than `n_parallel` if it would exceed the budget.
        """
        tuned = self.tuned if tuned is None else tuned
        with arithmetic(self.program.precision):
            slot = slot._replace(shared=shapes_of(self.shared))
        return compile_chunk(self.program, slot, n_parallel, device, budget, tuned)

    def verify(self, compiled: Compiled, device: Device) -> None:
        """Verify the optimised path of the program.

        This computes on the device, so only the thread that trains calls it: when two threads
        started programs with matrix products, CUDA refused to launch the graph of one
        (`CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`).
        """
        stack_size = stack_size_on(device, compiled.n_parallel)
        verify_path(self.program, self.runs, self.sizes, stack_size, device)

    def compile_first(self, slot: Slot, device: Device, budget: float) -> Compiled:
        """Compile the program with which a device begins."""
        share = math.ceil(len(self.runs) / min(len(self.devices), len(self.runs)))
        wanted = self.n_parallel or share
        if wanted > 1 and self.n_parallel is None:
            eval_every = self.runs[0].config.task.eval_every
            wanted = planned_parallel(self.cost, eval_every, device.platform, budget)
        return self.compile(slot, device, min(wanted, share), budget)

    def compile_ahead(self, room: bool) -> None:
        """Compile the programs of the first `advance`, while another scheduler trains.

        Checks and starts one run, too, so that those small programs are compiled. Does not draw a
        finite data set, which may be large.

        **Arguments:**

        - `room`: True if the device has memory for autotuning.
        """
        if self.tuned and not room:
            return
        # The shapes of arrays that probes prepare are not known before the run starts.
        if not any(hasattr(probe, "prepare") for probe in self.runs[0].config.all_probes):
            for device in self.devices[: len(self.runs)]:
                self.compile_first(self.shapes, device, memory_of(device, when_free=True))
        check_group(self.runs, self.devices[0].platform)
        if self.program.n_train is None:
            with arithmetic(self.program.precision):
                start(self.program, self.runs[0], self.sizes)

    def narrower(self) -> list[Callable[[], object]]:
        """Return functions that compile the programs that stacks may need after the queue.

        They do nothing if the stack is narrower by the time that they are called.
        """
        return [
            lambda stack=stack, width=width: width < len(stack.tracked) and stack.narrower(width)
            for stack in self.stacks
            if stack.live
            for width in stack.widths(max(t.run.config.steps for t in stack.live))
        ]

    def _open(self, device: Device) -> DeviceStack:
        """Create the stack of a device with the first runs of the queue."""
        budget = memory_of(device)
        need_memory(bytes_of((self.shapes, self.shared)), budget)
        slots = [jax.device_get(self.start(self.queue[0]))]
        compiled = self.compile_first(slots[0], device, budget)
        if compiled.n_parallel == 1:
            need_memory(compiled.bytes, 2 * budget)  # on a CPU the budget is half of the memory
        self.verify(compiled, device)
        runs = [self.queue.popleft() for _ in range(min(compiled.n_parallel, len(self.queue)))]
        slots += [jax.device_get(self.start(run)) for run in runs[1:]]
        # Idle slots hold copies of the first run. NumPy stacks them, so that no JAX program has to
        # be compiled for it.
        spare = compiled.n_parallel - len(runs)
        stack: Slot = jax.tree.map(lambda *rows: np.stack(rows), *slots, *slots[:1] * spare)
        tracked = [Tracked(run, at=int(s.step)) for run, s in zip(runs, slots, strict=True)]
        return self.stack(device, compiled, stack, [*tracked, *[None] * spare])

    def stack(
        self, device: Device, compiled: Compiled, slots: Slot, tracked: list[Tracked | None]
    ) -> DeviceStack:
        """Put a stack of slots on a device, and the data that they share."""
        slots, shared = jax.device_put((slots, self.shared), device)
        return DeviceStack(self, device, compiled, slots, tracked, shared)

    def close(self) -> None:
        """Free the memory of the devices at once, for the next program."""
        for stack in self.stacks:
            for array in jax.tree.leaves(stack.slots):
                array.delete()
            stack.tracked = []
        self.stacks = []

    def advance(self) -> list[Result]:
        """Train one chunk on every device; return the runs that ended in it."""
        fresh = [stack for stack in self.stacks if stack.fill(self.queue)]
        while self.queue and len(self.stacks) < len(self.devices):
            fresh.append(self._open(self.devices[len(self.stacks)]))
            self.stacks.append(fresh[-1])
        # New runs are evaluated at step 0, before they train.
        results = _train_chunks([(stack, 0) for stack in fresh])
        busy = [stack for stack in self.stacks if stack.live]
        results += _train_chunks([(s, min(t.due - t.at for t in s.live)) for s in busy])
        if not self.queue:
            for stack in busy:
                stack.narrow()
        return results


def _train_chunks(counts: Sequence[tuple[DeviceStack, int]]) -> list[Result]:
    """Train each stack for its number of steps, on all devices at once."""
    pending = [(stack, stack.launch(count)) for stack, count in counts]
    return [result for stack, launched in pending for result in stack.collect(launched)]


class GroupPlan(NamedTuple):
    """Estimates for runs that share a program."""

    n_parallel: int
    step_seconds: float  # of one run in a stack
    compile_seconds: float
    run_bytes: float
    shared_bytes: float  # data that all runs share


def plan_group(runs: Sequence[Run], platform: str, budget: float | None = None) -> GroupPlan:
    """Estimate the training of runs that share a program.

    **Arguments:**

    - `platform`: `"cpu"` or `"gpu"`.
    - `budget`: bytes on the device; None: the memory of the first device.
    """
    scheduler = Scheduler(runs, jax.devices(), None, None, lambda *_: None)
    cost = scheduler.cost
    space = memory_of(jax.devices()[0]) if budget is None else budget
    # On a CPU the arrays of the task and JAX's copy of them are in the same memory.
    copies = 2 if platform == "cpu" else 1
    shared = copies * bytes_of(shapes_of(scheduler.shared))
    eval_every = runs[0].config.task.eval_every
    return GroupPlan(
        n_parallel=planned_parallel(cost, eval_every, platform, space - shared),
        step_seconds=cost.seconds(platform),
        compile_seconds=cost.compile_seconds(platform),
        run_bytes=cost.bytes,
        shared_bytes=shared,
    )
