"""The function that trains a plan, `run_plan`, and the worker behind it.

Any number of processes may work on one folder. Each takes a unit, trains it, and takes the next.
A worker lists the runs and claims of the folder when it starts, and again only when it meets the
work of another process. The number of file operations therefore grows with the number of runs, not
with runs times workers.

A unit is trained in tries. Try 0 trains all its runs; try n trains the runs that failed in try
n - 1, with fewer at once if memory was short. The number of the next try follows from files alone,
so that another process can continue after a kill.
"""

import contextlib
import dataclasses
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import jax

from ..core.errors import InputError, StorageError
from ..core.files import TROUBLE, as_storage_error, atomic_write, is_folder, move_aside, remove
from ..core.json import seal
from ..store.claims import BEAT, STALE, Claim, ClaimLost, Claims
from ..store.folder import Plan, StudyFolder, Unit
from ..store.outcomes import Failures, is_finished, read_outcomes
from ..store.packing import remove_unreadable
from ..store.packs import stored_names
from ..store.reader import CHECKPOINT, IDENTITY, checker, list_names, read_json
from ..store.store import Store
from ..training import CheckpointError, Config, OutOfTime, Progress, Result, Run, train
from ._live import Watcher
from ._writers import RunLog
from .plan import runs_of, steps_to_keep
from .results import save_snapshot, write_result

# In the folder of a checkpoint: the runs that are trained there, if these are not the whole unit.
_MEMBERS = "members.json"
_CHOSEN = checker({"members": [IDENTITY]})
# When no unit is free, a worker tries this many claims of others, whose owners may be dead.
_HELD = 20
_AHEAD = 6  # how many units are compiled while another one trains


def run_plan(
    folder: StudyFolder,
    plans: Sequence[str] | None = None,
    runs: Sequence[Run] = (),
    *,
    watch: Watcher | None = None,
    **options: Any,
) -> bool:
    """Train the runs of a folder that are not finished.

    **Arguments:**

    - `plans`: the keys of the plans to train; by default all plans of the folder.
    - `runs`: runs of these plans that the caller has already built. Other runs are built from the
      plans.
    - `watch`: receives progress, and has the forecaster.
    - `options`: other fields of [`emergo.study.Executor`][].

    **Returns:** True if all runs are finished; False if the deadline has passed or, with
    `wait=False`, other processes hold the remaining runs.
    """
    watch = watch or Watcher()
    if runs:
        watch.begin(runs, read_outcomes(folder.runs).rows)
    known = {run.identity: run for run in runs}
    return Executor(folder, plans, known, watch, **options).run()


