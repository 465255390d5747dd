"""Train many runs, in as few programs as their structures allow.

[`emergo.training.train`][] sorts runs into groups that share a program, and trains the groups one
after another. A group trains in chunks (`Scheduler.advance`); between two chunks it can report its
progress, write a checkpoint, or stop. On a GPU, other threads compile the programs of the next
groups in the meantime (`_ahead.py`).
"""

import contextlib
import dataclasses
import functools
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from ..core.cache import keep_programs
from ..core.errors import InputError
from ..core.files import output_folder
from ..core.json import digest
from ._ahead import compiling_ahead
from ._check import check_group
from ._checkpoint import checkpoints_in, load_checkpoint, previous, save_checkpoint
from ._config import Result, Run
from ._cost import Device, memory_of
from ._program import arithmetic, program_name
from ._scheduler import Scheduler, Snapshot

_LEAST = 60.0
"""Seconds that must be left to compile a program ahead, which takes 6 to 48 seconds."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """Progress of a call to [`emergo.training.train`][]."""

    total: int  # number of runs
    done: int
    failed: int
    running: Sequence[tuple[Run, int, float]]  # run, step and test loss
    steps: int  # taken by all runs together in this call
    seconds: float
    seconds_left: float | None  # estimated from the runs that have ended; None before the first
    bytes: int  # memory of the current programs on all devices
    curves: Callable[[Run], Mapping[str, np.ndarray] | None] = lambda run: None
    """Returns the curves of a run in training so far."""

    @property
    def rate(self) -> float:
        """Steps per second of all runs together."""
        return self.steps / max(self.seconds, 1e-9)


class OutOfTime(Exception):
    """The deadline of a call to `train` has passed. Runs in training are in the checkpoint."""


def train(
    runs: Sequence[Run],
    *,
    n_parallel: int | None = None,
    devices: Sequence[Device] | None = None,
    checkpoint: Path | str | None = None,
    checkpoint_seconds: float = 60.0,
    deadline: float | None = None,
    keep: Sequence[int] | None = None,
    then: Sequence[Sequence[Run]] = (),
    snapshot: Snapshot = lambda trained: None,
    on_end: Callable[[Result], None] = lambda result: None,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> list[Result]:
    """Train runs on all devices.

    Runs share a program if they differ only in the seed, per-run numbers, sizes that can be padded
    and the initialisation of their parameters. Runs that share a program train together.

    The numbers of a run are a function of its config and seed: a run draws the same data and is
    evaluated at the same steps whatever other runs train with it. (On a GPU this holds up to
    rounding, since kernels depend on the number of runs.)

    **Arguments:**

    - `runs`: the runs to train. Within a program they start in this order; putting the longest
      first keeps devices busy at the end.
    - `n_parallel`: number of runs of a program to train at once on a device. By default, this
      follows from the memory of the device and the cost of a step.
    - `devices`: the devices to use; by default all.
    - `checkpoint`: a folder for checkpoints. A later call with the same runs, or with the runs
      that had not ended, continues from there.
    - `checkpoint_seconds`: seconds between checkpoints. One is also written at an interrupt.
    - `deadline`: a value of `time.monotonic()`. After it, the call writes a checkpoint and raises
      [`emergo.training.OutOfTime`][].
    - `keep`: steps from which to keep parameters. `snapshot` is called with the model of a run, an
      [`emergo.Trained`][], at the first evaluation from each of these steps on, and at the end.
      None: never.
    - `then`: the runs of later calls, one list per call. On a GPU their programs are compiled in
      other threads while this call trains.
    - `snapshot`: see `keep`.
    - `on_end`: called with each result as soon as its run has ended.
    - `progress`: called after every chunk.

    **Returns:** results in the order of `runs`.

    >>> task = em.SingleLocation(length=4, dim=2)
    >>> model = em.Transformer(layers=1, heads=1, width=4, mlp=False)
    >>> adam = em.Optimizer("adam", learning_rate=0.02)
    >>> config = em.Config(task, model, adam, steps=50, batch=8, n_test=16, precision="fp32")
    >>> [result.state for result in em.train([em.Run(config, seed) for seed in range(2)])]
    ['reached', 'reached']
    """
    if not isinstance(runs, Sequence) or not all(isinstance(run, Run) for run in runs):
        raise InputError(f"train takes a list of runs, e.g. [em.Run(config, seed=0)], got {runs!r}")
    if n_parallel is not None and n_parallel < 1:
        raise InputError(f"n_parallel must be at least 1, got {n_parallel}")
    keep_programs()
    unique = {_key(run): run for run in runs}
    used = list(devices or jax.devices())
    groups = groups_of(unique.values())
    for members in groups:
        check_group(members, used[0].platform)
    schedulers = [Scheduler(members, used, n_parallel, keep, snapshot) for members in groups]
    later = [
        Scheduler(members, used, n_parallel, None, snapshot)
        for members_of_call in then
        for members in groups_of(members_of_call)
    ]
    folder = None if checkpoint is None else output_folder(checkpoint)
    with _interrupts() as interrupted, compiling_ahead() as ahead:
        times = (checkpoint_seconds, deadline)
        watchers = (on_end, progress, interrupted)
        call = _Call(len(unique), folder, *times, *watchers, ahead, [*schedulers[1:], *later])
        for scheduler in schedulers:
            with arithmetic(scheduler.program.precision), contextlib.closing(scheduler):
                call.train_group(scheduler)
        if interrupted():  # in the last chunk
            raise KeyboardInterrupt
    return [call.done[_key(run)] for run in runs]


def _key(run: Run) -> Hashable:
    """Return a key that is equal for runs with equal results, curves of probes included."""
    return run.identity, run.config.probes


def groups_of(runs: Iterable[Run]) -> list[list[Run]]:
    """Group runs that can share a program. Keeps their order."""
    groups: dict[Hashable, list[Run]] = {}
    for run in runs:
        # Probes may be equal by name and still be different functions.
        key = program_name(run.config), run.config.probes
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def can_compile_ahead(scheduler: Scheduler) -> bool:
    """Return False on a CPU, which needs all its cores for training."""
    return scheduler.devices[0].platform != "cpu"


def has_room(scheduler: Scheduler) -> bool:
    """Return True if training leaves half of the memory of its devices to autotuning."""
    return all(
        2 * stack.compiled.bytes < memory_of(stack.device, when_free=True)
        for stack in scheduler.stacks
    )


@dataclasses.dataclass
class _Call:
    """The state of one call to `train`."""

    total: int
    folder: Path | None  # for checkpoints
    checkpoint_seconds: float
    deadline: float | None
    on_end: Callable[[Result], None]
    progress: Callable[[Progress], None]
    interrupted: Callable[[], bool]
    ahead: Callable[[Callable[[], object]], object]
    later: list[Scheduler]  # their programs are not submitted for compilation yet
    done: dict[Hashable, Result] = dataclasses.field(default_factory=dict)
    begun: float = dataclasses.field(default_factory=time.monotonic)
    steps: int = 0  # taken by earlier groups

    def train_group(self, scheduler: Scheduler) -> None:
        """Train runs that share a program until all have ended."""
        path, results = self._restore(scheduler)
        for result in results:
            self._ended(result)
        saved = time.monotonic()
        submitted = False
        while scheduler.queue or scheduler.live:
            for result in scheduler.advance():
                results.append(result)
                self._ended(result)
            if can_compile_ahead(scheduler):
                if not submitted and not scheduler.queue:
                    submitted = True
                    self._compile_ahead(scheduler.narrower())
                if self.later:
                    room = has_room(scheduler)
                    programs = (functools.partial(s.compile_ahead, room) for s in self.later)
                    self._compile_ahead(programs)
                    self.later = []
            self._report(scheduler)
            late = self.deadline is not None and time.monotonic() >= self.deadline
            stale = time.monotonic() - saved >= self.checkpoint_seconds
            if path is not None and (self.interrupted() or late or stale):
                save_checkpoint(path, scheduler, results)
                saved = time.monotonic()
            if self.interrupted():
                raise KeyboardInterrupt
            if late and (scheduler.queue or scheduler.live):
                raise OutOfTime
        self.steps += scheduler.steps
        if path is not None:
            path.unlink(missing_ok=True)
            previous(path).unlink(missing_ok=True)

    def _restore(self, scheduler: Scheduler) -> tuple[Path | None, list[Result]]:
        """Continue from the checkpoint of a group, if any.

        **Returns:** the path of the group's checkpoint, and the runs that had ended in it.
        """
        if self.folder is None:
            return None, []
        # File names begin with the program. A later call may have fewer runs, so its checkpoint may
        # be any of the program's.
        prefix = program_name(scheduler.runs[0].config)
        for saved in checkpoints_in(self.folder, prefix):
            results = load_checkpoint(saved, scheduler)
            if results is not None:
                return saved.with_name(saved.name.replace(".previous.", ".")), results
        name = digest(" ".join(sorted(run.identity for run in scheduler.runs)))
        return self.folder / f"{prefix}-{name}.npz", []

    def _compile_ahead(self, programs: Iterable[Callable[[], object]]) -> None:
        """Let other threads compile programs, unless too little time is left to train with them."""

        def unless_late(program: Callable[[], object]) -> None:
            if self.deadline is None or time.monotonic() + _LEAST < self.deadline:
                program()

        for program in programs:
            self.ahead(functools.partial(unless_late, program))

    def _ended(self, result: Result) -> None:
        self.done[_key(result.run)] = result
        self.on_end(result)

    def _report(self, scheduler: Scheduler) -> None:
        """Call `progress`."""
        results = self.done.values()
        evaluated = {t.run.identity: t for t in scheduler.live if t.steps}
        seconds = time.monotonic() - self.begun
        left = None
        if results:
            # Count runs in training by the share of their steps that they have probably taken. A
            # run that has outlasted half of the typical number may take as long again.
            typical = max(sum(result.steps for result in results) / len(results), 1.0)
            share = len(results) + sum(
                t.step / min(max(typical, 2.0 * t.step), t.run.config.steps) for t in scheduler.live
            )
            left = seconds * (self.total - share) / share
        self.progress(
            Progress(
                total=self.total,
                done=len(results),
                failed=sum(result.state == "failed" for result in results),
                running=[
                    (t.run, t.step, float(np.asarray(t.measured["loss"][-1])))
                    for t in evaluated.values()
                ],
                steps=self.steps + scheduler.steps,
                seconds=seconds,
                seconds_left=left,
                bytes=sum(stack.compiled.bytes for stack in scheduler.stacks),
                curves=lambda run: (
                    evaluated[run.identity].curves if run.identity in evaluated else None
                ),
            )
        )


@contextlib.contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Delay the first Ctrl-C until the end of a chunk; a second one stops at once.

    **Yields:** a function that returns True after the first Ctrl-C.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        # Python cannot set a handler in another thread, or replace a handler set by C code.
        yield lambda: False
        return
    pressed = threading.Event()

    def note(number: int, frame: object) -> None:
        """Note a signal. `study/executor.py` also calls this for a request to terminate."""
        if number == signal.SIGINT and before is signal.SIG_IGN:
            return
        pressed.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
