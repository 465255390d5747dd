"""How far a study is, at a glance and from any machine that sees its folder. Needs neither JAX nor pandas."""

from typing import Any, NamedTuple

from ._claims import Claims
from ._failures import Failures
from ._folder import StudyFolder
from ._outcomes import read_outcomes


class Status(NamedTuple):
    """How far a study is."""

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
    """A row a process at work: its unit, where it is, how old its last sign of life is, runs, steps, rate and time left."""
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


def study_status(folder: StudyFolder) -> Status:
    """Reads the plan, the outcomes and the claims."""
    plan = folder.read()
    found = read_outcomes(folder.runs)
    states = {"reached": 0, "censored": 0, "trained": 0, "failed": 0}
    units_finished, left_in = 0, {}
    for unit in plan.units:
        left = 0
        for run in unit.runs:
            row = found.rows.get(run.identity)
            if row is None:
                left += 1
            else:
                states[row["state"]] += 1
        units_finished += not left
        left_in[unit.id] = left
    workers, training = [], 0
    for unit, claim in Claims(folder.claims).live().items():
        if unit not in left_in:
            continue
        training += left_in[unit]
        workers.append(_worker(unit, claim))
    failures = Failures(folder.failures).counts()
    return Status(
        name=str(plan.study.get("name", "study")),
        axes=plan.axes,
        runs=len(plan.runs),
        **states,
        training=training,
        failures=sum(failures.get(run.identity, 0) for run in plan.runs),
        units=len(plan.units),
        units_finished=units_finished,
        workers=workers,
        broken=found.broken,
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
