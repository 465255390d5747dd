"""What a step must cost, counted in its jaxpr so that a user's model is planned for like ours, and how many runs fit."""

import contextlib
import dataclasses
import functools
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct
from jaxtyping import Array, PyTree

from ._ahead import Once
from ._config import Run
from ._program import Program, Slot, arithmetic, chunk, largest_sizes, products, start, step

if TYPE_CHECKING:
    from jaxlib._jax import Device
    from jaxlib._jax.pytree import PyTreeDef
else:
    Device, PyTreeDef = jax.Device, jax.tree_util.PyTreeDef
Shapes = tuple[ShapeDtypeStruct, ...]
TOGETHER = 128  # runs that are trained at once on a device, at most
_LOWERING = threading.RLock()  # a user's task may train something itself
"""Programs are traced one after another: that is Python, of which one thread runs at a time, so that of several traced at once
all would be ready late. What follows is not, and goes on in parallel."""


def _speed(platform: str) -> tuple[float, float, float]:
    """What to expect of a device: operations of products a second, other numbers written a second, seconds to compile."""
    return (1e11, 1e9, 8.0) if platform == "cpu" else (2e14, 5e11, 6.0)


class Cost(NamedTuple):
    """What one step of one run takes."""

    operations: float  # floating-point, of matrix products: two for a multiply and add
    elements: float  # numbers that all other operations write; the compiler fuses most of them
    bytes: float  # parameters and optimizer state, and a guess of what the backward pass keeps; the compiler's count decides
    products: float  # how many matrix products there are, however small

    def seconds(self, platform: str) -> float:
        """About how long a step of one run takes among others: right within a factor of three or so."""
        operations, elements, _ = _speed(platform)
        return self.operations / operations + self.elements / elements


def _shapes(slot: Slot) -> tuple[PyTreeDef, Shapes]:
    """What a program depends on of a slot, which may be abstract; it can be hashed."""
    leaves, structure = jax.tree.flatten(slot)
    return structure, tuple(ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)


def step_cost(program: Program, slot: Slot) -> Cost:
    """The cost of a step."""
    return _cost(program, *_shapes(slot))


@functools.lru_cache(maxsize=256)
def _cost(program: Program, structure: PyTreeDef, leaves: Shapes) -> Cost:
    with arithmetic(program.precision), products(program.precision):
        jaxpr = jax.make_jaxpr(functools.partial(step, program))(jax.tree.unflatten(structure, leaves))
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
    state = bytes_of(leaves)
    return Cost(operations, elements, 2 * state + 1.5 * kept, count)


def _equations(jaxpr: Any, times: float = 1) -> Iterator[tuple[Any, float]]:
    """The operations of a jaxpr and of those inside it, with how often each runs."""
    for equation in jaxpr.eqns:
        inner = [p for value in equation.params.values() for p in (value if isinstance(value, tuple | list) else (value,))]
        inner = [p for p in inner if hasattr(p, "eqns") or hasattr(p, "jaxpr")]
        if not inner:
            yield equation, times
        length = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for closed in inner:
            yield from _equations(getattr(closed, "jaxpr", closed), times * length)


def memory_of(device: Device, when_free: bool = False) -> float:
    """Bytes that a group of runs may take on a device: most of what JAX has there, or half of the computer's free memory. Of
    the first in 64 parts, so that what little is always in use does not count: the same whenever the device is free."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        limit, used = stats["bytes_limit"], 0 if when_free else stats.get("bytes_in_use", 0)
        return 0.9 * limit * round(64 * (1 - used / limit)) / 64
    return 0.5 * _available_memory()


def bytes_of(arrays: PyTree) -> int:
    """What arrays, or arrays of these shapes, take."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arrays))


def need_memory(bytes: float, budget: float) -> None:
    """Raises a `MemoryError` where one run alone is too much: XLA would wait for ever on a CPU."""
    if bytes > budget:
        raise MemoryError(f"one run needs {bytes / 1e9:.3g} GB or more, and {budget / 1e9:.3g} GB are to be had here")


