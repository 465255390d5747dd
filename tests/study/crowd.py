"""Processes that are killed while they work on a study.

The tests run this file as a script, in a separate interpreter:

    python crowd.py points FOLDER       kill a process before each of its writes, one after another
    python crowd.py packing FOLDER      the same while finished runs are packed, and packed again
    python crowd.py crowd FOLDER SEED   let several processes train and pack one study, and kill
                                        some of them

It forks, which is safe only before JAX has started threads, so nothing here trains for real. The
function `slow_train` replaces training: it makes up curves that depend on the run alone.
"""

import errno
import functools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from emergo.core.errors import StorageError
from emergo.models import Transformer
from emergo.store import Failures, Store, StudyFolder, curve_frame, read_outcomes
from emergo.store.claims import Claims
from emergo.store.packing import pack_runs
from emergo.study import Study, executor, plan, run_plan
from emergo.study.results import write_result
from emergo.tasks import SingleLocation
from emergo.training import Optimizer, Result, Run
from emergo.training._checkpoint import previous, read_arrays, save_checkpoint


def study(dims: int = 1, seeds: int = 1, unit: int = 3, **changes: Any) -> Study:
    """Return a study of this many dims, from 2 on."""
    task = SingleLocation(8, 2, position="random", indicator=True)
    model = Transformer(layers=1, heads=1, width=8)
    usual: dict[str, Any] = {
        "precision": "fp32",
        "steps": 100,
        "grid": {"dim": list(range(2, 2 + dims))},
    }
    return Study(
        task, model, Optimizer(learning_rate=1e-3), seeds=seeds, unit=unit, **(usual | changes)
    )


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
    """Return a result: censored if the seed is a multiple of three, else reached."""
    return Result.measured(run, curves_of(run), None, "cpu")


def slow_train(runs, *, on_end, **_):
    for run in runs:
        time.sleep(0.03)
        on_end(made_up(run))


class Slots(NamedTuple):
    array: np.ndarray
    prepared: tuple[Any, ...] = ()


def scheduler_of(version: int) -> Any:
    """Return the state of training that a checkpoint holds, large enough for several writes."""
    stack = SimpleNamespace(tracked=[None], slots=Slots(np.full(300_000, version, np.float32)))
    program = SimpleNamespace(injected=())
    return SimpleNamespace(queue=[], sizes={}, stacks=[stack], program=program)


CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "shutil.rmtree")


def before_change(count: int, place: Path, act: Callable[[], None]) -> None:
    """Call a function before change number `count` of a folder by this process."""
    done = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal done
        if event not in CHANGES or not any(str(place) in str(a) for a in arguments):
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        done += 1
        if done == count + 1:
            act()

    sys.addaudithook(watch)


