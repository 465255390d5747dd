"""Training many runs: as few programs as their structures allow."""

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

from .._cache import keep_programs
from .._errors import InputError
from .._files import output_folder
from .._json import digest
from ._ahead import Ahead
from ._check import check_group
from ._checkpoint import checkpoints_in, load_checkpoint, previous, save_checkpoint
from ._config import Result, Run
from ._cost import Device, memory_of
from ._program import arithmetic, program_key, program_name
from ._scheduler import Scheduler, Snapshot

_LEAST = 60.0  # seconds that must be left for a program to be compiled ahead, which takes 6 to 48 beside others


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a call of [`emergo.engine.train`][] is."""

    total: int
    done: int
    failed: int
    running: Sequence[tuple[Run, int, float]]  # run, step and test loss of those in training
    steps: int  # of all runs together so far, in this call
    seconds: float
    seconds_left: float | None  # a guess from the runs that have ended; None before the first
    bytes: int  # what the current programs need, over all devices
    curves: Callable[[Run], Mapping[str, np.ndarray] | None] = lambda run: None  # so far, of a run that is in training

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
    then: Sequence[Sequence[Run]] = (),
    snapshot: Snapshot = lambda run, step, params: None,
    on_end: Callable[[Result], None] = lambda result: None,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> list[Result]:
    """Trains runs, those that can share a program together, on all devices; returns their results in the same order.

    A run's numbers are a function of its config and seed: it draws the same data and is evaluated at the same steps whatever
    runs are beside it (on a GPU up to rounding, as its kernels depend on how many there are). Runs share a program where they
    differ only in seed, per-run numbers, sizes that may be padded and the start of their parameters.

    - `runs`: what to train; within a program they begin in this order. The longest first leaves the least idle at the end.
    - `n_parallel`: how many runs of a program to train at once on a device; by default what memory holds and cores need.
    - `devices`: by default all.
    - `checkpoint`: a folder for checkpoints, written at most every `checkpoint_seconds`, and at an interrupt. A later call
      with the same runs, or with those of them that had not ended, goes on from there.
    - `deadline`: the value of `time.monotonic()` after which the checkpoint is written and `OutOfTime` raised.
    - `keep`: steps at which `snapshot` is called with a run, the step and its parameters: at the first evaluation from each of
      them on, and at the end. None: never.
    - `then`: the runs of later calls: on a GPU their programs are compiled meanwhile, in other threads, for which one run of
      each program is checked and started, but not trained.
    - `on_end`: called with each result as soon as a run has ended.
    - `progress`: called after every chunk.

    >>> task, model = em.SingleLocation(length=4, dim=2), em.Transformer(layers=1, heads=1, width=4, mlp=False)
    >>> adam = em.Optimizer("adam", learning_rate=0.02)
    >>> config = em.Config(task, model, adam, steps=50, batch=8, n_test=16, precision="fp32")
    >>> [result.state for result in em.train([em.Run(config, seed) for seed in range(2)])]
    ['reached', 'reached']
    """
    if not _are_runs(runs):
        raise InputError(f"train takes a list of runs, e.g. [em.Run(config, seed=0)], got {runs!r}")
    if not isinstance(then, Sequence) or not all(map(_are_runs, then)):
        raise InputError(f"then must be a list of such lists, one for each later call, got {then!r}")
    if n_parallel is not None and n_parallel < 1:
        raise InputError(f"n_parallel must be at least 1, got {n_parallel}")
    keep_programs()
    unique, used = {_key(run): run for run in runs}, list(devices or jax.devices())
    groups = groups_of(unique.values())
    for members in groups:
        check_group(members, used[0].platform)
    folder = None if checkpoint is None else output_folder(checkpoint)
    schedulers = [Scheduler(members, used, n_parallel, keep, snapshot) for members in groups]
    later = [Scheduler(members, used, n_parallel, None, snapshot) for runs in then for members in groups_of(runs)]
    with _interrupts() as interrupted, Ahead() as ahead:
        others = (interrupted, ahead, [*schedulers[1:], *later])
        call = _Call(len(unique), folder, checkpoint_seconds, deadline, on_end, progress, *others)
        for scheduler in schedulers:
            with arithmetic(scheduler.program.precision), contextlib.closing(scheduler):
                call.train_group(scheduler)
        if interrupted():  # as the last run ended
            raise KeyboardInterrupt
    return [call.done[_key(run)] for run in runs]


def _key(run: Run) -> Hashable:
    """Equal for runs that have the same results: what probes measure is no part of a run's identity."""
    return run.identity, run.config.probes


def _are_runs(runs: object) -> bool:
    return isinstance(runs, Sequence) and all(isinstance(run, Run) for run in runs)


def groups_of(runs: Iterable[Run]) -> list[list[Run]]:
    """Runs that can share a program, in their order."""
    groups: dict[Hashable, list[Run]] = {}
    for run in runs:
        groups.setdefault(program_key(run.config), []).append(run)
    return list(groups.values())


