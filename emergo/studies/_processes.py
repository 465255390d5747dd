"""Several processes on this machine that train one plan: started, watched and ended by another, which trains nothing itself.

JAX gives a process one queue of work for each GPU, and few or small runs fill only a part of the GPU. Several processes fill
more of it, under CUDA's MPS, which lets them compute at the same time instead of in turn.
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

from .._errors import InputError, StorageError, WorkerError
from ..engine import Progress, Run
from ._claims import Claims
from ._folder import Plan, StudyFolder

MEMORY = 0.9  # of a GPU, that all workers share alike
PATIENCE = 120.0  # seconds that a worker has to save what is in training
_FRACTIONS = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
"""JAX's names for a process's share of the memory; the second is older, and both together are refused."""
_MPS = "nvidia-cuda-mps-control"
_USUAL = Path("/tmp/nvidia-mps/control")  # of an MPS that was started without a folder of its own
_QUIET = "</dev/null >/dev/null 2>&1"
_DAEMON = f"{_MPS} -d {_QUIET} || exit; echo ready; cat >/dev/null; echo quit | {_MPS} >/dev/null 2>&1"
"""Ends when its standard input does, so also when this process is killed. MPS waits for its clients before it quits."""


def has_nvidia() -> bool:
    """Whether JAX is likely to train on a GPU of NVIDIA here, found out without JAX, which would take memory there."""
    visible, platforms = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("JAX_PLATFORMS", "")
    if visible in ("", "-1") or platforms.startswith("cpu"):
        return False
    return _has_plugin() and (visible is not None or any(Path("/dev").glob("nvidia[0-9]*")))


def _has_plugin() -> bool:
    """Whether the JAX that is installed can use a GPU of NVIDIA."""
    plugins = importlib.util.find_spec("jax_plugins")
    found = pkgutil.iter_modules(plugins.submodule_search_locations if plugins else [])
    return any(module.name.startswith("xla_cuda") for module in found)


@contextlib.contextmanager
def mps(say: Callable[[str], None] = lambda line: None) -> Iterator[dict[str, str]]:
    """CUDA's MPS while the block runs: yields the variables by which a process finds it. None where there is no GPU of NVIDIA
    or no MPS, where the user has started one, or where it does not start."""
    started = "CUDA_MPS_PIPE_DIRECTORY" in os.environ or _USUAL.exists()
    if started or shutil.which(_MPS) is None or not has_nvidia():
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="emergo-mps-", ignore_cleanup_errors=True) as place:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": f"{place}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{place}/log"}
        for folder in variables.values():
            os.mkdir(folder)
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "start_new_session": True}
        daemon = subprocess.Popen(["sh", "-c", _DAEMON], env=os.environ | variables, **pipes)
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
    """The variables of a worker: its share of a GPU's memory, unless the user has set one, and the folders of our modules."""
    ours = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    if not any(name in os.environ for name in _FRACTIONS):
        ours[_FRACTIONS[0]] = f"{MEMORY / workers:.3f}"
    return os.environ | ours


class Workers(contextlib.AbstractContextManager["Workers"]):
    """Processes that train a plan, which may grow until they are told that it does not; at the end of the block they are ended.
    They are in a session of their own, so that Ctrl-C comes to this process alone, which ends them once."""

    def __init__(
        self,
        folder: StudyFolder,
        plan: Plan,
        workers: int,
        seconds: float | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        until = "" if seconds is None else str(time.time() + seconds)
        words = [sys.executable, "-P", "-m", f"{__package__}._worker", str(folder.path), plan.key]
        self.commands = [[*words, str(number), str(workers), until] for number in range(workers)]
        self.said: queue.SimpleQueue[tuple[int, dict[str, str]]] = queue.SimpleQueue()
        self.processes: list[subprocess.Popen[str]] = []
        self.listeners: list[threading.Thread] = []
        self.workers, self.say, self.shared = workers, say, contextlib.ExitStack()

    def __enter__(self) -> "Workers":
        with contextlib.ExitStack() as undo:
            undo.push(self)
            variables = environment(self.workers) | self.shared.enter_context(mps(self.say))
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            for number, command in enumerate(self.commands):
                process = subprocess.Popen(command, env=variables, start_new_session=True, **pipes)
                self.processes.append(process)
                self.listeners.append(threading.Thread(target=self._listen, args=(number, process), daemon=True))
                self.listeners[-1].start()
            undo.pop_all()
        return self

    def _listen(self, number: int, process: "subprocess.Popen[str]") -> None:
        for line in process.stdout or ():
            with contextlib.suppress(ValueError):  # half a line, of one that was killed
                self.said.put((number, json.loads(line)))

    def at_work(self) -> bool:
        """Whether any of them is; raises the error of one that has failed."""
        ended = [process.poll() for process in self.processes]
        for code, listener in zip(ended, self.listeners, strict=True):
            if code is not None:
                listener.join()  # what it said last is there
        while not self.said.empty():
            number, what = self.said.get()
            if "say" in what:
                self.say(what["say"])
            elif what["failed"] in ("InputError", "StorageError"):
                raise {"InputError": InputError, "StorageError": StorageError}[what["failed"]](what["why"])
            else:
                more = "" if os.environ.get("EMERGO_TRACEBACK") else " (set EMERGO_TRACEBACK=1 for the traceback)"
                raise WorkerError(f"worker {number + 1} of {self.workers} failed: {what['why']}{more}")
        for number, code in enumerate(ended):
            if code:
                kept = "what was finished is kept, and the same command goes on"
                how = f"was ended by {signal.Signals(-code).name}; {kept}" if code < 0 else f"ended with status {code}"
                raise WorkerError(f"worker {number + 1} of {self.workers} {how}")
        return None in ended

    def end(self) -> None:
        """The plan grows no more: they end once nothing of it is left to take."""
        for pipe in filter(None, [process.stdin for process in self.processes]):
            with contextlib.suppress(OSError):  # its process has ended
                pipe.write("end\n")
                pipe.flush()

    def __exit__(self, *error: object) -> None:
        """Those that are still at work save what is in training and end; a second interrupt ends them at once."""
        with self.shared:
            left, until = [process for process in self.processes if process.poll() is None], time.monotonic() + PATIENCE
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


def progress_of(claims: Mapping[str, Mapping[str, Any]], known: Mapping[str, Run], counts: tuple[int, int, int]) -> Progress:
    """What those at work say of the units that they hold, put together; `counts`: of all runs, how many are finished and have
    failed. How long it will take is not known."""
    told = [claim.get("progress") or {} for claim in claims.values()]
    running = [entry for each in told for entry in each.get("running") or () if entry[0] in known]
    rate, size = (sum(each.get(name) or 0.0 for each in told) for name in ("rate", "bytes"))
    shown = [(known[identity], step, math.nan if loss is None else loss) for identity, step, loss in running]
    total, done, failed = counts
    # Steps in one second, so that the rate is theirs.
    return Progress(total, done, failed, shown, steps=round(rate), seconds=1.0, seconds_left=None, bytes=round(size))


def claims_of(folder: StudyFolder, plan: Plan) -> dict[str, dict[str, Any]]:
    """The claims of those at work on a plan."""
    units = {unit.id for unit in plan.units}
    return {unit: claim for unit, claim in Claims(folder.claims).live().items() if unit in units}
