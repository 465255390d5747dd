"""How the folder of a study bears many workers: operations on names that its file system sees, by
worker and by run.

    python benchmarks/workers.py [WORKERS RUNS UNIT] ...        by default 10 1000 10, then 100
    10000 10

Plan, claims, store and executor are the real ones; the engine makes its runs up. Each worker is a
thread, as a task of a Slurm array would be a process, begins with its share and goes on until
nothing is left. What a worker does once on its own machine (reading the plan, making its runs) is
done once for all of them, and counted for each. Counted are operations that need the server of a
shared folder: open, stat, mkdir, rename, link, unlink, rmdir, fsync, scandir, and the names that
scandir lists. Claims are not renewed here: that takes five operations every 2 to 20 seconds and
worker, however many runs there are. `--half`: the workers come to a study of which every second
unit is finished, as after a requeue.
"""

import collections
import contextlib
import os
import random
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from emergo.models import Transformer
from emergo.store import Plan, Store, StudyFolder
from emergo.study import Executor, Study, executor
from emergo.study.results import write_result
from emergo.tasks import SingleLocation
from emergo.training import Optimizer, Result, Run

EVENTS = {
    "open": "open",
    "os.mkdir": "mkdir",
    "os.rename": "rename",
    "os.link": "link",
    "os.remove": "unlink",
}
EVENTS |= {"os.rmdir": "rmdir", "os.scandir": "scandir", "os.listdir": "scandir"}


def made_up(run: Run) -> Result:
    steps = np.arange(5) * 25
    loss = np.linspace(1.0, 0.05 if run.seed % 3 else 0.5, 5, dtype=np.float32)
    return Result.measured(run, {"step": steps, "loss": loss, "train_loss": loss}, None, "cpu")


def planned(folder: StudyFolder, runs: int, unit: int) -> Study:
    task = SingleLocation(8, 2, position="random", indicator=True)
    model = Transformer(layers=1, heads=1, width=8)
    rates = [1e-3 * (1 + i / 1000) for i in range(max(1, runs // 100))]
    usual: dict[str, Any] = {
        "precision": "fp32",
        "steps": 100,
        "grid": {"learning_rate": rates},
        "unit": unit,
    }
    study = Study(task, model, Optimizer(learning_rate=1e-3), seeds=runs // len(rates), **usual)
    study.open(folder)
    return study


@contextlib.contextmanager
def counted(folder: Path) -> Iterator[collections.Counter[str]]:
    """Operations on what is in a folder, by name, until the block ends."""
    counts: collections.Counter[str] = collections.Counter()
    lock = threading.Lock()
    inside = str(folder)
    on = True

    def note(name: str, times: int = 1) -> None:
        with lock:
            counts[name] += times

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if on and event in EVENTS and str(arguments[0]).startswith(inside):
            note(EVENTS[event])

    def counting(name: str, function: Any) -> Any:
        def call(path: Any, *rest: Any, **more: Any) -> Any:
            if str(path).startswith(inside) or name == "fsync":
                note(name)
            return function(path, *rest, **more)

        return call

    def listing(path: Any) -> list[str]:
        names = real["listdir"](path)
        note("names", len(names) if str(path).startswith(inside) else 0)
        return names

    sys.addaudithook(hook)
    real = {name: getattr(os, name) for name in ("stat", "lstat", "fsync", "listdir")}
    for name, function in real.items():
        setattr(
            os,
            name,
            listing
            if name == "listdir"
            else counting("fsync" if name == "fsync" else "stat", function),
        )
    try:
        yield counts
    finally:
        on = False
        for name, function in real.items():
            setattr(os, name, function)


def simulate(workers: int, runs: int, unit: int, half: bool) -> str:
    place = Path(tempfile.mkdtemp(prefix="emergo-workers-"))
    try:
        folder = StudyFolder(place / "study")
        study = planned(folder, runs, unit)
        plans = folder.read()
        known = {run.identity: run for run in study.runs}
        store = Store(folder.runs)
        for one in plans[0].units[::2] if half else ():
            for run in one.runs:
                write_result(store, made_up(known[run.identity]))
        errors: list[BaseException] = []
        few = threading.Semaphore(8)
        trained: collections.Counter[str] = collections.Counter()
        by_worker: collections.Counter[int] = collections.Counter()

        def train(runs: list[Run], *, on_end: Any, **_: Any) -> list[Result]:
            time.sleep(random.uniform(0.0, 0.02))  # so that others come in between
            for run in runs:
                trained[run.identity] += 1
                by_worker[threading.get_ident()] += 1
                on_end(made_up(run))
            return []

        class Folder(StudyFolder):
            def read(self, say: Callable[[str], None] = print) -> list[Plan]:
                return plans

        class Worker(Executor):
            def _look(self, *arguments: Any, **named: Any) -> Any:
                with few:  # a thousand listings of a large folder at once would need much memory
                    return super()._look(*arguments, **named)

        def work(number: int) -> None:
            try:
                Worker(
                    Folder(folder.path), known=known, share=(number, workers), wait=False, beat=1e9
                ).run()
            except BaseException as error:
                errors.append(error)

        executor.train = train
        threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
        with counted(folder.path) as counts:
            begun = time.monotonic()
            before = resource.getrusage(resource.RUSAGE_SELF)
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = time.monotonic() - begun
            after = resource.getrusage(resource.RUSAGE_SELF)
        if errors:
            raise errors[0]
        names = counts.pop("names")
        finished = sum(run.identity in set(os.listdir(folder.runs)) for run in study.runs[:50])
        assert finished == 50, "a run is missing"
        assert len(os.listdir(folder.runs)) >= len(study.runs), "a run is missing"
        counts["open"] += workers  # of the plan
        operations = sum(counts.values())
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        twice = sum(times > 1 for times in trained.values())
        row = [
            workers,
            len(study.runs),
            unit,
            operations / sum(trained.values()),
            operations / workers,
            names / workers,
        ]
        words = " ".join(f"{value:10,.0f}" for value in row)
        words += (
            f" {operations / seconds:8,.0f}/s {operations / cpu:8,.0f} per CPU s {twice} "
            f"trained twice"
        )
        return f"{words}\n    {dict(counts.most_common())}"
    finally:
        shutil.rmtree(place)


def main(words: list[str]) -> None:
    half = "--half" in words
    sizes = [int(word) for word in words if word != "--half"] or [10, 1000, 10, 100, 10_000, 10]
    sys.setswitchinterval(
        5.0
    )  # else a thousand threads that wait for Python's lock wake up 200 times a second each
    print("   workers       runs       unit    ops/run ops/worker names/worker")
    for workers, runs, unit in zip(*[iter(sizes)] * 3, strict=True):
        print(simulate(workers, runs, unit, half), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
