"""How far a study is, at a glance and from any machine that sees its folder. Needs neither JAX nor pandas."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ._claims import Claims
from ._folder import StudyFolder
from ._outcomes import STATES, Failures, read_outcomes


class Status(NamedTuple):
    """How far the studies of a folder are."""

    name: str
    axes: list[str]
    runs: int
    reached: int
    censored: int
    trained: int  # without a threshold, to the last step
    failed: int
    training: int  # runs of units that a process is at work on
    failures: int  # times that a run failed, those included that were tried again
    units: int
    units_finished: int
    workers: list[dict[str, Any]]
    """One row per process at work: its unit, where it is, how old its last sign of life is, runs, steps, rate and time left."""
    broken: dict[str, str]  # what cannot be read, and why
    reasons: dict[str, int]  # why runs failed, and how many of them, the most frequent first

    @property
    def finished(self) -> int:
        return self.reached + self.censored + self.trained + self.failed

    @property
    def waiting(self) -> int:
        return self.runs - self.finished - self.training

    @property
    def complete(self) -> bool:
        return self.finished == self.runs

    def data(self) -> dict[str, Any]:
        return self._asdict() | {"finished": self.finished, "waiting": self.waiting, "complete": self.complete}


def study_status(folder: StudyFolder, keys: Sequence[str] | None = None) -> Status:
    """Reads the plans (those with these keys, by default all), the outcomes and the claims; a run that several studies share
    counts once."""
    every_plan, unreadable = folder.read_plans()
    plans = [plan for plan in every_plan or folder.read() if keys is None or plan.key in keys]
    rows, broken = read_outcomes(folder.runs)
    broken |= {str(path): str(error).removeprefix(f"{path}: ") for path, error in unreadable.items()}
    every = {run.identity for plan in plans for run in plan.runs}
    finished = rows.states()
    states = collections.Counter(finished[identity] for identity in every if identity in finished)
    left_in = {u.id: {run.identity for run in u.runs if run.identity not in finished} for plan in plans for u in plan.units}
    claims = {unit: claim for unit, claim in Claims(folder.claims).live(broken=broken).items() if unit in left_in}
    failures, unread = Failures(folder.failures).counts()
    return Status(
        name=", ".join(dict.fromkeys(plan.name for plan in plans)),
        axes=list(dict.fromkeys(axis for plan in plans for axis in plan.axes)),
        runs=len(every),
        **{state: states[state] for state in STATES},
        training=len({identity for unit in claims for identity in left_in[unit]}),
        failures=sum(failures.get(identity, 0) for identity in every),
        units=len(left_in),
        units_finished=sum(not left for left in left_in.values()),
        workers=[_worker(unit, claim) for unit, claim in claims.items()],
        broken=broken | unread,
        reasons=dict(collections.Counter(str(rows[i]["reason"]) for i in every if finished.get(i) == "failed").most_common()),
    )


def soonest(forecasts: Sequence[tuple[str, float | None]], running: int) -> str:
    """Forecasts of several runs, each in words with its middle, in a few words: the first that is expected to emerge."""
    told = [(step, words) for words, step in forecasts if step is not None]
    if not told:
        return "no signal" if forecasts else ""
    first = min(told)[1]
    return first if running == 1 else f"{len(told)} of {running}, first {first}"


def expected(forecast: Mapping[str, Any]) -> float | None:
    """The middle of a forecast, as a claim has it; None where there is no signal."""
    return forecast["step"] if forecast["state"] == "forecast" else None


def _worker(unit: str, claim: dict[str, Any]) -> dict[str, Any]:
    progress = claim.get("progress") or {}
    running = progress.get("running") or []
    steps = [step for _, step, _ in running]
    losses = sorted(loss for _, _, loss in running if loss is not None)
    row = {"unit": unit} | {name: claim.get(name) for name in ("host", "pid", "job", "age")}
    row |= {"done": progress.get("done"), "total": progress.get("total"), "running": len(running)}
    row |= {"step_min": min(steps, default=None), "step_max": max(steps, default=None)}
    row |= {"loss": losses[len(losses) // 2] if losses else None}
    told = [(each["run"], each["words"], expected(each)) for each in progress.get("forecasts") or []]
    row |= {"forecast": soonest([(words, step) for _, words, step in told], len(running)), "forecasts": told}
    return row | {"rate": progress.get("rate"), "seconds_left": progress.get("seconds_left")}
