"""A group of runs on disk, whole: a line with a checksum, then an `.npz` file of arrays and text. Reading it executes nothing,
and makes no array before the file is known to hold it. The checkpoint before the last is kept beside it, should the last be
damaged."""

import hashlib
import io
import itertools
import json
import math
import os
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from .._errors import InputError
from .._files import as_storage_error, atomic_write, read_regular
from .._json import parse_json
from ._config import SEMANTICS, Result, Run
from ._program import Slot
from ._scheduler import DeviceStack, Scheduler, Tracked, one_of

_FIRST_LINE = b"emergo checkpoint "
_KINDS = "biuf"  # of arrays: truth values, whole numbers, others; never objects


class CheckpointError(InputError):
    """A checkpoint that cannot be read."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: not a checkpoint that can be read ({why}); remove it to begin anew")
        self.path, self.why = path, why


def previous(path: Path) -> Path:
    """Where the checkpoint before the last is."""
    return path.with_name(f"{path.stem}.previous.npz")


def checkpoints_in(folder: Path, prefix: str) -> Iterator[Path]:
    """The checkpoints of a program in a folder, each before the one that came before it."""
    yield from sorted(folder.glob(f"{prefix}-*.npz"), key=lambda path: (path.name.split(".")[0], len(path.name)))


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
    meta["stacks"] = [[tracked and _as_json(tracked) for tracked in stack.tracked] for stack in scheduler.stacks]
    meta["ended"] = [[result.run.identity, result.failed_step, result.provenance["device"]] for result in results]
    arrays["meta"] = np.frombuffer(json.dumps(meta, allow_nan=False).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    content = buffer.getvalue()
    with as_storage_error(path):
        path.parent.mkdir(exist_ok=True)
        if os.path.lexists(path):
            os.replace(path, previous(path))
    atomic_write(path, _FIRST_LINE + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def _as_json(tracked: Tracked) -> dict[str, str | float | None]:
    """A run in training. One that has failed, whose evaluation is still to come, has no sum of losses."""
    total = tracked.total if math.isfinite(tracked.total) else None
    return {"run": tracked.run.identity, "total": total, "at": tracked.at}


def load_checkpoint(path: Path, scheduler: Scheduler) -> list[Result] | None:
    """Brings a scheduler that has not begun to where the saved one was; returns those of its runs that had ended by then. None
    if nothing was saved, or if it does not fit: every run of the scheduler must be in it, and those that were waiting or in
    training must still be wanted. Runs that had ended need not be: they may be in a store by now."""
    if not os.path.lexists(path):
        return None
    try:
        saved = _read(path, scheduler)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, zipfile.BadZipFile, EOFError) as error:
        raise CheckpointError(path, " ".join(str(error).split()) or type(error).__name__) from None
    return None if saved is None else _restored(saved, scheduler)


class _Saved(NamedTuple):
    """What a checkpoint holds, held against the scheduler that goes on from it."""

    sizes: dict[str, int]
    queue: list[Run]
    stacks: list[tuple[Slot, list[Tracked | None]]]
    ended: list[tuple[Run, dict[str, np.ndarray], int | None, str]]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint whose checksum is right: views of its bytes, so that none is larger than the file."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    line, _, content = read_regular(path, memory // 2).partition(b"\n")
    if line != _FIRST_LINE + hashlib.sha256(content).hexdigest().encode():
        raise ValueError("its checksum is not that of its content: it was damaged or changed")
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        for entry in file.infolist():
            plain = entry.compress_type == zipfile.ZIP_STORED and entry.filename.endswith(".npy")
            if not plain or entry.file_size > len(content):
                raise ValueError(f"{entry.filename!r:.60} is not a plain array")
            data = file.read(entry)
            stream = io.BytesIO(data)
            if np.lib.format.read_magic(stream) != (1, 0):
                raise ValueError(f"{entry.filename!r:.60} is not an array of the first format")
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
            count = int(np.prod([int(size) for size in shape], dtype=object))
            if dtype.kind not in _KINDS or count * dtype.itemsize != len(data) - stream.tell():
                raise ValueError(f"{entry.filename!r:.60} is not as large as it says")
            flat = np.frombuffer(data, dtype, count, stream.tell())
            arrays[entry.filename.removesuffix(".npy")] = flat.reshape(shape, order="F" if fortran else "C")
    return arrays


def _read(path: Path, scheduler: Scheduler) -> _Saved | None:
    """None for a checkpoint of other runs."""
    arrays = read_arrays(path)
    meta = parse_json(arrays["meta"].tobytes())

    def under(prefix: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(f"{prefix}/"): value for name, value in arrays.items() if name.startswith(f"{prefix}/")}

    known = {run.identity: run for run in scheduler.runs}
    active = {*meta["queue"], *(entry["run"] for stack in meta["stacks"] for entry in stack if entry)}
    ended = {identity for identity, _, _ in meta["ended"]}
    fits = active <= set(known) <= active | ended
    if meta["semantics"] != SEMANTICS or not fits:
        return None
    sizes = {str(name): int(size) for name, size in meta["sizes"].items()}
    if set(sizes) != set(scheduler.sizes) or any(sizes[name] < size for name, size in scheduler.sizes.items()):
        raise ValueError("its sizes are not those of the program")
    stacks = []
    for i, entries in enumerate(meta["stacks"]):
        slots = _slots(under(f"slots/{i}"), under(f"prepared/{i}"), scheduler.shapes_of(sizes), len(entries))
        tracked: list[Tracked | None] = [None] * len(entries)
        for j, entry in enumerate(entries):
            if entry is not None:
                curves = _curves(under(f"curves/{i}/{j}"))
                steps = [int(step) for step in curves.pop("step")]
                measured = {name: list(rows) for name, rows in curves.items()}
                total = math.nan if entry["total"] is None else float(entry["total"])
                tracked[j] = Tracked(known[entry["run"]], steps, measured, total, int(entry["at"]))
        stacks.append((slots, tracked))
    results = [
        (known[identity], _curves(under(f"ended/{i}")), None if failed is None else int(failed), str(device))
        for i, (identity, failed, device) in enumerate(meta["ended"])
        if identity in known
    ]
    return _Saved(sizes, [known[identity] for identity in meta["queue"]], stacks, results)


def _curves(curves: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    lengths = {len(values) for values in curves.values()}
    if "step" not in curves or len(lengths) > 1 or curves["step"].ndim != 1:
        raise ValueError("a run has curves of different lengths, or none of its steps")
    return curves


def _slots(leaves: Mapping[str, np.ndarray], prepared: Mapping[str, np.ndarray], shapes: Slot, count: int) -> Slot:
    """The slots of a stack, if they have the shapes of the program."""
    expected, structure = jax.tree.flatten(shapes)
    if set(leaves) != {str(k) for k in range(len(expected))}:
        raise ValueError("it has not one array for each of the program's")
    for k, one in enumerate(expected):
        if leaves[str(k)].shape != (count, *one.shape) or leaves[str(k)].dtype != one.dtype:
            raise ValueError(f"array {k} has shape {leaves[str(k)].shape}; the program has {(count, *one.shape)}")
    if any(len(array) != count for array in prepared.values()):
        raise ValueError("what its probes prepared is not there for each run")
    numbers = {name.split("/")[0] for name in prepared}
    named = [{n.partition("/")[2]: a for n, a in prepared.items() if n.startswith(f"{k}/")} for k in range(len(numbers))]
    slots: Slot = jax.tree.unflatten(structure, [leaves[str(k)] for k in range(len(expected))])
    return slots._replace(prepared=tuple(named))


def _restored(saved: _Saved, scheduler: Scheduler) -> list[Result]:
    scheduler.sizes, scheduler.queue = saved.sizes, deque(saved.queue)
    for (slots, tracked), device in zip(saved.stacks, itertools.cycle(scheduler.devices), strict=False):  # may be fewer now
        slots = jax.tree.map(jnp.asarray, slots)
        compiled = scheduler.compile(one_of(slots), device, len(tracked))
        scheduler.stacks.append(DeviceStack(scheduler, device, compiled, jax.device_put(slots, device), tracked))
    return [Result.measured(*ended) for ended in saved.ended]
