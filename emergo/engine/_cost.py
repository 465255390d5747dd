"""What a step must cost: operations, bytes, and how many runs fit into a device at once.

Operations are counted in the jaxpr of a step, so that a user's model is planned for like ours.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from ._config import Run
from ._program import Program, Slot, arithmetic, chunk, largest_sizes, products, shared_program, start, step

if TYPE_CHECKING:
    from jaxlib._jax import Device
else:
    Device = jax.Device

# What to expect of a device, for plans: operations of products a second, other elements written a second, seconds to compile.
_RATE = {"cpu": 1e11, "gpu": 2e14}
_ELEMENTS = {"cpu": 1e9, "gpu": 5e11}
_COMPILE_SECONDS = {"cpu": 8.0, "gpu": 10.0}


def _kind(platform: str) -> str:
    return platform if platform in _RATE else "gpu"


def next_evaluation(step: int, eval_every: int = 25) -> int:
    """The step of a run's next evaluation: `eval_every` later, or 2% later in whole multiples of it where that is more.

    It depends on the run's own step alone, so that a run is evaluated at the same steps alone and among others.
    """
    return step + max(eval_every, step // 50 // eval_every * eval_every)


class Cost(NamedTuple):
    """What one step of one run takes."""

    operations: float
    """Floating-point operations of matrix products: two for a multiply and add."""
    elements: float
    """Numbers that all other operations write; the compiler fuses most of them."""
    bytes: float
    """Memory: parameters and optimizer state, and a guess of what the backward pass keeps. The compiler's own count decides."""

    def seconds(self, platform: str) -> float:
        """About how long a step of one run takes among others: right within a factor of three or so."""
        kind = _kind(platform)
        return self.operations / _RATE[kind] + self.elements / _ELEMENTS[kind]


def step_cost(program: Program, slot: Slot) -> Cost:
    """The cost of a step; `slot` may be abstract."""
    leaves, structure = jax.tree.flatten(slot)
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    return _cost(program, structure, shapes)


@functools.lru_cache(maxsize=256)
def _cost(program: Program, structure: Any, shapes: tuple[Any, ...]) -> Cost:
    slot = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes])
    with arithmetic(program.precision), products(program.precision):
        jaxpr = jax.make_jaxpr(functools.partial(step, program))(slot)
    operations = elements = kept = 0.0
    for equation, times in _equations(jaxpr.jaxpr):
        sizes = [math.prod(v.aval.shape) for v in equation.outvars]
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            depth = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            operations += times * 2 * sizes[0] * depth
            kept += sizes[0] * equation.outvars[0].aval.dtype.itemsize
        else:
            elements += times * sum(sizes)
    state = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(slot))
    return Cost(operations, elements, 2 * state + 1.5 * kept)


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


def memory_of(device: Device) -> float:
    """Bytes that a group of runs may take on a device: most of what JAX has there, or half of the computer's free memory."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return 0.9 * (stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    try:
        return 0.5 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 4e9


def compile_seconds(platform: str) -> float:
    """About how long a program takes to compile."""
    return _COMPILE_SECONDS[_kind(platform)]


def planned_parallel(cost: Cost, eval_every: int, platform: str, budget: float) -> int:
    """How many runs to train at once: what fits and fills a GPU; on a CPU, what keeps a chunk under a few seconds."""
    fits = int(budget / cost.bytes)
    if platform != "cpu":
        return max(1, min(fits, 128))
    return max(1, min(fits, 32, int(5 * _RATE["cpu"] / (eval_every * max(cost.operations, 1)))))


def worth_narrowing(cost: Cost, platform: str, n_parallel: int, steps: int) -> bool:
    """Whether half the time that `n_parallel` runs took for `steps` steps exceeds what compiling a narrower program takes.

    A run that has lasted this long may well last as long again. A count of operations and not the clock decides, so that the
    same runs are always grouped the same way.
    """
    return n_parallel * steps * cost.operations / _RATE[_kind(platform)] / 2 > compile_seconds(platform)


def worth_tuning(cost: Cost, platform: str, runs: Sequence[Run]) -> bool:
    """Whether these runs may take so long that a GPU's compiler should search for the best kernels.

    That takes three times as long and saves a tenth of the time; runs took about a third of the steps that they may.
    """
    most = sum(run.config.steps for run in runs) * cost.operations / _RATE[_kind(platform)]
    return platform != "cpu" and most > 60 * _COMPILE_SECONDS["gpu"]


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled chunk for stacks of one width."""

    run: Any
    n_parallel: int
    bytes: int
    """What the compiler needs for it: arguments, results and temporary buffers."""


def compile_chunk(
    program: Program, slot: Slot, n_parallel: int, device: Device, budget: float, tuned: bool = False
) -> Compiled:
    """Compiles for `n_parallel` runs like `slot`, or for half as many as often as it takes to stay within `budget` bytes.

    The same is compiled once in a process.
    """
    leaves, structure = jax.tree.flatten(slot)
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    while True:
        compiled = _compile(program, structure, shapes, n_parallel, device, tuned)
        if compiled.bytes <= budget or n_parallel == 1:
            return compiled
        n_parallel = n_parallel // 2


@functools.lru_cache(maxsize=64)
def _compile(
    program: Program, structure: Any, shapes: tuple[Any, ...], n_parallel: int, device: Device, tuned: bool
) -> Compiled:
    place = jax.sharding.SingleDeviceSharding(device)

    def abstract(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

    stack = jax.tree.unflatten(structure, [abstract((n_parallel, *shape), dtype) for shape, dtype in shapes])
    count, due = abstract((), jnp.int32), abstract((n_parallel,), jnp.int32)
    program = dataclasses.replace(program, fused=device.platform == "gpu")
    with products(program.precision):
        lowered = jax.jit(chunk, static_argnums=0, donate_argnums=1).lower(program, stack, count, due)
    # The search among generated kernels is most of a GPU's compilation; without it the vendor's are used, about a tenth slower.
    compiled = lowered.compile({} if tuned or device.platform == "cpu" else {"xla_gpu_enable_triton_gemm": False})
    used, total = compiled.memory_analysis(), 0
    if used is not None:
        total = used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes - used.alias_size_in_bytes
    return Compiled(compiled, n_parallel, total)


class GroupPlan(NamedTuple):
    """What to expect of runs that share a program."""

    n_parallel: int
    step_seconds: float
    """Of one run among others."""
    compile_seconds: float
    run_bytes: float


def plan_group(runs: Sequence[Run], platform: str, budget: float | None = None) -> GroupPlan:
    """What training these runs together takes on a platform with so many bytes; None: those of this machine's first device."""
    configs = [run.config for run in runs]
    program, sizes = shared_program(configs), largest_sizes(configs)
    with arithmetic(program.precision):
        cost = step_cost(program, jax.eval_shape(lambda: start(program, runs[0], sizes)))
    space = memory_of(jax.devices()[0]) if budget is None else budget
    n_parallel = planned_parallel(cost, configs[0].task.eval_every, platform, space)
    return GroupPlan(n_parallel, cost.seconds(platform), compile_seconds(platform), cost.bytes)
