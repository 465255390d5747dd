"""Training a study: take a unit, train it, go on to the next, beside any number of other processes that do the same.

A unit is trained in tries. Try 0 trains all its runs; try n those that failed in try n - 1, out of memory with fewer at once.
Which try comes next follows from the files alone, so that a process that was killed is followed by one that goes on where it
was.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from .._errors import InputError, StorageError
from .._files import named_disk, spare_name, write_whole
from ..engine import CheckpointError, Device, History, Progress, Run, train
from ._claims import BEAT, STALE, Claim, ClaimLost, Claims
from ._failures import Failures
from ._folder import StudyFolder, Unit
from ._outcomes import is_finished, read_outcomes
from ._plan import study_of
from ._result import Result
from ._store import Store
from ._study import Study


@dataclasses.dataclass(frozen=True)
class Worker:
    """One process at work on the folder of a study.

    **Arguments:**

    - `first`: the unit to begin with, so that processes that start together do not ask for the same.
    - `wait`: whether to stay until all is finished, also what others train, in case they do not come to their end.
    - `together`: how many runs to train at once on a device; by default what memory holds and cores need.
    - `on_end`: called with each result that this process has put into the store.
    - `progress`: called after every chunk, with counts of the whole study.
    - `say`: called with a line on what is out of the ordinary.
    """

    folder: StudyFolder
    first: int = 0
    wait: bool = True
    together: int | None = None
    devices: list[Device] | None = None
    checkpoint_seconds: float = 60.0
    stale: float = STALE
    beat: float = BEAT
    on_end: Callable[[Result], None] = lambda result: None
    progress: Callable[[Progress], None] = lambda progress: None
    say: Callable[[str], None] = lambda line: None

    def run(self) -> bool:
        """Trains until nothing is left to take; says whether all runs are finished."""
        with named_disk(self.folder.path), terminations():
            return self._run()

    def _run(self) -> bool:
        self.folder.sweep()
        claims, waiting = Claims(self.folder.claims, self.stale, self.beat), ""
        while True:
            plan = self.folder.read()  # it may have grown
            found = read_outcomes(self.folder.runs)
            left = [unit for unit in plan.units if any(run.identity not in found.rows for run in unit.runs)]
            if not left:
                self._tidy(claims)
                return True
            study, runs = study_of(self.folder, plan)
            finished = sum(run.identity in found.rows for run in plan.runs)
            start = self.first % len(left)
            took = False
            for unit in left[start:] + left[:start]:
                claim = claims.take(unit.id)
                if claim is None:
                    continue
                took = True
                with claim:
                    try:
                        done = _Trainer(self, unit, runs, study.retries, claim, len(plan.runs), finished).run()
                        finished += done
                    except ClaimLost as lost:
                        self.say(f"unit {unit.id}: {lost}")
                        if lost.same_job:
                            return False
            if took:
                continue
            if not self.wait:
                return False
            line = "; ".join(f"{c.get('host')}, process {c.get('pid')}" for u, c in claims.live().items() if u != "plan")
            if line and line != waiting:
                self.say(f"waiting for what others train: {line}")
                waiting = line
            time.sleep(min(2.0, self.beat))

    def _tidy(self, claims: Claims) -> None:
        """All is finished: removes what processes left behind that were killed just before their end."""
        claims.clear()
        live = claims.live()
        for folder in self.folder.checkpoints.iterdir():
            if folder.name.partition(".")[0] not in live:
                shutil.rmtree(folder, ignore_errors=True)


def check_here(folder: StudyFolder, study: Study, devices: Sequence[Device] | None = None) -> None:
    """An `InputError` if what is left of a study cannot be trained on the devices of this machine."""
    special = [run.identity for run in study.runs if run.config.precision == "tf32"]
    if special and (devices or jax.devices())[0].platform == "cpu" and set(special) - read_outcomes(folder.runs).rows.keys():
        raise InputError("precision tf32 is a GPU's; on a CPU use fp32")


@dataclasses.dataclass
class _Trainer:
    """Trains one unit to its end."""

    worker: Worker
    unit: Unit
    runs: dict[str, Run]
    retries: int
    claim: Claim
    total: int
    finished: int

    def run(self) -> int:
        """Returns how many runs it has finished."""
        self.store = Store(self.worker.folder.runs)
        self.failures = Failures(self.worker.folder.failures)
        self.done = 0
        members = [self.runs[run.identity] for run in self.unit.runs]
        while pending := [run for run in members if not is_finished(self.store.folder, run.identity)]:
            for run in [run for run in pending if self._next_try(run) > self.retries]:
                said = self.failures.read(run.identity, self.retries)
                self._store(Result.failed(run, str(said.get("reason", "it failed")), str(said.get("device", "unknown"))))
                pending.remove(run)
            if pending:
                self._try(min(map(self._next_try, pending)), members, pending)
        for folder in self.worker.folder.checkpoints.glob(f"{self.unit.id}.*"):
            shutil.rmtree(folder, ignore_errors=True)
        return self.done

    def _next_try(self, run: Run) -> int:
        return next(n for n in range(self.retries + 2) if not self.failures.seen(run.identity, n))

    def _try(self, number: int, members: list[Run], pending: list[Run]) -> None:
        if number:
            members = [run for run in members if self.failures.seen(run.identity, number - 1)]
        folder = self.worker.folder.checkpoints / f"{self.unit.id}.{number}"
        members = self._members(folder, members, pending)
        together = self._together(number, members)

        def keep(history: History) -> None:
            result = Result.of(history)
            if result.emergence.state == "failed" and not is_finished(self.store.folder, result.run.identity):
                reason = str(result.reason)
                self.failures.note(result.run.identity, number, reason, "loss", device=history.device, together=together)
                if number < self.retries:
                    return
                if number:
                    result = result._replace(reason=f"{reason}, in {number + 1} tries")
            self._store(result)

        try:
            train(
                members,
                width=together,
                devices=self.worker.devices,
                checkpoint=folder,
                checkpoint_seconds=self.worker.checkpoint_seconds,
                on_end=keep,
                progress=self._show,
            )
        except CheckpointError as error:
            aside = error.path.with_name(f".broken-{spare_name(error.path).name[1:]}")
            with contextlib.suppress(FileNotFoundError):
                os.replace(error.path, aside)
            self.worker.say(f"{error.path}: cannot be read; moved to {aside.name}, its runs begin anew")
            # What was finished need not be trained again for the sake of the others.
            write_whole(folder / _MEMBERS, json.dumps([run.identity for run in pending]))
        except Exception as error:
            if not out_of_memory(error):
                raise
            line = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
            device = (self.worker.devices or jax.devices())[0].device_kind
            at_once = together or "as many as planned"
            for run in pending:
                if not is_finished(self.store.folder, run.identity) and not self.failures.seen(run.identity, number):
                    reason = f"out of memory with {at_once} together: {line}"
                    self.failures.note(run.identity, number, reason, "memory", device=device, together=together)
            self.worker.say(f"unit {self.unit.id}: out of memory with {at_once} together")

    def _members(self, folder: Path, members: list[Run], pending: list[Run]) -> list[Run]:
        """Whom to train: all, so that an interrupted unit ends as an uninterrupted one would, unless its past is gone."""
        if not folder.exists():
            folder.mkdir(parents=True)
            if len(pending) < len(members):
                write_whole(folder / _MEMBERS, json.dumps([run.identity for run in pending]))
        try:
            chosen = set(json.loads((folder / _MEMBERS).read_bytes()))
        except (OSError, ValueError, TypeError):
            return members
        return [run for run in members if run.identity in chosen] or pending

    def _together(self, number: int, members: list[Run]) -> int | None:
        """Runs at once: after a lack of memory a quarter as many, and at the last try one."""
        short = [n for n in range(number) if any(self.failures.read(r.identity, n).get("kind") == "memory" for r in members)]
        if not short:
            return self.worker.together
        if number == self.retries:
            return 1
        return max(1, min(self.worker.together or 128, len(members)) // 4 ** len(short))

    def _store(self, result: Result) -> None:
        if is_finished(self.store.folder, result.run.identity):
            return  # before an interruption, or by another process
        place = self.store.write(result)
        if not is_finished(self.store.folder, result.run.identity):  # else it would be trained for ever
            raise StorageError(f"{place}: what was written there cannot be read; is the disk in order?")
        self.done += 1
        self.worker.on_end(result)

    def _show(self, now: Progress) -> None:
        running = [[run.identity, step, loss if loss == loss else None] for run, step, loss in now.running]
        told: dict[str, Any] = {"running": running, "rate": now.rate, "bytes": now.bytes, "seconds_left": now.seconds_left}
        self.claim.tell(told | {"done": now.done, "total": now.total, "seconds": now.seconds})
        done, left = self.finished + self.done, now.seconds_left
        if left is not None and now.total - now.done < self.total - done:
            left = left * (self.total - done) / max(now.total - now.done, 1) if now.total > now.done else None
        self.worker.progress(dataclasses.replace(now, total=self.total, done=done, seconds_left=left))


_MEMBERS = "members.json"


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device or the computer has no memory left."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, jax.errors.JaxRuntimeError) and any(
        words in str(error) for words in ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory")
    )


@contextlib.contextmanager
def terminations() -> Iterator[None]:
    """Inside the block a request to end (SIGTERM) is an interrupt: what is in training is saved first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
