"""Training many runs: as few programs as their structures allow."""

import contextlib
import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from .._errors import InputError
from .._json import digest
from ._check import check_config
from ._checkpoint import load_checkpoint, save_checkpoint
from ._config import Run
from ._cost import Device
from ._program import arithmetic, program_key, program_name
from ._result import Result
from ._scheduler import Scheduler, Snapshot


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a call of [`emergo.engine.train`][] is."""

    total: int
    done: int
    failed: int
    running: Sequence[tuple[Run, int, float]]
    """Run, step and test loss of those in training."""
    steps: int
    """Steps of all runs together so far, in this call."""
    seconds: float
    seconds_left: float | None
    """A guess from the runs that have ended; None before the first."""
    bytes: int
    """What the current programs need, over all devices."""

    @property
    def rate(self) -> float:
        """Steps per second, of all runs together."""
        return self.steps / max(self.seconds, 1e-9)


class OutOfTime(Exception):
    """The seconds that a call of `train` was given are over; what was in training is in its checkpoint."""


def train(
    runs: Sequence[Run],
    *,
    n_parallel: int | None = None,
    devices: Sequence[Device] | None = None,
    checkpoint: Path | str | None = None,
    checkpoint_seconds: float = 60.0,
    deadline: float | None = None,
    keep: Sequence[int] | None = None,
    snapshot: Snapshot = lambda run, step, params: None,
    on_end: Callable[[Result], None] = lambda result: None,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> list[Result]:
    """Trains runs, those that can share a program together, on all devices of this machine.

    A run's numbers are a function of its config and seed: it draws the same data and is evaluated at the same steps whatever
    runs are beside it. Runs share a program where they differ only in seed, per-run numbers, sizes that may be padded and the
    start of their parameters.

    **Arguments:**

    - `runs`: what to train. Within a program they begin in this order; putting the longest first leaves the least idle at the
      end.
    - `n_parallel`: how many runs of a program to train at once on a device; by default what its memory holds and its cores
      need.
    - `devices`: by default all.
    - `checkpoint`: a folder for checkpoints, written at most every `checkpoint_seconds`, and at an interrupt. A later call
      with the same runs, or with those of them that had not ended, goes on from there.
    - `deadline`: the value of `time.monotonic()` after which no chunk is begun: the checkpoint is written and `OutOfTime`
      raised.
    - `keep`: steps at which `snapshot` is called with a run, the step and its parameters: at the first evaluation from each of
      them on, and at the end. None: never.
    - `on_end`: called with each result as soon as a run has ended.
    - `progress`: called after every chunk.

    **Returns:**

    One [`emergo.engine.Result`][] per run, in the order of `runs`.

    ```python
    >>> task, model = em.SingleLocation(length=4, dim=2), em.Transformer(layers=1, heads=1, width=4, mlp=False)
    >>> adam = em.Optimizer("adam", learning_rate=0.02)
    >>> config = em.Config(task, model, adam, steps=50, batch=8, n_test=16, precision="fp32")
    >>> [result.state for result in em.train([em.Run(config, seed) for seed in range(2)])]
    ['reached', 'reached']

    ```
    """
    if n_parallel is not None and n_parallel < 1:
        raise InputError(f"n_parallel must be at least 1, got {n_parallel}")
    call = _Call(runs, list(devices or jax.devices()), n_parallel, checkpoint, checkpoint_seconds, deadline)
    call.keep, call.snapshot, call.on_end, call.progress = keep, snapshot, on_end, progress
    with _interrupts() as interrupted:
        for members in groups_of(call.unique.values()):
            with arithmetic(members[0].config.precision):
                call.train_group(members, interrupted)
    return [call.done[run.identity] for run in runs]


def groups_of(runs: Any) -> list[list[Run]]:
    """Runs that can share a program, in their order."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(program_key(run.config), []).append(run)
    return list(groups.values())


