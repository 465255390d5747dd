"""Checkpoints of a group of runs.

A checkpoint is one file: a line with a checksum, then an `.npz` archive. The archive holds the
slots of every stack, the curves of every run, and `meta`, a JSON text with everything else. The
previous checkpoint is kept as well, in case the last one is damaged.

Files are read with care, since a shared folder may hold damaged or hostile ones. Reading executes
nothing, and creates no array that is larger than the file. Everything is checked against the
program before any of it is used.
"""

import dataclasses
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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from ..core.errors import InputError
from ..core.files import as_storage_error, atomic_write, half_of_memory, read_regular
from ..core.json import parse_json
from ._config import SEMANTICS, Result, Run
from ._program import Slot
from ._scheduler import Scheduler, Tracked, one_of

_FIRST_LINE = b"emergo checkpoint "
_LARGEST_META = 50_000_000  # bytes
_KINDS = "biuf"  # of arrays: booleans, integers and floats, but never objects
Arrays = dict[str, np.ndarray]


class CheckpointError(InputError):
    """A checkpoint that cannot be read."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: not a readable checkpoint ({why}); remove it to start again")
        self.path = path
        self.why = why


def previous(path: Path) -> Path:
    """Return the path of the checkpoint before the last."""
    return path.with_name(f"{path.stem}.previous.npz")


def checkpoints_in(folder: Path, prefix: str) -> Iterator[Path]:
    """Yield the checkpoints of a program in a folder, each before its previous one."""
    yield from sorted(
        folder.glob(f"{prefix}-*.npz"), key=lambda path: (path.name.split(".")[0], len(path.name))
    )


def save_checkpoint(path: Path, scheduler: Scheduler, results: Sequence[Result]) -> None:
    """Write the state of a group between two chunks.

    **Arguments:**

    - `results`: the runs of the group that have ended.
    """
    arrays: Arrays = {}

    def add(prefix: str, named: Mapping[str, ArrayLike]) -> None:
        arrays.update({f"{prefix}/{name}": np.asarray(values) for name, values in named.items()})

    for i, stack in enumerate(scheduler.stacks):
        for j, tracked in enumerate(stack.tracked):
            add(f"curves/{i}/{j}", {} if tracked is None else tracked.curves)
        leaves = jax.tree.leaves(stack.slots._replace(prepared=()))
        add(f"slots/{i}", {str(k): leaf for k, leaf in enumerate(leaves)})
        for k, prepared in enumerate(stack.slots.prepared):
            add(f"prepared/{i}/{k}", prepared)
    for i, result in enumerate(results):
        add(f"ended/{i}", result.curves or {})
    meta = {
        "semantics": SEMANTICS,
        "queue": [run.identity for run in scheduler.queue],
        "sizes": scheduler.sizes,
        "injected": scheduler.program.injected,
        "stacks": [
            [
                # The sum of losses is null if the run has failed.
                t
                and {
                    "run": t.run.identity,
                    "total": t.total if math.isfinite(t.total) else None,
                    "at": t.at,
                }
                for t in stack.tracked
            ]
            for stack in scheduler.stacks
        ],
        "ended": [
            [result.run.identity, result.failed_step, result.provenance["device"]]
            for result in results
        ],
    }
    arrays["meta"] = np.frombuffer(json.dumps(meta, allow_nan=False).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    content = buffer.getvalue()
    with as_storage_error(path):
        path.parent.mkdir(exist_ok=True)
        if os.path.lexists(path):
            os.replace(path, previous(path))
    atomic_write(path, _first_line(content) + b"\n" + content)


def _first_line(content: bytes) -> bytes:
    return _FIRST_LINE + hashlib.sha256(content).hexdigest().encode()


def load_checkpoint(path: Path, scheduler: Scheduler) -> list[Result] | None:
    """Bring a fresh scheduler to the state of a checkpoint.

    The checkpoint fits if it contains every run of the scheduler, and if the scheduler wants every
    run of the checkpoint that has not ended. Ended runs may be missing from the scheduler, because
    a store may hold their results.

    **Returns:** the runs of the scheduler that had ended; None if the checkpoint does not fit, or
    does not exist.
    """
    if not os.path.lexists(path):
        return None
    try:
        arrays = read_arrays(path)
        meta = parse_json(arrays["meta"].tobytes())
        known = {run.identity: run for run in scheduler.runs}
        if not _fits(meta, known):
            return None
        sizes = {name: int(size) for name, size in meta["sizes"].items()}
        if sizes.keys() != scheduler.sizes.keys() or any(
            sizes[name] < size for name, size in scheduler.sizes.items()
        ):
            raise ValueError("its sizes are not the sizes of the program")
        scheduler.sizes = sizes
        injected = tuple(map(str, meta.get("injected", ())))
        if not {*scheduler.program.injected} <= {*injected}:
            raise ValueError("its options of the optimizer are not those of the program")
        scheduler.program = dataclasses.replace(scheduler.program, injected=injected)
        queue = deque(known[identity] for identity in meta["queue"])
        stacks = [
            (_slots(arrays, i, scheduler.shapes, len(entries)), _tracked(arrays, i, entries, known))
            for i, entries in enumerate(meta["stacks"])
        ]
        results = [
            Result.measured(
                known[identity],
                _curves(arrays, f"ended/{i}"),
                None if failed is None else int(failed),
                str(device),
            )
            for i, (identity, failed, device) in enumerate(meta["ended"])
            if identity in known
        ]
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        zipfile.BadZipFile,
        EOFError,
    ) as error:
        raise CheckpointError(path, " ".join(str(error).split()) or type(error).__name__) from None
    scheduler.queue = queue
    # This machine may have fewer devices than the machine that wrote the checkpoint.
    devices = itertools.cycle(scheduler.devices)
    for (slots, tracked), device in zip(stacks, devices, strict=False):
        slots = jax.tree.map(jnp.asarray, slots)
        compiled = scheduler.compile(one_of(slots), device, len(tracked))
        scheduler.stacks.append(scheduler.stack(device, compiled, slots, tracked))
    return results


def _fits(meta: Mapping[str, Any], known: Mapping[str, Run]) -> bool:
    in_training = {entry["run"] for stack in meta["stacks"] for entry in stack if entry}
    wanted = in_training.union(meta["queue"])
    ended = {identity for identity, _, _ in meta["ended"]}
    return meta["semantics"] == SEMANTICS and wanted <= known.keys() <= wanted | ended


def read_arrays(path: Path) -> Arrays:
    """Read the arrays of a checkpoint as views of its bytes, after a check of its checksum."""
    line, _, content = read_regular(path, half_of_memory()).partition(b"\n")
    if line != _first_line(content):
        raise ValueError("its content does not have its checksum: it was damaged or changed")
    arrays: Arrays = {}
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        for entry in file.infolist():
            plain = entry.compress_type == zipfile.ZIP_STORED and entry.filename.endswith(".npy")
            if not plain or entry.file_size > len(content):
                raise ValueError(f"{entry.filename!r:.60} is not a plain array")
            data = file.read(entry)
            arrays[entry.filename.removesuffix(".npy")] = _as_array(entry.filename, data)
    return arrays


def steps_in_checkpoint(path: Path) -> dict[str, int]:
    """Return the steps of the runs in training by identity; nothing for an unreadable file.

    Neither the other arrays nor the checksum are read, so do not train with the answer.
    """
    try:
        with zipfile.ZipFile(path) as file:
            entry = file.getinfo("meta.npy")
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > _LARGEST_META:
                return {}
            meta = parse_json(_as_array(entry.filename, file.read(entry)).tobytes())
        entries = itertools.chain(*meta["stacks"])
        return {str(entry["run"]): int(entry["at"]) for entry in entries if entry}
    except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile, EOFError):
        return {}


def _as_array(name: str, data: bytes) -> np.ndarray:
    """View an `.npy` file as an array, without trusting the shape that it declares."""
    stream = io.BytesIO(data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError(f"{name!r:.60} is not an array of format 1.0")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    count = int(np.prod([int(size) for size in shape], dtype=object))
    if dtype.kind not in _KINDS or count * dtype.itemsize != len(data) - stream.tell():
        raise ValueError(f"{name!r:.60} does not have the size that it declares")
    flat = np.frombuffer(data, dtype, count, stream.tell())
    return flat.reshape(shape, order="F" if fortran else "C")


def _under(arrays: Arrays, prefix: str) -> Arrays:
    """Return the arrays whose names begin with `prefix/`, without it."""
    start = f"{prefix}/"
    return {
        name.removeprefix(start): value for name, value in arrays.items() if name.startswith(start)
    }


def _curves(arrays: Arrays, prefix: str) -> Arrays:
    curves = _under(arrays, prefix)
    lengths = {len(values) for values in curves.values()}
    if "step" not in curves or len(lengths) > 1 or curves["step"].ndim != 1:
        raise ValueError("the curves of a run have different lengths, or no steps")
    return curves


def _tracked(
    arrays: Arrays, index: int, entries: Sequence[Any], known: Mapping[str, Run]
) -> list[Tracked | None]:
    """Restore the runs of a stack."""
    tracked: list[Tracked | None] = [None] * len(entries)
    for j, entry in enumerate(entries):
        if entry is not None:
            curves = _curves(arrays, f"curves/{index}/{j}")
            tracked[j] = Tracked(
                run=known[entry["run"]],
                steps=[int(step) for step in curves.pop("step")],
                measured={name: list(rows) for name, rows in curves.items()},
                total=math.nan if entry["total"] is None else float(entry["total"]),
                at=int(entry["at"]),
            )
    return tracked


def _slots(arrays: Arrays, index: int, shapes: Slot, count: int) -> Slot:
    """Restore the slots of a stack, and check their shapes against the program."""
    leaves = _under(arrays, f"slots/{index}")
    flat, structure = jax.tree.flatten(shapes)
    names = [str(k) for k in range(len(flat))]
    wanted = {name: ((count, *x.shape), x.dtype) for name, x in zip(names, flat, strict=True)}
    if wanted != {name: (x.shape, x.dtype) for name, x in leaves.items()}:
        raise ValueError("its arrays do not have the shapes of the program")
    of_probes = _under(arrays, f"prepared/{index}")
    if any(len(array) != count for array in of_probes.values()):
        raise ValueError("arrays that its probes prepared are missing for some runs")
    probes = {name.split("/")[0] for name in of_probes}
    slots: Slot = jax.tree.unflatten(structure, [leaves[name] for name in names])
    return slots._replace(prepared=tuple(_under(of_probes, str(k)) for k in range(len(probes))))
