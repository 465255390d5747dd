"""Estimate the cost of a step, choose how many runs to train at once, and compile a program.

Costs are counted in the jaxpr of a step, so that they also hold for models and tasks of users.
"""

import contextlib
import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct
from jaxtyping import Array, PyTree

from ._ahead import once
from ._config import Run
from ._program import Program, Slot, arithmetic, chunk, products, step

if TYPE_CHECKING:
    from jaxlib._jax import Device
else:
    Device = jax.Device
Shapes = tuple[ShapeDtypeStruct, ...]
TOGETHER = 128
"""Largest number of runs that are trained at once on a device."""
_LOWERING = threading.RLock()  # reentrant, because the task of a user may train something itself
"""Programs are traced one after another. Tracing is Python, which runs one thread at a time, so
tracing several at once would only delay the first of them. XLA then compiles in parallel."""


class _Speed(NamedTuple):
    """Rough speed of a device."""

    operations: float  # floating-point operations of matrix products per second
    elements: float  # other numbers written per second
    compile_seconds: float


def speed_of(platform: str) -> _Speed:
    return _Speed(1e11, 3e9, 8.0) if platform == "cpu" else _Speed(2e14, 5e11, 6.0)


class Cost(NamedTuple):
    """Estimated cost of one step of one run."""

    operations: float  # floating-point, of matrix products: two per multiplication and addition
    elements: float  # numbers written by all other operations, most of which are fused
    bytes: float  # parameters, optimizer state and a guess of what the backward pass keeps
    products: float  # number of matrix products of any size

    def seconds(self, platform: str) -> float:
        """Return the seconds per step of a run in a large stack, within a factor of about two."""
        speed = speed_of(platform)
        return self.operations / speed.operations + self.elements / speed.elements

    def compile_seconds(self, platform: str) -> float:
        """Return the seconds to compile and check a program, which grow with its products."""
        return (
            2.0 + 0.18 * self.products if platform == "cpu" else speed_of(platform).compile_seconds
        )


def _shapes(slot: Slot) -> tuple[Any, Shapes]:
    """Return the hashable structure and shapes of a slot, which may be abstract."""
    leaves, structure = jax.tree.flatten(slot)
    return structure, tuple(ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)


def step_cost(program: Program, slot: Slot) -> Cost:
    """Estimate the cost of a step."""
    return _cost(program, *_shapes(slot))


@functools.lru_cache(maxsize=256)
def _cost(program: Program, structure: Any, leaves: Shapes) -> Cost:
    slot = jax.tree.unflatten(structure, leaves)
    with arithmetic(program.precision), products(program.precision):
        jaxpr = jax.make_jaxpr(functools.partial(step, program))(slot)
    operations = elements = kept = count = 0.0
    for equation, times in _equations(jaxpr.jaxpr):
        sizes = [math.prod(v.aval.shape) for v in equation.outvars]
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            depth = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            operations += times * 2 * sizes[0] * depth
            count += times
            kept += sizes[0] * equation.outvars[0].aval.dtype.itemsize
        else:
            elements += times * sum(sizes)
    own = bytes_of(slot._replace(shared=None))
    return Cost(operations, elements, 2 * own + 1.5 * kept, count)


def _equations(jaxpr: Any, times: float = 1) -> Iterator[tuple[Any, float]]:
    """Yield the operations of a jaxpr and its inner jaxprs, and how often each runs."""
    for equation in jaxpr.eqns:
        inner = []
        for value in equation.params.values():
            values = value if isinstance(value, tuple | list) else (value,)
            inner += [v for v in values if hasattr(v, "eqns") or hasattr(v, "jaxpr")]
        if not inner:
            yield equation, times
        length = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for closed in inner:
            yield from _equations(getattr(closed, "jaxpr", closed), times * length)


# Memory.


def memory_of(device: Device, when_free: bool = False) -> float:
    """Return the bytes that a group of runs may take on a device.

    This is most of JAX's share of a GPU, or half of the available memory of the computer. The share
    is rounded to 1/64, so that the few bytes that are always in use do not change it.
    """
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        limit = stats["bytes_limit"]
        used = 0 if when_free else stats.get("bytes_in_use", 0)
        return 0.9 * limit * round(64 * (1 - used / limit)) / 64
    return 0.5 * _available_memory()


def bytes_of(arrays: PyTree) -> int:
    """Return the size of arrays, which may be abstract."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arrays))


def need_memory(bytes: float, budget: float) -> None:
    """Raise a `MemoryError` if a single run exceeds the budget; on a CPU, XLA would hang."""
    if bytes > budget:
        raise MemoryError(
            f"one run needs {bytes / 1e9:.3g} GB or more, and {budget / 1e9:.3g} GB are available"
        )


def _available_memory() -> float:
    """Return the available memory in bytes, including file caches; 8 GB if it is unknown."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    return 8e9


# Choices that follow from the cost. They use counts rather than measured times, so that they are
# the same in every call.


def planned_parallel(cost: Cost, eval_every: int, platform: str, budget: float) -> int:
    """Choose how many runs to train at once.

    On a GPU, as many as fit, up to `TOGETHER`. On a CPU, few enough that a chunk takes at most a
    few seconds.
    """
    most = TOGETHER
    if platform == "cpu":
        chunk_operations = eval_every * max(cost.operations, 1)
        most = min(32, int(5 * speed_of("cpu").operations / chunk_operations))
    return max(1, min(int(budget / cost.bytes), most))