@dataclasses.dataclass
class Executor:
    """One process at work on a folder; see `run_plan`.

    **Arguments:**

    - `on_end`: called with each result after it is stored.
    - `say`: called with one line about unusual events.
    - `log`: exports the curves of runs while they train.
    - `share`: the number of this worker, and of all workers. Each starts at another unit and
      checks its share of the existing files.
    - `wait`: whether to stay until other processes have finished the units they hold, in order to
      take over if a process dies.
    - `growing`: returns True while the plans may still get more units. The worker then stays, and
      takes the longest units first.
    - `n_parallel`: how many runs to train at once on a device; by default what memory allows.
    - `deadline`: the value of `time.monotonic()` at which training stops.
    - `checkpoint_seconds`: least time between two checkpoints.
    - `stale`, `beat`: see `emergo.store.claims.Claims`.
    """

    folder: StudyFolder
    plans: Sequence[str] | None = None
    known: Mapping[str, Run] = dataclasses.field(default_factory=dict)
    watch: Watcher = dataclasses.field(default_factory=Watcher)
    on_end: Callable[[Result], None] = lambda result: None
    say: Callable[[str], None] = lambda line: None
    log: RunLog | None = None
    share: tuple[int, int] = (0, 1)
    wait: bool = True
    growing: Callable[[], bool] | None = None
    n_parallel: int | None = None
    deadline: float | None = None
    checkpoint_seconds: float = 60.0
    stale: float = STALE
    beat: float = BEAT

    def run(self) -> bool:
        """Train until nothing is left to take or the deadline has passed."""
        with (
            as_storage_error(self.folder.path),
            terminations() as self.ending,
            contextlib.suppress(OutOfTime, ClaimLost),
        ):
            try:
                return self._run()
            finally:
                if self.log is not None:
                    self.log.close()
        return False

    def _run(self) -> bool:
        number, workers = self.share
        if self.folder.exists():
            self.folder.prepare(self.say)
            if number == 0:
                self.folder.sweep()
                for path, reason in remove_unreadable(self.folder.runs).items():
                    self.say(f"{path}: cannot be read ({reason}); moved aside")
        self.claims = Claims(self.folder.claims, self.stale, self.beat)
        self.check_folder = self.folder.anchor()
        self.runs_by_plan: dict[str, Mapping[str, Run]] = {}
        plans = self._read()
        stamp = self.folder.stamp()
        # Runs are checked when they are written, so one check of the existing ones is enough.
        self.damaged = self._damaged(plans)
        start = number / workers
        self.said = ""
        while True:
            self.check_folder()
            # Ask before looking: a unit that was planned until now is then seen.
            growing = self.growing is not None and self.growing()
            if (now := self.folder.stamp()) != stamp:
                plans = self._read()
                stamp = now
            left = self._look(plans)
            if not left and not growing:
                self._tidy()
                return True
            took = self._train_free(self._order(left, start))
            start = random.random() if workers > 1 else 0.0
            if took:
                continue
            late = self.deadline is not None and time.monotonic() >= self.deadline
            if late or not (self.wait or growing):
                return False
            if not growing:
                self._say_waiting()
            time.sleep(min(2.0, self.beat))

    def _read(self) -> list[Plan]:
        plans = self.folder.read()
        if self.plans is not None:
            plans = [plan for plan in plans if plan.key in self.plans]
        # If several plans share a run, it is trained for the plan that also asks for probes or
        # parameters.
        return sorted(plans, key=lambda plan: not plan.asks)

    def _damaged(self, plans: Sequence[Plan]) -> set[str]:
        """Return the unreadable runs in this worker's share of the units."""
        number, workers = self.share
        units = [unit for plan in plans for unit in plan.units][number::workers]
        names = {run.identity for unit in units for run in unit.runs}
        names &= stored_names(self.folder.runs)
        return {name for name in names if not is_finished(self.folder.runs, name)}

    def _look(self, plans: Sequence[Plan]) -> list[tuple[Plan, Unit]]:
        """Return the unfinished units, and count all runs and the finished ones."""
        finished = stored_names(self.folder.runs) - self.damaged
        every = {run.identity for plan in plans for run in plan.runs}
        self.total = len(every)
        self.finished = len(every & finished)
        return [(plan, unit) for plan in plans for unit in plan.left(finished)]

    def _order(self, left: Sequence[tuple[Plan, Unit]], start: float) -> list[tuple[Plan, Unit]]:
        """Return the units in the order in which to ask for them.

        Unclaimed units come first, from a share `start` of them on, so that workers meet rarely.
        """
        claimed = set(os.listdir(self.folder.claims))
        free = [one for one in left if f"{one[1].id}.json" not in claimed]
        held = [one for one in left if f"{one[1].id}.json" in claimed]
        if self.growing is not None:
            free.sort(key=lambda one: longest(*one), reverse=True)
        else:
            first = int(start * len(free))
            free = free[first:] + free[:first]
        if self.share[1] > 1:
            held = random.sample(held, min(len(held), _HELD))
        return free + held

    def _train_free(self, order: Sequence[tuple[Plan, Unit]]) -> bool:
        """Train free units in order until the work of another process is met; return True if any
        unit was free."""
        # The units to compile while another trains. Several workers that follow the same order take
        # `workers - 1` units in between.
        workers = self.share[1]
        first = 1 if self.growing is None else workers
        ahead = slice(first, first + (_AHEAD if workers == 1 else 1))
        took = False
        for place, (plan, unit) in enumerate(order):
            claim = self.claims.take(unit.id)
            if claim is None:
                if took:
                    break
                continue
            took = True
            try:
                with claim:
                    later = [unit for of, unit in order[place:][ahead] if of is plan]
                    then = [self._members(plan, unit) for unit in later]
                    members = self._members(plan, unit)
                    done = _UnitTrainer(self, plan, unit, members, then, claim).run()
            except ClaimLost as lost:
                self.say(f"unit {unit.id}: {lost}")
                if lost.same_job:
                    raise
                break
            self.finished += done
            self.damaged -= {run.identity for run in unit.runs}
            if not done:
                break
        return took

    def _members(self, plan: Plan, unit: Unit) -> list[Run]:
        runs = self.runs_by_plan.get(plan.key, self.known)
        if any(run.identity not in runs for run in unit.runs):
            runs = self.runs_by_plan[plan.key] = runs_of(plan, self.folder.path)
        return [runs[run.identity] for run in unit.runs]

    def _say_waiting(self) -> None:
        owners = [claim for unit, claim in self.claims.live().items() if unit != "plan"]
        line = "; ".join(f"{owner.get('host')}, process {owner.get('pid')}" for owner in owners)
        if line not in ("", self.said):
            self.say(f"waiting for what others train: {line}")
        self.said = line or self.said

    def _tidy(self) -> None:
        """Remove the checkpoints of processes that were killed just before their end.

        Checkpoints from which another plan of the folder continues are kept.
        """
        live = self.claims.live(clear=True)
        names = list_names(self.folder.checkpoints, CHECKPOINT)
        behind = [name for name in names if name.partition(".")[0] not in live]
        if behind:
            wanted = {unit.id for _, unit in self._look(self.folder.read())}
            for name in behind:
                if name.partition(".")[0] not in wanted:
                    remove(self.folder.checkpoints / name)


