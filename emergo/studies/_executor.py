"""Training the units of a folder: take one, train it, go on to the next, beside any number of other processes that do the same.

A worker looks at the whole folder (the names of runs and claims) when it begins, and again when it meets what another has done
since, not for every unit; so the operations on the folder grow with the runs, not with runs times workers.

A unit is trained in tries. Try 0 trains all its runs; try n those that failed in try n - 1, out of memory with fewer at once.
Which try comes next follows from the files alone, so that a process that was killed is followed by one that goes on there.
"""

import contextlib
import dataclasses
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import jax

from .._errors import InputError, StorageError
from .._files import TROUBLE, as_storage_error, atomic_write, is_folder, move_aside, remove
from .._json import seal
from ..engine import CheckpointError, OutOfTime, Progress, Result, Run, train
from ._claims import BEAT, STALE, Claim, ClaimLost, Claims
from ._folder import Plan, StudyFolder, Unit
from ._forecasts import RunForecasts
from ._outcomes import Failures, is_finished
from ._plan import runs_of, steps_to_keep
from ._reader import CHECKPOINT, IDENTITY, checker, list_names, read_json
from ._store import Store

_MEMBERS = "members.json"  # under a checkpoint: the runs that are trained there, where these are not all of the unit
_CHOSEN = checker({"members": [IDENTITY]})
_HELD = 20  # claims of others that one of many workers tries when no unit is free, in case their owners are gone
_AHEAD = 6  # units whose programs are compiled while another trains