def in_child(work: Callable[[], object]) -> int:
    """Run a function in a child process and return how it ended."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(4)
    return os.waitpid(child, 0)[1]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_everything(place: Path) -> None:
    """Make every kind of write: plan, checkpoints, results, claims, failures, index, growth."""
    space = StudyFolder(place)
    if not (space.exists() and len(space.read()[0].runs) == 4):
        study(1, 2).open(space)
    for version in (1, 2):
        save_checkpoint(space.checkpoints / "unit.0" / "group.npz", scheduler_of(version), [])
    for run in study(1, 2).runs:
        write_result(Store(space.runs), made_up(run))
    claim = Claims(space.claims, beat=0.005).take("unit")
    assert claim is not None
    # The number of renewals varies, so this follows the states that every process has to meet.
    with claim:
        time.sleep(0.02)
    Failures(space.failures).note("0" * 16, 0, "no reason", "loss")
    read_outcomes(space.runs)
    study(2, 2).open(space)


def points(folder: Path) -> None:
    """For each change of the folder, let a process die just before it; print what is left."""
    snapshots = []
    for count in range(1000):
        place = folder / f"{count}"

        def killed(count: int = count, place: Path = place) -> None:
            before_change(count, place, die)
            write_everything(place)

        status = in_child(killed)
        first = _content(place)
        # Another process must be able to continue.
        second = in_child(functools.partial(write_everything, place))
        snapshots.append(
            first | {"killed": os.WIFSIGNALED(status), "again": second, "after": _content(place)}
        )
        if not os.WIFSIGNALED(status):
            snapshots[-1]["status"] = status
            break
    print(json.dumps(snapshots))


def full_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def packing(folder: Path) -> None:
    """For each change while runs are packed, let a process die; for every third, fill the disk.

    Five runs are packed two by two, then the sixth together with the pack of one run, then a run is
    taken out of its pack. Prints what is left after each.
    """
    whole = study(2, 3)
    template = folder / "template"
    whole.open(StudyFolder(template))
    store = Store(StudyFolder(template).runs)
    for run in whole.runs[:5]:
        write_result(store, made_up(run))
    shutil.copytree(template, folder / "whole")
    write_result(Store(StudyFolder(folder / "whole").runs), made_up(whole.runs[5]))
    expected = _rows(folder / "whole")

    def pack_all(place: Path) -> None:
        store = Store(StudyFolder(place).runs)
        pack_runs(store.folder, 2)
        write_result(store, made_up(whole.runs[5]))
        pack_runs(store.folder, 2)
        store.set_aside(whole.runs[2].identity)

    def interrupted(count: int, place: Path, act: Callable[[], None]) -> None:
        """Exit with 5 after an error of one line, with 6 if the error was of no account."""
        happened = False

        def note() -> None:
            nonlocal happened
            happened = True
            act()

        before_change(count, place, note)
        try:
            pack_all(place)
        except StorageError:
            os._exit(5)
        os._exit(6 if happened else 0)

    states = []
    for act, step in ((die, 1), (full_disk, 3)):
        status = 1
        count = 0
        while status:
            place = folder / f"{act.__name__}{count}"
            shutil.copytree(template, place)
            status = in_child(functools.partial(interrupted, count, place, act))
            state: dict[str, Any] = {"act": act.__name__, "ended": status}
            runs = StudyFolder(place).runs
            for when in ("", " after"):
                rows = _rows(place)
                state |= {
                    f"wrong{when}": [run for run, row in rows.items() if row != expected[run]],
                    f"missing{when}": sorted(set(expected) - set(rows)),
                    f"broken{when}": [*read_outcomes(runs).broken],
                }
                # Another process must be able to continue.
                state[f"again{when}"] = in_child(functools.partial(pack_runs, runs, 2))
            states.append(state | {"left": [name for name in os.listdir(runs) if name[0] != "."]})
            shutil.rmtree(place)
            count += step
    print(json.dumps({"runs": [run.identity for run in whole.runs], "states": states}))


def _rows(place: Path) -> dict[str, str]:
    """Return the rows and curves of all readable runs as text."""
    store = Store(StudyFolder(place).runs)
    outcomes = read_outcomes(store.folder, form=True)
    return {
        name: f"{row}{curve_frame(store.read(name).curves).to_dict()}"
        for name, row in outcomes.rows.items()
    }


def _content(place: Path) -> dict[str, Any]:
    """Return what a reader sees: how many runs are planned, finished and unreadable."""
    space = StudyFolder(place)
    planned = len(space.read()[0].runs) if space.exists() else 0
    outcomes = read_outcomes(space.runs)
    store = Store(space.runs)
    readable = sum(
        store.read(run.identity).curves is not None
        for run in study(2, 2).runs
        if run.identity in outcomes.rows
    )
    content = {
        "planned": planned,
        "finished": len(outcomes.rows),
        "readable": readable,
        "broken": len(outcomes.broken),
    }
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
    children: dict[int, bool] = {}  # True for those that train
    kills = ends = 0
    while time.monotonic() - begun < 60:
        while len(children) < 4:
            trains = rng.random() < 0.7
            child = os.fork()
            if child == 0:
                if not trains:
                    pack_runs(space.runs, 4)
                    os._exit(0)
                done = run_plan(space, share=(rng.randrange(10), 10), beat=0.05, stale=0.5)
                os._exit(0 if done else 3)
            children[child] = trains
        time.sleep(rng.uniform(0.0, 0.08))
        if kills < 25:
            victim = rng.choice(sorted(children))
            os.kill(victim, signal.SIGKILL)
            kills += 1
        for child in sorted(children):
            gone, status = os.waitpid(child, os.WNOHANG)
            if gone:
                trained = children.pop(child)
                if os.WIFEXITED(status):
                    assert os.WEXITSTATUS(status) == 0, status
                    ends += trained
        if ends >= 4:
            break
    for child in children:
        os.waitpid(child, 0)
    pack_runs(space.runs, 10)
    print(json.dumps({"kills": kills, "ends": ends}))


if __name__ == "__main__":
    # All runs share a valid program. These functions would start JAX, and take a second each time.
    plan.groups_of = lambda runs: [list(runs)] if runs else []
    plan.check_config = lambda config: None
    mode = sys.argv[1]
    where = Path(sys.argv[2])
    if mode == "points":
        points(where)
    elif mode == "packing":
        packing(where)
    else:
        crowd(where, int(sys.argv[3]))
