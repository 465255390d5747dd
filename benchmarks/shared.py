"""How much processes that train on one GPU at the same time slow each other down, under CUDA's MPS.

    python benchmarks/shared.py OUT_FOLDER SECONDS [--preset=paper] [PROGRAM ...]

Starts a process for each of `PROGRAMS`, or for some of them, which compiles it and trains a stack
of so many copies of a run, evaluations and the host's part of a chunk included. Then each trains
alone for a while, and each of `MIXES` together. `OUT_FOLDER/shared.csv` gets a row for each program
of a mix: steps per second (of the stack) alone and together, and how often the one is the other
(`slowdown`). Compiling may take half the
seconds: a process that is not ready by then is left out, with its mixes. A mix that there is no
time for is left out too.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from emergo.papers import find_figure
from emergo.study.processes import environment, mps
from emergo.training import Run, groups_of

PROGRAMS = {
    "recall 32": ("zucchet2025/fig4", 0, 4),
    "recall 32, one": ("zucchet2025/fig4", 0, 1),
    "recall 32, again": ("zucchet2025/fig4", 0, 4),
    "recall 16": ("zucchet2025/fig4", 1, 4),
    "recall 8": ("zucchet2025/fig4", 2, 8),
    "repetition": ("zucchet2025/fig5", 0, 6),
    "sgd 256": ("zucchet2025/fig15", 0, 15),
    "sgd 128": ("zucchet2025/fig15", 1, 15),
    "wide 256": ("zucchet2025/fig3", 1, 64),
}
"""By name: the figure, which of the groups of runs that share a program, and how many runs are
trained together."""
MIXES = [
    ("recall 32", "recall 32, again"),
    ("recall 32", "recall 16"),
    ("recall 32", "recall 16", "recall 8"),
    ("recall 32", "recall 16", "recall 8", "repetition"),
    ("recall 32", "recall 16", "recall 8", "repetition", "sgd 256", "sgd 128"),
    ("wide 256", "recall 32"),
    ("wide 256", "recall 32", "recall 16", "sgd 256"),
    ("sgd 256", "sgd 128"),
    ("recall 32, one", "recall 16", "sgd 256"),
    ("wide 256", "sgd 256"),
    ("recall 32", "repetition", "sgd 256", "sgd 128"),
    ("recall 32, one", "recall 16"),
]
STEP = 20_000  # of the runs: evaluations are 400 steps apart by then, or as many as `CHUNK` allows
# seconds, of which chunks take at most the first, so that all stop at the same time
CHUNK = 0.25
ALONE = 2.0
TOGETHER = 3.0


def runs_of(name: str, preset: Any) -> tuple[list[Run], int]:
    """The runs of a program, and how many are trained together; presets with fewer programs have
    the last for several."""
    figure, group, width = PROGRAMS[name]
    groups = groups_of(find_figure(figure).runs(preset))
    return groups[min(group, len(groups) - 1)], width


def train_on_request(name: str, preset: str) -> None:
    """A process of its own. Says how long compiling took; then for each line on standard input
    (when to begin, by the clock, and for how many seconds) trains, and says how many steps and
    seconds it was."""
    import jax
    import numpy as np

    from emergo.training import _scheduler
    from emergo.training._program import arithmetic

    class Endless(_scheduler.Tracked):
        @property
        def ended(self) -> bool:
            return False

    runs, width = runs_of(name, preset)
    device = jax.devices()[0]
    begun = time.perf_counter()
    first = min(STEP, runs[0].config.steps // 2)
    scheduler = _scheduler.Scheduler(runs, [device], None, None, lambda *_: None)
    scheduler.tuned = False  # a search for kernels, timed on a GPU that others use, takes minutes
    with arithmetic(scheduler.program.precision):
        slot = jax.device_get(scheduler.start(runs[0]))._replace(step=np.int32(first))
        compiled = scheduler.compile(slot, device, width)
        slots = jax.device_put(
            jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], width, 0), slot), device
        )
        tracked = [Endless(run, steps=[first], at=first) for run in (runs * width)[:width]]
        stack = _scheduler.DeviceStack(scheduler, device, compiled, slots, [*tracked])

        def chunk(count: int) -> float:
            begun = time.perf_counter()
            for one in tracked:
                one.steps = [first]
                one.at = first
            stack.slots = stack.slots._replace(
                step=jax.device_put(np.full(width, first, np.int32), device)
            )
            stack.collect(stack.launch(count))
            return time.perf_counter() - begun

        chunk(2)
        count = tracked[0].due - first
        count = max(1, min(count, int(count * CHUNK / chunk(count))))
        print(
            json.dumps({"ready": time.perf_counter() - begun, "device": device.device_kind}),
            flush=True,
        )
        for line in sys.stdin:
            at, seconds = map(float, line.split())
            time.sleep(max(at - time.time(), 0.0))
            begun = time.perf_counter()
            steps = 0
            while time.perf_counter() - begun < seconds:
                chunk(count)
                steps += count
            print(json.dumps({"steps": steps, "seconds": time.perf_counter() - begun}), flush=True)


class Process:
    """A process that trains one of the programs when it is asked to."""

    def __init__(self, name: str, preset: str, variables: dict[str, str]) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [sys.executable, __file__, "--train", name, f"--preset={preset}"]
        self.name, self.process = name, subprocess.Popen(command, env=variables, **pipes)
        self.answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            with contextlib.suppress(ValueError):  # what else is printed
                self.answers.put(json.loads(line))
        self.answers.put({})  # it has ended

    def answer(self, until: float) -> dict[str, Any]:
        """What it says next; nothing where it has ended, or says nothing until then (of
        `time.monotonic()`)."""
        try:
            return self.answers.get(timeout=max(until - time.monotonic(), 0.01))
        except queue.Empty:
            return {}

    def ask(self, at: float, seconds: float) -> None:
        if self.process.stdin is not None:
            self.process.stdin.write(f"{at} {seconds}\n")
            self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def started(names: Sequence[str], preset: str) -> Iterator[list[Process]]:
    """Processes that have as much of the GPU's memory as they need."""
    with mps(print) as shared:
        print(
            f"MPS: {'started' if shared else 'not started; processes take turns on a GPU'}",
            flush=True,
        )
        variables = environment(1) | shared | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        processes: list[Process] = []
        try:
            processes.extend(Process(name, preset, variables) for name in names)
            yield processes
        finally:
            for process in processes:
                process.end()


