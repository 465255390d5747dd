"""A group of runs on disk, whole: one `.npz` file of arrays and text, replaced by rename. Reading it executes nothing."""

import io
import json
import zipfile
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from .._errors import InputError
from .._files import atomic_write
from ._config import SEMANTICS, Result
from ._program import Slot
from ._scheduler import DeviceStack, Scheduler, Tracked, one_of


class CheckpointError(InputError):
    """A checkpoint that cannot be read."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: not a checkpoint that can be read ({why}); remove it to begin anew")
        self.path = path


def save_checkpoint(path: Path, scheduler: Scheduler, results: Sequence[Result]) -> None:
    """Writes a group as it is between two chunks."""
    arrays: dict[str, np.ndarray] = {}

    def add(prefix: str, named: Mapping[str, ArrayLike]) -> None:
        arrays.update({f"{prefix}/{name}": np.asarray(values) for name, values in named.items()})

    for i, stack in enumerate(scheduler.stacks):
        for j, tracked in enumerate(stack.tracked):
            add(f"curves/{i}/{j}", {} if tracked is None else tracked.curves)
        add(f"slots/{i}", {str(k): leaf for k, leaf in enumerate(jax.tree.leaves(stack.slots._replace(prepared=())))})
        for k, prepared in enumerate(stack.slots.prepared):
            add(f"prepared/{i}/{k}", prepared)
    for i, result in enumerate(results):
        add(f"ended/{i}", result.curves or {})
    meta = {"semantics": SEMANTICS, "queue": [run.identity for run in scheduler.queue], "sizes": scheduler.sizes}
    stacks = [stack.tracked for stack in scheduler.stacks]
    meta["stacks"] = [[t and {"run": t.run.identity, "total": t.total, "at": t.at} for t in tracked] for tracked in stacks]
    meta["ended"] = [[result.run.identity, result.failed_step, result.provenance["device"]] for result in results]
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, buffer.getvalue())


def load_checkpoint(path: Path, scheduler: Scheduler) -> list[Result] | None:
    """Brings a scheduler that has not begun to where the saved one was; returns those of its runs that had ended by then. None
    if nothing was saved, or if it does not fit: every run of the scheduler must be in it, and those that were waiting or in
    training must still be wanted. Runs that had ended need not be: they may be in a store by now."""
    if not path.exists():
        return None
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return _restored(json.loads(arrays["meta"].tobytes()), arrays, scheduler)
    except (OSError, ValueError, KeyError, TypeError, IndexError, zipfile.BadZipFile, EOFError) as error:
        raise CheckpointError(path, str(error)) from None


def _restored(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], scheduler: Scheduler) -> list[Result] | None:
    def under(prefix: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(f"{prefix}/"): value for name, value in arrays.items() if name.startswith(f"{prefix}/")}

    known, devices = {run.identity: run for run in scheduler.runs}, scheduler.devices
    active = {*meta["queue"], *(entry["run"] for stack in meta["stacks"] for entry in stack if entry)}
    ended = {identity for identity, _, _ in meta["ended"]}
    if meta["semantics"] != SEMANTICS or not active <= set(known) <= active | ended or len(meta["stacks"]) > len(devices):
        return None
    scheduler.sizes = {str(name): int(size) for name, size in meta["sizes"].items()}
    scheduler.queue = deque(known[identity] for identity in meta["queue"])
    structure = jax.tree.structure(scheduler.shapes)
    for i, (entries, device) in enumerate(zip(meta["stacks"], devices, strict=False)):
        leaves = [jnp.asarray(arrays[f"slots/{i}/{k}"]) for k in range(structure.num_leaves)]
        slots: Slot = jax.tree.unflatten(structure, leaves)
        count = len({name.split("/")[0] for name in under(f"prepared/{i}")})
        slots = slots._replace(prepared=tuple(jax.tree.map(jnp.asarray, under(f"prepared/{i}/{k}")) for k in range(count)))
        tracked: list[Tracked | None] = [None] * len(entries)
        for j, entry in enumerate(entries):
            if entry is not None:
                curves = {name: list(rows) for name, rows in under(f"curves/{i}/{j}").items()}
                steps = [int(step) for step in curves.pop("step")]
                tracked[j] = Tracked(known[entry["run"]], steps, curves, entry["total"], entry["at"])
        compiled = scheduler.compile(one_of(slots), device, len(entries))
        scheduler.stacks.append(DeviceStack(scheduler, device, compiled, jax.device_put(slots, device), tracked))
    return [
        Result.measured(known[identity], under(f"ended/{i}"), failed_step, device)
        for i, (identity, failed_step, device) in enumerate(meta["ended"])
        if identity in known
    ]
