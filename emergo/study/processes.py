"""Several processes on this machine that train one plan.

JAX gives a process one queue of work per GPU, and a few small runs fill only a part of a GPU.
Several processes fill more of it under CUDA's MPS (multi-process service), which lets them compute
at the same time instead of in turn. The process that starts them trains nothing itself.
"""

import contextlib
import importlib.util
import json
import math
import os
import pkgutil
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import InputError, StorageError, WorkerError
from ..store.claims import Claims
from ..store.folder import Plan, StudyFolder
from ..training import Progress, Run
from ._live import Forecaster, forecaster_path

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
_PIPES: dict[str, Any] = {
    "stdin": subprocess.PIPE,
    "stdout": subprocess.PIPE,
    "text": True,
    "start_new_session": True,
}


def has_nvidia() -> bool:
    """Return True if JAX will probably train on an NVIDIA GPU.

    This does not start JAX, which would reserve memory of the GPU.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if visible in ("", "-1") or platforms.startswith("cpu"):
        return False
    return _has_plugin() and (visible is not None or any(Path("/dev").glob("nvidia[0-9]*")))


def _has_plugin() -> bool:
    """Return True if the installed JAX supports NVIDIA GPUs."""
    plugins = importlib.util.find_spec("jax_plugins")
    found = pkgutil.iter_modules(plugins.submodule_search_locations if plugins else [])
    return any(module.name.startswith("xla_cuda") for module in found)


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
        daemon = subprocess.Popen(["sh", "-c", _DAEMON], env=os.environ | variables, **_PIPES)
        try:
            ready = daemon.stdout is not None and daemon.stdout.readline() == "ready\n"
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


class Workers(contextlib.AbstractContextManager["Workers"]):
    """Processes that train a plan, which may grow until `end` is called.

    They are terminated at the end of the block. Each has its own session, so that Ctrl-C reaches
    only this process, which then terminates them once.

    **Arguments:**

    - `workers`: how many processes.
    - `seconds`: how long they train; None: until all runs are finished.
    - `say`: called with the messages of the workers.
    - `forecaster`: each worker creates an object of its type.
    """

    def __init__(
        self,
        folder: StudyFolder,
        plan: Plan,
        workers: int,
        seconds: float | None = None,
        say: Callable[[str], None] = lambda line: None,
        forecaster: Forecaster | None = None,
    ) -> None:
        until = "" if seconds is None else str(time.time() + seconds)
        words = [sys.executable, "-P", "-m", f"{__package__}._worker", str(folder.path), plan.key]
        last = [str(workers), until, forecaster_path(forecaster)]
        self.commands = [[*words, str(number), *last] for number in range(workers)]
        self.said: queue.SimpleQueue[tuple[int, dict[str, str]]] = queue.SimpleQueue()
        self.processes: list[subprocess.Popen[str]] = []
        self.listeners: list[threading.Thread] = []
        self.workers = workers
        self.say = say
        self.shared = contextlib.ExitStack()

    def __enter__(self) -> "Workers":
        with contextlib.ExitStack() as undo:
            undo.push(self)
            variables = environment(self.workers) | self.shared.enter_context(mps(self.say))
            for number, command in enumerate(self.commands):
                process = subprocess.Popen(command, env=variables, **_PIPES)
                listener = threading.Thread(
                    target=self._listen, args=(number, process), daemon=True
                )
                self.processes.append(process)
                self.listeners.append(listener)
                listener.start()
            undo.pop_all()
        return self

    def _listen(self, number: int, process: "subprocess.Popen[str]") -> None:
        for line in process.stdout or ():
            with contextlib.suppress(ValueError):  # half a line, from a process that was killed
                self.said.put((number, json.loads(line)))

    def at_work(self) -> bool:
        """Return True if any worker is alive; raise the error of a worker that failed."""
        ended = [process.poll() for process in self.processes]
        for code, listener in zip(ended, self.listeners, strict=True):
            if code is not None:
                listener.join()  # all of its messages have arrived
        while not self.said.empty():
            number, what = self.said.get()
            if "say" in what:
                self.say(what["say"])
            else:
                raise self._error(number, what["failed"], what["why"])
        for number, code in enumerate(ended):
            name = f"worker {number + 1} of {self.workers}"
            if code and code < 0:
                raise WorkerError(
                    f"{name} was ended by {signal.Signals(-code).name}; what was finished is kept, "
                    f"and the same command goes on"
                )
            if code:
                raise WorkerError(f"{name} ended with status {code}")
        return None in ended

    def _error(self, number: int, kind: str, why: str) -> Exception:
        for known in (InputError, StorageError):
            if kind == known.__name__:
                return known(why)
        hint = " (set EMERGO_TRACEBACK=1 for the traceback)"
        more = "" if os.environ.get("EMERGO_TRACEBACK") else hint
        return WorkerError(f"worker {number + 1} of {self.workers} failed: {why}{more}")

    def end(self) -> None:
        """Tell the workers that the plan will not grow; they end once nothing is left to take."""
        for pipe in filter(None, [process.stdin for process in self.processes]):
            with contextlib.suppress(OSError):  # its process has ended
                pipe.write("end\n")
                pipe.flush()

    def __exit__(self, *error: object) -> None:
        """Terminate the workers, which save what is in training; a second interrupt kills them."""
        with self.shared:
            left = [process for process in self.processes if process.poll() is None]
            until = time.monotonic() + PATIENCE
            try:
                for process in left:
                    process.terminate()
                for process in left:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(max(until - time.monotonic(), 0.0))
            finally:
                for process in self.processes:
                    process.kill()
                    process.wait()
                for process, listener in zip(self.processes, self.listeners, strict=True):
                    listener.join()
                    for pipe in filter(None, (process.stdin, process.stdout)):
                        with contextlib.suppress(OSError):
                            pipe.close()


def progress_of(
    claims: Mapping[str, Mapping[str, Any]], known: Mapping[str, Run], counts: tuple[int, int, int]
) -> Progress:
    """Combine what the claims of several processes report.

    **Arguments:**

    - `known`: the runs by identity.
    - `counts`: the number of all, finished and failed runs.
    """
    reports = [claim.get("progress") or {} for claim in claims.values()]
    running = []
    for report in reports:
        for identity, step, loss in report.get("running") or ():
            if identity in known:
                running.append((known[identity], step, math.nan if loss is None else loss))
    total, done, failed = counts
    return Progress(
        total,
        done,
        failed,
        running,
        # The steps of one second, so that the rate is the sum of the rates.
        steps=round(sum(report.get("rate") or 0.0 for report in reports)),
        seconds=1.0,
        seconds_left=None,
        bytes=round(sum(report.get("bytes") or 0.0 for report in reports)),
    )


def claims_of(folder: StudyFolder, plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the claims of the processes that train units of a plan."""
    units = {unit.id for unit in plan.units}
    return {unit: claim for unit, claim in Claims(folder.claims).live().items() if unit in units}
