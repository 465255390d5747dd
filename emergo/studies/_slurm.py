"""A study on a Slurm cluster: one array job whose tasks take units until none is left.

What a task needs to go on after an interruption is in the folder of the study, never in Slurm or submitit:

- killed without a word (preemption, a lost node): Slurm starts it again, and it goes on from the last checkpoint;
- told to end (SIGTERM: preemption with a grace time, `scancel`): it saves what is in training first;
- told that its time is nearly up (SIGUSR2, which submitit asks Slurm to send): it saves, and puts itself back into the queue.
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

from .._errors import InputError
from .._files import as_storage_error
from .._terminal import say
from ._description import construct
from ._executor import Executor
from ._folder import Plan, StudyFolder
from ._outcomes import read_outcomes
from ._study import Slurm

WARNING_SECONDS = 90  # how long before the end of its time a task is told


def slurm_of(plan: Plan) -> Slurm:
    """What the study of a plan asks Slurm for."""
    return build_slurm(plan.study.get("slurm", {}))


def build_slurm(given: Any) -> Slurm:
    """What a table asks Slurm for; an `InputError` for a key that it does not have."""
    return construct(Slurm, given, "[slurm]")


class Submission(NamedTuple):
    """An array job."""

    job: str
    tasks: int
    folder: Path  # scripts and output of its tasks; never used again


def check_slurm() -> None:
    """An `InputError` that says what is missing where jobs cannot be submitted."""
    if importlib.util.find_spec("submitit") is None:
        raise InputError("Slurm needs submitit: pip install '.[slurm]' in a clone of emergo")
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise InputError("there is no Slurm here (no sbatch on the PATH); log in to the cluster, or train here")


def submit_plan(folder: StudyFolder, plan: Plan, asked: Slurm) -> Submission:
    """Submits an array job for the units of a plan that are not finished."""
    check_slurm()
    import submitit
    from submitit.core.utils import FailedJobError

    left = plan.left(read_outcomes(folder.runs).rows)
    if not left:
        raise InputError(f"{folder.path}: all {len(plan.runs)} runs are finished; there is nothing to submit")
    tasks = min(asked.tasks, len(left))
    # A folder of its own: job numbers may come again, and with them the names of files.
    place = folder.within("slurm") / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    with as_storage_error(place):
        place.mkdir(parents=True)
    # submitit counts interruptions of short jobs as time-outs; how often a task may come back is Slurm's to say.
    executor = submitit.AutoExecutor(folder=place, cluster="slurm", slurm_max_num_timeout=1_000_000)
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
    try:
        jobs = executor.map_array(Task(str(folder.path.resolve()), plan.key), [(number, tasks) for number in range(tasks)])
    except FailedJobError as error:
        raise InputError(f"Slurm did not take the job ({' '.join(str(error).split())})") from None
    return Submission(jobs[0].job_id.partition("_")[0], tasks, place)


class Task(NamedTuple):
    """What a task of the array runs."""

    folder: str
    plan: str

    def __call__(self, share: tuple[int, int]) -> bool:
        """Says whether all runs of the study were finished when there was nothing left to take."""
        requeue = False

        def warned(number: int, frame: object) -> None:
            nonlocal requeue
            requeue = True
            signal.raise_signal(signal.SIGINT)

        signal.signal(signal.SIGUSR2, warned)
        try:
            try:
                return Executor(StudyFolder(self.folder), [self.plan], share=share, wait=False, say=say).run()
            finally:
                signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # nothing is left to save: Python may end in peace
        except KeyboardInterrupt:
            if requeue:
                say("the time is nearly up: saved, and back into the queue")
                # Where the signal announces a preemption, Slurm may have put the job back by itself, and says so.
                subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=False)
                time.sleep(60)  # Slurm ends this process
            raise SystemExit(143) from None

    def checkpoint(self, *arguments: Any) -> Any:
        """For submitit, should the signal come before this task listens to it: nothing to save, begin again."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, *arguments)
