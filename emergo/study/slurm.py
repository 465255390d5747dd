"""A study on a Slurm cluster: one array job whose tasks take units until none is left.

The folder of the study holds all that a task needs to continue after an interruption; Slurm and
submitit hold nothing of it. Tasks are interrupted in three ways:

- Killed without warning (preemption, a lost node): Slurm starts the task again, and it continues
  from the last checkpoint.
- SIGTERM (preemption with a grace time, `scancel`): the task saves what is in training, and ends.
- SIGUSR2, which submitit asks Slurm to send before the time limit: the task saves, and requeues
  itself.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import InputError
from ..core.files import as_storage_error
from ..core.terminal import say
from ..store.folder import Plan, StudyFolder
from ..store.outcomes import read_outcomes
from ._live import Forecaster, Watcher
from ._script import check_name
from ._study import Slurm
from .description import construct
from .executor import run_plan

WARNING_SECONDS = 90  # how long before its time limit a task is warned


def build_slurm(given: Any) -> Slurm:
    """Build the resources from a table; raise an `InputError` for an unknown key."""
    return construct(Slurm, given, "[slurm]")


class Submission(NamedTuple):
    """A submitted array job."""

    job: str
    tasks: int
    folder: Path  # of its scripts and output; each submission has a new one


def check_slurm() -> None:
    """Raise an `InputError` that names what is missing to submit jobs from this machine."""
    if importlib.util.find_spec("submitit") is None:
        raise InputError("Slurm needs submitit: pip install '.[slurm]' in a clone of emergo")
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise InputError(
            "there is no Slurm here (no sbatch on the PATH); log in to the cluster, or train here"
        )


def submit_plan(
    folder: StudyFolder, plan: Plan, asked: Slurm, forecaster: Forecaster | None = None
) -> Submission:
    """Submit an array job for the unfinished units of a plan.

    **Arguments:**

    - `asked`: the resources of each task.
    - `forecaster`: each task gets a copy, to forecast the runs in training.
    """
    check_slurm()
    import submitit
    from submitit.core.utils import FailedJobError

    left = plan.left(read_outcomes(folder.runs).rows)
    if not left:
        raise InputError(
            f"{folder.path}: all {len(plan.runs)} runs are finished; there is nothing to submit"
        )
    where = folder.path.resolve()
    check_name("the study's name", plan.name)
    check_name("the folder of the study", str(where))
    tasks = min(asked.tasks, len(left))
    # Slurm may reuse job numbers, and submitit names files by them.
    place = folder.within("slurm") / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    with as_storage_error(place):
        place.mkdir(0o700, parents=True)  # the job executes what submitit puts there
    # submitit counts an interruption of a short job as a time-out. Slurm decides how often a task
    # may be requeued, so this limit is set out of reach.
    executor = submitit.AutoExecutor(
        folder=place.resolve(), cluster="slurm", slurm_max_num_timeout=1_000_000
    )
    options: dict[str, Any] = {
        "name": f"emergo-{plan.name}",
        "timeout_min": asked.minutes,
        "mem_gb": asked.memory_gb,
        "cpus_per_task": asked.cpus,
        "gpus_per_node": asked.gpus,
        "slurm_partition": asked.partition,
        "slurm_account": asked.account,
        "slurm_setup": list(asked.setup),
        "slurm_array_parallelism": tasks,
        "slurm_signal_delay_s": min(WARNING_SECONDS, 30 * asked.minutes),
        "slurm_additional_parameters": {"requeue": True} | dict(asked.extra),
    }
    executor.update_parameters(**{name: value for name, value in options.items() if value})
    task = Task(str(where), plan.key, forecaster)
    try:
        jobs = executor.map_array(task, [(number, tasks) for number in range(tasks)])
    except FailedJobError as error:
        raise InputError(f"Slurm did not take the job ({' '.join(str(error).split())})") from None
    return Submission(jobs[0].job_id.partition("_")[0], tasks, place)


class Task(NamedTuple):
    """The function that a task of the array runs."""

    folder: str
    plan: str
    forecaster: Forecaster | None = None

    def __call__(self, share: tuple[int, int]) -> bool:
        """Train units until none is left; return True if all runs of the study are finished."""
        requeue = False

        def warned(number: int, frame: object) -> None:
            nonlocal requeue
            requeue = True
            signal.raise_signal(signal.SIGINT)

        signal.signal(signal.SIGUSR2, warned)
        try:
            try:
                return run_plan(
                    StudyFolder(self.folder),
                    [self.plan],
                    watch=Watcher(self.forecaster),
                    share=share,
                    wait=False,
                    say=say,
                )
            finally:
                # All is saved; a late warning must not interrupt the end of the process.
                signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        except KeyboardInterrupt:
            if requeue:
                say("the time is nearly up: saved, and back into the queue")
                # If the signal announced a preemption, Slurm may have requeued the job already and
                # prints so.
                subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=False)
                time.sleep(60)  # Slurm ends this process
            raise SystemExit(143) from None

    def checkpoint(self, *arguments: Any) -> Any:
        """Restart the task from the beginning, if submitit gets the signal before this task listens
        to it."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, *arguments)
