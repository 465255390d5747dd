"""How far a study is, at a glance and from any machine that sees its folder. Needs neither JAX nor pandas."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ._claims import Claims
from ._failures import Failures
from ._folder import StudyFolder
from ._outcomes import STATES, read_outcomes


class Status(NamedTuple):
    """How far the studies of a folder are."""

    name: str
    axes: list[str]
    runs: int
    reached: int
    censored: int
    trained: int
    """Without a threshold, to the last step."""
    failed: int
    training: int
    """Runs of units that a process is at work on."""
    failures: int
    """Times that a run failed, those included that were tried again."""
    units: int
    units_finished: int
    workers: list[dict[str, Any]]
    """One row per process at work: its unit, where it is, how old its last sign of life is, runs, steps, rate and time left."""
    broken: dict[str, str]
    """What cannot be read, and why."""

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
    plans = [plan for plan in folder.read() if keys is None or plan.key in keys]
    outcomes = read_outcomes(folder.runs)
    every = {run.identity for plan in plans for run in plan.runs}
    states = dict.fromkeys(STATES, 0)
    for identity in every:
        if identity in outcomes.rows:
            states[outcomes.rows[identity]["state"]] += 1
    units = {unit.id: unit for plan in plans for unit in plan.units}
    left_in = {key: {run.identity for run in unit.runs} - set(outcomes.rows) for key, unit in units.items()}
    claims = {unit: claim for unit, claim in Claims(folder.claims).live().items() if unit in units}
    failures = Failures(folder.failures).counts()
    return Status(
        name=", ".join(dict.fromkeys(plan.name for plan in plans)),
        axes=list(dict.fromkeys(axis for plan in plans for axis in plan.axes)),
        runs=len(every),
        **states,
        training=len({identity for unit in claims for identity in left_in[unit]}),
        failures=sum(failures.get(identity, 0) for identity in every),
        units=len(units),
        units_finished=sum(not left for left in left_in.values()),
        workers=[_worker(unit, claim) for unit, claim in claims.items()],
        broken=outcomes.broken,
    )


def _worker(unit: str, claim: dict[str, Any]) -> dict[str, Any]:
    progress = claim.get("progress") or {}
    running = progress.get("running") or []
    steps = [step for _, step, _ in running]
    losses = sorted(loss for _, _, loss in running if loss is not None)
    return {
        "unit": unit,
        "host": claim.get("host"),
        "pid": claim.get("pid"),
        "job": claim.get("job"),
        "age": claim.get("age"),
        "done": progress.get("done"),
        "total": progress.get("total"),
        "running": len(running),
        "step_min": min(steps, default=None),
        "step_max": max(steps, default=None),
        "loss": losses[len(losses) // 2] if losses else None,
        "rate": progress.get("rate"),
        "seconds_left": progress.get("seconds_left"),
    }
