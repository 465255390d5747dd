"""A group of runs on disk, whole: one `.npz` file of plain arrays, replaced by rename.

It holds the stacks of all devices, what was seen of every run, the runs that have ended and the order of those that wait.
Reading it back executes nothing: arrays without pickle, and text.
"""

import dataclasses
import json
import math
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
from .._files import spare_name
from ._config import SEMANTICS, Run
from ._cost import worth_tuning
from ._group import Group, History, Place, Pool
from ._shape import Device, Shape, blank


class CheckpointError(InputError):
    """A checkpoint that cannot be read."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: not a checkpoint that can be read ({why}); remove it to begin anew")
        self.path = path


def save_group(path: Path, group: Group, ended: Sequence[History]) -> None:
    arrays: dict[str, np.ndarray] = {}

    def keep(name: str, curves: Mapping[str, Any]) -> None:
        arrays.update({f"{name}/{key}": np.asarray(values) for key, values in curves.items()})

    hull = group.shape.hull
    meta: dict[str, Any] = {"semantics": SEMANTICS, "hull": hull.traits._asdict()}
    meta["queue"] = [run.identity for run in group.queue]
    meta["pools"] = []
    for i, pool in enumerate(group.pools):
        places = []
        for j, place in enumerate(pool.places):
            places.append(None if place is None else {"run": place.run.identity, "total": place.total})
            if place is not None:
                keep(f"seen/{i}/{j}", place.seen)
        leaves = jax.tree.leaves(pool.slots)
        arrays.update({f"slots/{i}/{k}": np.asarray(leaf) for k, leaf in enumerate(leaves)})
        meta["pools"].append(places)
    meta["ended"] = []
    for i, history in enumerate(ended):
        meta["ended"].append([history.run.identity, history.state, history.failed_step, history.device])
        keep(f"ended/{i}", history.curves)
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = spare_name(path)  # two machines may train the same group, with the same process number
    try:
        with part.open("wb") as file:
            np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def load_group(path: Path, runs: Sequence[Run], devices: Sequence[Device]) -> tuple[Group, list[History]] | None:
    """The group as it was saved, and those of the runs that had ended by then.

    None if nothing was saved, or if it does not fit: every one of `runs` must be in it, and those that were waiting or in
    training must still be wanted. Runs that had ended need not be: they may be in a store by now.
    """
    if not path.exists():
        return None
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta = json.loads(arrays["meta"].tobytes())
        active = {*meta["queue"], *(p["run"] for pool in meta["pools"] for p in pool if p)}
        hull = dict(meta["hull"])
        ended_before = {entry[0] for entry in meta["ended"]}
        semantics = meta["semantics"]
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, EOFError) as error:
        raise CheckpointError(path, str(error)) from None
    known = {run.identity: run for run in runs}
    if semantics != SEMANTICS or not active <= set(known) <= active | ended_before or len(meta["pools"]) > len(devices):
        return None
    shape = Shape.of([run.config for run in runs])
    shape = dataclasses.replace(shape, hull=dataclasses.replace(shape.hull, **hull))

    def seen(name: str) -> dict[str, Any]:
        return {key.removeprefix(f"{name}/"): value for key, value in arrays.items() if key.startswith(f"{name}/")}

    group = Group.__new__(Group)
    group.shape, group.queue, group.pools = shape, deque(known[i] for i in meta["queue"]), []
    structure = jax.tree.structure(jax.eval_shape(lambda: blank(shape)))
    for i, (places, device) in enumerate(zip(meta["pools"], devices, strict=False)):
        tuned = worth_tuning(shape, device, runs)
        pool = Pool(shape, device, len(places), tuned, budget=math.inf)  # the width is given
        leaves = [arrays[f"slots/{i}/{k}"] for k in range(structure.num_leaves)]
        slots = jax.device_put(jax.tree.unflatten(structure, [jnp.asarray(x) for x in leaves]), device)
        pool.slots = slots
        for j, place in enumerate(places):
            if place is not None:
                curves = {k: list(v) for k, v in seen(f"seen/{i}/{j}").items()}
                pool.places[j] = Place(known[place["run"]], curves, place["total"], int(slots.step[j]))
        group.pools.append(pool)
    ended = [History(known[e[0]], e[1], e[2], seen(f"ended/{i}"), e[3]) for i, e in enumerate(meta["ended"]) if e[0] in known]
    return group, ended
