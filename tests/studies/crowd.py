"""Processes that are killed while they work on a study; a script, run by the tests in an interpreter of its own.

    python crowd.py points FOLDER          kills a process before each of its writes, one after another
    python crowd.py crowd FOLDER SEED      lets several processes train one study and kills them at random times

It forks, which is safe only before JAX has started threads: nothing here trains for real. `slow_train` stands for the engine:
it makes up curves that depend on the run alone, a little at a time.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from emergo.engine import Config, History, Optimizer, Run
from emergo.engine._checkpoint import save_group
from emergo.models import Transformer
from emergo.studies import Failures, Result, Store, Study, StudyFolder, Worker, open_study, read_outcomes
from emergo.studies import _work as work
from emergo.studies._claims import Claims
from emergo.tasks import SingleLocation

BASE = Config(
    SingleLocation(8, 4, 1, 0.0, "random", True),
    Transformer(layers=1, heads=1, width=8),
    Optimizer(learning_rate=1e-3),
    precision="fp32",
    steps=100,
)


def curves_of(run: Run, points: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([run.seed, run.config.task.inputs])
    shape = (points, run.config.model.layers, run.config.model.heads)
    fall = np.linspace(1.0, 0.05 if run.seed % 3 else 0.5, points)
    return {
        "step": np.arange(points) * 25,
        "loss": (fall + 0.01 * rng.random()).astype(np.float32),
        "train_loss": rng.random(points).astype(np.float32),
        "attention": rng.random(shape).astype(np.float32),
        "entropy": rng.random(shape).astype(np.float32),
        "alignment": rng.random(points).astype(np.float32),
    }


def made_up(run: Run) -> History:
    curves = curves_of(run)
    return History(run, "reached" if run.seed % 3 else "exhausted", None, curves, "cpu")


def slow_train(runs, *, on_end, **_):
    for run in runs:
        time.sleep(0.03)
        on_end(made_up(run))


def study(dims: int, seeds: int, unit: int = 3) -> Study:
    return Study(BASE, grid={"dim": list(range(2, 2 + dims))}, seeds=seeds, unit=unit)


def group_of(version: int) -> Any:
    """As much of a group in training as a checkpoint holds, large enough for several writes."""
    pool = SimpleNamespace(places=[None], slots=[np.full(300_000, version, np.float32)])
    return SimpleNamespace(shape=SimpleNamespace(hull=BASE.task), queue=[], pools=[pool])


def points(folder: Path) -> None:
    """Every change of the folder, and for each a process that dies just before it; prints what was found afterwards."""

    def one_of_each(place: Path) -> None:
        """Every kind of write there is: plan, growth, claims, results, failures, index, checkpoints."""
        space = StudyFolder(place)
        if not (space.exists() and len(space.read().runs) == 4):
            open_study(space, study(1, 2))
        store = Store(space.runs)
        claim = Claims(space.claims, beat=0.005).take("unit")
        assert claim is not None
        with claim:
            for run in study(1, 2).runs:
                store.write(Result.of(made_up(run)))
            time.sleep(0.02)
        for version in (1, 2):
            save_group(space.checkpoints / "unit.0" / "group.npz", group_of(version), [])
        Failures(space.failures).note("0" * 16, 0, "no reason", "loss")
        read_outcomes(space.runs)
        open_study(space, study(2, 2))

    def dies_before(count: int, place: Path) -> None:
        """Does all of that, but is killed when it comes to change number `count`."""
        seen = 0

        def watch(event: str, arguments: tuple) -> None:
            nonlocal seen
            if event not in changes or not any(str(place) in str(a) for a in arguments):
                return
            if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

        sys.addaudithook(watch)
        one_of_each(place)

    changes = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "shutil.rmtree")
    found = []
    for count in range(1000):
        place = folder / f"{count}"
        child = os.fork()
        if child == 0:
            dies_before(count, place)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        found.append(_found(place))
        # Whoever comes next finds its way.
        again = os.fork()
        if again == 0:
            one_of_each(place)
            os._exit(0)
        _, second = os.waitpid(again, 0)
        found[-1] |= {"killed": os.WIFSIGNALED(status), "again": second, "after": _found(place)}
        if not os.WIFSIGNALED(status):
            found[-1]["status"] = status
            break
    print(json.dumps(found))


def _found(place: Path) -> dict:
    """What a reader sees: how many runs are planned, finished and unreadable."""
    space = StudyFolder(place)
    planned = len(space.read().runs) if space.exists() else 0
    outcomes = read_outcomes(space.runs)
    readable = sum(Store(space.runs).read(identity).curves is not None for identity in outcomes.rows)
    found = {"planned": planned, "finished": len(outcomes.rows), "readable": readable, "broken": len(outcomes.broken)}
    checkpoint = space.checkpoints / "unit.0" / "group.npz"
    versions = set(np.load(checkpoint)["slots/0/0"].tolist()) if checkpoint.exists() else {0}
    return found | {"checkpoint": versions.pop() if len(versions) == 1 else "mixed"}


def crowd(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    work.train = slow_train
    space = StudyFolder(folder)
    open_study(space, study(5, 6))
    begun = time.monotonic()
    children: set[int] = set()
    kills = ends = 0
    while time.monotonic() - begun < 60:
        while len(children) < 4:
            child = os.fork()
            if child == 0:
                done = Worker(space, first=rng.randrange(10), beat=0.05, stale=0.5).run()
                os._exit(0 if done else 3)
            children.add(child)
        time.sleep(rng.uniform(0.0, 0.08))
        if kills < 25:
            victim = rng.choice(sorted(children))
            os.kill(victim, signal.SIGKILL)
            kills += 1
        for child in sorted(children):
            gone, status = os.waitpid(child, os.WNOHANG)
            if gone:
                children.discard(child)
                if os.WIFEXITED(status):
                    assert os.WEXITSTATUS(status) == 0, status
                    ends += 1
        if ends >= 4:
            break
    for child in children:
        os.waitpid(child, 0)
    print(json.dumps({"kills": kills, "ends": ends}))


if __name__ == "__main__":
    mode, where = sys.argv[1], Path(sys.argv[2])
    if mode == "points":
        points(where)
    else:
        crowd(where, int(sys.argv[3]))