def main(
    out: Path, seconds: float, preset: str = "paper", names: Sequence[str] = tuple(PROGRAMS)
) -> None:
    begun = time.monotonic()
    rows = []
    out.mkdir(parents=True, exist_ok=True)

    def say(words: str) -> None:
        print(f"[{time.monotonic() - begun:.0f} s] {words}", flush=True)

    def rates(processes: Sequence[Process], span: float) -> dict[str, float]:
        """Steps per second of processes that train at the same time; none of those that fail."""
        at = time.time() + 0.2
        found = {}
        for process in processes:
            with contextlib.suppress(OSError):
                process.ask(at, span)
        for process in processes:
            answer = process.answer(time.monotonic() + span + 30)
            if answer:
                found[process.name] = answer["steps"] / answer["seconds"]
        return found

    with started(names, preset) as processes:
        ready: dict[str, Process] = {}
        for process in processes:
            answer = process.answer(begun + seconds / 2)
            if answer:
                ready[process.name] = process
                say(f"{process.name}: compiled in {answer['ready']:.0f} s on {answer['device']}")
            else:
                say(f"{process.name}: not ready, left out")
                process.end()
        alone: dict[str, float] = {}
        for name, process in ready.items():
            alone |= rates([process], ALONE)
            say(f"{name}: {alone.get(name, float('nan')):.0f} steps a second alone")
        for mix in MIXES:
            if not set(mix) <= alone.keys() or time.monotonic() - begun + TOGETHER + 5 > seconds:
                continue
            together = rates([ready[name] for name in mix], TOGETHER)
            if set(together) < set(mix):
                say(f"{' + '.join(mix)}: a process has ended")
                alone = {
                    name: rate
                    for name, rate in alone.items()
                    if name in together or name not in mix
                }
                continue
            for name in mix:
                row = {
                    "mix": " + ".join(mix),
                    "program": name,
                    "width": PROGRAMS[name][2],
                    "alone": alone[name],
                }
                rows.append(
                    row | {"together": together[name], "slowdown": alone[name] / together[name]}
                )
            pd.DataFrame(rows).to_csv(out / "shared.csv", index=False)
            gain = sum(together[name] / alone[name] for name in mix)
            say(f"{' + '.join(mix)}: {gain:.2f} times as fast as one after another")
    say(f"{len(rows)} rows in {out / 'shared.csv'}")


if __name__ == "__main__":
    options = dict(word.removeprefix("--").split("=") for word in sys.argv[1:] if "=" in word)
    words = [word for word in sys.argv[1:] if "=" not in word]
    if words[:1] == ["--train"]:
        train_on_request(words[1], **options)
        os._exit(0)
    if len(words) < 2 or "--help" in words:
        sys.exit(__doc__)
    if unknown := set(words[2:]) - PROGRAMS.keys():
        sys.exit(f"no program is called {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    main(Path(words[0]), float(words[1]), names=words[2:] or tuple(PROGRAMS), **options)