def can_compile_ahead(scheduler: Scheduler) -> bool:
    """A CPU trains with all of its cores."""
    return scheduler.devices[0].platform != "cpu"


def has_room(scheduler: Scheduler) -> bool:
    """Whether beside what trains there is memory in which to try kernels."""
    sizes = [(stack.compiled.bytes, memory_of(stack.device, when_free=True)) for stack in scheduler.stacks]
    return all(2 * used < size for used, size in sizes)


@dataclasses.dataclass
class _Call:
    """One call of `train`."""

    total: int
    folder: Path | None
    checkpoint_seconds: float
    deadline: float | None
    on_end: Callable[[Result], None]
    progress: Callable[[Progress], None]
    interrupted: Callable[[], bool]
    ahead: Ahead
    later: list[Scheduler]  # whose programs no thread compiles yet
    done: dict[Hashable, Result] = dataclasses.field(default_factory=dict)
    begun: float = dataclasses.field(default_factory=time.monotonic)
    steps: int = 0  # of the groups before

    def restore(self, scheduler: Scheduler) -> tuple[Path | None, list[Result]]:
        """Where the checkpoint of a group is, and the runs that had ended in it: the scheduler goes on from there."""
        if self.folder is None:
            return None, []
        # Named by the program and the runs: a later call may ask for fewer runs, and looks through those of the program.
        prefix = program_name(scheduler.runs[0].config)
        for saved in checkpoints_in(self.folder, prefix):
            results = load_checkpoint(saved, scheduler)
            if results is not None:
                return saved.with_name(saved.name.replace(".previous.", ".")), results
        name = digest(" ".join(sorted(run.identity for run in scheduler.runs)))
        return self.folder / f"{prefix}-{name}.npz", []

    def compile_ahead(self, programs: Iterable[Callable[[], object]]) -> None:
        """Has other threads compile, each program only if there is time left to train with it."""

        def unless_late(program: Callable[[], object]) -> None:
            if self.deadline is None or time.monotonic() + _LEAST < self.deadline:
                program()

        for program in programs:
            self.ahead.begin(functools.partial(unless_late, program))

    def train_group(self, scheduler: Scheduler) -> None:
        """Trains runs that share a program to their ends."""
        path, results = self.restore(scheduler)
        for result in results:
            self._ended(result)
        saved, narrower = time.monotonic(), False
        while scheduler.queue or scheduler.live:
            for result in scheduler.advance():
                results.append(result)
                self._ended(result)
            if can_compile_ahead(scheduler):
                if not narrower and not scheduler.queue:
                    narrower = True
                    self.compile_ahead(scheduler.narrower())
                if self.later:
                    room = has_room(scheduler)
                    self.compile_ahead(functools.partial(later.compile_ahead, room) for later in self.later)
                    self.later = []
            self._report(scheduler)
            late = self.deadline is not None and time.monotonic() >= self.deadline
            if path is not None and (self.interrupted() or late or time.monotonic() - saved >= self.checkpoint_seconds):
                save_checkpoint(path, scheduler, results)
                saved = time.monotonic()
            if self.interrupted():
                raise KeyboardInterrupt
            if late and (scheduler.queue or scheduler.live):
                raise OutOfTime
        self.steps += scheduler.steps
        for file in () if path is None else (path, previous(path)):
            file.unlink(missing_ok=True)

    def _ended(self, result: Result) -> None:
        self.done[_key(result.run)] = result
        self.on_end(result)

    def _report(self, scheduler: Scheduler) -> None:
        seconds, left = time.monotonic() - self.begun, None
        if self.done:
            typical = max(sum(result.steps for result in self.done.values()) / len(self.done), 1.0)
            share = len(self.done) + sum(tracked.step / tracked.likely_end(typical) for tracked in scheduler.live)
            left = seconds * (self.total - share) / share
        running = [(t.run, t.step, float(np.asarray(t.measured["loss"][-1]))) for t in scheduler.live if t.steps]
        failed = sum(result.state == "failed" for result in self.done.values())
        used = sum(stack.compiled.bytes for stack in scheduler.stacks)
        steps = self.steps + scheduler.steps
        tracked = {t.run.identity: t for t in scheduler.live if t.steps}

        def curves(run: Run) -> Mapping[str, np.ndarray] | None:
            return tracked[run.identity].curves if run.identity in tracked else None

        self.progress(Progress(self.total, len(self.done), failed, running, steps, seconds, left, used, curves))


@contextlib.contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Inside the block a first Ctrl-C only makes the function true, so that no chunk is cut in two; a second stops at once."""
    pressed = threading.Event()

    def note(number: int, frame: object) -> None:
        """Also called for a request to end (`studies/_executor.py`)."""
        if number == signal.SIGINT and before is signal.SIG_IGN:
            return
        pressed.set()
        signal.signal(signal.SIGINT, before)

    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:  # None: it is not Python's to answer
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
