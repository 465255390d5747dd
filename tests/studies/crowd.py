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
from typing import Any, NamedTuple

import numpy as np

from emergo.engine import Optimizer, Result, Run
from emergo.engine._checkpoint import previous, read_arrays, save_checkpoint
from emergo.models import Transformer
from emergo.studies import Executor, Failures, Store, Study, StudyFolder, read_outcomes
from emergo.studies import _executor as executor
from emergo.studies import _plan as plan
from emergo.studies._claims import Claims
from emergo.tasks import SingleLocation


def study(dims: int = 1, seeds: int = 1, unit: int = 3, **changes: Any) -> Study:
    """A study of so many dims from 2 on."""
    task, model = SingleLocation(8, 2, position="random", indicator=True), Transformer(layers=1, heads=1, width=8)
    usual: dict[str, Any] = {"precision": "fp32", "steps": 100, "grid": {"dim": list(range(2, 2 + dims))}}
    return Study(task, model, Optimizer(learning_rate=1e-3), seeds=seeds, unit=unit, **(usual | changes))


def curves_of(run: Run, points: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([run.seed, run.config.task.spec.inputs])
    fall = np.linspace(1.0, 0.05 if run.seed % 3 else 0.5, points)
    return {
        "step": np.arange(points) * 25,
        "loss": (fall + 0.01 * rng.random()).astype(np.float32),
        "train_loss": rng.random(points).astype(np.float32),
        "attention": rng.random((points, 1, 1)).astype(np.float32),
        "entropy": rng.random((points, 1, 1)).astype(np.float32),
        "alignment": rng.random(points).astype(np.float32),
    }


def made_up(run: Run) -> Result:
    """A run whose seed is a multiple of three is censored, another reaches its threshold."""
    return Result.measured(run, curves_of(run), None, "cpu")


def slow_train(runs, *, on_end, **_):
    for run in runs:
        time.sleep(0.03)
        on_end(made_up(run))


class Slots(NamedTuple):
    array: np.ndarray
    prepared: tuple[Any, ...] = ()


def scheduler_of(version: int) -> Any:
    """As much of a group in training as a checkpoint holds, large enough for several writes."""
    stack = SimpleNamespace(tracked=[None], slots=Slots(np.full(300_000, version, np.float32)))
    return SimpleNamespace(queue=[], sizes={}, stacks=[stack])


def points(folder: Path) -> None:
    """Every change of the folder, and for each a process that dies just before it; prints what was there afterwards."""

    def one_of_each(place: Path) -> None:
        """Every kind of write there is: plan, checkpoints, results, claims, failures, index, growth."""
        space = StudyFolder(place)
        if not (space.exists() and len(space.read()[0].runs) == 4):
            study(1, 2).open(space)
        for version in (1, 2):
            save_checkpoint(space.checkpoints / "unit.0" / "group.npz", scheduler_of(version), [])
        for run in study(1, 2).runs:
            Store(space.runs).write(made_up(run))
        claim = Claims(space.claims, beat=0.005).take("unit")
        assert claim is not None
        with claim:  # how often it is renewed differs from time to time, so it comes after what has to be met in every state
            time.sleep(0.02)
        Failures(space.failures).note("0" * 16, 0, "no reason", "loss")
        read_outcomes(space.runs)
        study(2, 2).open(space)

    def dies_before(count: int, place: Path) -> None:
        """Does all of that, but is killed when it comes to change number `count`."""
        done = 0

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal done
            if event not in changes or not any(str(place) in str(a) for a in arguments):
                return
            if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
            if done == count:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1

        sys.addaudithook(watch)
        one_of_each(place)

    changes = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "shutil.rmtree")
    snapshots = []
    for count in range(1000):
        place = folder / f"{count}"
        child = os.fork()
        if child == 0:
            dies_before(count, place)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        first = _content(place)
        # Whoever comes next finds its way.
        again = os.fork()
        if again == 0:
            one_of_each(place)
            os._exit(0)
        _, second = os.waitpid(again, 0)
        snapshots.append(first | {"killed": os.WIFSIGNALED(status), "again": second, "after": _content(place)})
        if not os.WIFSIGNALED(status):
            snapshots[-1]["status"] = status
            break
    print(json.dumps(snapshots))


def _content(place: Path) -> dict[str, Any]:
    """What a reader sees: how many runs are planned, finished and unreadable."""
    space = StudyFolder(place)
    planned = len(space.read()[0].runs) if space.exists() else 0
    outcomes = read_outcomes(space.runs)
    store = Store(space.runs)
    readable = sum(store.read(run).curves is not None for run in study(2, 2).runs if run.identity in outcomes.rows)
    content = {"planned": planned, "finished": len(outcomes.rows), "readable": readable, "broken": len(outcomes.broken)}
    last = space.checkpoints / "unit.0" / "group.npz"
    checkpoint = next(filter(Path.exists, (last, previous(last))), None)
    versions = {0} if checkpoint is None else set(read_arrays(checkpoint)["slots/0/0"].tolist())
    return content | {"checkpoint": versions.pop() if len(versions) == 1 else "mixed"}


def crowd(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    executor.train = slow_train
    space = StudyFolder(folder)
    study(5, 6).open(space)
    begun = time.monotonic()
    children: set[int] = set()
    kills = ends = 0
    while time.monotonic() - begun < 60:
        while len(children) < 4:
            child = os.fork()
            if child == 0:
                done = Executor(space, share=(rng.randrange(10), 10), beat=0.05, stale=0.5).run()
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
    plan.groups_of = lambda runs: [list(runs)] if runs else []  # all have one program; finding that out would start JAX
    mode, where = sys.argv[1], Path(sys.argv[2])
    if mode == "points":
        points(where)
    else:
        crowd(where, int(sys.argv[3]))