def longest(plan: Plan, unit: Unit) -> tuple[int, int]:
    """Return a key that is largest for the unit that may take longest."""
    # A description of a config leaves out the default.
    steps = [config.get("steps", Config.steps) for config in plan.configs]
    return max(steps[run.config] for run in unit.runs), len(unit.runs)


def check_platform(runs: Sequence[Run]) -> None:
    """Raise an `InputError` if a run cannot be trained on this machine."""
    if any(run.config.precision == "tf32" for run in runs) and jax.default_backend() == "cpu":
        raise InputError("tf32 products need a GPU; on a CPU choose precision fp32")


@dataclasses.dataclass
class _UnitTrainer:
    """The training of one unit, whose claim this process holds."""

    executor: Executor
    plan: Plan
    unit: Unit
    members: list[Run]
    then: list[list[Run]]  # the units that are likely to be trained next
    claim: Claim

    def __post_init__(self) -> None:
        folder = self.executor.folder
        self.retries = int(self.plan.study.get("retries", 1))
        self.store = Store(folder.runs)
        self.failures = Failures(folder.failures)
        self.done = 0

    def run(self) -> int:
        """Train all runs of the unit; return how many this process has finished."""
        while pending := self._unfinished(self.members):
            for run in [run for run in pending if self._next_try(run) > self.retries]:
                last = self.failures.read(run.identity, self.retries)
                reason = str(last.get("reason", "it failed"))
                self._store(Result.untrained(run, reason, str(last.get("device", "unknown"))))
                pending.remove(run)
            if pending:
                self._try(min(map(self._next_try, pending)), pending)
        for number in range(self.retries + 1):
            remove(self._checkpoint(number))
        return self.done

    def _unfinished(self, runs: Sequence[Run]) -> list[Run]:
        return [run for run in runs if run.identity not in self.store]

    def _checkpoint(self, number: int) -> Path:
        return self.executor.folder.checkpoints / f"{self.unit.id}.{number}"

    def _next_try(self, run: Run) -> int:
        number = 0
        while number <= self.retries and self.failures.recorded(run.identity, number):
            number += 1
        return number

    def _try(self, number: int, pending: list[Run]) -> None:
        executor = self.executor
        folder = self._checkpoint(number)
        members = self.members
        if number:
            members = [r for r in members if self.failures.recorded(r.identity, number - 1)]
        executor.check_folder()
        if os.path.lexists(folder) and not is_folder(folder):
            executor.say(f"{folder}: not a folder; moved to {move_aside(folder).name}")
        members = self._chosen(folder, members, pending)
        n_parallel = self._parallel(number, members)
        try:
            train(
                members,
                n_parallel=n_parallel,
                checkpoint=folder,
                checkpoint_seconds=executor.checkpoint_seconds,
                deadline=executor.deadline,
                keep=steps_to_keep(self.plan.study.get("keep"), members),
                then=self.then,
                snapshot=lambda trained: save_snapshot(self.store, *trained),
                on_end=lambda result: self._ended(result, number, n_parallel),
                progress=self._progress,
            )
        except CheckpointError as error:
            self._set_aside(error, pending)
        except OSError as error:  # from user code; emergo's files raise StorageErrors
            if error.errno in TROUBLE:
                raise
            words = f"a task, model or probe of the unit {self.unit.id} cannot use a file"
            raise InputError(f"{words}: {type(error).__name__}: {error}") from error
        except Exception as error:
            if not out_of_memory(error):
                raise
            self._note_out_of_memory(error, number, n_parallel, pending)

    def _chosen(self, folder: Path, members: list[Run], pending: list[Run]) -> list[Run]:
        """Return the runs to train from a checkpoint folder.

        These are all members, including finished ones, because the numbers of a run depend to the
        last bit on the runs that it is trained with. Finished runs are left out only if the
        checkpoint is gone, since they would have to be trained again, and if no pending run is
        a damaged one, which has to get the same numbers as before.
        """
        if not folder.exists():
            with as_storage_error(folder):
                folder.mkdir()
            damaged = any(self.store.has_entry(run.identity) for run in pending)
            if len(pending) < len(members) and not damaged:
                self._choose(folder, pending)
        try:
            chosen = set(read_json(folder / _MEMBERS, _CHOSEN)["members"])
        except (OSError, ValueError):
            return members
        if any(run.identity not in chosen for run in pending):
            return members
        return [run for run in members if run.identity in chosen]

    def _choose(self, folder: Path, runs: Sequence[Run]) -> None:
        atomic_write(folder / _MEMBERS, seal({"members": [run.identity for run in runs]}))

    def _parallel(self, number: int, members: list[Run]) -> int | None:
        """Return how many runs to train at once: a quarter after each lack of memory, and one in
        the last try."""

        def was_short(earlier: int) -> bool:
            reports = (self.failures.read(run.identity, earlier) for run in members)
            return any(report.get("kind") == "memory" for report in reports)

        short = sum(map(was_short, range(number)))
        if not short:
            return self.executor.n_parallel
        if number == self.retries:
            return 1
        return max(1, min(self.executor.n_parallel or 128, len(members)) // 4**short)

    def _ended(self, result: Result, number: int, n_parallel: int | None) -> None:
        """Store a result, unless the run failed and will be tried again."""
        identity = result.run.identity
        if result.state == "failed" and identity not in self.store:
            details = {"device": result.provenance.get("device"), "n_parallel": n_parallel}
            self.failures.note(identity, number, str(result.reason), "loss", **details)
            if number < self.retries:
                return
            if number:
                result = result._replace(reason=f"{result.reason}, in {number + 1} tries")
        self._store(result)

    def _store(self, result: Result) -> None:
        self.executor.check_folder()
        identity = result.run.identity
        if identity in self.store:
            return  # stored before an interruption, or by another process
        path = write_result(self.store, result)
        if identity not in self.store:  # would be trained again and again
            raise StorageError(
                f"{path}: what was written there cannot be read; is the disk in order?"
            )
        self.done += 1
        if self.executor.log is not None:
            self.executor.log.ended(result)
        self.executor.watch.ended(result)
        self.executor.on_end(result)

    def _set_aside(self, error: CheckpointError, pending: list[Run]) -> None:
        """Move an unreadable checkpoint away; training continues from the one before, if any."""
        aside = move_aside(error.path)
        folder = error.path.parent
        self.executor.say(
            f"{error.path}: cannot be read ({error.why}); moved to {aside.name}; its runs continue "
            f"from the checkpoint before it, if there is one"
        )
        if not any(folder.glob("[!.]*.npz")):
            self._choose(folder, pending)  # finished runs are not trained again with the others

    def _note_out_of_memory(
        self, error: Exception, number: int, n_parallel: int | None, pending: list[Run]
    ) -> None:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        reason = f"out of memory with {n_parallel or 'as many as planned'} together: {first_line}"
        details = {"device": jax.devices()[0].device_kind, "n_parallel": n_parallel}
        for run in self._unfinished(pending):
            if not self.failures.recorded(run.identity, number):
                self.failures.note(run.identity, number, reason, "memory", **details)
        self.executor.say(f"unit {self.unit.id}: {reason}")

    def _progress(self, now: Progress) -> None:
        """Publish the progress of the unit in its claim, and of all runs to the watcher."""
        executor = self.executor
        if executor.ending.is_set():
            raise KeyboardInterrupt
        executor.check_folder()
        names = ("rate", "bytes", "seconds_left", "done", "total", "seconds")
        told: dict[str, Any] = {name: getattr(now, name) for name in names}
        told["running"] = [
            [run.identity, step, loss if loss == loss else None] for run, step, loss in now.running
        ]
        if executor.watch.forecaster is not None:
            notes = executor.watch.forecaster.update(now)
            told["notes"] = [{"run": run, **note._asdict()} for run, note in notes.items()]
        self.claim.tell(told)
        if executor.log is not None:
            executor.log.training(now)
        done = executor.finished + self.done
        left_here = now.total - now.done
        seconds_left = None
        if now.seconds_left is not None and left_here:
            seconds_left = now.seconds_left * (executor.total - done) / left_here
        executor.watch.training(
            dataclasses.replace(now, total=executor.total, done=done, seconds_left=seconds_left)
        )


def out_of_memory(error: BaseException) -> bool:
    """Return True for an error that reports a lack of memory, on a device or the host."""
    words = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory")
    if isinstance(error, jax.errors.JaxRuntimeError):
        return any(word in str(error) for word in words)
    return isinstance(error, MemoryError)


@contextlib.contextmanager
def terminations() -> Iterator[threading.Event]:
    """Treat SIGTERM as an interrupt inside the block, so that training is saved first.

    An interrupt raises Python's `KeyboardInterrupt`, even if a command has replaced the handler
    while it started. The yielded event is set as well, because Python drops an exception that is
    raised during garbage collection.
    """
    raised = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        interrupt = signal.getsignal(signal.SIGINT)
        try:
            if not callable(interrupt):  # ignored, e.g. in a background job of a script
                raise KeyboardInterrupt
            interrupt(number, frame)
        except KeyboardInterrupt:
            raised.set()
            raise

    before = signal.getsignal(signal.SIGTERM)
    interrupt = signal.getsignal(signal.SIGINT)
    # Handlers can be set in the main thread only; None: the handler was not installed by Python.
    if threading.current_thread() is not threading.main_thread() or before is None:
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