def _available_memory() -> float:
    """Bytes of the computer's memory that programs can have: also those that hold copies of files, where the system says so."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    with contextlib.suppress(ValueError, OSError):
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return 8e9


def planned_parallel(cost: Cost, eval_every: int, platform: str, budget: float) -> int:
    """How many runs to train at once: what fits and fills a GPU; on a CPU, what keeps a chunk under a few seconds."""
    fits, most = int(budget / cost.bytes), TOGETHER
    if platform == "cpu":
        most = min(32, int(5 * _speed("cpu")[0] / (eval_every * max(cost.operations, 1))))
    return max(1, min(fits, most))


def narrower_widths(n_parallel: int) -> Iterator[int]:
    """The widths that a stack may have later, each about two thirds of the one before."""
    while n_parallel > 1:
        n_parallel = min(n_parallel - 1, math.ceil(2 * n_parallel / 3))
        yield n_parallel


def worth_narrowing(cost: Cost, platform: str, n_parallel: int, width: int, steps: int) -> bool:
    """Whether what idle slots took of `steps` steps, of `n_parallel` slots all but `width`, exceeds what compiling a narrower
    program takes: a run that has lasted this long may well last as long again. By a count and not by the clock: the same each
    time."""
    rate, _, compile_seconds = _speed(platform)
    return (n_parallel - width) * steps * cost.operations / rate > compile_seconds


def worth_tuning(cost: Cost, platform: str, runs: Sequence[Run]) -> bool:
    """Whether these runs may take so long that a GPU's compiler should search for the best kernels, which takes half a minute
    more. In a wide stack that saves a twentieth of the time at most, and runs took about a third of the steps that they may. A
    stack of few or small runs takes 10 microseconds per product, whatever its size, and up to twice that without the search."""
    wide = sum(run.config.steps for run in runs) * cost.operations / _speed(platform)[0]
    narrow = max(run.config.steps for run in runs) * cost.products * 1e-5
    return platform != "cpu" and (wide > 1500 or narrow > 100)


class Compiled(NamedTuple):
    """A compiled chunk for stacks of one width."""

    run: Callable[[Slot, Array, Array], tuple[Slot, dict[str, Array]]]
    n_parallel: int
    bytes: int  # what the compiler needs for it: arguments, results and temporary buffers


def compile_chunk(
    program: Program, slot: Slot, n_parallel: int, device: Device, budget: float = math.inf, tuned: bool = False
) -> Compiled:
    """Compiles for `n_parallel` runs like `slot`, or for half as many as often as it takes to stay within `budget` bytes."""
    compiled = _compile(program, *_shapes(slot), n_parallel, device, tuned)
    if compiled.bytes <= budget or n_parallel == 1:
        return compiled
    return compile_chunk(program, slot, n_parallel // 2, device, budget, tuned)


@Once
def _compile(program: Program, structure: PyTreeDef, leaves: Shapes, n_parallel: int, device: Device, tuned: bool) -> Compiled:
    abstract = functools.partial(ShapeDtypeStruct, sharding=jax.sharding.SingleDeviceSharding(device))
    stack = jax.tree.unflatten(structure, [abstract((n_parallel, *leaf.shape), leaf.dtype) for leaf in leaves])
    count, due = abstract((), jnp.int32), abstract((n_parallel,), jnp.int32)
    program = dataclasses.replace(program, fused=n_parallel if device.platform == "gpu" else 0)
    with _LOWERING, arithmetic(program.precision), products(program.precision):
        lowered = jax.jit(chunk, static_argnums=0, donate_argnums=1).lower(program, stack, count, due)
    # The search among generated kernels is most of a GPU's compilation. Without it the vendor's are used, and of these the ones
    # that the vendor would choose: nothing is timed, so that this can be done beside training.
    fixed = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_autotune_level": 0}
    compiled = lowered.compile({} if tuned or device.platform == "cpu" else fixed)
    used, total = compiled.memory_analysis(), 0
    if used is not None:
        total = used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes - used.alias_size_in_bytes
    return Compiled(compiled, n_parallel, total)


class GroupPlan(NamedTuple):
    """What to expect of runs that share a program."""

    n_parallel: int
    step_seconds: float  # of one run among others
    compile_seconds: float
    run_bytes: float
    operations: float  # floating-point, of the matrix products of one step of one run


def plan_group(runs: Sequence[Run], platform: str, budget: float | None = None) -> GroupPlan:
    """What training these runs together takes on a platform with so many bytes; None: those of this machine's first device."""
    configs = [run.config for run in runs]
    program, sizes = Program.of(*configs), largest_sizes(configs)
    with arithmetic(program.precision):
        cost = step_cost(program, jax.eval_shape(lambda: start(program, runs[0], sizes)))
    space = memory_of(jax.devices()[0]) if budget is None else budget
    n_parallel = planned_parallel(cost, configs[0].task.eval_every, platform, space)
    return GroupPlan(n_parallel, cost.seconds(platform), _speed(platform)[2], cost.bytes, cost.operations)
