"""Several processes on this machine that train one plan.

JAX gives a process one queue of work per GPU, and a few small runs fill only a part of a GPU.
Several processes fill more of it under CUDA's MPS (multi-process service), which lets them compute
at the same time instead of in turn. The process that starts them trains nothing itself.

Each process runs `_worker.py`. Its standard input carries a pickled function; then one byte once
the plan will not grow any more. When standard input closes, the parent has died: the process saves
what is in training and ends. Its standard output carries messages, of which the last one gives the
reason if it fails.
"""

import contextlib
import dataclasses
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO

from ..core.errors import WorkerError
from ..store.claims import Claims
from ..store.folder import Plan, StudyFolder
from ..training import Progress, Run

MEMORY = 0.9  # share of a GPU's memory that all workers get together
PATIENCE = 120.0  # seconds that a worker has to save what is in training
# JAX's names for a process's share of the memory. The second is older; JAX refuses both together.
_FRACTIONS = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
_MPS = "nvidia-cuda-mps-control"
_USUAL = Path("/tmp/nvidia-mps/control")  # exists if an MPS runs in its default folder
_QUIET = "</dev/null >/dev/null 2>&1"
# Ends when its standard input closes, also if this process is killed. MPS waits for its clients
# before it quits.
_DAEMON = (
    f"{_MPS} -d {_QUIET} || exit; echo ready; cat >/dev/null; echo quit | {_MPS} >/dev/null 2>&1"
)


def has_nvidia() -> bool:
    """Return True if JAX will probably train on an NVIDIA GPU.

    This does not start JAX, which would reserve memory of the GPU.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if visible in ("", "-1") or platforms.startswith("cpu"):
        return False
    has_plugin = any(
        point.name.startswith("xla_cuda") for point in entry_points(group="jax_plugins")
    )
    return has_plugin and (visible is not None or any(Path("/dev").glob("nvidia[0-9]*")))


@contextlib.contextmanager
def mps(say: Callable[[str], None] = lambda line: None) -> Iterator[dict[str, str]]:
    """Run CUDA's MPS inside the block; yield the environment variables by which processes find it.

    The variables are empty without an NVIDIA GPU or MPS, if the user has started MPS, or if it
    fails to start.
    """
    started = "CUDA_MPS_PIPE_DIRECTORY" in os.environ or _USUAL.exists()
    if started or shutil.which(_MPS) is None or not has_nvidia():
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="emergo-mps-", ignore_cleanup_errors=True) as place:
        variables = {
            "CUDA_MPS_PIPE_DIRECTORY": f"{place}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": f"{place}/log",
        }
        for folder in variables.values():
            os.mkdir(folder)
        daemon = subprocess.Popen(
            ["sh", "-c", _DAEMON],
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            ready = daemon.stdout is not None and daemon.stdout.readline() == b"ready\n"
            if not ready:
                say("CUDA's MPS did not start; processes use the GPU in turn")
            yield variables if ready else {}
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.communicate(timeout=30)  # closes its standard input
            daemon.kill()
            daemon.wait()


def environment(workers: int) -> dict[str, str]:
    """Return the environment variables of a worker.

    They add the folders of Python modules, and the worker's share of the GPU's memory unless the
    user has set one.
    """
    ours = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    if not any(name in os.environ for name in _FRACTIONS):
        ours[_FRACTIONS[0]] = f"{MEMORY / workers:.3f}"
    return os.environ | ours


@dataclasses.dataclass
class Workers:
    """Processes that each run a job; see `run_workers`."""

    processes: list["subprocess.Popen[bytes]"]
    outputs: Sequence[IO[str]]
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self.said = [0] * len(self.processes)  # how many lines of each process were passed on

    def at_work(self) -> bool:
        """Return True if any worker is alive; raise a `WorkerError` if one has failed."""
        codes = [process.poll() for process in self.processes]
        for number, (code, output) in enumerate(zip(codes, self.outputs, strict=True)):
            output.seek(0)
            lines = output.read().splitlines()
            name = f"worker {number + 1} of {len(codes)}"
            if code and code < 0:
                raise WorkerError(
                    f"{name} was ended by {signal.Signals(-code).name}; what was finished is kept, "
                    f"and the same command goes on"
                )
            if code:
                raise WorkerError(f"{name} failed: {lines[-1] if lines else f'status {code}'}")
            for line in lines[self.said[number] :]:
                self.say(line)
            self.said[number] = len(lines)
        return None in codes

    def end(self) -> None:
        """Tell the workers that the plan will not grow; they end once nothing is left to take."""
        for process in self.processes:
            _send(process, b".")


def _send(process: "subprocess.Popen[bytes]", data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # the process has ended
        process.stdin.write(data)


@contextlib.contextmanager
def run_workers(
    jobs: Sequence[Callable[..., object]], say: Callable[[str], None] = lambda line: None
) -> Iterator[Workers]:
    """Run each job in a new process, and terminate the processes at the end of the block.

    Each process has its own session, so that Ctrl-C reaches only this process, which then
    terminates the others once. They save what is in training; a second interrupt kills them.

    **Arguments:**

    - `jobs`: functions that can be pickled. Each is called with `say` and `growing`, which returns
      True until `Workers.end` is called.
    - `say`: called with the messages of the workers.
    """
    with contextlib.ExitStack() as stack:
        variables = environment(len(jobs)) | stack.enter_context(mps(say))
        # The file offset is shared with the process, which appends wherever this process reads.
        outputs = [stack.enter_context(tempfile.TemporaryFile("a+")) for _ in jobs]
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(_terminate, processes)
        for job, output in zip(jobs, outputs, strict=True):
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}._worker"],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=output,
                bufsize=0,
                start_new_session=True,
            )
            processes.append(process)
            _send(process, pickle.dumps(job))
        yield Workers(processes, outputs, say)


def _terminate(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Terminate processes, and kill those that are still alive after `PATIENCE`."""
    until = time.monotonic() + PATIENCE
    try:
        for process in processes:
            process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.0))
    finally:
        for process in processes:
            with process:  # closes its standard input and waits for its end
                process.kill()


def progress_of(
    folder: StudyFolder, plan: Plan, known: Mapping[str, Run], done: int, failed: int
) -> Progress | None:
    """Combine the progress in the claims of a plan's units; return None if no claim has any.

    **Arguments:**

    - `known`: the runs of the plan by identity.
    - `done`, `failed`: the number of finished and failed runs.
    """
    claims = Claims(folder.claims).live()
    claims_of_units = [claims[unit.id] for unit in plan.units if unit.id in claims]
    reports = [claim["progress"] for claim in claims_of_units if "progress" in claim]
    if not reports:
        return None
    running = []
    for report in reports:
        for identity, step, loss in report.get("running", ()):
            if identity in known:
                running.append((known[identity], step, math.nan if loss is None else loss))
    return Progress(
        len(known),
        done,
        failed,
        running,
        # The steps of one second, so that the rate is the sum of the rates.
        steps=round(sum(report.get("rate") or 0.0 for report in reports)),
        seconds=1.0,
        seconds_left=None,
        bytes=round(sum(report.get("bytes") or 0.0 for report in reports)),
    )