def narrower_widths(n_parallel: int) -> Iterator[int]:
    """Yield the widths to which a stack may shrink, each about two thirds of the previous one."""
    while n_parallel > 1:
        n_parallel = min(n_parallel - 1, math.ceil(2 * n_parallel / 3))
        yield n_parallel


def worth_narrowing(cost: Cost, platform: str, n_parallel: int, width: int, steps: int) -> bool:
    """Return True if a narrower program saves more time than it takes to compile.

    A run that has lasted for `steps` steps may last as long again. In these steps,
    `n_parallel - width` idle slots would be computed for nothing.
    """
    speed = speed_of(platform)
    saved = (n_parallel - width) * steps * cost.operations / speed.operations
    return saved > speed.compile_seconds


def worth_tuning(cost: Cost, platform: str, runs: Sequence[Run]) -> bool:
    """Return True if these runs may take so long that XLA should autotune, for half a minute more.

    In a wide stack autotuning saves at most a twentieth of the time, and runs take about a third of
    the steps that they may take. A stack of few or small runs takes 10 microseconds per matrix
    product of any size, and up to twice as long without autotuning.
    """
    wide = sum(run.config.steps for run in runs) * cost.operations / speed_of(platform).operations
    narrow = max(run.config.steps for run in runs) * cost.products * 1e-5
    return platform != "cpu" and (wide > 1500 or narrow > 100)


# Compilation.


# Autotuning generated kernels is most of the compile time on a GPU. Without it XLA uses the
# vendor's kernels with the vendor's heuristics. Nothing is timed then, so a program can be compiled
# while the device trains.
UNTUNED = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_autotune_level": 0}
# By default XLA hands products and sums on a CPU to the library YNNPACK. With jaxlib 0.10.1, some
# of its sums end the process with "statically false", for example the gradient of a bias over 256
# sequences in a stack of three runs. So only products use it.
ON_CPU: dict[str, Any] = {
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"
}


def compile_with(lowered: jax.stages.Lowered, options: dict[str, Any]) -> jax.stages.Compiled:
    """Compile with these options of XLA, or without them if this version of JAX rejects one."""
    try:
        return lowered.compile(options)
    except jax.errors.JaxRuntimeError as error:
        if not options or "INVALID_ARGUMENT" not in str(error):
            raise
        return lowered.compile()


class Compiled(NamedTuple):
    """A compiled chunk for stacks of one width."""

    run: Callable[[Slot, Array, Array, PyTree], tuple[Slot, dict[str, Array]]]
    n_parallel: int
    bytes: int  # memory by the compiler's count: arguments, results and temporary buffers


def compile_chunk(
    program: Program,
    slot: Slot,
    n_parallel: int,
    device: Device,
    budget: float = math.inf,
    tuned: bool = False,
) -> Compiled:
    """Compile `chunk` for a stack of runs like `slot`.

    **Arguments:**

    - `slot`: a run, or its shapes; its `shared` data are not stacked.
    - `n_parallel`: the width of the stack. It is halved until the program fits into the budget.
    - `budget`: bytes on the device.
    - `tuned`: whether XLA may autotune. This takes time, and needs a device that is idle.
    """
    compiled = _compile(program, *_shapes(slot), n_parallel, device, tuned)
    if compiled.bytes <= budget or n_parallel == 1:
        return compiled
    return compile_chunk(program, slot, n_parallel // 2, device, budget, tuned)


def stack_size_on(device: Device, n_parallel: int) -> int:
    """Return the number of runs that kernels are tuned for; 0 on devices without our kernels."""
    return n_parallel if device.platform == "gpu" else 0


@once
def _compile(
    program: Program,
    structure: Any,
    leaves: Shapes,
    n_parallel: int,
    device: Device,
    tuned: bool,
) -> Compiled:
    sharding = jax.sharding.SingleDeviceSharding(device)
    abstract = functools.partial(ShapeDtypeStruct, sharding=sharding)
    slot: Slot = jax.tree.unflatten(structure, leaves)
    shared = jax.tree.map(lambda leaf: abstract(leaf.shape, leaf.dtype), slot.shared)
    stack = jax.tree.map(
        lambda leaf: abstract((n_parallel, *leaf.shape), leaf.dtype), slot._replace(shared=None)
    )
    count = abstract((), jnp.int32)
    due = abstract((n_parallel,), jnp.int32)
    program = dataclasses.replace(program, stack_size=stack_size_on(device, n_parallel))
    with _LOWERING, arithmetic(program.precision), products(program.precision):
        jitted = jax.jit(chunk, static_argnums=0, donate_argnums=1)
        lowered = jitted.lower(program, stack, count, due, shared)
    options = ON_CPU if device.platform == "cpu" else {} if tuned else UNTUNED
    compiled = compile_with(lowered, options)
    used = compiled.memory_analysis()
    total = 0
    if used is not None:
        total = used.argument_size_in_bytes + used.output_size_in_bytes
        total += used.temp_size_in_bytes - used.alias_size_in_bytes
    return Compiled(compiled, n_parallel, total)
