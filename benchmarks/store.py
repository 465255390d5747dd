"""How `emergo study status` and `export` grow with the number of finished runs, as commands, start
of Python included.

    python benchmarks/store.py [--packed] [RUNS ...]        by default 100 1000 10000

Writes made-up runs into a folder in the system's temporary place, then times the commands, each
three times, and prints the least seconds by the clock and of the CPU, which a busy machine moves
less. The first `status` has no index yet. With `--packed`, the runs are packed first, and the last
column counts the files of the folder.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from emergo.core.json import seal
from emergo.measure import Emergence
from emergo.store import StudyFolder
from emergo.store.index import INDEX
from emergo.store.outcomes import SCHEMA
from emergo.study import Study
from emergo.tasks import SingleLocation
from emergo.training import Result


def made_up(folder: StudyFolder, study: Study) -> None:
    """Finished runs with curves of 120 evaluations; the same curves for all, as only their size
    matters."""
    import numpy as np

    from emergo.store.curves import curve_bytes

    rng = np.random.default_rng(0)
    steps = np.cumsum(np.linspace(25, 400, 120).astype(int))
    names = [
        "loss",
        "train_loss",
        "alignment",
        *(f"{n}_{i}_{j}" for n in ("attention", "entropy") for i in (0, 1) for j in range(4)),
    ]
    curves = {"step": steps} | {name: rng.random(120).astype(np.float32) for name in names}
    sample = folder.path / "curves.parquet"
    sample.write_bytes(curve_bytes(curves))
    files = {"files": {sample.name: hashlib.sha256(sample.read_bytes()).hexdigest()}}
    for run in study.runs:
        place = folder.runs / run.identity
        place.mkdir()
        plateau = Emergence(float(rng.integers(1000, 20000)), 0.0, 20000.0, "reached")
        result = Result(
            run, "reached", plateau, int(plateau.time), None, {"device": "made up"}, None
        )
        (place / "run.json").write_bytes(
            seal({"schema": SCHEMA} | result.content() | files, indent=1)
        )
        os.link(sample, place / "curves.parquet")


TIMER = """
import os, resource, subprocess, sys, time
begun = time.monotonic()
command = [sys.executable, "-m", "emergo", "study", *sys.argv[1:]]
subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.monotonic() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""
"""A process of its own: a command that is started from this one would begin with the memory of this
one, JAX included."""


def timed(*arguments: str, forget: Path | None = None, times: int = 3) -> str:
    """Seconds, CPU seconds and megabytes of a command: the least of several times. `forget` is
    removed before each."""
    measured: list[list[float]] = []
    for _ in range(times):
        if forget is not None:
            forget.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", TIMER, *arguments], capture_output=True, text=True, check=True
        )
        measured.append([float(word) for word in done.stdout.split()])
    seconds, cpu, megabytes = map(min, zip(*measured, strict=True))
    return f"{seconds:6.2f} s {cpu:6.2f} s {megabytes:6.0f} MB"


def count_files(place: Path) -> int:
    """Count all files and folders in a folder, as a limit of a file system does."""
    return sum(len(names) + len(files) for _, names, files in os.walk(place))


def main(sizes: list[int], packed: bool = False) -> None:
    print("  runs  command             seconds     CPU    memory   files")
    for size in sizes:
        place = Path(tempfile.mkdtemp(prefix="emergo-store-"))
        try:
            cells = max(1, size // 10)
            task = SingleLocation(256, 64, position="random", indicator=True)
            rates = [1e-4 * (1 + i / cells) for i in range(cells)]
            study = Study(
                task, grid={"learning_rate": rates}, seeds=10, name="made up", precision="fp32"
            )
            folder = StudyFolder(place)
            study.open(folder)
            made_up(folder, study)
            export = ["export", str(place), "--to", str(place / "table.parquet")]
            figures: dict[str, str] = {}
            if packed:
                figures["pack"] = timed("pack", str(place), times=1)
            figures |= {
                "status, first time": timed(
                    "status", str(place), forget=folder.runs / INDEX, times=1 if packed else 3
                ),
                "status": timed("status", str(place)),
                "export": timed(*export),
            }
            if size <= 10_000:  # of more runs, curves do not fit into a table
                curves = ["--curves", str(place / "all.parquet")]
                figures["export --curves"] = timed(*export, *curves)
            for command, words in figures.items():
                files = count_files(place)
                print(f"{len(study.runs):6}  {command:18} {words} {files:7}", flush=True)
        finally:
            shutil.rmtree(place)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--packed"]
    main([int(word) for word in words] or [100, 1000, 10_000], packed="--packed" in sys.argv)