class _Call:
    """One call of `train`."""

    keep: Sequence[int] | None
    snapshot: Snapshot
    on_end: Callable[[Result], None]
    progress: Callable[[Progress], None]

    def __init__(
        self,
        runs: Sequence[Run],
        devices: list[Device],
        n_parallel: int | None,
        checkpoint: Path | str | None,
        checkpoint_seconds: float,
        deadline: float | None,
    ) -> None:
        self.unique = {run.identity: run for run in runs}
        self.devices, self.n_parallel = devices, n_parallel
        self.folder = None if checkpoint is None else Path(checkpoint)
        self.checkpoint_seconds, self.deadline = checkpoint_seconds, deadline
        self.done: dict[str, Result] = {}
        self.begun, self.steps = time.monotonic(), 0
        for members in groups_of(self.unique.values()):
            for run in {run.config.threshold is None: run for run in reversed(members)}.values():
                check_config(run.config, devices[0].platform)

    def prepare(self, members: list[Run]) -> tuple[Path | None, Scheduler, list[Result]]:
        """The scheduler of a group, from its checkpoint where there is one."""
        options = {"n_parallel": self.n_parallel, "keep": self.keep, "snapshot": self.snapshot}
        if self.folder is None:
            return None, Scheduler(members, self.devices, **options), []
        # Named by the program and the runs: a later call may ask for fewer runs, and looks through those of the program.
        prefix = program_name(members[0].config)
        for saved in sorted(self.folder.glob(f"{prefix}-*.npz")):
            restored = load_checkpoint(saved, members, self.devices, **options)
            if restored is not None:
                return saved, *restored
        name = digest(" ".join(sorted(run.identity for run in members)))
        return self.folder / f"{prefix}-{name}.npz", Scheduler(members, self.devices, **options), []

    def train_group(self, members: list[Run], interrupted: Callable[[], bool]) -> None:
        """Trains runs that share a program to their ends."""
        path, scheduler, results = self.prepare(members)
        for result in results:
            self._ended(result)
        saved = time.monotonic()
        while scheduler.queue or scheduler.live:
            before = _total_steps(scheduler, results)
            for result in scheduler.advance():
                results.append(result)
                self._ended(result)
            self.steps += _total_steps(scheduler, results) - before
            self._report(scheduler)
            late = self.deadline is not None and time.monotonic() >= self.deadline
            if path is not None and (interrupted() or late or time.monotonic() - saved >= self.checkpoint_seconds):
                save_checkpoint(path, scheduler, results)
                saved = time.monotonic()
            if interrupted():
                raise KeyboardInterrupt
            if late and (scheduler.queue or scheduler.live):
                raise OutOfTime
        if path is not None:
            path.unlink(missing_ok=True)

    def _ended(self, result: Result) -> None:
        self.done[result.run.identity] = result
        self.on_end(result)

    def _report(self, scheduler: Scheduler) -> None:
        seconds = time.monotonic() - self.begun
        lengths = [result.steps for result in self.done.values()]
        typical = max(sum(lengths) / len(lengths), 1.0) if lengths else None
        left = None
        if typical is not None:
            share = len(self.done) + sum(min(tracked.step / typical, 0.9) for tracked in scheduler.live)
            left = seconds * (len(self.unique) - share) / share
        running = [(t.run, t.step, float(t.curves["loss"][-1])) for t in scheduler.live if t.curves["step"]]
        failed = sum(result.state == "failed" for result in self.done.values())
        used = sum(stack.bytes for stack in scheduler.stacks)
        self.progress(Progress(len(self.unique), len(self.done), failed, running, self.steps, seconds, left, used))


@contextlib.contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Inside the block a first Ctrl-C only makes the function true, so that no chunk is cut in two; a second stops at once."""
    pressed = False

    def note(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _total_steps(scheduler: Scheduler, results: Sequence[Result]) -> int:
    return sum(tracked.step for tracked in scheduler.live) + sum(result.steps for result in results)
