"""Progress of the studies in a folder, from its files alone. Imports neither JAX nor pandas."""

import collections
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from .claims import Claims, Note, notes_of
from .folder import StudyFolder
from .index import STATES
from .outcomes import Failures, read_states


class Status(NamedTuple):
    """Progress of the studies in a folder, counted in runs unless stated otherwise."""

    name: str
    runs: int
    reached: int
    censored: int
    trained: int  # to the last step, without a threshold
    failed: int
    finished: int
    training: int  # unfinished runs of units that a process is training
    waiting: int
    complete: bool  # all runs are finished
    failures: int  # failed attempts, including runs that were tried again
    units: int
    units_finished: int
    workers: list[dict[str, Any]]
    """One row per active process: unit, host, age of its last renewal, runs, steps, rate, notes."""
    broken: dict[str, str]  # unreadable files and folders with the reason
    reasons: dict[str, int]  # number of failed runs by reason, the most frequent first
    unverified: int  # finished runs without checksums

    def data(self) -> dict[str, Any]:
        """Return the status as plain data."""
        return self._asdict()


def study_status(folder: StudyFolder, keys: Sequence[str] | None = None) -> Status:
    """Read plans, outcomes and claims. A run that several studies share counts once.

    **Arguments:**

    - `keys`: the plans to count; by default all.
    """
    every_plan, unreadable = folder.read_plans()
    plans = [plan for plan in every_plan or folder.read() if keys is None or plan.key in keys]
    ended = read_states(folder.runs)
    broken = ended.broken
    for path, error in unreadable.items():
        broken[str(path)] = str(error).removeprefix(f"{path}: ")

    runs = {run.identity for plan in plans for run in plan.runs}
    state_of = {run: state for run, state in ended.states.items() if run in runs}
    states = collections.Counter(state_of.values())
    reasons = collections.Counter(
        str(ended.reasons[run]) for run, state in state_of.items() if state == "failed"
    )
    units = [unit for plan in plans for unit in plan.units]
    unfinished = {
        unit.id: {run.identity for run in unit.runs if run.identity not in state_of}
        for unit in units
    }
    live = Claims(folder.claims).live(broken=broken)
    claims = {unit: claim for unit, claim in live.items() if unit in unfinished}
    training = {run for unit in claims for run in unfinished[unit]}
    failures, broken_failures = Failures(folder.failures).counts()
    return Status(
        name=", ".join(dict.fromkeys(plan.name for plan in plans)),
        runs=len(runs),
        **{state: states[state] for state in STATES},
        finished=len(state_of),
        training=len(training),
        waiting=len(runs) - len(state_of) - len(training),
        complete=len(state_of) == len(runs),
        failures=sum(failures.get(run, 0) for run in runs),
        units=len(unfinished),
        units_finished=sum(not left for left in unfinished.values()),
        workers=[_worker(unit, claim) for unit, claim in claims.items()],
        broken=broken | broken_failures,
        reasons=dict(reasons.most_common()),
        unverified=len(ended.unverified & state_of.keys()),
    )


def soonest(notes: Collection[Note], running: int) -> str:
    """Summarize the notes on several runs by the one with the smallest step.

    **Arguments:**

    - `running`: number of runs in training, with or without a note.
    """
    ranked = sorted((note.step, note.text) for note in notes if note.step is not None)
    if not ranked:
        return next((note.text for note in notes), "")
    text = ranked[0][1]
    return text if running == 1 else f"{len(ranked)} of {running}, first {text}"


def _worker(unit: str, claim: dict[str, Any]) -> dict[str, Any]:
    """Return the row of an active process."""
    progress = claim.get("progress", {})
    running = progress.get("running", [])
    steps = [step for _, step, _ in running]
    losses = sorted(loss for _, _, loss in running if loss is not None)
    notes = notes_of(progress)
    return {
        "unit": unit,
        **{name: claim.get(name) for name in ("host", "pid", "job", "age")},
        **{name: progress.get(name) for name in ("done", "total", "rate", "seconds_left")},
        "running": len(running),
        "step_min": min(steps, default=None),
        "step_max": max(steps, default=None),
        "loss": losses[len(losses) // 2] if losses else None,
        "note": soonest(notes.values(), len(running)),
        "notes": [[run, note.text, note.step] for run, note in notes.items()],
    }
