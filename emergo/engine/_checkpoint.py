"""A group of runs on disk, whole: one `.npz` file of plain arrays, replaced by rename.

It holds the stacks of all devices, what was measured of every run, the runs that have ended and the order of those that wait.
Reading it back executes nothing: arrays without pickle, and text.
"""

import json
import os
import zipfile
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import InputError
from .._files import temporary_sibling
from ._config import SEMANTICS, Run
from ._cost import Device
from ._program import start
from ._result import Result
from ._scheduler import DeviceStack, Scheduler, Tracked


class CheckpointError(InputError):
    """A checkpoint that cannot be read."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: not a checkpoint that can be read ({why}); remove it to begin anew")
        self.path = path


def save_checkpoint(path: Path, scheduler: Scheduler, results: Sequence[Result]) -> None:
    """Writes a group as it is between two chunks."""
    arrays: dict[str, np.ndarray] = {}

    def add(prefix: str, curves: Mapping[str, Any]) -> None:
        arrays.update({f"{prefix}/{name}": np.asarray(values) for name, values in curves.items()})

    meta: dict[str, Any] = {"semantics": SEMANTICS, "queue": [run.identity for run in scheduler.queue]}
    meta["sizes"] = scheduler.sizes
    meta["stacks"], meta["ended"] = [], []
    for i, stack in enumerate(scheduler.stacks):
        if stack.slots is None:
            continue
        entries = [t and {"run": t.run.identity, "total": t.total, "at": t.at} for t in stack.tracked]
        meta["stacks"].append(entries)
        for j, tracked in enumerate(stack.tracked):
            add(f"curves/{i}/{j}", {} if tracked is None else tracked.curves)
        for k, leaf in enumerate(jax.tree.leaves(stack.slots._replace(prepared=()))):
            arrays[f"slots/{i}/{k}"] = np.asarray(leaf)
        for k, prepared in enumerate(stack.slots.prepared):
            add(f"prepared/{i}/{k}", prepared)
    for i, result in enumerate(results):
        meta["ended"].append([result.run.identity, result.failed_step, result.provenance["device"]])
        add(f"ended/{i}", result.curves or {})
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = temporary_sibling(path)  # two machines may train the same group, with the same process number
    try:
        with part.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def load_checkpoint(
    path: Path, runs: Sequence[Run], devices: Sequence[Device], **options: Any
) -> tuple[Scheduler, list[Result]] | None:
    """The group as it was saved, and those of the runs that had ended by then. `options` are those of the scheduler.

    None if nothing was saved, or if it does not fit: every one of `runs` must be in it, and those that were waiting or in
    training must still be wanted. Runs that had ended need not be: they may be in a store by now.
    """
    if not path.exists():
        return None
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta = json.loads(arrays["meta"].tobytes())
        return _restored(meta, arrays, runs, devices, options)
    except (OSError, ValueError, KeyError, TypeError, IndexError, zipfile.BadZipFile, EOFError) as error:
        raise CheckpointError(path, str(error)) from None


def _under(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(f"{prefix}/"): value for name, value in arrays.items() if name.startswith(f"{prefix}/")}


def _restored(
    meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], runs: Sequence[Run], devices: Sequence[Device], options: Any
) -> tuple[Scheduler, list[Result]] | None:
    known = {run.identity: run for run in runs}
    active = {*meta["queue"], *(entry["run"] for stack in meta["stacks"] for entry in stack if entry)}
    ended = [entry[0] for entry in meta["ended"]]
    if meta["semantics"] != SEMANTICS or not active <= set(known) <= active | set(ended) or len(meta["stacks"]) > len(devices):
        return None
    scheduler = Scheduler(runs, devices, sizes={str(name): int(size) for name, size in meta["sizes"].items()}, **options)
    scheduler.queue = deque(known[identity] for identity in meta["queue"])
    structure = jax.tree.structure(jax.eval_shape(lambda: start(scheduler.program, runs[0], scheduler.sizes)))
    stacks = []
    for i, (entries, device) in enumerate(zip(meta["stacks"], devices, strict=False)):
        leaves = [jnp.asarray(arrays[f"slots/{i}/{k}"]) for k in range(structure.num_leaves)]
        count = len({name.split("/")[2] for name in arrays if name.startswith(f"prepared/{i}/")})
        prepared = tuple(_under(arrays, f"prepared/{i}/{k}") for k in range(count))
        slots = jax.tree.unflatten(structure, leaves)._replace(prepared=jax.tree.map(jnp.asarray, prepared))
        tracked = [
            None
            if entry is None
            else Tracked(
                known[entry["run"]],
                {name: list(values) for name, values in _under(arrays, f"curves/{i}/{j}").items()},
                entry["total"],
                entry["at"],
            )
            for j, entry in enumerate(entries)
        ]
        stack = DeviceStack(scheduler, device, len(entries), budget=float("inf"))  # the width is given
        stack.restore(slots, tracked)
        stacks.append(stack)
    scheduler.stacks = stacks or scheduler.stacks
    results = [
        Result.measured(known[identity], _under(arrays, f"ended/{i}"), failed_step, device)
        for i, (identity, failed_step, device) in enumerate(meta["ended"])
        if identity in known
    ]
    return scheduler, results