@dataclasses.dataclass(frozen=True)
class Executor:
    """One process at work on a folder."""

    folder: StudyFolder
    plans: Sequence[str] | None = None  # the keys of the plans to train, in this order; None: all in the folder
    known: Mapping[str, Run] = dataclasses.field(default_factory=dict)  # by identity; others are made from the plan
    share: tuple[int, int] = (0, 1)
    """Which of how many workers this one is: each begins at another unit, and checks its share of the files that are there."""
    wait: bool = True  # to stay until all is finished, also what others train, in case they do not come to their end
    growing: Callable[[], bool] = lambda: False  # whether plans may yet get more units: then it stays for these
    rank: Callable[[Plan, Unit], Any] | None = None
    """The units that rank highest are taken first; None: in the order of the plans, each of several workers from another part
    of them on."""
    n_parallel: int | None = None  # runs to train at once on a device; by default what memory holds and cores need
    devices: list[Any] | None = None
    deadline: float | None = None  # the value of `time.monotonic()` after which nothing more is trained
    checkpoint_seconds: float = 60.0
    stale: float = STALE
    beat: float = BEAT
    on_end: Callable[[Result], None] = lambda result: None  # gets each result that this process has put into the store
    progress: Callable[[Progress], None] = lambda progress: None  # called after every chunk, with counts of all plans
    say: Callable[[str], None] = lambda line: None  # gets lines on what is out of the ordinary

    def run(self) -> bool:
        """Trains until nothing is left to take, or the time is over; says whether all runs are finished."""
        with as_storage_error(self.folder.path), terminations() as ending, contextlib.suppress(OutOfTime):
            return self._run(ending)
        return False

    def _read(self) -> list[Plan]:
        plans = self.folder.read()
        if self.plans is None:  # of a run that several have, the plan that asks for more than its curves decides
            return sorted(plans, key=lambda plan: not plan.asks)
        by_key = {plan.key: plan for plan in plans}
        return [by_key[key] for key in self.plans if key in by_key]

    def _run(self, ending: threading.Event) -> bool:
        number, workers = self.share
        if self.folder.exists():
            self.folder.prepare(self.say)
            if number == 0:
                self.folder.sweep()
        claims, waiting, still_there = Claims(self.folder.claims, self.stale, self.beat), "", self.folder.anchor()
        runs: dict[str, Mapping[str, Run]] = {}  # by plan
        plans, stamp, start = self._read(), self.folder.stamp(), number / workers
        # Of several workers, others take what comes next: where all go by rank, as many units as there are others.
        ahead = slice(1, 1 + _AHEAD) if workers == 1 else slice(1, 2) if self.rank is None else slice(workers, workers + 1)

        def members(plan: Plan, unit: Unit) -> list[Run]:
            if any(run.identity not in runs.get(plan.key, self.known) for run in unit.runs):
                runs[plan.key] = runs_of(plan, self.folder.path)
            return [runs.get(plan.key, self.known)[run.identity] for run in unit.runs]

        damaged = self._damaged(plans)  # a run is there whole or not at all, and is checked when it is written: once is enough
        while True:
            still_there()
            growing = self.growing()  # asked before the look: what was planned until then is seen
            if (now := self.folder.stamp()) != stamp:  # they may have grown
                plans, stamp = self._read(), now
            left, total, finished = self._look(plans, damaged)
            if not left and not growing:
                self._tidy(claims)
                return True
            took = False
            order = self._order(left, start)
            for place, (plan, unit) in enumerate(order):
                claim = claims.take(unit.id)
                if claim is None:
                    if took:
                        break  # others have been here since
                    continue
                took = True
                with claim:
                    try:
                        then = [members(plan, later) for of, later in order[place:][ahead] if of is plan]
                        whom = members(plan, unit), then
                        trainer = _Trainer(self, plan, unit, *whom, claim, ending, still_there, total, finished)
                        done = trainer.run()
                    except ClaimLost as lost:
                        self.say(f"unit {unit.id}: {lost}")
                        if lost.same_job:
                            return False
                        break
                finished += done
                damaged -= {run.identity for run in unit.runs}
                if not done:
                    break
            start = random.random() if workers > 1 else 0.0
            if took:
                continue
            if not (self.wait or growing) or (self.deadline is not None and time.monotonic() >= self.deadline):
                return False
            others = {} if growing else claims.live()
            line = "; ".join(f"{c.get('host')}, process {c.get('pid')}" for u, c in others.items() if u != "plan")
            if line and line != waiting:
                self.say(f"waiting for what others train: {line}")
                waiting = line
            time.sleep(min(2.0, self.beat))

    def _look(self, plans: Sequence[Plan], damaged: Container[str]) -> tuple[list[tuple[Plan, Unit]], int, int]:
        """The units that are left, by the names of what is there; how many runs there are, and how many are finished."""
        there = {name for name in os.listdir(self.folder.runs) if name not in damaged}
        every = {run.identity for plan in plans for run in plan.runs}
        return [(plan, unit) for plan in plans for unit in plan.left(there)], len(every), len(every & there)

    def _damaged(self, plans: Sequence[Plan]) -> set[str]:
        """Runs of this worker's share that are there and cannot be read; every file of them is read again."""
        number, workers = self.share
        mine = [run for unit in [unit for plan in plans for unit in plan.units][number::workers] for run in unit.runs]
        names = {run.identity for run in mine}.intersection(os.listdir(self.folder.runs))
        return {name for name in names if not is_finished(self.folder.runs, name)}

    def _order(self, left: Sequence[tuple[Plan, Unit]], start: float) -> list[tuple[Plan, Unit]]:
        """The units in the order in which to ask for them: those that nobody has, from this part of them on, then others."""
        claimed = set(os.listdir(self.folder.claims))
        free = [(plan, unit) for plan, unit in left if f"{unit.id}.json" not in claimed]
        held = [(plan, unit) for plan, unit in left if f"{unit.id}.json" in claimed]
        first = int(start * len(free))
        if (rank := self.rank) is not None:
            free, first = sorted(free, key=lambda one: rank(*one), reverse=True), 0
        return free[first:] + free[:first] + (held if self.share[1] == 1 else random.sample(held, min(len(held), _HELD)))

    def _tidy(self, claims: Claims) -> None:
        """All is finished: removes what processes left behind that were killed just before their end, but nothing that another
        plan of the folder goes on from."""
        live = claims.live(clear=True)
        behind = [name for name in list_names(self.folder.checkpoints, CHECKPOINT) if name.partition(".")[0] not in live]
        wanted = {unit.id for _, unit in self._look(self.folder.read(), ())[0]} if behind else set()
        for name in behind:
            if name.partition(".")[0] not in wanted:
                remove(self.folder.checkpoints / name)


def check_platform(runs: Sequence[Run], devices: Sequence[Any] | None = None) -> None:
    """An `InputError` if a run cannot be trained on the devices of this machine."""
    if any(run.config.precision == "tf32" for run in runs) and (devices or jax.devices())[0].platform == "cpu":
        raise InputError("tf32 products need a GPU; on a CPU choose precision fp32")


@dataclasses.dataclass
class _Trainer:
    """Trains one unit to its end."""

    executor: Executor
    plan: Plan
    unit: Unit
    members: list[Run]
    then: list[list[Run]]  # what is likely to be trained next
    claim: Claim
    ending: threading.Event
    still_there: Callable[[], None]  # raises where the folder is not where it was
    total: int
    finished: int

    def __post_init__(self) -> None:
        self.retries = int(self.plan.study.get("retries", 1))
        self.store = Store(self.executor.folder.runs)
        self.failures = Failures(self.executor.folder.failures)
        self.forecasts = RunForecasts()
        self.done = 0

    def run(self) -> int:
        """Returns how many runs it has finished."""
        while pending := [run for run in self.members if run not in self.store]:
            for run in [run for run in pending if self._next_try(run) > self.retries]:
                last = self.failures.read(run.identity, self.retries)
                self._store(Result.untrained(run, str(last.get("reason", "it failed")), str(last.get("device", "unknown"))))
                pending.remove(run)
            if pending:
                self._try(min(map(self._next_try, pending)), pending)
        for number in range(self.retries + 1):
            remove(self._checkpoint(number))
        return self.done

    def _checkpoint(self, number: int) -> Path:
        return self.executor.folder.checkpoints / f"{self.unit.id}.{number}"

    def _next_try(self, run: Run) -> int:
        return next(n for n in range(self.retries + 2) if not self.failures.recorded(run.identity, n))

    def _try(self, number: int, pending: list[Run]) -> None:
        folder = self._checkpoint(number)
        members = [run for run in self.members if not number or self.failures.recorded(run.identity, number - 1)]
        self.still_there()
        if os.path.lexists(folder) and not is_folder(folder):
            self.executor.say(f"{folder}: not a folder; moved to {move_aside(folder).name}")
        members = self._chosen(folder, members, pending)
        n_parallel = self._parallel(number, members)
        try:
            train(
                members,
                n_parallel=n_parallel,
                devices=self.executor.devices,
                checkpoint=folder,
                checkpoint_seconds=self.executor.checkpoint_seconds,
                deadline=self.executor.deadline,
                keep=steps_to_keep(self.plan.study.get("keep"), members),
                then=self.then,
                snapshot=self.store.snapshot,
                on_end=lambda result: self._ended(result, number, n_parallel),
                progress=self._show,
            )
        except CheckpointError as error:
            self._set_aside(error)
            if not any(folder.glob("[!.]*.npz")):
                # What was finished need not be trained again for the sake of the others.
                self._choose(folder, pending)
        except (OutOfTime, InputError):
            raise
        except OSError as error:  # those of our own files are StorageErrors
            if error.errno in TROUBLE:
                raise
            words = f"a task, model or probe of the unit {self.unit.id} cannot use a file"
            raise InputError(f"{words}: {type(error).__name__}: {error}") from error
        except Exception as error:
            if not out_of_memory(error):
                raise
            self._note_out_of_memory(error, number, n_parallel, pending)

    def _chosen(self, folder: Path, members: list[Run], pending: list[Run]) -> list[Run]:
        """Whom to train: all, so that an interrupted unit ends as an uninterrupted one would, unless its past is gone. All as
        well where a run was damaged: trained beside the same others it has the same numbers to the last bit."""
        if not folder.exists():
            with as_storage_error(folder):
                folder.mkdir()
            if len(pending) < len(members) and not any(map(self.store.holds, pending)):
                self._choose(folder, pending)
        try:
            chosen = set(read_json(folder / _MEMBERS, _CHOSEN)["members"])
        except (OSError, ValueError):
            return members
        return members if any(run.identity not in chosen for run in pending) else [r for r in members if r.identity in chosen]

    def _choose(self, folder: Path, runs: Sequence[Run]) -> None:
        atomic_write(folder / _MEMBERS, seal({"members": [run.identity for run in runs]}))

    def _parallel(self, number: int, members: list[Run]) -> int | None:
        """Runs at once: after a lack of memory a quarter as many, and at the last try one."""
        short = [n for n in range(number) if any(self.failures.read(r.identity, n).get("kind") == "memory" for r in members)]
        if not short:
            return self.executor.n_parallel
        if number == self.retries:
            return 1
        return max(1, min(self.executor.n_parallel or 128, len(members)) // 4 ** len(short))

    def _ended(self, result: Result, number: int, n_parallel: int | None) -> None:
        """Stores a result; one that failed only where it is not to be tried again."""
        if result.state == "failed" and result.run not in self.store:
            device = result.provenance.get("device")
            self.failures.note(result.run.identity, number, str(result.reason), "loss", device=device, n_parallel=n_parallel)
            if number < self.retries:
                return
            if number:
                result = result._replace(reason=f"{result.reason}, in {number + 1} tries")
        self._store(result)

    def _store(self, result: Result) -> None:
        self.still_there()
        if result.run in self.store:
            return  # before an interruption, or by another process
        path = self.store.write(result)
        if result.run not in self.store:  # else it would be trained for ever
            raise StorageError(f"{path}: what was written there cannot be read; is the disk in order?")
        self.done += 1
        self.executor.on_end(result)

    def _set_aside(self, error: CheckpointError) -> None:
        aside = move_aside(error.path)
        left = "its runs go on from the one before" if any(error.path.parent.glob("[!.]*.npz")) else "its runs begin anew"
        self.executor.say(f"{error.path}: cannot be read ({error.why}); moved to {aside.name}, {left}")

    def _note_out_of_memory(self, error: Exception, number: int, n_parallel: int | None, pending: list[Run]) -> None:
        words = f"out of memory with {n_parallel or 'as many as planned'} together"
        reason = f"{words}: {(str(error).strip() or type(error).__name__).splitlines()[0][:300]}"
        device = (self.executor.devices or jax.devices())[0].device_kind
        for run in pending:
            if run not in self.store and not self.failures.recorded(run.identity, number):
                self.failures.note(run.identity, number, reason, "memory", device=device, n_parallel=n_parallel)
        self.executor.say(f"unit {self.unit.id}: {reason}")

    def _show(self, now: Progress) -> None:
        if self.ending.is_set():
            raise KeyboardInterrupt
        self.still_there()
        running = [[run.identity, step, loss if loss == loss else None] for run, step, loss in now.running]
        told = [told.to_json() for told in self.forecasts.update(now).values()]
        shown: dict[str, Any] = {"running": running, "rate": now.rate, "bytes": now.bytes, "seconds_left": now.seconds_left}
        self.claim.tell(shown | {"done": now.done, "total": now.total, "seconds": now.seconds, "forecasts": told})
        done, left = self.finished + self.done, now.seconds_left
        of_all, of_unit = self.total - done, now.total - now.done
        if left is not None and of_unit < of_all:
            left = left * of_all / of_unit if of_unit else None
        self.executor.progress(dataclasses.replace(now, total=self.total, done=done, seconds_left=left))


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device or the computer has no memory left."""
    words = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory")
    of_jax = isinstance(error, jax.errors.JaxRuntimeError) and any(word in str(error) for word in words)
    return of_jax or isinstance(error, MemoryError)


@contextlib.contextmanager
def terminations() -> Iterator[threading.Event]:
    """Inside the block a request to end (SIGTERM) is an interrupt, and an interrupt is Python's own, which a command may have
    replaced while it began: what is in training is saved first. The event is set where the interrupt was raised at once:
    Python loses an exception that comes while it collects garbage."""
    raised = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        interrupt = signal.getsignal(signal.SIGINT)
        try:
            if not callable(interrupt):  # ignored, as in a job that a script left in the background
                raise KeyboardInterrupt
            interrupt(number, frame)
        except KeyboardInterrupt:
            raised.set()
            raise

    if threading.current_thread() is not threading.main_thread():
        yield raised
        return
    before, interrupt = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    if before is None:  # it is not Python's to answer
        yield raised
        return
    signal.signal(signal.SIGTERM, end)
    if callable(interrupt):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield raised
    finally:
        signal.signal(signal.SIGTERM, before)
        if callable(interrupt):
            signal.signal(signal.SIGINT, interrupt)
